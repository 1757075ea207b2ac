"""A quadratic model of the mean loss with OSCAR, on a working set of features, and its minimum."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from torchtune_smt.core.arrays import Float64, Int64
from torchtune_smt.minimizer import model_kernels as kernels
from torchtune_smt.minimizer import passes_kernels as passes
from torchtune_smt.minimizer.dense_basis import inverse
from torchtune_smt.minimizer.penalty import Penalty
from torchtune_smt.minimizer.stored_pairs import StoredPairs

# A pair has next to no curvature where it adds less than this part of what another one adds, to
# the second derivative by each of its features.
SLIGHT = 1e-6
# What is added to the curvature of sparse features, as part of the largest one, had all features
# values of one size. It is no part of a feature's own, which may have next to none at the moment.
RIDGE = 1e-7
# Sweeps, and accelerated proximal steps, of a round; how many rounds at most.
SWEEPS, STEPS, ROUNDS = 3, 3, 40
# The round from which on Newton steps are taken, too.
LATE = 5
CONJUGATE_STEPS, CONJUGATE_TOLERANCE = 300, 1e-3
# Newton steps are damped at first by this, then less where a whole one was good, and more where
# even the shortest was not.
DAMPING, LESS, MORE = 1e-2, 0.1, 10.0
SHORTER = (1.0, 0.3, 0.1)


class Curvature:
    """H of m sparse and k dense features, and S = H_ss - H_sd H_dd⁻¹ H_ds.

    S is the curvature of the mean loss if dense features always follow to their optimum. It is
    never written down as a whole: H_ss is sparse, and k is small. Second derivatives by two sparse
    features of pairs with next to no curvature, as are most of a hinge with a small μ, are replaced
    by a bound that has one feature at a time; see `passes_kernels.slight`.

    curvatures (float64 [N]): d²ℓ/dz² of each pair.
    chosen (int64 [m]): places in `pairs.sparse_id`.

    As attributes:
    operator, by_column: S plus a ridge, as the kernels take it.
    diagonal (float64 [m]): of S, at least a small part of that of H_ss.
    """

    def __init__(self, pairs: StoredPairs, curvatures: Float64, chosen: Int64) -> None:
        # It takes long to import, and most runs minimise nothing.
        from scipy.sparse import csr_array

        m = chosen.size
        place = np.full(pairs.n_sparse, -1, np.int32)
        place[chosen] = np.arange(m, dtype=np.int32)
        x = pairs.sparse
        row, begin, feature, value = passes.restricted(
            x.begin, x.feature, x.value, curvatures, place
        )
        scale = curvatures[row] / len(pairs)
        dense = pairs.dense[row]
        weighed = value * np.repeat(scale, np.diff(begin))
        cross: Float64 = csr_array((weighed, feature, begin), (scale.size, m)).T @ dense
        self.inverse = inverse((dense.T * scale) @ dense)
        self.solved: Float64 = cross @ self.inverse
        kept, bound = passes.slight(begin, feature, value, scale, m, SLIGHT)
        row, begin, feature, value = passes.restricted(
            begin, feature, value, kept, np.arange(m, dtype=np.int32)
        )
        scale = scale[row]
        each = np.repeat(scale, np.diff(begin)) * value * value
        own: Float64 = np.bincount(feature, each, minlength=m).astype(np.float64)
        square = pairs.size[chosen] ** 2
        most = np.divide(own, square, out=np.zeros_like(own), where=square > 0).max(initial=0.0)
        ridge = bound + RIDGE * float(most) * square + 1e-300
        rest = cross, self.solved, ridge
        self.operator: kernels.Operator = (begin, feature, value, scale, False, *rest)
        turned = csr_array((value, feature, begin), (scale.size, m)).tocsc()
        starts, rows = turned.indptr.astype(np.int64), turned.indices.astype(np.int32)
        self.by_column = (starts, rows, turned.data, scale, *rest)
        left = np.maximum(own - (cross * self.solved).sum(1), 1e-3 * own)
        self.diagonal: Float64 = left + ridge

    def apply(self, x: Float64) -> Float64:
        """Return S x."""
        out = np.empty(x.size)
        kernels.apply(self.operator, x, out)
        return out

    def write_down(self) -> None:
        """Write H_ss down, where products then take no longer: for many of them."""
        begin, feature, value, scale, written = self.operator[:5]
        if not written:
            # A product with XᵀX takes as long as it has non-zeros; or twice as long as X has.
            gram = passes.gram(begin, feature, value, scale, *self.by_column[:3], 2 * value.size)
            if gram[0].size:
                self.operator = (*gram, np.empty(0), True, *self.operator[5:])

    def follow(self, dense_pull: Float64, moved: Float64) -> Float64:
        """Return how dense weights change to their optimum, with the sparse ones that have moved.

        `dense_pull` is their negative gradient before.
        """
        change: Float64 = self.inverse @ dense_pull - moved @ self.solved
        return change

    def reduced(self, dense_pull: Float64, sparse_pull: Float64) -> Float64:
        """Return the negative gradient of the sparse features once dense ones have followed."""
        pull: Float64 = sparse_pull - self.solved @ dense_pull
        return pull


class OscarModel:
    """½ (v - w)ᵀS(v - w) - pullᵀ(v - w) + Ω(v).

    Sweeps move one block of equal weights after the other to where it is best, which joins
    blocks, whatever their curvature is; proximal steps take blocks apart that ought not to be one,
    and find which weights are not 0. Where that is slow, since blocks depend on each other, Newton
    steps on the values of all blocks follow. No step makes it worse.

    curvature: S.
    pull, weights (float64 [m]): the negative gradient at w; w.
    """

    def __init__(
        self, curvature: Curvature, pull: Float64, weights: Float64, penalty: Penalty
    ) -> None:
        self.curvature, self.penalty, self.strengths = curvature, penalty, penalty.strengths
        self.weights, self.pull = weights, pull
        self.linear: Float64 = -pull - curvature.apply(weights)

    def minimum(
        self, tolerance: float, bound: float, in_time: Callable[[], bool]
    ) -> tuple[Float64, float]:
        """Return v, and a bound of the curvature to begin with next time.

        tolerance: of the KKT residual, in the unit of a gradient.
        bound: of the largest eigenvalue of S; the steps raise it where it is too low.
        in_time: whether there is time for another round.
        """
        v = self.weights.copy()
        block = np.empty(v.size, np.int64)
        damping = DAMPING
        for number in range(ROUNDS if v.size else 0):
            if number == LATE:
                self.curvature.write_down()
            kernels.sweep(self.curvature.by_column, self.linear, v, self.strengths, SWEEPS)
            bound, blocks = kernels.accelerated(
                self.curvature.operator, self.linear, v, self.strengths, bound, STEPS, block
            )
            pull = -self.curvature.apply(v) - self.linear
            if self.penalty.residual(v, pull) <= tolerance or not in_time():
                break
            if blocks and LATE <= number < ROUNDS - 1:
                v, damping = self._newton(v, block, blocks, damping)
        return v, bound

    def value(self, v: Float64) -> float:
        """Return the model at v; infinity or NaN, far away, which is no better than any value."""
        moved = v - self.weights
        with np.errstate(over="ignore", invalid="ignore"):
            smooth = 0.5 * (moved @ self.curvature.apply(moved)) - self.pull @ moved
        return float(smooth) + self.penalty.value(v)

    def _newton(
        self, v: Float64, block: Int64, blocks: int, damping: float
    ) -> tuple[Float64, float]:
        """Return a better v by a Newton step in the values of blocks, or v; and a new damping."""
        # Few problems come so far, and it takes long to import.
        from scipy.optimize import isotonic_regression

        inside = block >= 0
        level, weight = np.zeros(blocks), np.zeros(blocks)
        level[block[inside]] = np.abs(v[inside])
        np.add.at(weight, block[inside], self.curvature.diagonal[inside])
        operator, limits = self.curvature.operator, (CONJUGATE_STEPS, CONJUGATE_TOLERANCE)
        rise = kernels.face_direction(
            operator, weight, self.linear, v, self.strengths, block, damping, *limits
        )
        lowest = self.value(v)
        for step in SHORTER:
            levels = level + step * rise
            # Blocks may pass each other, or join where they would.
            falling = isotonic_regression(levels, weights=weight, increasing=False).x
            trials = [_moved(v, block, some) for some in (levels, falling)]
            values = [self.value(trial) for trial in trials]
            if min(values) < lowest:
                best = trials[int(np.argmin(values))]
                return best, damping * (LESS if step == 1.0 else 1.0)
        return v, damping * MORE


def _moved(v: Float64, block: Int64, level: Float64) -> Float64:
    """Return v with each block at another |v|, or at 0 where that would be below."""
    size = np.append(level, 0.0)[block]
    return np.where(size > 0.0, np.copysign(size, v), 0.0)

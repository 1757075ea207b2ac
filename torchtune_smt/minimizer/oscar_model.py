"""The minimum of a quadratic model with OSCAR, on the features of a working set."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from torchtune_smt.core.arrays import Float64, Int64
from torchtune_smt.minimizer import cluster_kernels as clusters
from torchtune_smt.minimizer import model_kernels as kernels
from torchtune_smt.minimizer.curvature import Curvature
from torchtune_smt.minimizer.penalty import Penalty

# Sweeps, and accelerated proximal steps, of a round; how many rounds at most.
SWEEPS, STEPS, ROUNDS = 3, 3, 40
# The round from which on Newton steps are taken, too.
LATE = 5
CONJUGATE_STEPS, CONJUGATE_TOLERANCE = 300, 1e-3
# Newton steps are damped at first by this, then less where a whole one was good, and more where
# even the shortest was not.
DAMPING, LESS, MORE = 1e-2, 0.1, 10.0
SHORTER = (1.0, 0.3, 0.1)


class OscarModel:
    """½ (v - w)ᵀS(v - w) - pullᵀ(v - w) + Ω(v).

    Sweeps move one block of equal weights after the other to where it is best, which joins
    blocks, whatever their curvature is; proximal steps take blocks apart that ought not to be one,
    and find which weights are not 0. Where that is slow, since blocks depend on each other, Newton
    steps on the values of all blocks follow. No step makes it worse.

    Parameters
    ----------
    curvature : Curvature
        S.
    pull : float64 [m]
        The negative gradient at w.
    weights : float64 [m]
        w.
    penalty : Penalty
    """

    def __init__(
        self, curvature: Curvature, pull: Float64, weights: Float64, penalty: Penalty
    ) -> None:
        self.curvature = curvature
        self.penalty = penalty
        self.weights = weights
        self.pull = pull
        self.linear: Float64 = -pull - curvature.apply(weights)
        self.norm = (penalty.lambda1, penalty.lambda2, penalty.dimension)

    def minimum(
        self, tolerance: float, bound: float, in_time: Callable[[], bool]
    ) -> tuple[Float64, float]:
        """Return v, and a bound of the curvature to begin with next time.

        Parameters
        ----------
        tolerance : float
            Of the KKT residual, in the unit of a gradient.
        bound : float
            Of the largest eigenvalue of S; the steps raise it where it is too low.
        in_time : callable
            Whether there is time for another round.
        """
        v = self.weights.copy()
        block = np.empty(v.size, np.int64)
        damping = DAMPING
        for number in range(ROUNDS if v.size else 0):
            if number == LATE:
                self.curvature.write_down()
            clusters.sweep(*self.curvature.by_column, self.linear, v, *self.norm, SWEEPS)
            bound, blocks = kernels.accelerated(
                *self.curvature.operator, self.linear, v, *self.norm, bound, STEPS, block
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
        rise = kernels.face_direction(
            *self.curvature.operator,
            self.curvature.diagonal,
            self.linear,
            v,
            *self.norm,
            block,
            blocks,
            damping,
            CONJUGATE_STEPS,
            CONJUGATE_TOLERANCE,
        )
        inside = block >= 0
        level = np.zeros(blocks)
        level[block[inside]] = np.abs(v[inside])
        weight = np.zeros(blocks)
        np.add.at(weight, block[inside], self.curvature.diagonal[inside])
        lowest = self.value(v)
        for step in SHORTER:
            levels = level + step * rise
            # Blocks may pass each other, or join where they would.
            trials = [
                kernels.moved(v, block, some)
                for some in (levels, kernels.descending(levels, weight))
            ]
            values = [self.value(trial) for trial in trials]
            if min(values) < lowest:
                best = trials[int(np.argmin(values))]
                return best, damping * (LESS if step == 1.0 else 1.0)
        return v, damping * MORE

"""The minimum of the mean loss of pairs with OSCAR: Eq. 2 of Liu et al. (2013)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from torchtune_smt.core.accepts import between
from torchtune_smt.core.arrays import Float64
from torchtune_smt.core.errors import DivergenceError, InputError
from torchtune_smt.core.rows import Rows
from torchtune_smt.minimizer.dense_optimum import follow_dense, lambda_max
from torchtune_smt.minimizer.descent import Descent, Point
from torchtune_smt.minimizer.losses import MarginLoss
from torchtune_smt.minimizer.minimum import Accuracy, Certificate, Minimum, Residual, groups_of
from torchtune_smt.minimizer.penalty import Penalty
from torchtune_smt.minimizer.stored_pairs import StoredPairs
from torchtune_smt.regularizers.base import STRENGTH, given_dimension_error

# Of the KKT residual, for the losses on the way to the last one.
ROUGH = 0.1


class Minimizer:
    """Minimises the mean of ℓ(W·x) over stored pairs + OSCAR of the sparse features of W.

    Newton's method: the loss is replaced by its quadratic model, whose minimum with OSCAR is found
    on a working set of sparse features, then the weights go as far in that direction as is best.
    Each step takes one pass over all pairs for the gradient of every feature, which also says
    which features belong into the working set (see `Penalty.candidates`) and how far from optimal
    the weights are: what was left out wrongly shows in the KKT residual. A smoothed hinge is
    approached through smoother ones.

    pairs: x = H(better) - H(worse), one row a pair.
    n_dense: ids below it are dense features, which are not regularised.
    dimension: D, the number of all features; by default as many as occur.
    device ("cpu", "cuda"): where passes over all pairs are made.

    Raises what `StoredPairs` does.
    """

    def __init__(
        self,
        pairs: Rows,
        n_dense: int,
        loss: MarginLoss,
        dimension: int | None = None,
        device: str = "cpu",
    ) -> None:
        self.pairs = StoredPairs(pairs, n_dense, device)
        self.n_dense, self.loss = n_dense, loss
        # The objective of weights that are all 0.
        self._at_0 = loss.mean(np.zeros(1))
        self.dimension = dimension or max(int(pairs.feature.max(initial=-1)) + 1, n_dense)

    def penalty(self, lambda1: float, lambda2: float, dimension: int | None = None) -> Penalty:
        """Return OSCAR with these strengths.

        lambda1, lambda2: 0 or more, not both 0.
        dimension: d; by default the number of sparse features in which some pair differs.

        Raises ValueError: a strength is out of range. InputError: d is smaller than that number; it
        is 1, and lambda1 is 0.
        """
        STRENGTH.check("lambda1", lambda1)
        STRENGTH.check("lambda2", lambda2)
        least = max(self.pairs.n_sparse, 1)
        dimension = least if dimension is None else dimension
        if dimension < least:
            raise given_dimension_error(dimension, "sparse features in the pairs", least)
        if lambda1 == lambda2 == 0.0:
            raise ValueError("OSCAR has no strength: lambda1 or lambda2 must be above 0")
        penalty = Penalty(lambda1, lambda2, dimension)
        if penalty.largest == 0.0:
            raise InputError(
                "with one sparse feature, or none, lambda2 pulls at nothing: set "
                "regularizer.lambda1"
            )
        return penalty

    def largest_scale(self, penalty: Penalty, start: Float64 | None = None) -> float:
        """Return λ_max: the scale of the penalty from which on nothing sparse survives.

        The dual norm of the gradient of the sparse features at 0, with dense weights at their
        optimum. It is 0 where these tell all pairs apart, where no sparse feature ever differs, and
        where pulls cancel but for rounding, as those of pairs that contradict each other do.

        start (float64 [D]): where the dense weights begin.
        """
        empty = self._empty(penalty, start)
        return lambda_max(self.pairs, self.loss, penalty, empty.dense, empty.margins)

    def _norm(self, penalty: Penalty, empty: Point) -> float:
        """Return the dual norm of pulls without sparse features; 1 at most: that is the minimum."""
        return penalty.dual_norm(self.pairs.means(self.loss.pulls(empty.margins))[1])

    def minimize(
        self,
        penalty: Penalty,
        start: Float64 | None = None,
        accuracy: Accuracy | None = None,
        on_step: Callable[[int, Residual, int], None] = lambda step, residual, survivors: None,
    ) -> Minimum:
        """Return the minimum.

        penalty: see `penalty`.
        start (float64 [D]): weights to begin with; by default all 0, where it also begins again if
            these lead to nothing better than 0.
        on_step: told before each step: its number, the KKT residual for the loss of the moment, and
            how many sparse features have a weight.

        Raises DivergenceError: a margin is not finite.
        """
        run = Descent(self.pairs, penalty, accuracy or Accuracy(), on_step)
        empty = self._empty(penalty, start, run.in_time)
        if run.in_time() and self._norm(penalty, empty) <= 1.0:
            return self._result(run, empty, start, empty.margins)
        point = self._begun(start, run.in_time)
        if not run.in_time():
            better = min((empty, point), key=lambda some: some.objective(self.loss, penalty))
            return self._result(run, better, start, empty.margins)
        return self._descended(run, point, start, empty.margins)[0]

    def path(
        self,
        penalty: Penalty,
        scales: Iterable[float],
        start: Float64 | None = None,
        accuracy: Accuracy | None = None,
    ) -> Iterator[Minimum]:
        """Yield the minimum for a penalty times each of some scales, one begun at the other.

        scales: best in descending order; see `path_scales`.
        accuracy: of each.

        Raises DivergenceError: a margin is not finite.
        """
        accuracy = accuracy or Accuracy()
        point = self._empty(penalty, start, Descent(self.pairs, penalty, accuracy).in_time)
        alone = point.margins
        norm = self._norm(penalty, point)
        for scale in scales:
            run = Descent(self.pairs, penalty.times(scale), accuracy)
            if scale >= norm:
                empty = self._empty(penalty, start, run.in_time)
                minimum = self._result(run, empty, start, alone)
            else:
                minimum, point = self._descended(run, point, start, alone)
            yield minimum

    def certificate(self, penalty: Penalty, weights: Float64) -> Certificate:
        """Return how far from the minimum some weights can be at most, wherever they come from.

        The bound is the better one of two: that of their margins, and that of dense features
        alone, which is exact where nothing sparse survives.

        weights (float64 [D]): those of sparse features in which no pair differs do not count.

        Raises DivergenceError: a margin is not finite.
        """
        alone, point = self._empty(penalty, weights).margins, self._point(weights)
        run = Descent(self.pairs, penalty, Accuracy())
        found = run.look(point, self.loss)
        certificate = run.certificate(point, self.loss, found, point.margins, alone)
        return self._of_given(certificate, penalty, weights)[0]

    def _of_given(
        self, certificate: Certificate, penalty: Penalty, weights: Float64
    ) -> tuple[Certificate, float]:
        """Return a certificate of weights with the dense features as they were given, and rounding.

        By so much their objective differs, or may, from that with the features that were taken in
        their place. The bound is known to hold for those alone: it goes down by as much.
        """
        found = self.pairs.given_margins(weights)
        if found is None:
            return certificate, 0.0
        margins, rounding = found
        objective = self.loss.mean(margins) + penalty.value(weights[self.pairs.sparse_id])
        rounding *= float(np.abs(self.loss.pulls(margins)).max(initial=0.0))
        rounding += abs(objective - certificate.objective)
        bound = certificate.bound - rounding
        return replace(certificate, objective=objective, bound=bound), rounding

    def _point(self, start: Float64 | None) -> Point:
        pairs = self.pairs
        dense, sparse = np.zeros(pairs.dense.shape[1]), np.zeros(pairs.n_sparse)
        if start is not None:
            dense, sparse = pairs.basis.matrix @ start[pairs.dense_id], start[pairs.sparse_id]
        with np.errstate(over="ignore", invalid="ignore"):
            margins = pairs.margins(dense, sparse)
        if not np.isfinite(margins).all():
            raise DivergenceError("a margin of the start is not finite")
        return Point(dense, sparse, margins, np.zeros(dense.size))

    def _begun(self, start: Float64 | None, in_time: Callable[[], bool]) -> Point:
        """Return where descent begins: dense weights at their optimum for the first loss."""
        point = self._point(start)
        self._follow(point, [*self.loss.stages(), self.loss][:1], in_time)
        return point

    def _empty(
        self, penalty: Penalty, start: Float64 | None, in_time: Callable[[], bool] = lambda: True
    ) -> Point:
        """Return the minimum without sparse features, or how near it one is when time is up.

        Raises ValueError: the penalty has a smaller d than there are sparse features.
        """
        if penalty.dimension < self.pairs.n_sparse:
            raise ValueError(
                f"the penalty is of {penalty.dimension} features, and the pairs have "
                f"{self.pairs.n_sparse} sparse ones"
            )
        point = self._point(start)
        point.sparse[:] = 0.0
        point.margins = self.pairs.margins(point.dense, point.sparse)
        if self.loss.mean(point.margins) > self._at_0:
            point = self._point(None)
        self._follow(point, [*self.loss.stages(), self.loss], in_time)
        return point

    def _follow(
        self, point: Point, losses: Sequence[MarginLoss], in_time: Callable[[], bool]
    ) -> None:
        """Move dense weights to their optimum for each loss in turn."""
        for loss in losses:
            change, point.margins = follow_dense(self.pairs, loss, point.margins, in_time)
            point.dense, point.direction = point.dense + change, change

    def _descended(
        self, run: Descent, point: Point, start: Float64 | None, alone: Float64
    ) -> tuple[Minimum, Point]:
        """Return the minimum that descent from a point leads to, and where that is.

        `alone` are margins of dense features alone.
        """
        stages = self.loss.stages()
        found = self._result(run, point, start, alone, stages)
        if not found.reached and run.in_time() and found.certificate.objective > self._at_0:
            # Lost on the way, from where no pair of a wrong margin has curvature.
            point = self._begun(None, run.in_time)
            found = self._result(run.again(), point, start, alone, stages)
        return found, point

    def _result(
        self,
        run: Descent,
        point: Point,
        start: Float64 | None,
        alone: Float64,
        stages: Sequence[MarginLoss] = (),
    ) -> Minimum:
        """Go on from a point to the minimum, through smoother losses, and say what is there."""
        for loss in stages:
            if run.in_time():
                run.descend(point, loss, ROUGH)
        certificate, reached = run.certified(point, self.loss, alone)
        pairs = self.pairs
        weights = np.zeros(self.dimension)
        if start is not None:
            weights[: self.n_dense] = start[: self.n_dense]
        weights[pairs.dense_id] = pairs.basis.weights(point.dense, weights[pairs.dense_id])
        weights[pairs.sparse_id] = point.sparse
        certificate, rounding = self._of_given(certificate, run.penalty, weights)
        said = run.messages(point, self.loss, certificate, reached)
        if rounding > run.accuracy.gap * abs(certificate.objective):
            said.append(
                f"dense features are so nearly the same that rounding changes the objective by "
                f"{rounding:.2g}, more than the gap that was asked for: leave one of them out"
            )
        reached = reached and certificate.within(run.accuracy.gap)
        groups = np.full(self.dimension, -1, np.int64)
        groups[pairs.sparse_id] = groups_of(point.sparse)
        return Minimum(
            weights,
            groups,
            pairs.sparse_id[run.boundary(point, self.loss, certificate.residual)],
            certificate,
            reached,
            run.penalty,
            run.steps,
            tuple(said),
        )


SHARE: Final = between(0, 1)
"""What a share of draws may be."""


def path_scales(largest: float, lowest: float, count: int = 20) -> list[float]:
    """Return scales, log-spaced, from λ_max (as `Minimizer.largest_scale` gives it) downwards."""
    return [float(scale) for scale in np.geomspace(largest, lowest, count)]


def noise_draws(share: float) -> int:
    """Return of how many draws of noise the largest λ_max is taken: 19 for 0.95, 99 for 0.99.

    The fewest of which one more draw of the same noise is above it with a probability of 1 - share
    at most. Raises ValueError: the share is not above 0 and below 1.
    """
    SHARE.check("noise", share)
    return max(math.ceil(1.0 / (1.0 - share) - 1e-9) - 1, 1)


def noise_scale(
    draw: Callable[[int], Rows],
    penalty: Penalty,
    n_dense: int,
    loss: MarginLoss,
    share: float = 0.95,
    *,
    start: Float64 | None = None,
    device: str = "cpu",
    on_draw: Callable[[int, int], None] = lambda done, draws: None,
) -> float:
    """Return the scale of a penalty from which on noise has no weight, in a share of draws.

    λ_max of the pairs, which `Minimizer.largest_scale` gives, is where the strongest feature ends,
    and does not tell whether that one means anything. This is a quantile of λ_max over pairs in
    which no feature does. A draw takes a pass for the gradient, and some over dense features.

    draw: returns pairs whose features say nothing, and that are like those of interest otherwise:
        of lists with `torchtune_smt.samplers.shuffled_gains`. Draw n, counted from 0, of
        `noise_draws`.
    penalty: of a d that is at least the number of sparse features in each draw.
    start (float64 [D]): where the dense weights begin.
    on_draw: told after each draw how many were made, of how many.

    Raises InputError: a draw has no pairs, or more sparse features than d.
    """
    draws, scales = noise_draws(share), []
    dimension = None if start is None else start.size
    for number in range(draws):
        minimizer = Minimizer(draw(number), n_dense, loss, dimension, device)
        same = minimizer.penalty(penalty.lambda1, penalty.lambda2, penalty.dimension)
        scales.append(minimizer.largest_scale(same, start))
        on_draw(number + 1, draws)
    return max(scales)

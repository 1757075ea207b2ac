"""Newton steps towards the minimum, on working sets of features."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from torchtune_smt.core.arrays import Bool, Float64
from torchtune_smt.core.errors import DivergenceError
from torchtune_smt.minimizer.dense_optimum import lambda_max, line_minimum, separating
from torchtune_smt.minimizer.losses import MarginLoss
from torchtune_smt.minimizer.minimum import Accuracy, Certificate, Residual, dual_bound, least
from torchtune_smt.minimizer.model import Curvature, OscarModel
from torchtune_smt.minimizer.penalty import Penalty, at_boundary
from torchtune_smt.minimizer.sorted_kernels import by_size
from torchtune_smt.minimizer.stored_pairs import StoredPairs

# The first bound of the curvature of a model, had all features values of 1.
FIRST = 1e-3
# The KKT residual of the inner problem, in parts of that before the step.
INNER = 0.03
# The working set: what might survive with penalties a little smaller, so many times as many
# features as have a weight, or so many; and all zeros that are torn away together.
SLACK, GROWTH, FEW = 0.8, 2, 200
# Steps in a row that find nothing better, or promise less than this part of the objective, after
# which rounding is all that is left.
STALLED, NOTHING = 3, 1e-20
# A bound that is above the objective by more than this part of it is none.
ROUNDING = 1e-9
# A minimum that was reached is polished to this part of the residual that was asked for, by so many
# steps at most: blocks move together where the loss is nearly flat, and then one that is off by
# the residual is off by far more than its own curvature allows.
POLISHED, POLISHING = 0.01, 8
BEST_POSSIBLE = "rounding allows no better"


@dataclass
class Point:
    """Weights over the features of `StoredPairs`, dense ones in its basis, and what they give."""

    dense: Float64
    sparse: Float64
    margins: Float64
    # Where the dense weights went last.
    direction: Float64

    def objective(self, loss: MarginLoss, penalty: Penalty) -> float:
        """Return the mean loss and the penalty."""
        return loss.mean(self.margins) + penalty.value(self.sparse)


class Descent:
    """The steps towards one minimum."""

    def __init__(
        self,
        pairs: StoredPairs,
        penalty: Penalty,
        accuracy: Accuracy,
        on_step: Callable[[int, Residual, int], None] = lambda step, residual, survivors: None,
    ) -> None:
        self.pairs = pairs
        self.penalty = penalty
        self.accuracy = accuracy
        self.on_step = on_step
        self.steps = 0
        # Why the last steps ended before they were at their goal, if they did.
        self._why = ""
        # Whether the last step was a whole one: blocks and zeros are then exact.
        self._exact = True
        self.begun = time.monotonic()
        # Pulls that the steps move, where they have taken any; see `primal_dual_curvatures`.
        self._dual: Float64 | None = None
        # Of the curvature, from one model to the next; it is in the unit of squared values.
        self._bound = max(FIRST * float(pairs.size.max(initial=0.0)) ** 2, 1e-300)
        # Where it stands: the loss, the residual, pulls of pairs and negative gradients, and places
        # of the sparse ones by size. None where the point has moved.
        self._seen: tuple[MarginLoss, Residual] | None = None
        self._pulls = self._dense_pull = self._pull = np.empty(0)
        self._strongest = np.empty(0, np.int64)

    def in_time(self) -> bool:
        """Whether there is time for more."""
        return time.monotonic() - self.begun < self.accuracy.seconds

    def again(self) -> Descent:
        """Return one that begins anew, and goes on counting."""
        new = Descent(self.pairs, self.penalty, self.accuracy, self.on_step)
        new.steps, new.begun = self.steps, self.begun
        return new

    def certified(self, point: Point, loss: MarginLoss, alone: Float64) -> tuple[Certificate, bool]:
        """Go on until the certificate is as good as was asked for, or cannot be had; which is it?

        alone (float64 [N]): margins at the minimum without sparse features, or near it: far from
            the minimum their bound may be the better one.
        """
        goal = self.accuracy.residual
        last = self.steps + self.accuracy.steps
        while True:
            found = self.descend(point, loss, goal, last)
            certificate = self.certificate(point, loss, found, point.margins)
            if found.largest == 0.0:
                self._why = BEST_POSSIBLE
            if self._why or (self._reached(certificate) and self._exact):
                break
            goal = 0.1 * min(goal, found.largest)
        if not self._reached(certificate):
            if alone is not point.margins:
                certificate = self.certificate(point, loss, found, point.margins, alone)
        elif not self._why:
            found = self._polish(point, loss, found, last)
            objective = point.objective(loss, self.penalty)
            # No weights are below the bound, these neither.
            certificate = replace(certificate, residual=found, objective=objective)
        return certificate, self._reached(certificate)

    def certificate(
        self, point: Point, loss: MarginLoss, found: Residual, *margins: Float64
    ) -> Certificate:
        """Return the certificate of a point, with the best bound that some margins give."""
        objective = point.objective(loss, self.penalty)
        most = objective + ROUNDING * abs(objective) + 1e-15
        bounds = [dual_bound(self.pairs, loss, self.penalty, some) for some in margins]
        bound = max((some for some in bounds if some <= most), default=least(loss))
        return Certificate(found, objective, bound, 0.5 * loss.width)

    def _reached(self, certificate: Certificate) -> bool:
        small = certificate.residual.largest <= self.accuracy.residual
        return small and certificate.within(self.accuracy.gap)

    def _polish(self, point: Point, loss: MarginLoss, found: Residual, last: int) -> Residual:
        """Take a few more steps from a minimum that was reached, and stay at the best point."""
        goal = POLISHED * self.accuracy.residual
        best, least = replace(point), found
        point.sparse = point.sparse.copy()
        for _ in range(min(POLISHING, last - self.steps)):
            if found.largest <= goal or not self.in_time():
                break
            better = self._step(point, loss, found, goal)
            found = self.look(point, loss)
            if self._exact and found.largest < least.largest:
                best, least = replace(point, sparse=point.sparse.copy()), found
            if not better:
                break
        if found is not least:
            point.dense, point.sparse = best.dense, best.sparse
            point.margins, point.direction = best.margins, best.direction
            self._seen, self._exact = None, True
            self.look(point, loss)
        return least

    def descend(
        self, point: Point, loss: MarginLoss, goal: float, last: int | None = None
    ) -> Residual:
        """Take steps until the KKT residual is small enough; remember why, if they end before.

        last: how many steps there may be in the end; by default as many more as are allowed.
        """
        stalled = 0
        last = self.steps + self.accuracy.steps if last is None else last
        self._why = ""
        while not self._why:
            found = self.look(point, loss)
            if not self.in_time():
                self._why = "the time is up"
            elif found.largest <= goal:
                break
            elif stalled == STALLED:
                self._why = BEST_POSSIBLE
            elif self.steps >= last:
                self._why = f"the limit is steps={self.accuracy.steps}"
            else:
                stalled = 0 if self._step(point, loss, found, goal) else stalled + 1
        return found

    def look(self, point: Point, loss: MarginLoss) -> Residual:
        """Return the KKT residual; one pass over all pairs, unless the last one was here."""
        if self._seen is not None and self._seen[0] == loss:
            return self._seen[1]
        self._pulls = loss.pulls(point.margins)
        self._dense_pull, self._pull = self.pairs.means(self._pulls)
        self._strongest = by_size(self._pull)
        dense = self._dense_pull @ self.pairs.basis.matrix
        found = Residual(
            float(np.abs(dense).max(initial=0.0)) / self.penalty.largest,
            self.penalty.residual(point.sparse, self._pull, self._strongest) / self.penalty.largest,
        )
        self._seen = loss, found
        self.on_step(self.steps, found, int(np.count_nonzero(point.sparse)))
        return found

    def _step(self, point: Point, loss: MarginLoss, found: Residual, goal: float) -> bool:
        """Take one step from where `_look` was, and say whether the objective fell."""
        penalty, dense_pull, pull = self.penalty, self._dense_pull, self._pull
        chosen = np.flatnonzero(self._working_set(point.sparse))
        before = point.sparse[chosen]
        dual = self._pulls if self._dual is None else self._dual
        curvatures = loss.primal_dual_curvatures(point.margins, dual)
        curvature = Curvature(self.pairs, curvatures, chosen)
        model = OscarModel(curvature, curvature.reduced(dense_pull, pull[chosen]), before, penalty)
        tolerance = max(INNER * found.largest, 1e-3 * goal) * penalty.largest
        after, bound = model.minimum(tolerance, self._bound, self.in_time)
        self._bound = 0.5 * bound
        moved = after - before
        point.direction = curvature.follow(dense_pull, moved)
        sparse = np.zeros(point.sparse.size)
        sparse[chosen] = moved
        margins = self.pairs.margins(point.direction, sparse)
        if not np.isfinite(margins).all():
            raise DivergenceError("a margin is not finite: values of features are too large")
        self._dual = np.clip(self._pulls - curvatures * margins, 0.0, loss.highest)

        def along(step: float) -> tuple[float, float]:
            value, slope = loss.along(point.margins, margins, step)
            norm, norm_slope = penalty.along(before, moved, step)
            return value + norm, slope + norm_slope

        value, slope = along(0.0)
        step = line_minimum(along, value, slope)
        self.steps += 1
        if step == 0.0:
            return False
        self._seen = None
        self._exact = step == 1.0
        point.dense = point.dense + step * point.direction
        point.sparse[chosen] = after if self._exact else before + step * moved
        point.margins = self.pairs.margins(point.dense, point.sparse)
        return -slope > NOTHING * abs(value)

    def _working_set(self, weights: Float64) -> Bool:
        inside: Bool = weights != 0.0
        most = max(GROWTH * int(np.count_nonzero(inside)), FEW)
        inside[self.penalty.candidates(self._pull, self._strongest, SLACK)[:most]] = True
        # A part of what is torn away together might stay where it is.
        inside[self.penalty.torn(weights, self._pull, self._strongest)] = True
        return inside

    def boundary(self, point: Point, loss: MarginLoss, found: Residual) -> Bool:
        """Return which sparse features the accuracy leaves open; see `at_boundary`."""
        # Each of two results may be off by the residual.
        tolerance = 2.0 * max(self.accuracy.residual, found.sparse) * self.penalty.largest
        curvature = self.pairs.means_of(self.pairs.sparse.value**2, loss.curvatures(point.margins))
        return at_boundary(
            self.penalty, point.sparse, self._pull, self._strongest, curvature, tolerance
        )

    def messages(
        self, point: Point, loss: MarginLoss, certificate: Certificate, reached: bool
    ) -> list[str]:
        """Return what the user ought to know."""
        said = []
        if not reached:
            said.append(f"{self._why}, and the minimum was not reached: {certificate}")
        elif not point.sparse.any():
            largest = lambda_max(self.pairs, loss, self.penalty, point.dense, point.margins)
            l1, l2 = largest * self.penalty.lambda1, largest * self.penalty.lambda2
            said.append(
                "no sparse feature survives, nor would with any lambda: lambda_max is 0"
                if largest == 0.0
                else "no sparse feature survives: from lambda_max on none does, which is "
                f"lambda1={l1:.4g} and lambda2={l2:.4g} here"
            )
        # With the hinge itself: with what smoothes it, it may be 0 or less where that is not.
        hinge = float(np.maximum(1.0 - point.margins, 0.0).mean())
        objective = hinge + self.penalty.value(point.sparse)
        wide = certificate.gap > self.accuracy.gap and loss.width > 0.0
        if reached and wide and objective > 0.0:
            said.append(
                "the hinge may be mu/2 above its smoothing, which is "
                f"{certificate.smoothing / objective:.2g} of the objective with the hinge, so that "
                f"the gap is {certificate.gap:.2g} where {self.accuracy.gap:.2g} was asked for: "
                f"with tuner.minimizer.mu={self.accuracy.gap * objective:.1g} it would be that "
                "small"
            )
        pulls = loss.pulls(point.margins)
        found = separating(self.pairs, pulls, point.dense, point.direction)
        if found is not None:
            what, told = found
            if loss.has_tail:
                said.append(
                    f"{what} tells {told:,} of {len(self.pairs):,} pairs, and none wrongly: the "
                    "loss has no minimum, and the weights have stopped on their way to infinity"
                )
            elif told == len(self.pairs):
                said.append(f"{what} tells all pairs, and nothing is left to sparse features")
            elif loss.width > 0.0:
                said.append(
                    f"{what} tells {told:,} of {len(self.pairs):,} pairs, and none wrongly: the "
                    "hinge asks no more of its weight than to be large enough, and how large it is "
                    "says nothing"
                )
        return said

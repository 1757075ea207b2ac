"""Groups of features at the minimum of what Algorithm 2 of Liu et al. (2013) steps towards."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Final, Self

import numpy as np

from torchtune_smt.core.accepts import above, accepting, integer, one_of
from torchtune_smt.core.arrays import Float64, Int64
from torchtune_smt.core.checks import DEVICE
from torchtune_smt.core.rows import Rows
from torchtune_smt.minimizer import (
    Accuracy,
    Logistic,
    MarginLoss,
    Minimizer,
    Minimum,
    Penalty,
    Residual,
    SmoothedHinge,
    SquaredHinge,
    noise_scale,
    path_scales,
)
from torchtune_smt.minimizer.minimizer import SHARE
from torchtune_smt.tuners.base import Show
from torchtune_smt.tuners.grouping.base import (
    SAMPLE,
    TOO_STRONG,
    GroupLearner,
    LearntGroups,
    Problem,
)

FRACTION_TOO_LARGE: Final = (
    "at the minimum no weight is other than 0; a smaller regularizer.fraction leaves more"
)
NOISE: Final = (
    "no feature says more than noise does; more sentences, and tuner.scaling=rms for rare "
    "features, tell more of them from noise, and regularizer.fraction takes features all the same"
)
WITHOUT_LAMBDA_MAX: Final = "lambda_max is 0, and no smaller lambdas leave any"

MINIMIZER_LOSSES: Final = one_of("smoothed_hinge", "squared_hinge", "logistic")


def minimizer_loss(name: str, mu: float) -> MarginLoss:
    """Return a loss of the minimiser by its name; mu is that of the smoothed hinge."""
    smoothed = SmoothedHinge(mu)
    MINIMIZER_LOSSES.check("loss", name)
    return {"squared_hinge": SquaredHinge(), "logistic": Logistic()}.get(name, smoothed)


@dataclass(frozen=True)
class BatchLearning(GroupLearner):
    """Takes as groups what is equal at the minimum of Eq. 2 of Liu et al. (2013).

    No random number takes part, and the order of the pairs does not matter, but for features that
    are at the boundary within the accuracy; see `torchtune_smt.minimizer`.

    regularizer: without a `dimension`, d is the number of sparse features in the pairs.
    fraction: λ1 and λ2 are then scaled together to this part of λ_max, from which on no sparse
        feature has a weight; of each set of pairs anew.
    noise: λ1 and λ2 are then scaled together to where no sparse feature has a weight in this share
        of draws of pairs that say nothing, once for all of d features; without a `dimension`, for
        all sparse ones. `calibrated` tells where that is: at `noise_scale`.
    device: where passes over all pairs are made; see `Minimizer`.
    path: so many values, log-spaced from λ_max down to the strength that is asked for, each minimum
        begun at the one before, and a remark on what each leaves; 1: that strength alone.

    Raises ValueError: λ1 and λ2 are 0, or there are both noise and a fraction.
    """

    accepts = accepting(
        fraction=above(0, 1).or_null(), noise=SHARE.or_null(), path=integer(1), device=DEVICE
    )
    takes_not: ClassVar[Mapping[str, str]] = {"optimizer": "takes no steps of an optimizer"}

    loss: MarginLoss = field(default_factory=SmoothedHinge)
    fraction: float | None = None
    accuracy: Accuracy = field(default_factory=Accuracy)
    device: str = "cpu"
    path: int = 1
    noise: float | None = None
    noise_scale: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.regularizer.lambda1 == self.regularizer.lambda2 == 0:
            raise ValueError("without lambda1 and lambda2 nothing is grouped: give one above 0")
        if self.noise is not None and self.fraction is not None:
            raise ValueError("noise and fraction both say how strong OSCAR is: give one of them")

    @classmethod
    def unused(
        cls, chosen: str, tuner: Mapping[str, Any], regularizer: Mapping[str, Any]
    ) -> dict[str, str]:
        """See `GroupLearner.unused`. A lambda of 0 is no strength: it says which norm it is."""
        unused = super().unused(chosen, tuner, regularizer)
        loss = tuner["minimizer"]["loss"]
        if loss != "smoothed_hinge":
            unused["tuner.minimizer.mu"] = f"tuner.minimizer.loss={loss} is smooth as it is"
        noise, fraction = regularizer.get("noise"), regularizer.get("fraction")
        if fraction is not None:
            said = f"regularizer.fraction={fraction} says how strong OSCAR is"
            unused["regularizer.noise"] = said
        elif noise is not None:
            said = f"regularizer.noise={noise} says how strong OSCAR is"
            for name in ("lambda1", "lambda2"):
                if regularizer.get(name):
                    unused[f"regularizer.{name}"] = f"{said} (null: lambda1 and lambda2 do)"
        return unused

    chance = SAMPLE

    def calibrated(self, noise: Callable[[int], Rows], problem: Problem) -> Self:
        """See `GroupLearner`. It is the strength at which noise has no weight."""
        if self.noise is None:
            return self
        oscar = self.regularizer
        if oscar.dimension is None:
            oscar = replace(oscar, dimension=problem.start.size - problem.n_dense)
        assert oscar.dimension is not None
        scale = noise_scale(
            noise,
            Penalty(oscar.lambda1, oscar.lambda2, oscar.dimension),
            problem.n_dense,
            self.loss,
            self.noise,
            start=_dense_alone(problem),
            device=self.device,
            on_draw=lambda done, draws: problem.show("shuffling gains", done, draws, "draw"),
        )
        return replace(self, regularizer=oscar, noise_scale=scale)

    def find(self, problem: Problem) -> LearntGroups:
        """See `GroupLearner`. Dense weights begin where they are."""
        oscar, size = self.regularizer, problem.start.size
        minimizer = Minimizer(problem.pairs, problem.n_dense, self.loss, size, self.device)
        penalty = minimizer.penalty(oscar.lambda1, oscar.lambda2, oscar.dimension)
        begin = _dense_alone(problem)
        largest = minimizer.largest_scale(penalty, begin)
        scale = self._scale(largest)
        if scale == 0.0:
            whose = "" if largest == 0.0 else " of noise"
            said = f"lambda_max{whose} is 0, so that no part of it groups anything: "
            remark, none = f"{said}{_why(minimizer)}", np.full(size, -1, np.int64)
            without = WITHOUT_LAMBDA_MAX
            return LearntGroups(none, penalty.dimension, "no step", (remark,), why_none=without)
        if self.path > 1 and scale < largest:
            scales = path_scales(largest, scale, self.path)
            found, steps, left = self._follow(minimizer, penalty, scales, begin, problem.show)
            remarks = [*left, *found.messages]
        else:
            found = self._minimize(minimizer, penalty.times(scale), begin, problem.show)
            steps, remarks = found.steps, list(found.messages)
            if self.path > 1:
                said = "a path goes down from lambda_max, and these lambdas are not below it"
                remarks.append(said)
        penalty, certificate = found.penalty, found.certificate
        numbers = {
            "minimum/lambda1": penalty.lambda1,
            "minimum/lambda2": penalty.lambda2,
            "minimum/objective": certificate.objective,
            "minimum/bound": certificate.bound,
            "minimum/gap": certificate.gap,
            "minimum/residual": certificate.residual.largest,
            "minimum/steps": steps,
            "minimum/reached": float(found.reached),
            "minimum/boundary": found.boundary.size,
        }
        part = "lambda_max is 0"
        if largest > 0.0:
            numbers["minimum/fraction"] = scale / largest
            part = f"{scale / largest:.3g} of lambda_max"
            if self.noise is not None:
                part += f", where noise has no weight in {self.noise:.5g} of draws"
        text = (
            f"lambda1 = {penalty.lambda1:.4g}, lambda2 = {penalty.lambda2:.4g} ({part}), "
            f"{steps} steps of Newton: {certificate};"
        )
        why = TOO_STRONG if self.fraction is None else FRACTION_TOO_LARGE
        why = why if self.noise is None else NOISE
        if not found.reached:
            why = "the minimum was not reached, and none has a weight where the minimiser stopped"
        elif largest == 0.0:
            why = WITHOUT_LAMBDA_MAX
        d, lines = penalty.dimension, tuple(remarks)
        return LearntGroups(found.groups, d, text, lines, numbers, found.boundary, why_none=why)

    def again(self, problem: Problem) -> Int64:
        """See `GroupLearner`. There is no path."""
        return GroupLearner.again(replace(self, path=1), problem)

    def _scale(self, largest: float) -> float:
        """Return what λ1 and λ2 are multiplied with; 0 where λ_max is, and a part of it asked."""
        if self.fraction is not None:
            return self.fraction * largest
        if self.noise is None:
            return 1.0
        assert self.noise_scale is not None, "noise takes pairs that say nothing: see `calibrated`"
        return self.noise_scale if largest > 0.0 else 0.0

    def _minimize(
        self, minimizer: Minimizer, penalty: Penalty, begin: Float64, show: Show
    ) -> Minimum:
        steps = self.accuracy.steps

        def on_step(step: int, residual: Residual, survivors: int) -> None:
            show("minimising", step, steps, "step")

        found = minimizer.minimize(penalty, begin, self.accuracy, on_step)
        show("minimising", steps, steps, "step")
        return found

    def _follow(
        self,
        minimizer: Minimizer,
        penalty: Penalty,
        scales: Sequence[float],
        begin: Float64,
        show: Show,
    ) -> tuple[Minimum, int, list[str]]:
        """Return the last minimum of a path, the steps to all of them, and what each left."""
        steps, left = 0, []
        minima = minimizer.path(penalty, scales, begin, self.accuracy)
        for done, minimum in enumerate(minima, start=1):
            steps += minimum.steps
            left.append(_left(scales[done - 1] / scales[0], minimum))
            show("minimising", done, len(scales), "value")
        return minimum, steps, left


def _dense_alone(problem: Problem) -> Float64:
    begin = problem.start.copy()
    begin[problem.n_dense :] = 0.0
    return begin


def _left(part: float, minimum: Minimum) -> str:
    reached = "" if minimum.reached else " (the minimum was not reached)"
    left = "no feature"
    if minimum.survivors:
        sizes = np.unique(minimum.groups[minimum.groups >= 0], return_counts=True)[1]
        left = f"{minimum.survivors:,} features in {sizes.size:,} groups, the largest has "
        left += f"{sizes.max():,}"
    return f"{part:.3g} of lambda_max leaves {left}{reached}"


def _why(minimizer: Minimizer) -> str:
    """Return why no sparse feature would have a weight, however small λ is."""
    if minimizer.pairs.n_sparse == 0:
        return "no sparse feature differs in any pair"
    return (
        "the dense features tell all pairs or all that sparse ones do, or pairs contradict others"
    )

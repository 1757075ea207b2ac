"""Groups of features at the minimum of what Algorithm 2 of Liu et al. (2013) steps towards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from torchtune_smt.core.arrays import Float64
from torchtune_smt.core.rows import Rows
from torchtune_smt.minimizer import (
    Accuracy,
    Logistic,
    MarginLoss,
    Minimizer,
    Residual,
    SmoothedHinge,
    SquaredHinge,
)
from torchtune_smt.tuners.base import Show
from torchtune_smt.tuners.group_diagnosis import SAMPLE, Chance
from torchtune_smt.tuners.group_learner import GroupLearner, LearntGroups

MINIMIZER_LOSSES: Final = ("smoothed_hinge", "squared_hinge", "logistic")


def minimizer_loss(name: str, mu: float) -> MarginLoss:
    """Return a loss of the minimiser by its name; mu is that of the smoothed hinge.

    Raises
    ------
    ValueError
        There is none of this name; mu is out of range.
    """
    smoothed = SmoothedHinge(mu)
    if name not in MINIMIZER_LOSSES:
        raise ValueError(f"loss must be one of {', '.join(MINIMIZER_LOSSES)}, not {name!r}")
    return {"squared_hinge": SquaredHinge(), "logistic": Logistic()}.get(name, smoothed)


@dataclass(frozen=True)
class BatchLearning(GroupLearner):
    """Takes as groups what is equal at the minimum of Eq. 2 of Liu et al. (2013).

    No random number takes part, and the order of the pairs does not matter, but for features that
    are at the boundary within the accuracy; see `torchtune_smt.minimizer`.

    Parameters
    ----------
    regularizer : Oscar
        λ1 and λ2, and d; without a `dimension`, it is the number of sparse features in the pairs.
    loss : MarginLoss
    fraction : float, optional
        λ1 and λ2 are then scaled together to this part of λ_max, from which on no sparse feature
        has a weight; of each set of pairs anew.
    accuracy : Accuracy
    device : {"cpu", "cuda"}
        Where passes over all pairs are made; see `Minimizer`.

    Raises
    ------
    ValueError
        λ1 and λ2 are 0, or the fraction is not above 0 and at most 1.
    """

    loss: MarginLoss = field(default_factory=SmoothedHinge)
    fraction: float | None = None
    accuracy: Accuracy = field(default_factory=Accuracy)
    device: str = "cpu"

    def __post_init__(self) -> None:
        if self.regularizer.lambda1 == self.regularizer.lambda2 == 0:
            raise ValueError("without lambda1 and lambda2 nothing is grouped: give one above 0")
        if self.fraction is not None and not 0 < self.fraction <= 1:
            raise ValueError(f"fraction must be above 0 and at most 1, not {self.fraction}")

    @property
    def why_none(self) -> str:
        """See `GroupLearner.why_none`."""
        if self.fraction is None:
            return super().why_none
        return (
            "at the minimum no weight is other than 0; a smaller regularizer.fraction leaves more"
        )

    @property
    def chance(self) -> Chance:
        """See `GroupLearner.chance`."""
        return SAMPLE

    def find(
        self, pairs: Rows, start: Float64, n_dense: int, seed: Sequence[int], show: Show
    ) -> LearntGroups:
        """Return the groups; see `GroupLearner.find`. Dense weights begin where they are."""
        oscar, accuracy = self.regularizer, self.accuracy
        minimizer = Minimizer(pairs, n_dense, self.loss, start.size, self.device)
        penalty = minimizer.penalty(oscar.lambda1, oscar.lambda2, oscar.dimension)
        begin = start.copy()
        begin[n_dense:] = 0.0
        largest = minimizer.largest_scale(penalty, begin)
        if self.fraction is not None:
            if largest == 0.0:
                said = f"lambda_max is 0, so that no part of it groups anything: {_why(minimizer)}"
                none = np.full(start.size, -1, np.int64)
                return LearntGroups(none, penalty.dimension, "no step", (said,))
            penalty = penalty.times(self.fraction * largest)

        def on_step(step: int, residual: Residual, survivors: int) -> None:
            show("minimising", step, accuracy.steps, "step")

        found = minimizer.minimize(penalty, begin, accuracy, on_step)
        show("minimising", accuracy.steps, accuracy.steps, "step")
        certificate = found.certificate
        numbers = {
            "minimum/lambda1": penalty.lambda1,
            "minimum/lambda2": penalty.lambda2,
            "minimum/objective": certificate.objective,
            "minimum/bound": certificate.bound,
            "minimum/gap": certificate.gap,
            "minimum/residual": certificate.residual.largest,
            "minimum/steps": found.steps,
            "minimum/reached": float(found.reached),
            "minimum/boundary": found.boundary.size,
        }
        part = "lambda_max is 0"
        if largest > 0.0:
            fraction = 1.0 / largest if self.fraction is None else self.fraction
            numbers["minimum/fraction"] = fraction
            part = f"{fraction:.3g} of lambda_max"
        text = (
            f"lambda1 = {penalty.lambda1:.4g}, lambda2 = {penalty.lambda2:.4g} ({part}), "
            f"{found.steps} steps of Newton: {certificate};"
        )
        return LearntGroups(
            found.groups, penalty.dimension, text, found.messages, numbers, found.boundary
        )


def _why(minimizer: Minimizer) -> str:
    """Return why no sparse feature would have a weight, however small λ is."""
    if minimizer.pairs.n_sparse == 0:
        return "no sparse feature differs in any pair"
    return (
        "the dense features tell all pairs or all that sparse ones do, or pairs contradict others"
    )

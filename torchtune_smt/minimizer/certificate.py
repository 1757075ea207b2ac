"""How far from the minimum weights can be at most."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from torchtune_smt.core.arrays import Float64, Int64
from torchtune_smt.minimizer.dense_optimum import follow_dense
from torchtune_smt.minimizer.losses import MarginLoss
from torchtune_smt.minimizer.penalty import Penalty
from torchtune_smt.minimizer.stored_pairs import StoredPairs

# Pulls balance a dense feature where their mean is at most this part of the mean of their sizes,
# or of those of pulls of 1: some orders of magnitude more than rounding leaves, and too little to
# move the bound.
BALANCED, NEXT_TO_NONE = 1e-11, 1e-14
# A bound that is above the objective by more than this part of it is none.
ROUNDING = 1e-9
# Of the gap that is allowed, what the smoothing must leave to the rest of it.
LEAST_REST = 0.1


@dataclass(frozen=True)
class Residual:
    """The KKT residual, in parts of the largest penalty λ1 + λ2 (d - 1).

    Attributes
    ----------
    dense : float
        The largest |mean gradient| of dense features.
    sparse : float
        See `Penalty.residual`.
    """

    dense: float
    sparse: float

    @property
    def largest(self) -> float:
        """Of all features."""
        return max(self.dense, self.sparse)


@dataclass(frozen=True)
class Certificate:
    """How far from the minimum weights can be at most.

    Attributes
    ----------
    residual : Residual
    objective : float
        P: the mean loss and the penalty.
    bound : float
        What no weights can be below, for the loss as it is: of a smoothed hinge for that.
    smoothing : float
        By how much the loss that was smoothed may lie above it: μ/2, or 0.
    """

    residual: Residual
    objective: float
    bound: float
    smoothing: float

    @property
    def distance(self) -> float:
        """The duality gap and the smoothing, in the unit of the objective.

        The objective with the loss that was smoothed is at most so much above its minimum.
        """
        return max(self.objective - self.bound, 0.0) + self.smoothing

    @property
    def gap(self) -> float:
        """The same in parts of the objective; of one that is not above 0, 1 (or 0)."""
        distance = self.distance
        return distance / self.objective if self.objective > 0.0 else float(distance > 0.0)

    def within(self, gap: float) -> bool:
        """Return whether the gap is at most so large, in parts of |objective|.

        Where the smoothing alone is nearly as much, or more, no weights are good enough, and the
        gap without it is what counts.
        """
        allowed = gap * abs(self.objective)
        rest = allowed - self.smoothing
        return self.objective - self.bound <= (rest if rest >= LEAST_REST * allowed else allowed)

    def __str__(self) -> str:
        # Of an objective that is 0 but for the smoothing, parts say nothing.
        nothing = self.objective <= self.smoothing
        part = f"{self.distance:.2g}" if nothing else f"{self.gap:.2g} of it"
        return (
            f"objective {self.objective:.6g}, at most {part} above the minimum; "
            f"KKT residual {self.residual.largest:.2g}"
        )


def residual(
    penalty: Penalty,
    dense: Float64,
    weights: Float64,
    pull: Float64,
    strongest: Int64 | None = None,
) -> Residual:
    """Return the KKT residual of weights.

    Parameters
    ----------
    dense : float64 [k]
        Mean gradient of the dense features, or its negative.
    weights, pull : float64 [u]
        Of the sparse features: weights, and the negative mean gradient.
    strongest : int64 [u], optional
        `by_size` of the pulls, where it is known.
    """
    unit = penalty.largest
    return Residual(
        float(np.abs(dense).max(initial=0.0)) / unit,
        penalty.residual(weights, pull, strongest) / unit,
    )


def certified(
    pairs: StoredPairs,
    loss: MarginLoss,
    penalty: Penalty,
    found: Residual,
    objective: float,
    *margins: Float64,
) -> Certificate:
    """Return the certificate of weights, with the best bound that some margins give.

    Parameters
    ----------
    found : Residual
    objective : float
        Of the weights.
    *margins : float64 [N]
        See `dual_bound`.
    """
    most = objective + ROUNDING * abs(objective) + 1e-15
    bounds = [dual_bound(pairs, loss, penalty, some) for some in margins]
    bound = max((some for some in bounds if some <= most), default=least(loss))
    return Certificate(found, objective, bound, loss.below)


def least(loss: MarginLoss) -> float:
    """Return what a loss is nowhere below: the bound of the dual point 0."""
    return 0.0 - loss.mean_conjugate(np.zeros(1))


def dual_bound(pairs: StoredPairs, loss: MarginLoss, penalty: Penalty, margins: Float64) -> float:
    """Return a lower bound of the objective.

    The dual is the largest -Σ ℓ*(-a_n) / N of all a in the domain of the loss with X_denseᵀa = 0
    and Ω°(X_sparseᵀa / N) ≤ 1. Near the minimum, a = -ℓ' at the margins does so almost. Moving
    the dense weights to their optimum moves it onto X_denseᵀa = 0 within the domain (a projection
    in the sense of Bregman, for ℓ*); it is then scaled until the second holds as well. Where they
    do not get there, all that is known is that the loss is not below `least`.

    Parameters
    ----------
    margins : float64 [N]
        At the weights in question.
    """
    dual = loss.pulls(follow_dense(pairs, loss, margins).margins)
    if not balanced(pairs, dual):
        return least(loss)
    _, pull = pairs.means(dual)
    dual *= 1.0 / max(1.0, penalty.dual_norm(pull))
    return -loss.mean_conjugate(dual)


def balanced(pairs: StoredPairs, dual: Float64) -> bool:
    """Return whether X_denseᵀa = 0, to rounding.

    Parameters
    ----------
    dual : float64 [N]
        a: 0 or more.
    """
    for column in pairs.dense.T:
        size = np.abs(column)
        if abs(column @ dual) > BALANCED * (size @ dual) + NEXT_TO_NONE * size.sum():
            return False
    return True

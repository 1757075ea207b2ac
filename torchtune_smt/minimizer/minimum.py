"""What the minimiser is asked for and returns, and how far from the minimum weights can be."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from torchtune_smt.core.accepts import Checked, above, accepting, integer
from torchtune_smt.core.arrays import Float64, Int64
from torchtune_smt.minimizer.dense_optimum import follow_dense
from torchtune_smt.minimizer.losses import MarginLoss
from torchtune_smt.minimizer.penalty import Penalty
from torchtune_smt.minimizer.stored_pairs import StoredPairs

# Pulls balance a dense feature where their mean is at most this part of the mean of their sizes,
# or of those of pulls of 1: some orders of magnitude more than rounding leaves, and too little to
# move the bound.
BALANCED, NEXT_TO_NONE = 1e-11, 1e-14
# Of the gap that is allowed, what the smoothing must leave to the rest of it.
LEAST_REST = 0.1


@dataclass(frozen=True)
class Accuracy(Checked):
    """When the minimiser is done.

    residual: the KKT residual is at most this; see `Certificate`. A few more steps then polish the
        minimum to about a hundredth of it, so that blocks that move together are known, too.
    gap: the duality gap and the smoothing, in parts of the objective, are at most this; the gap
        alone, where the smoothing nearly is, or is more, which is then said in a message.
    seconds: or this much time has gone by.
    steps: or so many of Newton's steps were taken for one loss.
    """

    accepts = accepting(
        **dict.fromkeys(("residual", "gap", "seconds"), above(0, infinite=True)), steps=integer(1)
    )

    residual: float = 1e-4
    gap: float = 1e-4
    seconds: float = float("inf")
    steps: int = 300


@dataclass(frozen=True)
class Residual:
    """The KKT residual, in parts of the largest penalty λ1 + λ2 (d - 1).

    dense: the largest |mean gradient| of dense features.
    sparse: see `Penalty.residual`.
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

    objective: P: the mean loss and the penalty.
    bound: what no weights can be below, for the loss as it is: of a smoothed hinge for that.
    smoothing: by how much the loss that was smoothed may lie above it: μ/2, or 0.
    """

    residual: Residual
    objective: float
    bound: float
    smoothing: float

    @property
    def distance(self) -> float:
        """The duality gap and the smoothing: what is meant is at most so far above its minimum."""
        return max(self.objective - self.bound, 0.0) + self.smoothing

    @property
    def gap(self) -> float:
        """The same in parts of the objective; of one that is not above 0, 1 (or 0)."""
        distance = self.distance
        return distance / self.objective if self.objective > 0.0 else float(distance > 0.0)

    def within(self, gap: float) -> bool:
        """Return whether the gap is at most so large, in parts of |objective|.

        Without the smoothing, where that alone is nearly as much: no weights would do.
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


@dataclass(frozen=True)
class Minimum:
    """Weights, and what is known of them.

    weights (float64 [D]): a dense feature in which no pair differs keeps the weight that it started
        with, a sparse one has 0.
    groups (int64 [D]): the same number for equal weights that are not 0, in descending order of
        |w|: 2 b for positive, 2 b + 1 for negative ones of block b. -1 for zeros and dense
        features.
    boundary: ids of sparse features of which the accuracy that was asked for leaves open whether
        they have a weight, or which group they are in; see `at_boundary`.
    reached: whether it is as good as was asked for.
    steps: Newton steps.
    messages: what the user ought to know, a sentence each.
    """

    weights: Float64
    groups: Int64
    boundary: Int64
    certificate: Certificate
    reached: bool
    penalty: Penalty
    steps: int
    messages: tuple[str, ...]

    @property
    def survivors(self) -> int:
        """The number of sparse features with a weight."""
        return int(np.count_nonzero(self.groups >= 0))

    @property
    def n_groups(self) -> int:
        """The number of groups."""
        return int(np.unique(self.groups[self.groups >= 0]).size)


def groups_of(weights: Float64) -> Int64:
    """Return the groups of equal weights; see `Minimum`."""
    _, block = np.unique(-np.abs(weights), return_inverse=True)
    return np.where(weights == 0.0, -1, 2 * block + (weights < 0.0)).astype(np.int64)


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

    margins (float64 [N]): at the weights in question.
    """
    dual = loss.pulls(follow_dense(pairs, loss, margins)[1])
    for column in pairs.dense.T:
        size = np.abs(column)
        if abs(column @ dual) > BALANCED * (size @ dual) + NEXT_TO_NONE * size.sum():
            return least(loss)
    _, pull = pairs.means(dual)
    dual *= 1.0 / max(1.0, penalty.dual_norm(pull))
    return -loss.mean_conjugate(dual)

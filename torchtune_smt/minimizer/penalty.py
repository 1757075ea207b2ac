"""OSCAR as a sorted l1 norm, on numpy arrays."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from torchtune_smt.core.arrays import Bool, Float64, Int64
from torchtune_smt.minimizer import sorted_kernels as kernels


@dataclass(frozen=True)
class Penalty:
    """Ω(w) = Σ p_i |w|_(i) with p_i = lambda1 + lambda2 (d - i), |w| descending.

    See `torchtune_smt.regularizers.Oscar`. Vectors may have fewer coordinates than d: all others
    are 0. `strongest` is `by_size` of the pulls.
    """

    lambda1: float
    lambda2: float
    dimension: int

    @property
    def largest(self) -> float:
        """p_1, the unit of KKT residuals."""
        return self.lambda1 + self.lambda2 * (self.dimension - 1)

    def times(self, scale: float) -> Penalty:
        """Return the penalty times a number; ValueError is raised for a part of a λ_max of 0."""
        if not 0.0 < scale < float("inf"):
            raise ValueError(f"the scale of a penalty must be finite and above 0, not {scale}")
        return Penalty(scale * self.lambda1, scale * self.lambda2, self.dimension)

    def by_rank(self, count: int) -> Float64:
        """Return p_1, p_2, ... of some ranks."""
        ranks = np.arange(count, dtype=np.float64)
        return self.lambda1 + self.lambda2 * (self.dimension - 1 - ranks)

    def value(self, weights: Float64) -> float:
        """Return Ω(w)."""
        return float(kernels.norm(weights, self.strengths))

    def along(self, weights: Float64, direction: Float64, step: float) -> tuple[float, float]:
        """Return Ω(w + step · direction), and its derivative by the step (to the right)."""
        return kernels.norm_along(weights, direction, step, self.strengths)

    def dual_norm(self, pull: Float64) -> float:
        """Return the least c with pullᵀw ≤ c Ω(w) for all w."""
        return float(kernels.dual_norm(pull, self.strengths))

    def residual(self, weights: Float64, pull: Float64, strongest: Int64 | None = None) -> float:
        """Return how far the negative gradient `pull` is from being one of Ω at w.

        The largest of, for each block of equal |w| that are not 0, the difference of the sum of
        its pulls (away from 0) and that of its penalties, and the excess of the partial sums of
        its pulls, descending, over those of its penalties; and, for the zeros, of this excess.
        """
        if strongest is None:
            strongest = kernels.by_size(pull)
        return float(kernels.residual(weights, pull, strongest, self.strengths))

    def candidates(self, pull: Float64, strongest: Int64, slack: float) -> Int64:
        """Return the coordinates that may not be 0 if each |pull| may still grow, largest first.

        Algorithm 1 of Larsson, Bogdan and Wallin (2020), with penalties times `slack`. With
        slack = 2 - λ'/λ for pulls at the solution for λ' it is their strong rule for λ.
        """
        return strongest[: kernels.leading(pull, strongest, slack, self.strengths)]

    def torn(self, weights: Float64, pull: Float64, strongest: Int64) -> Int64:
        """Return the zeros torn away together: where the excess of partial sums is most."""
        zeros = strongest[weights[strongest] == 0.0]
        rank = weights.size - zeros.size
        excess = np.cumsum(np.abs(pull[zeros]) - self.by_rank(weights.size)[rank:])
        found: Int64 = zeros[: int(excess.argmax()) + 1 if excess.max(initial=0.0) > 0.0 else 0]
        return found

    @property
    def strengths(self) -> kernels.Strengths:
        """As the kernels take them."""
        return self.lambda1, self.lambda2, self.dimension


def at_boundary(
    penalty: Penalty,
    weights: Float64,
    pull: Float64,
    strongest: Int64,
    curvature: Float64,
    tolerance: float,
) -> Bool:
    """Return which features might be 0, or not, or be in another group, at the minimum itself.

    Where pulls are known to the tolerance alone: zeros that pull so hard, together with those that
    pull harder, that they are almost torn away; blocks of equal |w| that almost come apart; and
    blocks so near to each other, or to 0, that a change of their pulls by the tolerance could
    bring them together. The last takes each block as if it were alone, with its own second
    derivatives, and where blocks move together they move further: it is a rule, not a proof. What
    `Descent` returns is therefore polished to a part of the tolerance.

    curvature (float64 [u]): second derivatives of the mean loss.
    tolerance: in the unit of a gradient.
    """
    if weights.size == 0:
        return np.zeros(0, np.bool_)
    away = np.where(weights == 0.0, np.abs(pull), pull * np.sign(weights))
    alive = np.flatnonzero(weights)
    alive = alive[np.lexsort((-away[alive], -np.abs(weights[alive])))]
    order = np.concatenate([alive, strongest[weights[strongest] == 0.0]])
    # Descending; the zeros are the last one, if there are any.
    level = np.abs(weights[order])
    first = np.flatnonzero(np.diff(level, prepend=np.inf))
    bend = np.add.reduceat(curvature[order], first)
    level = level[first]
    # How far a block may move.
    reach = np.divide(tolerance, bend, out=np.full(bend.size, np.inf), where=bend > 0.0)
    reach[level == 0.0] = 0.0
    slack = penalty.by_rank(order.size) - away[order]
    found = np.zeros(order.size, np.bool_)
    found[order] = kernels.left_open(
        np.append(first, order.size), level, reach, slack, away[order], tolerance
    )
    return found

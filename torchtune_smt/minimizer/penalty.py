"""OSCAR as a sorted l1 norm, on numpy arrays."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from torchtune_smt.core.arrays import Float64, Int64
from torchtune_smt.minimizer import sorted_kernels as kernels


@dataclass(frozen=True)
class Penalty:
    """Ω(w) = Σ p_i |w|_(i) with p_i = lambda1 + lambda2 (d - i), |w| descending.

    See `torchtune_smt.regularizers.Oscar`. Vectors may have fewer coordinates than d: all others
    are 0.
    """

    lambda1: float
    lambda2: float
    dimension: int

    @property
    def largest(self) -> float:
        """p_1, the unit of KKT residuals."""
        return self.lambda1 + self.lambda2 * (self.dimension - 1)

    def times(self, scale: float) -> Penalty:
        """Return the penalty times a number.

        Raises
        ------
        ValueError
            It is not above 0, such as a part of λ_max where that is 0.
        """
        if not 0.0 < scale < float("inf"):
            raise ValueError(f"the scale of a penalty must be finite and above 0, not {scale}")
        return Penalty(scale * self.lambda1, scale * self.lambda2, self.dimension)

    def by_rank(self, count: int) -> Float64:
        """Return p_1, p_2, ... of some ranks."""
        ranks = np.arange(count, dtype=np.float64)
        return self.lambda1 + self.lambda2 * (self.dimension - 1 - ranks)

    def value(self, weights: Float64) -> float:
        """Return Ω(w)."""
        return float(kernels.norm(weights, self.lambda1, self.lambda2, self.dimension))

    def along(self, weights: Float64, direction: Float64, step: float) -> tuple[float, float]:
        """Return Ω(w + step · direction), and its derivative by the step (to the right)."""
        return kernels.norm_along(
            weights, direction, step, self.lambda1, self.lambda2, self.dimension
        )

    def dual_norm(self, pull: Float64) -> float:
        """Return the least c with pullᵀw ≤ c Ω(w) for all w."""
        return float(kernels.dual_norm(pull, self.lambda1, self.lambda2, self.dimension))

    def residual(self, weights: Float64, pull: Float64) -> float:
        """Return how far the negative gradient `pull` is from being one of Ω at w.

        The largest of, for each block of equal |w| that are not 0, the difference of the sum of
        its pulls (away from 0) and that of its penalties, and the excess of the partial sums of
        its pulls, descending, over those of its penalties; and, for the zeros, of this excess.
        """
        return float(kernels.residual(weights, pull, self.lambda1, self.lambda2, self.dimension))

    def candidates(self, pull: Float64, slack: float) -> Int64:
        """Return the coordinates that may not be 0 if each |pull| may still grow, largest first.

        Algorithm 1 of Larsson, Bogdan and Wallin (2020), with penalties times `slack`. With
        slack = 2 - λ'/λ for pulls at the solution for λ' it is their strong rule for λ.
        """
        size = np.abs(pull)
        order = np.argsort(-size, kind="stable")
        return order[: kernels.leading(size, order, slack * self.by_rank(pull.size))]

    def torn(self, pull: Float64, rank: int) -> Int64:
        """Return the zeros that are torn away together: where the excess of partial sums is most.

        Parameters
        ----------
        pull : float64 [z]
            Of all weights that are 0.
        rank : int
            How many weights are not 0.
        """
        size = np.abs(pull)
        # Whatever pulls less than the last penalty adds to no excess.
        last = self.lambda1 + self.lambda2 * (self.dimension - rank - size.size)
        able = np.flatnonzero(size >= last)
        able = able[np.argsort(-size[able], kind="stable")]
        excess = np.cumsum(size[able] - self.by_rank(rank + able.size)[rank:])
        if excess.max(initial=0.0) <= 0.0:
            return able[:0]
        return able[: int(np.argmax(excess)) + 1]

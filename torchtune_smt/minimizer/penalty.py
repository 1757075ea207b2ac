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
        return float(kernels.norm(weights, *self._numbers))

    def along(self, weights: Float64, direction: Float64, step: float) -> tuple[float, float]:
        """Return Ω(w + step · direction), and its derivative by the step (to the right)."""
        return kernels.norm_along(weights, direction, step, *self._numbers)

    def dual_norm(self, pull: Float64) -> float:
        """Return the least c with pullᵀw ≤ c Ω(w) for all w."""
        return float(kernels.dual_norm(pull, *self._numbers))

    def residual(self, weights: Float64, pull: Float64, strongest: Int64 | None = None) -> float:
        """Return how far the negative gradient `pull` is from being one of Ω at w.

        The largest of, for each block of equal |w| that are not 0, the difference of the sum of
        its pulls (away from 0) and that of its penalties, and the excess of the partial sums of
        its pulls, descending, over those of its penalties; and, for the zeros, of this excess.

        Parameters
        ----------
        strongest : int64 [u], optional
            `by_size` of the pulls, where it is known.
        """
        if strongest is None:
            strongest = by_size(pull)
        return float(kernels.residual(weights, pull, strongest, *self._numbers))

    def candidates(self, pull: Float64, strongest: Int64, slack: float) -> Int64:
        """Return the coordinates that may not be 0 if each |pull| may still grow, largest first.

        Algorithm 1 of Larsson, Bogdan and Wallin (2020), with penalties times `slack`. With
        slack = 2 - λ'/λ for pulls at the solution for λ' it is their strong rule for λ.

        Parameters
        ----------
        strongest : int64 [u]
            `by_size` of the pulls.
        """
        return strongest[: kernels.leading(pull, strongest, slack, *self._numbers)]

    def torn(self, weights: Float64, pull: Float64, strongest: Int64) -> Int64:
        """Return the zeros that are torn away together: where the excess of partial sums is most.

        Parameters
        ----------
        strongest : int64 [u]
            `by_size` of the pulls.
        """
        return kernels.torn(weights, pull, strongest, *self._numbers)

    @property
    def _numbers(self) -> tuple[float, float, int]:
        return self.lambda1, self.lambda2, self.dimension


def by_size(pull: Float64) -> Int64:
    """Return the places (int64 [u]) of pulls in descending order of their sizes."""
    return kernels.by_size(pull)

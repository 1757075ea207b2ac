"""The l1 norm."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from torchtune_smt.regularizers.base import check_strength
from torchtune_smt.regularizers.ops import elastic_prox


@dataclass(frozen=True)
class L1:
    """Ω(w) = strength · Σ |w_i|; its prox is the soft threshold.

    Parameters
    ----------
    strength : float
        λ, 0 or more; 0.1 in Green et al. (2013).
    """

    strength: float = 0.1

    separable: ClassVar[bool] = True
    lazy: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_strength("strength", self.strength)

    @property
    def elastic(self) -> tuple[float, float]:
        """(λ1, λ2)."""
        return self.strength, 0.0

    def value(self, weights: Tensor) -> Tensor:
        """Return Ω(w), a scalar tensor."""
        return self.strength * weights.abs().sum()

    def prox(self, weights: Tensor, step: Tensor | float) -> Tensor:
        """Return the weights, each moved towards 0 by step · strength and no further."""
        return elastic_prox(weights, step, self.strength, 0.0)

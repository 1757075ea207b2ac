"""The squared l2 norm."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from torchtune_smt.regularizers.base import check_strength
from torchtune_smt.regularizers.ops import elastic_prox


@dataclass(frozen=True)
class L2:
    """Ω(w) = ½ strength · Σ w_i²; its prox divides by 1 + step · strength.

    Two steps are not one of the summed size, so it is not `lazy`; but optimizers put its steps
    off by another rule.

    Parameters
    ----------
    strength : float
        λ, 0 or more.
    """

    strength: float = 0.1

    separable: ClassVar[bool] = True
    lazy: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_strength("strength", self.strength)

    @property
    def elastic(self) -> tuple[float, float]:
        """(λ1, λ2)."""
        return 0.0, self.strength

    def value(self, weights: Tensor) -> Tensor:
        """Return Ω(w), a scalar tensor."""
        return 0.5 * self.strength * weights.square().sum()

    def prox(self, weights: Tensor, step: Tensor | float) -> Tensor:
        """Return the weights divided by 1 + step · strength."""
        return elastic_prox(weights, step, 0.0, self.strength)

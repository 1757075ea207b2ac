"""The elastic net: l1 and squared l2 norm."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from torchtune_smt.regularizers.base import check_strength
from torchtune_smt.regularizers.ops import elastic_prox


@dataclass(frozen=True)
class ElasticNet:
    """Ω(w) = lambda1 · Σ |w_i| + ½ lambda2 · Σ w_i²: soft threshold, then division.

    Parameters
    ----------
    lambda1, lambda2 : float
        0 or more.
    """

    lambda1: float = 0.1
    lambda2: float = 0.1

    separable: ClassVar[bool] = True
    lazy: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_strength("lambda1", self.lambda1)
        check_strength("lambda2", self.lambda2)

    @property
    def elastic(self) -> tuple[float, float]:
        """(λ1, λ2)."""
        return self.lambda1, self.lambda2

    def value(self, weights: Tensor) -> Tensor:
        """Return Ω(w), a scalar tensor."""
        return self.lambda1 * weights.abs().sum() + 0.5 * self.lambda2 * weights.square().sum()

    def prox(self, weights: Tensor, step: Tensor | float) -> Tensor:
        """Return the soft threshold by step · lambda1, divided by 1 + step · lambda2."""
        return elastic_prox(weights, step, self.lambda1, self.lambda2)

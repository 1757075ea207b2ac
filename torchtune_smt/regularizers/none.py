"""No regularisation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor


@dataclass(frozen=True)
class NoRegularizer:
    """Ω(w) = 0; its prox leaves weights as they are."""

    separable: ClassVar[bool] = True
    lazy: ClassVar[bool] = True
    elastic: ClassVar[tuple[float, float]] = (0.0, 0.0)

    def value(self, weights: Tensor) -> Tensor:
        """Return 0, a scalar tensor."""
        return weights.new_zeros(())

    def prox(self, weights: Tensor, step: Tensor | float) -> Tensor:
        """Return a copy of the weights."""
        return weights.clone()

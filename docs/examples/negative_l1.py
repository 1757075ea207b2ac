"""A regulariser: the l1 norm of the negative weights alone."""

from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True)
class NegativeL1:
    """strength · Σ max(0, -w_i): features may help for free, and pay for doing harm."""

    strength: float = 0.1
    separable: ClassVar[bool] = True  # a sum over single coordinates
    lazy: ClassVar[bool] = True  # two proximal steps equal one of the summed size

    def value(self, weights):
        """Return Ω(w)."""
        return self.strength * (-weights).clamp_min(0).sum()

    def prox(self, weights, step):
        """Return argmin_v ½‖v - w‖² + step · Ω(v)."""
        return weights.clamp_min(0) + (weights + step * self.strength).clamp_max(0)

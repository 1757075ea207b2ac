"""What a regulariser is."""

from __future__ import annotations

from typing import ClassVar, Protocol

from torch import Tensor


class Regularizer(Protocol):
    """A penalty Ω on the weights, with the facts that optimizers ask for.

    Regularisers are values: frozen dataclasses, equal if their parameters are.

    Attributes
    ----------
    separable : bool
        Ω is a sum over single coordinates, so each may have a step of its own.
    lazy : bool
        prox_{aΩ}(prox_{bΩ}(w)) = prox_{(a+b)Ω}(w): steps may be put off and taken as one.
    """

    separable: ClassVar[bool]
    lazy: ClassVar[bool]

    def value(self, weights: Tensor) -> Tensor:
        """Return Ω(w), a scalar tensor, for weights of any shape."""
        ...

    def prox(self, weights: Tensor, step: Tensor | float) -> Tensor:
        """Return argmin_v ½‖v - w‖² + step · Ω(v) as a new tensor.

        `step` (not negative) may be a tensor of the shape of `weights` where Ω is separable.
        """
        ...


def check_strength(name: str, strength: float) -> None:
    """Raise ValueError if a regularisation strength is negative, infinite or no number."""
    if not 0 <= strength < float("inf"):
        raise ValueError(f"{name} must be a finite number, 0 or more, not {strength}")

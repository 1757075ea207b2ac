"""Derivatives of the pairwise losses, for compiled loops that take a step after each pair."""

from __future__ import annotations

import math

from torchtune_smt.core.compiled import kernel

HINGE, LOGISTIC, PERCEPTRON = range(3)


@kernel
def slope(kind: int, z: float) -> float:
    """Return -dℓ/dz at margin z of the loss of a kind, one of the constants above."""
    if kind == HINGE:
        return 1.0 if z < 1.0 else 0.0
    if kind == PERCEPTRON:
        return 1.0 if z <= 0.0 else 0.0
    if z > 0.0:
        tail = math.exp(-z)
        return tail / (1.0 + tail)
    return 1.0 / (1.0 + math.exp(z))

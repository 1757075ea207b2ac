"""Losses of margins with their derivatives and conjugates, for the minimiser."""

from __future__ import annotations

import math

import numpy as np

from torchtune_smt.core.arrays import Float64
from torchtune_smt.core.compiled import inner, kernel

SMOOTHED_HINGE, SQUARED_HINGE, LOGISTIC = range(3)
# A pull below this, beside those near 1, is rounding; taken as none, the weight of a dense feature
# that tells some pairs without error stops growing, before it makes a noise of all it is added to.
NO_PULL = 1e-16


@inner
def value(kind: int, mu: float, z: float) -> float:
    """Return ℓ(z); mu is that of the smoothed hinge."""
    if kind == LOGISTIC:
        return math.log1p(math.exp(-z)) if z > 0.0 else math.log1p(math.exp(z)) - z
    short = 1.0 - z
    if kind == SQUARED_HINGE:
        return 0.5 * short * short if short > 0.0 else 0.0
    root = math.sqrt(short * short + mu * mu)
    # The smaller one of the roots of a quadratic, without cancellation.
    return 0.5 * (short + root if short > 0.0 else mu * mu / (root - short)) - 0.5 * mu


@inner
def pull(kind: int, mu: float, z: float) -> float:
    """Return -dℓ/dz, which is 0 or more."""
    if kind == LOGISTIC:
        if z > 0.0:
            tail = math.exp(-z)
            return tail / (1.0 + tail)
        return 1.0 / (1.0 + math.exp(z))
    short = 1.0 - z
    if kind == SQUARED_HINGE:
        return max(short, 0.0)
    root = math.sqrt(short * short + mu * mu)
    if short > 0.0:
        return 0.5 * (1.0 + short / root)
    found = 0.5 * mu * mu / (root * (root - short))
    return found if found > NO_PULL else 0.0


@inner
def curvature(kind: int, mu: float, z: float) -> float:
    """Return d²ℓ/dz²; of the squared hinge at its kink, that of the flat side."""
    if kind == LOGISTIC:
        tail = math.exp(-abs(z))
        return tail / ((1.0 + tail) * (1.0 + tail))
    short = 1.0 - z
    if kind == SQUARED_HINGE:
        return 1.0 if short > 0.0 else 0.0
    square = short * short + mu * mu
    if short < 0.0 and mu * mu <= 4.0 * NO_PULL * square:
        return 0.0
    return 0.5 * mu * mu / (square * math.sqrt(square))


@inner
def conjugate(kind: int, mu: float, a: float) -> float:
    """Return ℓ*(-a), the largest -a z - ℓ(z) of all z, for `a` in the domain."""
    if kind == SQUARED_HINGE:
        return 0.5 * a * a - a
    b = 1.0 - a
    if kind == SMOOTHED_HINGE:
        return 0.5 * mu - a - mu * math.sqrt(max(a * b, 0.0))
    total = 0.0
    if a > 0.0:
        total += a * math.log(a)
    if b > 0.0:
        total += b * math.log(b)
    return total


@kernel
def values(kind: int, mu: float, margins: Float64) -> float:
    """Return the mean loss."""
    total = 0.0
    for i in range(margins.size):
        total += value(kind, mu, margins[i])
    return total / margins.size


@kernel
def pulls(kind: int, mu: float, margins: Float64) -> Float64:
    """Return -dℓ/dz of each margin."""
    out = np.empty(margins.size)
    for i in range(margins.size):
        out[i] = pull(kind, mu, margins[i])
    return out


@kernel
def curvatures(kind: int, mu: float, margins: Float64) -> Float64:
    """Return d²ℓ/dz² of each margin."""
    out = np.empty(margins.size)
    for i in range(margins.size):
        out[i] = curvature(kind, mu, margins[i])
    return out


@kernel
def primal_dual_curvatures(mu: float, margins: Float64, dual: Float64) -> Float64:
    """Return those of the smoothed hinge; see `losses.SmoothedHinge.primal_dual_curvatures`."""
    out = np.empty(margins.size)
    for i in range(margins.size):
        short = 1.0 - margins[i]
        # The pull and what is left of 1, both without cancellation.
        own = pull(SMOOTHED_HINGE, mu, margins[i])
        rest = pull(SMOOTHED_HINGE, mu, 1.0 + short)
        a = dual[i]
        out[i] = (a * rest + (1.0 - a) * own) / math.sqrt(short * short + mu * mu)
    return out


@kernel
def conjugates(kind: int, mu: float, dual: Float64) -> float:
    """Return the mean of ℓ*(-a)."""
    total = 0.0
    for i in range(dual.size):
        total += conjugate(kind, mu, dual[i])
    return total / dual.size


@kernel
def along(
    kind: int, mu: float, margins: Float64, direction: Float64, step: float
) -> tuple[float, float]:
    """Return the mean loss at ``margins + step * direction``, and its derivative by the step."""
    total, slope = 0.0, 0.0
    for i in range(margins.size):
        z = margins[i] + step * direction[i]
        total += value(kind, mu, z)
        slope -= pull(kind, mu, z) * direction[i]
    return total / margins.size, slope / margins.size

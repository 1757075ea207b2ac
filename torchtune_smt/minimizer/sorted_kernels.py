"""OSCAR as a sorted l1 norm: its value, its dual norm, and how far a point is from optimal."""

from __future__ import annotations

import numpy as np

from torchtune_smt.core.arrays import Float64, Int64
from torchtune_smt.core.compiled import kernel


@kernel
def norm(weights: Float64, lambda1: float, lambda2: float, dimension: int) -> float:
    """Return Ω(w)."""
    magnitude = np.sort(np.abs(weights[weights != 0.0]))
    total = 0.0
    u = magnitude.size
    for i in range(u):
        total += (lambda1 + lambda2 * (dimension - u + i)) * magnitude[i]
    return total


@kernel
def norm_along(
    weights: Float64,
    direction: Float64,
    step: float,
    lambda1: float,
    lambda2: float,
    dimension: int,
) -> tuple[float, float]:
    """Return Ω(w + step d), and a derivative by the step, of one side at a kink."""
    point = weights + step * direction
    places = np.flatnonzero((weights != 0.0) | (direction != 0.0))
    order = places[np.argsort(np.abs(point[places]))]
    total, slope = 0.0, 0.0
    u = order.size
    for i in range(u):
        j = order[i]
        penalty = lambda1 + lambda2 * (dimension - u + i)
        total += penalty * abs(point[j])
        if point[j] > 0.0:
            slope += penalty * direction[j]
        elif point[j] < 0.0:
            slope -= penalty * direction[j]
        else:
            slope += penalty * abs(direction[j])
    return total, slope


@kernel
def dual_norm(gradient: Float64, lambda1: float, lambda2: float, dimension: int) -> float:
    """Return the smallest c with gradient in c times the unit ball of the dual norm.

    The largest ratio of the sum of the k largest |g| to the sum of the k largest penalties.
    """
    magnitude = np.sort(np.abs(gradient))[::-1]
    largest, total, penalties = 0.0, 0.0, 0.0
    for k in range(magnitude.size):
        total += magnitude[k]
        penalties += lambda1 + lambda2 * (dimension - 1 - k)
        if total > largest * penalties:
            largest = total / penalties
    return largest


@kernel
def residual(
    weights: Float64, pulls: Float64, lambda1: float, lambda2: float, dimension: int
) -> float:
    """Return how far from optimal sparse weights are, in the unit of a gradient.

    Parameters
    ----------
    weights, pulls : float64 [u]
        w, and -g: the negative mean gradient.

    Returns
    -------
    float
        The largest of, for each block of equal |w| that are not 0, the difference of the sum
        of its pulls (away from 0) and that of its penalties, and the excess of the partial sums
        of its pulls, descending, over those of its penalties; for the zeros, this excess.
    """
    magnitude = np.abs(weights)
    away = np.where(weights > 0.0, pulls, np.where(weights < 0.0, -pulls, np.abs(pulls)))
    order = np.argsort(-magnitude, kind="mergesort")
    worst = 0.0
    first = 0
    while first < order.size:
        last = first + 1
        while last < order.size and magnitude[order[last]] == magnitude[order[first]]:
            last += 1
        block = np.sort(away[order[first:last]])
        total = 0.0
        for k in range(block.size):
            total += block[block.size - 1 - k] - (lambda1 + lambda2 * (dimension - 1 - first - k))
            worst = max(worst, total)
        if magnitude[order[first]] > 0.0:
            worst = max(worst, abs(total))
        first = last
    return worst


@kernel
def leading(sizes: Float64, order: Int64, penalties: Float64) -> int:
    """Return how many of the largest sizes may belong to weights that are not 0.

    Algorithm 1 of Larsson, Bogdan and Wallin (2020): the longest beginning, in descending order,
    in pieces whose sums reach those of the penalties.

    Parameters
    ----------
    sizes : float64 [u]
    order : int64 [u]
        Their places, descending.
    penalties : float64 [u]
        Descending, by rank.
    """
    found = 0
    total = 0.0
    for i in range(order.size):
        total += sizes[order[i]] - penalties[i]
        if total >= 0.0:
            found = i + 1
            total = 0.0
    return found

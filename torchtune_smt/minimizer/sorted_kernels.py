"""OSCAR as a sorted l1 norm: its value, its dual norm, and how far a point is from optimal."""

from __future__ import annotations

import numpy as np

from torchtune_smt.core.arrays import Bool, Float64, Int64
from torchtune_smt.core.compiled import inlined, kernel
from torchtune_smt.regularizers.sort_kernels import sort_by_size

Strengths = tuple[float, float, int]
"""λ1, λ2 and d."""


@inlined
def at_rank(strengths: Strengths, rank: int | np.int64) -> float:
    """Return the penalty of a rank, from 0, of descending |w|."""
    lambda1, lambda2, dimension = strengths
    return lambda1 + lambda2 * (dimension - 1 - rank)


@kernel
def norm(weights: Float64, strengths: Strengths) -> float:
    """Return Ω(w)."""
    magnitude = np.sort(np.abs(weights[weights != 0.0]))
    total = 0.0
    u = magnitude.size
    for i in range(u):
        total += at_rank(strengths, u - 1 - i) * magnitude[i]
    return total


@kernel
def norm_along(
    weights: Float64, direction: Float64, step: float, strengths: Strengths
) -> tuple[float, float]:
    """Return Ω(w + step d), and a derivative by the step, of one side at a kink."""
    point = weights + step * direction
    places = np.flatnonzero((weights != 0.0) | (direction != 0.0))
    order = places[np.argsort(np.abs(point[places]))]
    total, slope = 0.0, 0.0
    u = order.size
    for i in range(u):
        j = order[i]
        penalty = at_rank(strengths, u - 1 - i)
        total += penalty * abs(point[j])
        if point[j] > 0.0:
            slope += penalty * direction[j]
        elif point[j] < 0.0:
            slope -= penalty * direction[j]
        else:
            slope += penalty * abs(direction[j])
    return total, slope


@kernel
def dual_norm(gradient: Float64, strengths: Strengths) -> float:
    """Return the dual norm: the largest ratio of the sums of the k largest |g| and penalties."""
    order, size = np.empty(gradient.size, np.int64), np.empty(gradient.size)
    sort_by_size(gradient, order, size)
    largest, total, penalties = 0.0, 0.0, 0.0
    for k in range(size.size):
        total += size[k]
        penalties += at_rank(strengths, k)
        if total > largest * penalties:
            largest = total / penalties
    return largest


@kernel
def by_size(values: Float64) -> Int64:
    """Return the places (int64 [u]) of values in descending order of their absolute values."""
    order = np.empty(values.size, np.int64)
    sort_by_size(values, order, np.empty(values.size))
    return order


@kernel
def residual(weights: Float64, pulls: Float64, strongest: Int64, strengths: Strengths) -> float:
    """Return how far from optimal sparse weights are; see `Penalty.residual`."""
    places = np.flatnonzero(weights)
    some = weights[places]
    order, size = np.empty(some.size, np.int64), np.empty(some.size)
    sort_by_size(some, order, size)
    worst = 0.0
    first = 0
    while first < some.size:
        last = first + 1
        while last < some.size and size[last] == size[first]:
            last += 1
        block = np.empty(last - first)
        for k in range(first, last):
            j = places[order[k]]
            block[k - first] = pulls[j] if weights[j] > 0.0 else -pulls[j]
        if block.size > 1:
            block.sort()
        total = 0.0
        for k in range(block.size):
            total += block[block.size - 1 - k] - at_rank(strengths, first + k)
            worst = max(worst, total)
        worst = max(worst, abs(total))
        first = last
    total = 0.0
    rank = some.size
    for j in strongest:
        if weights[j] == 0.0:
            total += abs(pulls[j]) - at_rank(strengths, rank)
            worst = max(worst, total)
            rank += 1
    return worst


@kernel
def leading(pulls: Float64, strongest: Int64, slack: float, strengths: Strengths) -> int:
    """Return how many of the strongest pulls are `Penalty.candidates`."""
    found = 0
    total = 0.0
    for i in range(strongest.size):
        total += abs(pulls[strongest[i]]) - slack * at_rank(strengths, i)
        if total >= 0.0:
            found = i + 1
            total = 0.0
    return found


@kernel
def left_open(
    begin: Int64, level: Float64, reach: Float64, slack: Float64, away: Float64, tolerance: float
) -> Bool:
    """Return which ranks may be in another block, or at 0, if pulls change by the tolerance.

    See `torchtune_smt.minimizer.penalty.at_boundary`.

    begin (int64 [blocks + 1]): the first rank of each block of equal |w|, descending, and their
        number.
    level, reach (float64 [blocks]): |w| of each, and how far it may move.
    slack, away (float64 [u]): by rank, in each block in descending order of pulls: the penalty less
        the pull, and the pull away from 0.
    """
    open_ = np.zeros(slack.size, np.bool_)
    blocks = level.size
    for b in range(blocks):
        first, last = begin[b], begin[b + 1]
        left = 0.0
        tight = -1
        for rank in range(first, last):
            left += slack[rank]
            if left <= tolerance:
                if level[b] == 0.0:
                    tight = rank
                elif rank < last - 1:
                    open_[first:last] = True
                    break
        if tight >= 0:
            # And those that pull as hard as the last of them.
            for rank in range(first, last):
                if away[rank] >= away[tight] - tolerance:
                    open_[rank] = True
        if b + 1 < blocks and level[b] - level[b + 1] <= reach[b] + reach[b + 1]:
            open_[first:last] = True
            if level[b + 1] > 0.0:
                open_[begin[b + 1] : begin[b + 2]] = True
    # The smallest weights may be 0 where nothing else is.
    if blocks and 0.0 < level[-1] <= reach[-1]:
        open_[begin[blocks - 1] :] = True
    return open_

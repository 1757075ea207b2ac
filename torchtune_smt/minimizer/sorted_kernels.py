"""OSCAR as a sorted l1 norm: its value, its dual norm, and how far a point is from optimal."""

from __future__ import annotations

import numpy as np

from torchtune_smt.core.arrays import Bool, Float64, Int64
from torchtune_smt.core.compiled import kernel
from torchtune_smt.regularizers.sort_kernels import sort_by_size


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
    order, size = np.empty(gradient.size, np.int64), np.empty(gradient.size)
    sort_by_size(gradient, order, size)
    largest, total, penalties = 0.0, 0.0, 0.0
    for k in range(size.size):
        total += size[k]
        penalties += lambda1 + lambda2 * (dimension - 1 - k)
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
def residual(
    weights: Float64,
    pulls: Float64,
    strongest: Int64,
    lambda1: float,
    lambda2: float,
    dimension: int,
) -> float:
    """Return how far from optimal sparse weights are, in the unit of a gradient.

    Parameters
    ----------
    weights, pulls : float64 [u]
        w, and -g: the negative mean gradient.
    strongest : int64 [u]
        Places in descending order of |g|.

    Returns
    -------
    float
        The largest of, for each block of equal |w| that are not 0, the difference of the sum
        of its pulls (away from 0) and that of its penalties, and the excess of the partial sums
        of its pulls, descending, over those of its penalties; for the zeros, this excess.
    """
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
            total += block[block.size - 1 - k] - (lambda1 + lambda2 * (dimension - 1 - first - k))
            worst = max(worst, total)
        worst = max(worst, abs(total))
        first = last
    total = 0.0
    rank = some.size
    for j in strongest:
        if weights[j] == 0.0:
            total += abs(pulls[j]) - (lambda1 + lambda2 * (dimension - 1 - rank))
            worst = max(worst, total)
            rank += 1
    return worst


@kernel
def leading(
    pulls: Float64,
    strongest: Int64,
    slack: float,
    lambda1: float,
    lambda2: float,
    dimension: int,
) -> int:
    """Return how many of the strongest pulls may belong to weights that are not 0.

    Algorithm 1 of Larsson, Bogdan and Wallin (2020): the longest beginning, in descending order,
    in pieces whose sums reach those of the penalties.

    Parameters
    ----------
    pulls : float64 [u]
    strongest : int64 [u]
        Their places, descending in size.
    slack : float
        Times the penalties.
    """
    found = 0
    total = 0.0
    for i in range(strongest.size):
        total += abs(pulls[strongest[i]]) - slack * (lambda1 + lambda2 * (dimension - 1 - i))
        if total >= 0.0:
            found = i + 1
            total = 0.0
    return found


@kernel
def torn(
    weights: Float64,
    pulls: Float64,
    strongest: Int64,
    lambda1: float,
    lambda2: float,
    dimension: int,
) -> Int64:
    """Return the zeros that are torn away together: where the excess of partial sums is most.

    Parameters
    ----------
    weights, pulls, strongest
        See `residual`.

    Returns
    -------
    int64 array
        Places, in descending order of |g|.
    """
    rank = np.count_nonzero(weights)
    zeros = np.empty(weights.size - rank, np.int64)
    total, most = 0.0, 0.0
    n, found = 0, 0
    for j in strongest:
        if weights[j] == 0.0:
            total += abs(pulls[j]) - (lambda1 + lambda2 * (dimension - 1 - rank - n))
            zeros[n] = j
            n += 1
            if total > most:
                most, found = total, n
    return zeros[:found]


@kernel
def left_open(
    begin: Int64, level: Float64, reach: Float64, slack: Float64, away: Float64, tolerance: float
) -> Bool:
    """Return which ranks may be in another block, or at 0, if pulls change by the tolerance.

    See `torchtune_smt.minimizer.boundary.at_boundary`.

    Parameters
    ----------
    begin : int64 [blocks + 1]
        The first rank of each block of equal |w|, descending, and their number.
    level, reach : float64 [blocks]
        |w| of each, and how far it may move.
    slack, away : float64 [u]
        By rank, in each block in descending order of pulls: the penalty less the pull, and the
        pull away from 0.
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

"""Exact line search on a corpus score: upper envelopes of lines, and the sweep along them.

Along a direction the score of hypothesis h is the line offset[h] + γ slope[h]; the best of a list
is on the upper envelope of its lines. Arguments that functions share:

    list_begin : int64 [S + 1]
        Hypotheses of list s are list_begin[s] .. list_begin[s + 1] - 1.
    offset, slope : float64 [n]
    statistics : int32 or float64 [n, statistics]
    code : float64 [parts, 4]
        Of `Measure`.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchtune_smt.core.arrays import Float64, Int32, Int64
from torchtune_smt.core.compiled import inner, kernel, wide
from torchtune_smt.kbest.measure_kernels import add_chosen, corpus_score

LARGEST = 1e30  # of γ: so much times a slope is still finite


@kernel
def standardize(list_begin: Int64, matrix: Float64, scale: Float64) -> None:
    """Subtract each list's mean from each feature (float64 [m, n]), and divide by its spread.

    ``scale`` (float64 [m]) is written: the spread, the root of the mean square of all lists; 0 for
    a feature that is the same in all hypotheses of each list, whatever rounding says.
    """
    for j in range(matrix.shape[0]):
        squares = 0.0
        differs = False
        for s in range(list_begin.size - 1):
            begin, end = list_begin[s], list_begin[s + 1]
            total = 0.0
            for h in range(begin, end):
                total += matrix[j, h]
                differs |= matrix[j, h] != matrix[j, begin]
            for h in range(begin, end):
                matrix[j, h] -= total / (end - begin)
                squares += matrix[j, h] ** 2
        scale[j] = math.sqrt(squares / matrix.shape[1]) if differs else 0.0
        if scale[j] > 0.0:
            for h in range(matrix.shape[1]):
                matrix[j, h] /= scale[j]


@kernel
def combine(matrix: Float64, vector: Float64, out: Float64) -> None:
    """Write the sum of the rows of a matrix (float64 [m, n]), each times its part of a vector."""
    out[:] = 0.0
    # In pieces that stay in the cache.
    for begin in range(0, out.size, 1024):
        piece = out[begin : begin + 1024]
        for j in range(vector.size):
            if vector[j] != 0.0:
                row = matrix[j, begin : begin + 1024]
                for h in range(piece.size):
                    piece[h] += vector[j] * row[h]


@kernel
def combine_each(matrix: Float64, vectors: Float64, out: Float64) -> None:
    """Write as `combine` does, for each of some vectors (rows) a row of `out`."""
    out[:] = 0.0
    for begin in range(0, out.shape[1], 512):
        for i in range(out.shape[0]):
            piece = out[i, begin : begin + 512]
            for j in range(vectors.shape[1]):
                if vectors[i, j] != 0.0:
                    row = matrix[j, begin : begin + 512]
                    for h in range(piece.size):
                        piece[h] += vectors[i, j] * row[h]


@wide
def count_above(offset: Float64, slope: Float64, gamma: float, score: float) -> int:
    """Count the hypotheses of a list whose score at γ is larger than this one."""
    count = 0
    for h in range(offset.size):
        count += offset[h] + gamma * slope[h] > score
    return count


@wide
def largest(offset: Float64, slope: Float64, gamma: float) -> float:
    """Return the largest score of a list at γ."""
    # Four maxima that do not wait for each other.
    part = offset.size // 4
    a = b = c = d = -math.inf
    for h in range(part):
        score = offset[h] + gamma * slope[h]
        a = score if score > a else a
        score = offset[h + part] + gamma * slope[h + part]
        b = score if score > b else b
        score = offset[h + 2 * part] + gamma * slope[h + 2 * part]
        c = score if score > c else c
        score = offset[h + 3 * part] + gamma * slope[h + 3 * part]
        d = score if score > d else d
    for h in range(4 * part, offset.size):
        score = offset[h] + gamma * slope[h]
        a = score if score > a else a
    return max(max(a, b), max(c, d))


@wide
def first_at(offset: Float64, slope: Float64, gamma: float, score: float) -> int:
    """Return the first hypothesis of a list with this score at γ."""
    found = offset.size
    for h in range(offset.size):
        place = h if offset[h] + gamma * slope[h] == score else offset.size
        found = place if place < found else found
    return found


@inner
def outermost(offset: Float64, slope: Float64, sign: float) -> int:
    """Return the first line of the envelope (sign -1) or the last one (1)."""
    best = 0
    for h in range(1, offset.size):
        rise = sign * (slope[h] - slope[best])
        if rise > 0.0 or (rise == 0.0 and offset[h] > offset[best]):
            best = h
    return best


@kernel
def envelopes(
    list_begin: Int64,
    offset: Float64,
    slope: Float64,
    stack: Int64,
    first: Int64,
    gamma: Float64,
    change: Int32,
) -> int:
    """Find the upper envelope of each list; return the number of thresholds.

    Between two lines of the envelope, the highest line over their crossing is found, and then
    those between each of the two and it, until there is none. A list thus takes two passes for
    each line of its envelope, which has a few only, and no sorting. Of equal lines, the first
    is taken.

    stack (int64 [length of the longest list]): room.
    first (int64 [S]): written: the best hypothesis of each list as γ goes to minus infinity.
    gamma, change (float64 [n], int32 [n, 2]): written: where the best of a list changes, and from
        which hypothesis to which; list by list, ascending but for rounding.
    """
    n = 0
    for s in range(list_begin.size - 1):
        begin = list_begin[s]
        offsets = offset[begin : list_begin[s + 1]]
        slopes = slope[begin : list_begin[s + 1]]
        left = outermost(offsets, slopes, -1.0)
        first[s] = begin + left
        stack[0] = outermost(offsets, slopes, 1.0)
        depth = 1 if slopes[stack[0]] > slopes[left] else 0
        while depth > 0:
            right = stack[depth - 1]
            x = (offsets[left] - offsets[right]) / (slopes[right] - slopes[left])
            x = min(max(x, -LARGEST), LARGEST)
            here = max(offsets[left] + x * slopes[left], offsets[right] + x * slopes[right])
            between = left
            if count_above(offsets, slopes, x, here) > 0:
                between = first_at(offsets, slopes, x, largest(offsets, slopes, x))
            # By rounding alone, one beyond the two may be above.
            if slopes[left] < slopes[between] < slopes[right]:
                stack[depth] = between
                depth += 1
            else:
                gamma[n], change[n, 0], change[n, 1] = x, begin + left, begin + right
                n += 1
                left = right
                depth -= 1
    return n


@kernel
def chosen_score(statistics: NDArray[Any], chosen: Int64, code: Float64) -> float:
    """Return the corpus score of some hypotheses."""
    total = np.zeros(statistics.shape[1])
    add_chosen(statistics, chosen, total)
    return corpus_score(total, code)


@kernel
def sweep(
    first: Int64,
    gamma: Float64,
    change: Int32,
    order: Int64,
    statistics: NDArray[Any],
    code: Float64,
    narrow: float,
    far: float,
) -> tuple[float, float]:
    """Return the best corpus score along a line, and a γ that has it.

    first, gamma, change: as `envelopes` writes them.
    order (int64 [thresholds]): the thresholds ascending in γ.
    narrow: intervals of this width or less are passed over.
    far: γ is looked for in -far..far.

    Returns score: of equal ones, the interval nearest to γ = 0 is taken.
    Returns gamma: 0 in the interval that holds 0. The middle of any other, and in one that is not
        bounded, by the mean width of the others beyond its end.
    """
    width = statistics.shape[1]
    total = np.zeros(width)
    add_chosen(statistics, first, total)
    left = -far
    n = order.size
    k = 0
    lowest, highest = far, -far
    for e in range(n):
        if -far < gamma[e] < far:
            lowest, highest = min(lowest, gamma[e]), max(highest, gamma[e])
    mean = (highest - lowest) / n if highest > lowest else far
    top, where, distance = -math.inf, 0.0, 0.0
    while left < far:
        while k < n and gamma[order[k]] <= left:
            for i in range(width):
                total[i] += statistics[change[order[k], 1], i]
                total[i] -= statistics[change[order[k], 0], i]
            k += 1
        right = min(gamma[order[k]], far) if k < n else far
        if right - left > narrow:
            away = max(left, -right, 0.0)
            value = corpus_score(total, code)
            if value > top or (value == top and away < distance):
                top, distance = value, away
                if left < 0.0 < right:
                    where = 0.0
                elif left == -far:
                    where = max(right - mean, 0.5 * (left + right))
                elif right == far:
                    where = min(left + mean, 0.5 * (left + right))
                else:
                    where = 0.5 * (left + right)
        left = right
    return top, where

"""Exact line search on a corpus score: upper envelopes of lines, and the sweep along them.

Along a direction the score of hypothesis h is the line offset[h] + γ slope[h]; the best of a list
is on the upper envelope of its lines. Hypotheses of list s are list_begin[s] .. list_begin[s + 1]
- 1; statistics (int32 or float64 [n, width]) and code are those of `Measure`.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchtune_smt.core.arrays import Float64, Int32, Int64
from torchtune_smt.core.compiled import inner, kernel, wide
from torchtune_smt.kbest.measure_kernels import (
    BLEU,
    KIND,
    ORDER,
    WEIGHT,
    add_chosen,
    corpus_score,
)

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


@inner
def add_four(
    out: Float64, factors: Float64, a: Float64, b: Float64, c: Float64, d: Float64
) -> None:
    """Add four rows, each times its factor, one after the other."""
    e, f, g, h = factors[0], factors[1], factors[2], factors[3]
    for i in range(out.size):
        out[i] = out[i] + e * a[i] + f * b[i] + g * c[i] + h * d[i]


@kernel
def combine(matrix: Float64, vectors: Float64, out: Float64) -> None:
    """Write for each vector (a row of m) the sum of a matrix' rows ([m, n]) times its parts."""
    out[:] = 0.0
    m = vectors.shape[1]
    # In pieces that stay in the cache; four rows at a time, since a sum is written for each.
    for begin in range(0, out.shape[1], 512):
        end = begin + 512
        for i in range(out.shape[0]):
            piece, vector = out[i, begin:end], vectors[i]
            for j in range(0, m - 3, 4):
                if vector[j : j + 4].any():
                    add_four(
                        piece, vector[j : j + 4], matrix[j, begin:end], matrix[j + 1, begin:end],
                        matrix[j + 2, begin:end], matrix[j + 3, begin:end],
                    )  # fmt: skip
            for j in range(m // 4 * 4, m):
                row = matrix[j, begin:end]
                for h in range(piece.size):
                    piece[h] += vector[j] * row[h]


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


@wide
def list_above(
    offset: Float64, slope: Float64, x: float, at_x: float, y: float, at_y: float, out: Int64
) -> int:
    """Write the hypotheses whose score is larger than one at x, or another at y; return how many.

    What is behind the last of them may be written over, too.
    """
    count = 0
    for h in range(offset.size):
        out[count] = h
        count += (offset[h] + x * slope[h] > at_x) | (offset[h] + y * slope[h] > at_y)
    return count


@inner
def crossing(offset: Float64, slope: Float64, left: int, right: int) -> tuple[float, float]:
    """Return the γ at which two hypotheses have the same score, and the score."""
    x = (offset[left] - offset[right]) / (slope[right] - slope[left])
    x = min(max(x, -LARGEST), LARGEST)
    return x, max(offset[left] + x * slope[left], offset[right] + x * slope[right])


@kernel
def envelopes(
    list_begin: Int64,
    offset: Float64,
    slope: Float64,
    near: Int64,
    far: float,
    first: Int64,
    gamma: Float64,
    change: Int32,
) -> int:
    """Find the upper envelope of each list; return the number of thresholds.

    Between two lines of the envelope, the highest line over their crossing is found, and then
    those between each of the two and it, until there is none. A list thus takes two passes for
    each line of its envelope, which has a few only, and no sorting. Of equal lines, the first
    is taken.

    With `near`, the envelopes are those in -far..far. Another line can be on one only if, at a
    corner, it is above the envelope of three: the best at both ends, and the one of `near`. Few
    are, and they alone are looked at again.

    near (int64 [S], or [0]): any hypotheses, the first of equal ones; best are those that are on
        the envelopes.
    first (int64 [S]): written: the best hypothesis of each list as γ goes to minus infinity (-far).
    gamma, change (float64 [n], int32 [n, 2]): written: where the best of a list changes, and from
        which to which; list by list, ascending but for rounding.
    """
    longest = 3 + (np.diff(list_begin).max() if list_begin.size > 1 else 0)
    stack, place = np.empty(longest, np.int64), np.arange(longest)
    some_offset, some_slope = np.empty(longest), np.empty(longest)
    n = 0
    for s in range(list_begin.size - 1):
        begin = list_begin[s]
        offsets = offset[begin : list_begin[s + 1]]
        slopes = slope[begin : list_begin[s + 1]]
        if near.size > 0:
            left = first_at(offsets, slopes, -far, largest(offsets, slopes, -far))
            right = first_at(offsets, slopes, far, largest(offsets, slopes, far))
        else:
            left, right = outermost(offsets, slopes, -1.0), outermost(offsets, slopes, 1.0)
        first[s] = begin + left
        stack[0], depth = right, 1 if slopes[right] > slopes[left] else 0
        if near.size > 0 and depth > 0:
            middle = near[s] - begin
            x, at_x = crossing(offsets, slopes, left, right)
            y, at_y = x, at_x
            if slopes[left] < slopes[middle] < slopes[right]:
                a, at_a = crossing(offsets, slopes, left, middle)
                b, at_b = crossing(offsets, slopes, middle, right)
                if a < b:
                    x, at_x, y, at_y = a, at_a, b, at_b
            place[0], place[1], place[2] = left, right, middle
            count = 3 + list_above(offsets, slopes, x, at_x, y, at_y, place[3:])
            for i in range(count):
                some_offset[i], some_slope[i] = offsets[place[i]], slopes[place[i]]
            offsets, slopes = some_offset[:count], some_slope[:count]
            left, stack[0] = 0, 1
        while depth > 0:
            right = stack[depth - 1]
            x, here = crossing(offsets, slopes, left, right)
            above, top = left, largest(offsets, slopes, x)
            if top > here:
                above = first_at(offsets, slopes, x, top)
            # By rounding alone, one beyond the two may be above.
            if slopes[left] < slopes[above] < slopes[right]:
                stack[depth] = above
                depth += 1
            else:
                gamma[n], change[n, 0], change[n, 1] = x, begin + place[left], begin + place[right]
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


@inner
def may_reach(sums: Float64, code: Float64, score: float) -> bool:
    """Say whether sums may have such a score; of BLEU, whether its precisions have it."""
    if code.shape[0] > 1 or code[0, KIND] != BLEU or code[0, WEIGHT] != 1.0 or score <= 0.0:
        return True
    matches, counts = 1.0, score * score * score * score * (1.0 - 1e-9)
    for n in range(ORDER):
        matches *= sums[n]
        counts *= sums[ORDER + n]
    return matches >= counts


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
    """Return the best corpus score along a line, and a γ in -far..far that has it.

    Of equal scores, the interval nearest to γ = 0 is taken, and none of the width `narrow` or less.
    γ is 0 in the interval that holds 0; the middle of any other, and in one that is not bounded, by
    the mean width of the others beyond its end.

    first, gamma, change: as `envelopes` writes them.
    order (int64 [thresholds]): the thresholds ascending in γ.
    """
    width = statistics.shape[1]
    total = np.zeros(width)
    add_chosen(statistics, first, total)
    left = -far
    n = order.size
    k = 0
    lowest, highest = far, -far
    # In the order of the lists, as statistics lie in memory.
    step = np.empty((n, width), statistics.dtype)
    for e in range(n):
        for i in range(width):
            step[e, i] = statistics[change[e, 1], i] - statistics[change[e, 0], i]
        if -far < gamma[e] < far:
            lowest, highest = min(lowest, gamma[e]), max(highest, gamma[e])
    mean = (highest - lowest) / n if highest > lowest else far
    top, where, distance = -math.inf, 0.0, 0.0
    while left < far:
        while k < n and gamma[order[k]] <= left:
            for i in range(width):
                total[i] += step[order[k], i]
            k += 1
        right = min(gamma[order[k]], far) if k < n else far
        if right - left > narrow and may_reach(total, code, top):
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

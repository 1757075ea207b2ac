"""Loops that take a step after each row (a pair's feature difference), one for each optimizer.

Each row does what the optimizer's `step` does with the gradient -slope(margin) · row, margin by
margin: bring the row's weights up to date, take the margin, step. All of them work in place and
return, first of all, the step they stopped before: the number of steps, or one whose margin is not
finite (it is then in `margins`), or one to be taken after some housekeeping.

Arguments that they share:

    weight : float64 [D]
    steps : RowSteps
    unregularized : int
        Features below it are exempt from regularisation.
    begin : int
        The first step to take.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from torchtune_smt.core.arrays import Float64, Int32, Int64
from torchtune_smt.core.compiled import inner, kernel
from torchtune_smt.losses.slope_kernels import slope


class RowSteps(NamedTuple):
    """Steps to be taken on rows.

    row_begin, feature, value (int64 [rows + 1], int32 array, float64 array): CSR rows; no feature
        twice in one.
    order (int64 [steps]): the row that each step takes.
    kind: of the loss; see `torchtune_smt.losses.slope_kernels`.
    margins (float64 [steps]): written.
    """

    row_begin: Int64
    feature: Int32
    value: Float64
    order: Int64
    kind: int
    margins: Float64


class StepAverage(NamedTuple):
    """What `FOBOS` keeps to average its weights after each step.

    total (float64 [D]): the sum of each weight; [0] where nothing is averaged.
    sizes, blocks (float64 [room], float64 [blocks, 4]): see below; there is room for all steps.
    """

    total: Float64
    sizes: Float64
    blocks: Float64


# The sum of a weight over proximal steps of an elastic net that were put off.
#
# A step of size c takes |w| to max(|w| - c λ1, 0) / (1 + c λ2). Over a block of steps, as long as
# it stays above 0, |w| goes from v to p (v - s), and what it is after each step adds up to a v - b.
# Blocks of 8, 64, 512, ... steps are put together from smaller ones, and a sum over any stretch of
# n steps takes O(log n) of them. All that is added up is positive: nothing cancels, however much
# weights decay. `sizes` (float64 [room]) are the sizes c of the steps, room a multiple of 8, and
# `count` how many there are; `blocks` (float64 [number_of_blocks(room), 4]) are (p, s, a, b) of the
# whole blocks: first those of 8 steps, then of 64, and so on. s is infinite where a block cannot be
# taken as a whole.

RADIX = 8
# Below this p a block is not taken as a whole, and below this part of where it began a weight has
# no part in a sum any more.
SMALLEST = 1e-100


def number_of_blocks(room: int) -> int:
    """Return how many blocks there are of so many steps, 1 at least."""
    total = 0
    while room >= RADIX:
        room //= RADIX
        total += room
    return max(total, 1)


@inner
def append(
    sizes: Float64, blocks: Float64, count: int, size: float, lambda1: float, lambda2: float
) -> None:
    """Write down a step, and the blocks that it completes."""
    sizes[count] = size
    inside, below, here, room = count + 1, -1, 0, sizes.size // RADIX
    while inside % RADIX == 0:
        inside //= RADIX
        p, s, a, b = 1.0, 0.0, 0.0, 0.0
        for child in range((inside - 1) * RADIX, inside * RADIX):
            if below < 0:
                p_child = 1.0 / (1.0 + sizes[child] * lambda2)
                s_child = sizes[child] * lambda1
                a_child, b_child = p_child, p_child * s_child
            else:
                p_child, s_child = blocks[below + child, 0], blocks[below + child, 1]
                a_child, b_child = blocks[below + child, 2], blocks[below + child, 3]
            if p < SMALLEST or not math.isfinite(s_child):
                s = math.inf
                break
            a += p * a_child
            b += p * a_child * s + b_child
            s += s_child / p
            p *= p_child
        blocks[here + inside - 1, 0], blocks[here + inside - 1, 1] = p, s
        blocks[here + inside - 1, 2], blocks[here + inside - 1, 3] = a, b
        below, here, room = here, here + room, room // RADIX


@inner
def summed(
    sizes: Float64,
    blocks: Float64,
    count: int,
    first: int,
    weight: float,
    lambda1: float,
    lambda2: float,
) -> float:
    """Return the sum of a weight after each of the steps from `first` on; `weight` is before it."""
    w, total = abs(weight), 0.0
    least = SMALLEST * w
    step = first
    while step < count and w > least:
        chosen, length = -1, 1
        width, here, room = RADIX, 0, sizes.size // RADIX
        while step % width == 0 and step + width <= count:
            block = here + step // width
            if not w > blocks[block, 1]:
                break
            chosen, length = block, width
            width, here, room = width * RADIX, here + room, room // RADIX
        if chosen >= 0:
            total += blocks[chosen, 2] * w - blocks[chosen, 3]
            w = blocks[chosen, 0] * (w - blocks[chosen, 1])
        else:
            w = (w - sizes[step] * lambda1) / (1.0 + sizes[step] * lambda2)
            if w <= 0.0:
                break
            total += w
        step += length
    return math.copysign(total, weight)


@kernel
def build(sizes: Float64, blocks: Float64, count: int, lambda1: float, lambda2: float) -> None:
    """Write all blocks anew."""
    for step in range(count):
        append(sizes, blocks, step, sizes[step], lambda1, lambda2)


@kernel
def sums(
    sizes: Float64,
    blocks: Float64,
    count: int,
    first: Int32,
    weight: Float64,
    lambda1: float,
    lambda2: float,
    out: Float64,
) -> None:
    """Write the sums of some weights; see `summed`."""
    for i in range(weight.size):
        out[i] = summed(sizes, blocks, count, first[i], weight[i], lambda1, lambda2)


@inner
def shrunk(weight: float, amount: float) -> float:
    """Return a weight moved towards 0 by an amount, and no further."""
    # Without branches, which nobody could predict: half of all weights are below 0.
    return weight - min(max(weight, -amount), amount)


@inner
def elastic_repeated(
    weight: float, step: float, times: int, lambda1: float, lambda2: float
) -> float:
    """Return a weight after some proximal steps of one size of an elastic net."""
    if times == 0 or weight == 0.0:
        return weight
    if lambda2 == 0.0:
        return shrunk(weight, step * times * lambda1)
    power = times * math.log1p(step * lambda2)
    if lambda1 > 0.0:
        weight = shrunk(weight, lambda1 * math.expm1(power) / lambda2)
    return weight * math.exp(-power)


@kernel
def adagrad(
    weight: Float64,
    total: Float64,
    last: Int32,
    step: int,
    steps: RowSteps,
    strengths: tuple[float, float, float],
    square_root: bool,
    unregularized: int,
    begin: int,
) -> int:
    """`AdaGrad` row by row; `AROW` without the square root.

    `total` is G (float64 [D]), `last` (int32 [D]) and `step` count steps; `strengths` are (lr,
    λ1, λ2). Returns -1 - i where a G is not finite after step i.
    """
    row_begin, feature, value, order, kind, margins = steps
    lr, lambda1, lambda2 = strengths
    for taken in range(begin, margins.size):
        row = order[taken]
        z = 0.0
        for p in range(row_begin[row], row_begin[row + 1]):
            j = feature[p]
            w, late = weight[j], step - last[j]
            if late > 0 and j >= unregularized and total[j] > 0.0:
                divisor = math.sqrt(total[j]) if square_root else total[j]
                w = elastic_repeated(w, lr / divisor, late, lambda1, lambda2)
                weight[j] = w
            last[j] = step
            z += w * value[p]
        margins[taken] = z
        if not math.isfinite(z):
            return taken
        step += 1
        factor = -slope(kind, z)
        if factor == 0.0:
            continue
        finite = True
        for p in range(row_begin[row], row_begin[row + 1]):
            j = feature[p]
            g = factor * value[p]
            total[j] += g * g
            finite &= total[j] < math.inf
            if total[j] > 0.0:
                divisor = math.sqrt(total[j]) if square_root else total[j]
                w = weight[j] - lr * (g / divisor)
                if j >= unregularized:
                    w = elastic_repeated(w, lr / divisor, 1, lambda1, lambda2)
                weight[j] = w
            last[j] = step
        if not finite:
            return -1 - taken
    return margins.size


@kernel
def fobos(
    weight: Float64,
    last: Int32,
    path: Float64,
    totals: tuple[float, float, float],
    step: int,
    first: int,
    steps: RowSteps,
    strengths: tuple[float, float, float, float],
    unregularized: int,
    begin: int,
    average: StepAverage,
) -> tuple[int, float, float]:
    """`FOBOS` row by row, with a regulariser of the elastic form.

    `last` is the step up to which each coordinate has been seen (int32 [D], or [0] where nothing is
    late); `path` (float64 [room, 2], or [room, 1] where λ2 is 0) has S and P after `first` steps
    and after each one since, with room for all; `totals` are (S, P, the P at which to stop); `step`
    counts steps; `strengths` are (lr, the power of the schedule, λ1, λ2). Returns (step stopped
    before, S, P).
    """
    row_begin, feature, value, order, kind, margins = steps
    total, sizes, blocks = average
    averaging = total.size > 0
    S, P, smallest = totals
    lr, power, lambda1, lambda2 = strengths
    pulled = lambda1 > 0.0 or lambda2 > 0.0
    exempt = unregularized if pulled else weight.size
    rate = lr / (step + 1) ** power
    for taken in range(begin, margins.size):
        row = order[taken]
        if P < smallest:
            return taken, S, P
        z = 0.0
        for p in range(row_begin[row], row_begin[row + 1]):
            j = feature[p]
            w = weight[j]
            if j >= exempt:
                if averaging and w != 0.0:
                    total[j] += summed(
                        sizes, blocks, step - first, last[j] - first, w, lambda1, lambda2
                    )
                # Unsigned: to ask whether an index is below 0, one from the end, takes time.
                seen = np.uint64(last[j] - first)
                old = path[seen, 1] if lambda2 > 0.0 else 1.0
                if lambda1 > 0.0:
                    w = shrunk(w, (S - path[seen, 0]) * old)
                if lambda2 > 0.0:
                    w *= P / old
                weight[j] = w
                last[j] = step
            z += w * value[p]
        margins[taken] = z
        if not math.isfinite(z):
            return taken, S, P
        step += 1
        factor = slope(kind, z) * rate
        if factor != 0.0:
            for p in range(row_begin[row], row_begin[row + 1]):
                j = feature[p]
                if averaging and j < exempt:
                    total[j] += weight[j] * (step - 1 - last[j])
                    last[j] = step - 1
                weight[j] += factor * value[p]
        if power != 0.0:
            rate = lr / (step + 1) ** power
        if pulled:
            # The proximal step, on all weights at once.
            if averaging:
                append(sizes, blocks, step - 1 - first, rate, lambda1, lambda2)
            S += rate * lambda1 / P
            P /= 1.0 + rate * lambda2
            path[step - first, 0] = S
            path[step - first, path.shape[1] - 1] = P if lambda2 > 0.0 else S
    return margins.size, S, P


@kernel
def cumulative_l1(
    weight: Float64,
    received: Float64,
    penalty: float,
    step: int,
    steps: RowSteps,
    strengths: tuple[float, float, float],
    unregularized: int,
    begin: int,
) -> tuple[int, float]:
    """`CumulativeL1` row by row.

    `received` is q of each coordinate (float64 [D]), `penalty` is u; `step` counts steps;
    `strengths` are (lr, the power of the schedule, λ). Returns (step stopped before, u).
    """
    row_begin, feature, value, order, kind, margins = steps
    lr, power, lambda1 = strengths
    for taken in range(begin, margins.size):
        row = order[taken]
        z = 0.0
        for p in range(row_begin[row], row_begin[row + 1]):
            j = feature[p]
            if j >= unregularized:
                free = weight[j] - received[j]
                weight[j] = shrunk(free, penalty)
                received[j] = weight[j] - free
            z += weight[j] * value[p]
        margins[taken] = z
        if not math.isfinite(z):
            return taken, penalty
        step += 1
        rate = lr / step**power
        penalty += rate * lambda1
        factor = rate * slope(kind, z)
        if factor != 0.0:
            for p in range(row_begin[row], row_begin[row + 1]):
                weight[feature[p]] += factor * value[p]
    return margins.size, penalty

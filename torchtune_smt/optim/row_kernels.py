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

from torchtune_smt.core.arrays import Float64, Int32, Int64
from torchtune_smt.core.compiled import inner, kernel
from torchtune_smt.losses.slope_kernels import slope
from torchtune_smt.optim.step_sums_kernels import append, summed


class RowSteps(NamedTuple):
    """Steps to be taken on rows.

    Attributes
    ----------
    row_begin, feature, value : int64 [rows + 1], int32 array, float64 array
        CSR rows; no feature twice in one.
    order : int64 [steps]
        The row that each step takes.
    kind : int
        Of the loss; see `torchtune_smt.losses.slope_kernels`.
    margins : float64 [steps]
        Written.
    """

    row_begin: Int64
    feature: Int32
    value: Float64
    order: Int64
    kind: int
    margins: Float64


class StepAverage(NamedTuple):
    """What `FOBOS` keeps to average its weights after each step.

    Attributes
    ----------
    total, last : float64 [D], int64 [D]
        The sum of each weight, and up to which step it goes; [0] where nothing is averaged.
    sizes, blocks : float64 [room], float64 [blocks, 4]
        See `torchtune_smt.optim.step_sums_kernels`; there is room for all steps.
    first : int
        Steps before the first one of `sizes`.
    """

    total: Float64
    last: Int64
    sizes: Float64
    blocks: Float64
    first: int


@inner
def shrunk(weight: float, amount: float) -> float:
    """Return a weight moved towards 0 by an amount, and no further."""
    if weight > amount:
        return weight - amount
    if weight < -amount:
        return weight + amount
    return 0.0


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
    shrink: Float64,
    scale: Float64,
    totals: tuple[float, float, float],
    step: int,
    steps: RowSteps,
    strengths: tuple[float, float, float, float],
    unregularized: int,
    begin: int,
    average: StepAverage,
) -> tuple[int, float, float]:
    """`FOBOS` row by row, with a regulariser of the elastic form.

    `shrink` and `scale` are S0 and P0 of each coordinate (float64 [D], or [0] where λ1 or λ2 is
    0); `totals` are (S, P, the P at which to stop); `step` counts steps; `strengths` are (lr, the
    power of the schedule, λ1, λ2). Returns (step stopped before, S, P).
    """
    row_begin, feature, value, order, kind, margins = steps
    total, last, sizes, blocks, first = average
    averaging = total.size > 0
    S, P, smallest = totals
    lr, power, lambda1, lambda2 = strengths
    pulled = lambda1 > 0.0 or lambda2 > 0.0
    for taken in range(begin, margins.size):
        row = order[taken]
        if P < smallest:
            return taken, S, P
        z = 0.0
        for p in range(row_begin[row], row_begin[row + 1]):
            j = feature[p]
            w = weight[j]
            moves = pulled and j >= unregularized
            if averaging:
                if w != 0.0 and moves:
                    total[j] += summed(
                        sizes, blocks, step - first, last[j] - first, w, lambda1, lambda2
                    )
                else:
                    total[j] += w * (step - last[j])
                last[j] = step
            if moves:
                old = scale[j] if lambda2 > 0.0 else 1.0
                if lambda1 > 0.0:
                    w = shrunk(w, (S - shrink[j]) * old)
                    shrink[j] = S
                if lambda2 > 0.0:
                    w *= P / old
                    scale[j] = P
                weight[j] = w
            z += w * value[p]
        margins[taken] = z
        if not math.isfinite(z):
            return taken, S, P
        step += 1
        factor = slope(kind, z) * (lr / step**power)
        if factor != 0.0:
            for p in range(row_begin[row], row_begin[row + 1]):
                weight[feature[p]] += factor * value[p]
        # The proximal step, on all weights at once.
        rate = lr / (step + 1) ** power
        if averaging and pulled:
            append(sizes, blocks, step - 1 - first, rate, lambda1, lambda2)
        S += rate * lambda1 / P
        P /= 1.0 + rate * lambda2
    return margins.size, S, P


@kernel
def sgd(
    weight: Float64,
    total: Float64,
    last: Int64,
    clock: int,
    by_step: bool,
    steps: RowSteps,
    lr: float,
    begin: int,
) -> int:
    """`SGD` row by row.

    `total` and `last` are sums of weights and up to when they go (float64 and int64 [D], or [0]
    without averaging); `clock` is the number of weight vectors in the average, which grows with
    each step if `by_step`.
    """
    row_begin, feature, value, order, kind, margins = steps
    averaging = total.size > 0
    for taken in range(begin, margins.size):
        row = order[taken]
        z = 0.0
        for p in range(row_begin[row], row_begin[row + 1]):
            z += weight[feature[p]] * value[p]
        margins[taken] = z
        if not math.isfinite(z):
            return taken
        factor = lr * slope(kind, z)
        if factor != 0.0:
            for p in range(row_begin[row], row_begin[row + 1]):
                j = feature[p]
                if averaging:
                    total[j] += weight[j] * (clock - last[j])
                    last[j] = clock
                weight[j] += factor * value[p]
        if by_step:
            clock += 1
    return margins.size


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

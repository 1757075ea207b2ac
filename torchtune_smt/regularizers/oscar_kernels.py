"""The proximal operator of OSCAR: sort, then pool adjacent violators."""

from __future__ import annotations

import numpy as np

from torchtune_smt.compiled import kernel
from torchtune_smt.errors import InputError
from torchtune_smt.kernel_types import Offsets, Reals


def prox(
    weights: Reals, lambda1: float, lambda2: float, dimension: int, blocks: bool
) -> tuple[Reals, Offsets]:
    """Return the proximal point and the blocks; see `torchtune_smt.regularizers.ops.prox_oscar`.

    O(n + u log u) for u weights that are not 0.
    """
    magnitude = np.abs(weights)
    places = np.arange(0)
    if not magnitude.all():
        # Many zeros would cost more to sort than to leave out.
        places = np.flatnonzero(magnitude)
        magnitude = magnitude[places]
    order = np.argsort(magnitude)
    if order.size and not np.isfinite(magnitude[order[-1]]):
        where = int(places[order[-1]] if places.size else order[-1])
        raise not_finite_error(where, weights[where])
    if dimension < order.size:
        raise dimension_error(dimension, order.size)
    if places.size:
        order = places[order]
    result = weights.copy()
    block = np.full(weights.size if blocks else 0, -1, np.int64)
    # numpy gives large arrays large pages, which is worth a third of the time of the loops.
    begin = np.empty(order.size + 1, np.int64)
    total, value = np.empty(order.size), np.empty(order.size)
    if order.size:
        n = pool(weights, order, lambda1, lambda2, dimension, begin, total, value)
        write(order, begin[: n + 1], value, result, block)
    return result, block


def not_finite_error(where: int, weight: float) -> ValueError:
    """Return the error for a weight that is NaN or infinite."""
    return ValueError(f"weight {where} of the prox is {weight}, not finite")


def dimension_error(dimension: int, active: int) -> InputError:
    """Return the error for more weights that are not 0 than there are dimensions."""
    return InputError(
        f"OSCAR's dimension is {dimension}, and {active} weights are not 0: penalties would be "
        "negative; set regularizer.dimension to the number of features that may ever be met"
    )


@kernel
def pool(
    weights: Reals,
    order: Offsets,
    lambda1: float,
    lambda2: float,
    dimension: int,
    begin: Offsets,
    total: Reals,
    value: Reals,
) -> int:
    """Pool adjacent violators; return the number of blocks.

    Ranks 0, 1, ... in descending order of |w| have z = |w| - (lambda1 + lambda2 (d - 1 - rank)).
    Blocks of ranks have the mean of z as their value; neighbours that do not descend are one
    block. Equal |w| are, too, whatever rounding says.

    Parameters
    ----------
    weights : float64 [n]
    order : int64 [u]
        Places of the weights that are not 0, ascending in |w|; at least one.
    lambda1, lambda2, dimension
        Strengths times the step; d.
    begin : int64 [u + 1]
        Written: the first rank of each block, and u.
    total, value : float64 [u]
        Written: the sum of |w| in each block but the last, and the value of each.
    """
    u = order.size
    highest = lambda1 + lambda2 * (dimension - 1)
    n = 0
    # The last block stays in registers.
    first = 0
    previous = sum_ = abs(weights[order[u - 1]])
    z = sum_ - highest
    for rank in range(1, u):
        magnitude = abs(weights[order[u - 1 - rank]])
        alone = magnitude - (highest - lambda2 * rank)
        if magnitude == previous or alone >= z:
            # |w| is summed apart from the penalties, so that tiny ones are not lost in it.
            sum_ += magnitude
            z = sum_ / (rank - first + 1) - (highest - lambda2 * 0.5 * (first + rank))
            while n > 0 and z >= value[n - 1]:
                n -= 1
                first = begin[n]
                sum_ += total[n]
                z = sum_ / (rank - first + 1) - (highest - lambda2 * 0.5 * (first + rank))
        else:
            begin[n], total[n], value[n] = first, sum_, z
            n += 1
            first, sum_, z = rank, magnitude, alone
        previous = magnitude
    begin[n], value[n] = first, z
    begin[n + 1] = u
    return n + 1


@kernel
def write(order: Offsets, begin: Offsets, value: Reals, result: Reals, block: Offsets) -> None:
    """Give each weight of `result` the value of its block, clipped at 0, with its own sign."""
    u = order.size
    for b in range(begin.size - 1):
        alive = value[b] > 0.0
        for rank in range(begin[b], begin[b + 1]):
            place = order[u - 1 - rank]
            result[place] = np.copysign(value[b], result[place]) if alive else 0.0
            if alive and block.size > 0:
                block[place] = b

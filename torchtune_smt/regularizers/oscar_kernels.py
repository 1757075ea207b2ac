"""Loops of the proximal operator of OSCAR: pool adjacent violators."""

from __future__ import annotations

import numpy as np

from torchtune_smt.core.arrays import Float64, Int64
from torchtune_smt.core.compiled import kernel


@kernel
def pool(
    size: Float64,
    lambda1: float,
    lambda2: float,
    dimension: int,
    begin: Int64,
    value: Float64,
) -> int:
    """Pool adjacent violators; return the number of blocks.

    Ranks 0, 1, ... in descending order of |w| have z = |w| - (lambda1 + lambda2 (d - 1 - rank)).
    Blocks of ranks have the mean of z as their value; neighbours that do not descend are one
    block. Equal |w| are, too, whatever rounding says.

    size (float64 [u]): |w|, descending; at least one. Overwritten: the sum of each block but the
        last.
    lambda1, lambda2, dimension: strengths times the step; d.
    begin (int64 [u + 1]): written: the first rank of each block, and u.
    value (float64 [u]): written: the value of each block.
    """
    u = size.size
    highest = lambda1 + lambda2 * (dimension - 1)
    # There are never more blocks than ranks that were looked at.
    total = size
    n = 0
    # The last block stays in registers.
    first = 0
    previous = sum_ = size[0]
    z = sum_ - highest
    for rank in range(1, u):
        magnitude = size[rank]
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
def write(order: Int64, begin: Int64, value: Float64, result: Float64, block: Int64) -> None:
    """Give each weight of `result` the value of its block, clipped at 0, with its own sign."""
    for b in range(begin.size - 1):
        alive = value[b] > 0.0
        for rank in range(begin[b], begin[b + 1]):
            place = order[rank]
            result[place] = np.copysign(value[b], result[place]) if alive else 0.0
            if alive and block.size > 0:
                block[place] = b

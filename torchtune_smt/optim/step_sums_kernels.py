"""The sum of a weight over proximal steps of an elastic net that were put off.

A step of size c takes |w| to max(|w| - c λ1, 0) / (1 + c λ2). Over a block of steps, as long as it
stays above 0, |w| goes from v to p (v - s), and what it is after each step adds up to a v - b.
Blocks of 8, 64, 512, ... steps are put together from smaller ones, and a sum over any stretch of n
steps takes O(log n) of them. All that is added up is positive: nothing cancels, however much
weights decay.

Arguments that they share:

    sizes : float64 [room]
        The sizes c of the steps; room is a multiple of 8.
    blocks : float64 [number_of_blocks(room), 4]
        (p, s, a, b) of the whole blocks: first those of 8 steps, then of 64, and so on. s is
        infinite where a block cannot be taken as a whole.
    count : int
        Steps that there are.
"""

from __future__ import annotations

import math

from torchtune_smt.core.arrays import Float64, Int64
from torchtune_smt.core.compiled import inner, kernel

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
def add(
    sizes: Float64, blocks: Float64, count: int, size: float, lambda1: float, lambda2: float
) -> None:
    """Write down a step; see `append`."""
    append(sizes, blocks, count, size, lambda1, lambda2)


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
    first: Int64,
    weight: Float64,
    lambda1: float,
    lambda2: float,
    out: Float64,
) -> None:
    """Write the sums of some weights; see `summed`."""
    for i in range(weight.size):
        out[i] = summed(sizes, blocks, count, first[i], weight[i], lambda1, lambda2)

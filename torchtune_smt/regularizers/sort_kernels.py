"""Sorting by absolute value, with the places that values came from."""

from __future__ import annotations

import numpy as np

from torchtune_smt.core.arrays import Float64, Int64
from torchtune_smt.core.compiled import kernel

# Bits of a digit: its counts stay in a fast cache. Two of them tell almost all numbers apart, and
# fit into a word with the place that a number has come from.
DIGIT = 12
PLACE = 64 - 2 * DIGIT
# Neighbours that are exchanged, for each number, before all digits are taken.
MOVES = 8
# All bits of a float64 but its sign: as whole numbers they ascend as absolute values do.
SIZE = np.int64(0x7FFFFFFFFFFFFFFF)


@kernel
def sort_again(value: Float64, order: Int64, size: Float64, most: int) -> bool:
    """Sort places by descending |value|, in place; fast where they almost are.

    value (float64 [n])
    order (int64 [n])
    size (float64 [n]): written: |value| of the places in `order`.

    Returns bool: False if it took more than `most` exchanges, and is not done.
    """
    # NaN compare as whole numbers do.
    bits, ranked = value.view(np.int64), size.view(np.int64)
    left = most
    before = SIZE
    for i in range(order.size):
        place = order[i]
        own = bits[place] & SIZE
        if own <= before:
            ranked[i] = before = own
            continue
        k = i
        while k > 0 and ranked[k - 1] < own:
            ranked[k], order[k] = ranked[k - 1], order[k - 1]
            k -= 1
        ranked[k], order[k] = own, place
        left -= i - k
        if left < 0:
            return False
    return True


@kernel
def by_digits(value: Float64, most: int, lowest: int, order: Int64) -> None:
    """Sort places by two digits of how far |value| is below the largest one, ascending.

    A radix sort: places whose digits are the same keep their order.

    most: the bits of the largest |value|.
    lowest: the first bit of the digits.
    """
    bits = value.view(np.int64)
    mask = (1 << DIGIT) - 1
    count = np.zeros((2, 1 << DIGIT), np.int64)
    for i in range(bits.size):
        key = (most - (bits[i] & SIZE)) >> lowest
        count[0, key & mask] += 1
        count[1, (key >> DIGIT) & mask] += 1
    for digit in range(2):
        total = 0
        for k in range(1 << DIGIT):
            own = count[digit, k]
            count[digit, k] = total
            total += own
    # The second digit goes with the place.
    words = np.empty(bits.size, np.int64)
    at = count[0]
    for i in range(bits.size):
        place = order[i]
        key = (most - (bits[place] & SIZE)) >> lowest
        to = at[key & mask]
        at[key & mask] = to + 1
        words[to] = (((key >> DIGIT) & mask) << PLACE) | place
    at = count[1]
    for i in range(bits.size):
        key = (words[i] >> PLACE) & mask
        to = at[key]
        at[key] = to + 1
        order[to] = words[i] & ((1 << PLACE) - 1)


@kernel
def sort_by_size(value: Float64, order: Int64, size: Float64) -> None:
    """Write the places of numbers in descending order of |value|, and these; NaN are the first.

    value (float64 [n])
    order (int64 [n]): written. Those of equal |value| ascend.
    size (float64 [n]): written: |value| of the places in `order`.
    """
    n = value.size
    bits = value.view(np.int64)
    least, most = SIZE, np.int64(0)
    for i in range(n):
        order[i] = i
        own = bits[i] & SIZE
        least, most = min(least, own), max(most, own)
    width = 0
    while n and (most - least) >> width:
        width += 1
    by_digits(value, int(most), max(width - 2 * DIGIT, 0), order)
    if not sort_again(value, order, size, MOVES * n):
        for i in range(n):
            order[i] = i
        for lowest in range(0, width, 2 * DIGIT):
            by_digits(value, int(most), lowest, order)
        sort_again(value, order, size, 0)

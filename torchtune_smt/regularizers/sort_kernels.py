"""Sorting by absolute value, with the places that values came from."""

from __future__ import annotations

import numpy as np

from torchtune_smt.core.arrays import Float64, Int64
from torchtune_smt.core.compiled import kernel

# Bits of a digit, and how many digits tell almost all numbers apart.
DIGIT, DIGITS = 11, 3
# Neighbours that are exchanged, for each number, before a sort is begun anew with more digits.
MOVES = 8


@kernel
def sort_again(order: Int64, size: Float64, most: int) -> bool:
    """Sort places by ascending size, in place; fast where they almost are.

    Returns
    -------
    bool
        False if it took more than `most` exchanges, and is not done.
    """
    left = most
    for i in range(1, order.size):
        j = order[i]
        own = size[j]
        k = i
        while k > 0 and size[order[k - 1]] > own:
            order[k] = order[k - 1]
            k -= 1
        order[k] = j
        left -= i - k
        if left < 0:
            return False
    return True


@kernel
def by_digits(size: Float64, lowest: int, digits: int, order: Int64) -> None:
    """Write the places of numbers that are 0 or more, ascending in some bits of theirs.

    A radix sort from the lowest digit on; numbers whose digits are the same keep their order.

    Parameters
    ----------
    lowest, digits : int
        The first bit, and how many digits there are from it on; all bits above are the same.
    """
    n = size.size
    bits = size.view(np.int64)
    mask = (1 << DIGIT) - 1
    count = np.zeros((digits, 1 << DIGIT), np.int64)
    for i in range(n):
        for digit in range(digits):
            count[digit, (bits[i] >> (lowest + DIGIT * digit)) & mask] += 1
    key, place = bits, np.arange(n)
    for digit in range(digits):
        at = count[digit]
        shift = lowest + DIGIT * digit
        total = 0
        for value in range(at.size):
            own = at[value]
            at[value] = total
            total += own
        last = digit == digits - 1
        new_key = np.empty(0 if last else n, np.int64)
        new_place = order if last else np.empty(n, np.int64)
        for i in range(n):
            value = (key[i] >> shift) & mask
            to = at[value]
            at[value] = to + 1
            new_place[to] = place[i]
            if not last:
                new_key[to] = key[i]
        key, place = new_key, new_place


@kernel
def ascending(size: Float64, order: Int64) -> None:
    """Write the places of numbers (float64 [n], 0 or more) in ascending order; NaN are the last."""
    n = size.size
    if n == 0:
        return
    bits = size.view(np.int64)
    least, most = bits[0], bits[0]
    for i in range(n):
        least, most = min(least, bits[i]), max(most, bits[i])
    width = 0
    while (least ^ most) >> width:
        width += 1
    by_digits(size, max(width - DIGIT * DIGITS, 0), DIGITS, order)
    if not sort_again(order, size, MOVES * n):
        by_digits(size, 0, (width + DIGIT - 1) // DIGIT, order)

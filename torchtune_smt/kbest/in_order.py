"""Which lines of a file of k-best lists keep the order of the sentences."""

from __future__ import annotations

from bisect import bisect_right

import numpy as np

from torchtune_smt.core.arrays import Int64


def longest_in_order(numbers: Int64) -> Int64:
    """Return places of as many numbers as can be left so that none is smaller than one before.

    One number that is far too large costs one place, not all that follow it. Of several choices
    the one is returned that leaves out the later numbers.

    Parameters
    ----------
    numbers : int64 [N]

    Returns
    -------
    int64 array
        Ascending.
    """
    if not (np.diff(numbers) < 0).any():
        return np.arange(numbers.size)
    # Patience sorting, from the end: the last number of the best sequence of each length so far.
    lasts: list[int] = []
    places: list[int] = []
    following: list[int] = [-1] * numbers.size
    for place in range(numbers.size - 1, -1, -1):
        number = -int(numbers[place])
        length = bisect_right(lasts, number)
        following[place] = places[length - 1] if length else -1
        lasts[length : length + 1] = [number]
        places[length : length + 1] = [place]
    found = []
    place = places[-1]
    while place >= 0:
        found.append(place)
        place = following[place]
    return np.array(found, np.int64)

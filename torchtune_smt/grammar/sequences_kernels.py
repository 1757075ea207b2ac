"""Kernels over many short symbol sequences in one array."""

from __future__ import annotations

import numpy as np
from numba import njit

from torchtune_smt.kernel_types import Ids, Offsets


@njit(cache=True, nogil=True)
def mix(h: np.uint64) -> np.uint64:
    """Return the bits of a 64-bit number spread over all of them."""
    h ^= h >> np.uint64(32)
    h *= np.uint64(0xD6E8FEB86659FD93)
    h ^= h >> np.uint64(32)
    h *= np.uint64(0xD6E8FEB86659FD93)
    h ^= h >> np.uint64(32)
    return h


@njit(cache=True, nogil=True)
def intern(table: Ids, begin: Offsets, symbols: Ids, ids: Ids) -> int:
    """Number the sequences so that equal ones have one number; return how many there are.

    `table` is filled with -1, a power of two long, and longer than twice the sequences. It holds
    the first sequence of each number, and is searched by comparison, so hash collisions are
    harmless.
    """
    mask = np.uint64(table.size - 1)
    count = 0
    for s in range(ids.size):
        first, last = begin[s], begin[s + 1]
        h = np.uint64(last - first)
        for k in range(first, last):
            h = mix(h + np.uint64(symbols[k]) + np.uint64(0x9E3779B97F4A7C15))
        slot = h & mask
        while True:
            other = table[slot]
            if other < 0:
                table[slot] = s
                ids[s] = count
                count += 1
                break
            start = begin[other]
            if begin[other + 1] - start == last - first:
                same = True
                for k in range(last - first):
                    if symbols[start + k] != symbols[first + k]:
                        same = False
                        break
                if same:
                    ids[s] = ids[other]
                    break
            slot = (slot + np.uint64(1)) & mask
    return count


@njit(cache=True, nogil=True)
def gather(
    begin: Offsets, symbols: Ids, wanted: Offsets, new_begin: Offsets, new_symbols: Ids
) -> None:
    """Copy the sequences of the numbers `wanted` to where `new_begin` says."""
    for i in range(wanted.size):
        start = begin[wanted[i]] - new_begin[i]
        for k in range(new_begin[i], new_begin[i + 1]):
            new_symbols[k] = symbols[start + k]

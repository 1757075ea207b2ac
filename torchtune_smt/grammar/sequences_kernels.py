"""Kernels over many short symbol sequences in one array."""

from __future__ import annotations

import numpy as np

from torchtune_smt.core.arrays import Int32, Int64
from torchtune_smt.core.compiled import kernel


@kernel
def hash_sequence(symbols: Int32, begin: int, end: int) -> np.uint64:
    """Return a 64-bit hash of ``symbols[begin:end]``."""
    h = np.uint64(0x9E3779B97F4A7C15)
    for k in range(begin, end):
        h = (h ^ (np.uint64(symbols[k]) + np.uint64(3))) * np.uint64(0xD6E8FEB86659FD93)
        h ^= h >> np.uint64(32)
    h *= np.uint64(0xD6E8FEB86659FD93)
    h ^= h >> np.uint64(32)
    return h


@kernel
def intern(
    table: Int32,
    known_begin: Int64,
    known: Int32,
    count: int,
    begin: Int64,
    symbols: Int32,
    ids: Int32,
    start: int,
) -> tuple[int, int]:
    """Number sequences from number `start` on, until done or until room runs out.

    Parameters
    ----------
    table : int32
        Hash table of the `count` known sequences; a power of two long, -1 where free.
    known_begin, known : int64, int32
        The known sequences, with room for more.
    begin, symbols : int64 [n + 1], int32
        The sequences to number.
    ids : int32 [n], out

    Returns
    -------
    count, next : int
        When ``next < n``, more room is needed before the call is repeated from there.
    """
    mask = np.uint64(table.size - 1)
    for s in range(start, ids.size):
        first, length = begin[s], begin[s + 1] - begin[s]
        slot = hash_sequence(symbols, first, first + length) & mask
        while table[slot] >= 0:
            other = known_begin[table[slot]]
            if known_begin[table[slot] + 1] - other == length:
                same = True
                for k in range(length):
                    if known[other + k] != symbols[first + k]:
                        same = False
                        break
                if same:
                    break
            slot = (slot + np.uint64(1)) & mask
        if table[slot] < 0:
            offset = known_begin[count]
            full = 2 * (count + 1) > table.size or count + 2 > known_begin.size
            if full or offset + length > known.size:
                return count, s
            for k in range(length):
                known[offset + k] = symbols[first + k]
            known_begin[count + 1] = offset + length
            table[slot] = count
            count += 1
        ids[s] = table[slot]
    return count, ids.size


@kernel
def rebuild(table: Int32, begin: Int64, symbols: Int32, count: int) -> None:
    """Fill the emptied `table` with the sequences 0..count-1."""
    for slot in range(table.size):
        table[slot] = -1
    mask = np.uint64(table.size - 1)
    for s in range(count):
        place = hash_sequence(symbols, begin[s], begin[s + 1]) & mask
        while table[place] >= 0:
            place = (place + np.uint64(1)) & mask
        table[place] = s


@kernel
def gather(
    begin: Int64, symbols: Int32, wanted: Int64, new_begin: Int64, new_symbols: Int32
) -> None:
    """Copy the sequences of the numbers `wanted` to where `new_begin` says."""
    for i in range(wanted.size):
        start = begin[wanted[i]] - new_begin[i]
        for k in range(new_begin[i], new_begin[i + 1]):
            new_symbols[k] = symbols[start + k]

"""Kernels of hash tables over packed sequences, such as `SequenceTable`; arrays that grow."""

from __future__ import annotations

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from torchtune_smt.core.arrays import Int32, Int64
from torchtune_smt.core.compiled import kernel

T = TypeVar("T", np.uint8, np.int32, np.int64)
Any_ = TypeVar("Any_", bound=np.generic)


@kernel
def longer(array: NDArray[Any_], needed: int) -> NDArray[Any_]:
    """Return `array`, or a copy of twice the length where `needed` rows are not there."""
    if needed <= array.shape[0]:
        return array
    larger = np.empty((max(needed, 2 * array.shape[0]), *array.shape[1:]), array.dtype)
    # A loop, since assigning a slice costs numba half a second of compilation.
    for i in range(array.shape[0]):
        larger[i] = array[i]
    return larger


@kernel
def table_size(entries: int) -> int:
    """Return the slots of a hash table that is to be half full at most: a power of two."""
    size = 16
    while size < 2 * entries:
        size *= 2
    return size


@kernel
def hash_symbols(data: NDArray[T], begin: int, end: int) -> np.uint64:
    """Return a 64-bit hash of ``data[begin:end]`` (multiply-xor, then a mix)."""
    h = np.uint64(0xCBF29CE484222325)
    for i in range(begin, end):
        h = (h ^ np.uint64(data[i])) * np.uint64(0x100000001B3)
    h ^= h >> np.uint64(32)
    h *= np.uint64(0xD6E8FEB86659FD93)
    h ^= h >> np.uint64(32)
    return h


@kernel
def find(
    table: Int32, known: NDArray[T], begin: Int64, data: NDArray[T], first: int, last: int
) -> tuple[np.uint64, int]:
    """Return (slot, id) of the sequence ``data[first:last]``; id is -1 where the slot is free."""
    mask = np.uint64(table.size - 1)
    slot = hash_symbols(data, first, last) & mask
    length = last - first
    while True:
        id = table[slot]
        if id < 0:
            return slot, -1
        offset = begin[id]
        if begin[id + 1] - offset == length:
            same = True
            for k in range(length):
                if known[offset + k] != data[first + k]:
                    same = False
                    break
            if same:
                return slot, id
        slot = (slot + np.uint64(1)) & mask


@kernel
def rebuild(table: Int32, known: NDArray[T], begin: Int64, count: int) -> None:
    """Fill the emptied `table` (a power of two long) with sequences 0..count-1."""
    table[:] = -1
    mask = np.uint64(table.size - 1)
    for id in range(count):
        slot = hash_symbols(known, begin[id], begin[id + 1]) & mask
        while table[slot] >= 0:
            slot = (slot + np.uint64(1)) & mask
        table[slot] = id


@kernel
def intern(
    table: Int32,
    known: NDArray[T],
    begin: Int64,
    count: int,
    data: NDArray[T],
    first: Int64,
    last: Int64,
    ids: Int32,
    start: int,
) -> tuple[int, int]:
    """Intern spans of `data` from number `start` on, until done or until room runs out.

    Returns (count, next): when ``next < first.size``, more room is needed (twice the table, or
    more known) before the call is repeated from there.
    """
    for i in range(start, first.size):
        slot, id = find(table, known, begin, data, first[i], last[i])
        if id < 0:
            length = last[i] - first[i]
            offset = begin[count]
            full = 2 * (count + 1) > table.size or count + 2 > begin.size
            if full or offset + length > known.size:
                return count, i
            for k in range(length):
                known[offset + k] = data[first[i] + k]
            begin[count + 1] = offset + length
            table[slot] = count
            id = count
            count += 1
        ids[i] = id
    return count, first.size


@kernel
def number_equal(begin: Int64, data: NDArray[T]) -> Int64:
    """Return for each sequence ``data[begin[i]:begin[i + 1]]`` the first one that equals it."""
    count = begin.size - 1
    table = np.full(table_size(count), -1, np.int32)
    numbers = np.empty(count, np.int64)
    for i in range(count):
        slot, first = find(table, data, begin, data, begin[i], begin[i + 1])
        if first < 0:
            table[slot] = first = i
        numbers[i] = first
    return numbers


@kernel
def lookup(
    table: Int32,
    known: NDArray[T],
    begin: Int64,
    data: NDArray[T],
    first: Int64,
    last: Int64,
    ids: Int32,
) -> None:
    """Write the ids of spans of `data` to `ids`, -1 for what is unknown."""
    for i in range(first.size):
        ids[i] = find(table, known, begin, data, first[i], last[i])[1]

"""Kernels of PRO's sampler."""

from __future__ import annotations

import numpy as np

from torchtune_smt.core.arrays import Float64, Int64
from torchtune_smt.core.compiled import kernel
from torchtune_smt.core.random_kernels import below, draw, make_key


@kernel
def find_key(keys: Int64, key: int | np.int64) -> int | np.int64:
    """Return the slot of `key`, or a free one, in a hash table (2^n long, -1 where free)."""
    mask = keys.size - 1
    slot = ((key * 0x9E3779B1) >> 15) & mask
    while keys[slot] >= 0 and keys[slot] != key:
        slot = (slot + 1) & mask
    return slot


@kernel
def distinct_numbers(key: np.uint64, n: int, count: int) -> Int64:
    """Return `count` <= n different integers of 0..n-1 in random order.

    The first `count` steps of Fisher and Yates's shuffle, where a hash table holds the places
    whose content is no longer their own number: nothing costs O(n).
    """
    room = 16
    while room < 2 * count:
        room *= 2
    keys = np.full(room, -1, np.int64)
    values = np.empty(room, np.int64)
    numbers = np.empty(count, np.int64)
    for t in range(count):
        uniform = np.float64(draw(key, t) >> np.uint64(11)) * 2.0**-53
        place = t + np.int64(uniform * (n - t))
        own = find_key(keys, t)
        moved = t if keys[own] < 0 else values[own]
        slot = find_key(keys, place)
        numbers[t] = place if keys[slot] < 0 else values[slot]
        keys[slot] = place
        values[slot] = moved
    return numbers


@kernel
def unordered_pair(number: int) -> tuple[np.int64, np.int64]:
    """Return pair `number` of (1, 0), (2, 0), (2, 1), (3, 0), ..."""
    i = np.int64((1.0 + np.sqrt(1.0 + 8.0 * number)) / 2.0)
    # The root is rounded: it may be off by one where a row begins.
    if i * (i - 1) // 2 > number:
        i -= 1
    elif i * (i + 1) // 2 <= number:
        i += 1
    return i, number - i * (i - 1) // 2


@kernel
def goes_first(difference: Float64, entry: Int64, a: int, b: int) -> bool:
    """Say whether entry `a` goes before `b` does: it differs less, or as much but came later."""
    if difference[a] != difference[b]:
        return bool(difference[a] < difference[b])
    return bool(entry[a, 2] > entry[b, 2])


@kernel
def swap(difference: Float64, entry: Int64, a: int, b: int) -> None:
    """Exchange two entries of the heap."""
    difference[a], difference[b] = difference[b], difference[a]
    for column in range(3):
        entry[a, column], entry[b, column] = entry[b, column], entry[a, column]


@kernel
def sift_up(difference: Float64, entry: Int64, place: int) -> None:
    """Move the last entry of a heap, at `place`, up to where it belongs."""
    while place > 0:
        parent = (place - 1) // 2
        if not goes_first(difference, entry, place, parent):
            return
        swap(difference, entry, place, parent)
        place = parent


@kernel
def sift_down(difference: Float64, entry: Int64, size: int) -> None:
    """Move the top entry of a heap of `size` entries down to where it belongs."""
    place = 0
    while True:
        first = place
        for child in range(2 * place + 1, min(2 * place + 3, size)):
            if goes_first(difference, entry, child, first):
                first = child
        if first == place:
            return
        swap(difference, entry, place, first)
        place = first


@kernel
def pro_pairs(
    gain: Float64,
    string: Int64,
    seed: Int64,
    candidates: int,
    threshold: float,
    count: int,
    distinct: bool,
) -> Int64:
    """Return the pairs (better, worse) of `ProSampler`, int64 [p, 2]."""
    k = gain.size
    if k < 2:
        return np.empty((0, 2), np.int64)
    key = make_key(seed)
    numbers = np.empty(0, np.int64)
    if distinct:
        total = k * (k - 1) // 2
        candidates = min(candidates, total)
        numbers = distinct_numbers(key, total, candidates)
    # A heap of (better, worse, when drawn), on its top the one that goes when a better one comes.
    room = min(candidates, count)
    entry = np.empty((room, 3), np.int64)
    difference = np.empty(room)
    kept = 0
    for t in range(candidates):
        if distinct:
            i, j = unordered_pair(numbers[t])
        else:
            bits = draw(key, t)
            i, j = below(bits, k), below(bits >> np.uint64(32), k)
        size = abs(gain[i] - gain[j])
        if size == 0.0 or size < threshold or (kept == room and size <= difference[0]):
            continue
        if string[i] == string[j]:
            continue
        place = 0 if kept == room else kept
        if gain[i] < gain[j]:
            i, j = j, i
        entry[place, 0], entry[place, 1], entry[place, 2] = i, j, t
        difference[place] = size
        if kept == room:
            sift_down(difference, entry, room)
        else:
            sift_up(difference, entry, kept)
            kept += 1
    # What goes first comes last.
    for last in range(kept - 1, 0, -1):
        swap(difference, entry, 0, last)
        sift_down(difference, entry, last)
    return entry[:kept, :2].copy()

"""Kernels that choose pairs of hypotheses."""

from __future__ import annotations

import numpy as np

from torchtune_smt.core.arrays import Float64, Int64
from torchtune_smt.core.compiled import kernel
from torchtune_smt.core.random_kernels import below, draw, make_key
from torchtune_smt.core.sequences_kernels import table_size


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
    keys = np.full(table_size(count), -1, np.int64)
    values = np.empty(keys.size, np.int64)
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
def keep_largest(size: Float64, pair: Int64, n: int, most: int) -> int:
    """Sort `n` pairs by size, the largest first, and keep so many; return how many there are.

    Equal ones stay in their order.
    """
    order = np.argsort(-size[:n], kind="mergesort")[:most]
    size[: order.size] = size[order]
    pair[: order.size] = pair[order]
    return order.size


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
    most = min(candidates, count)
    pair = np.empty((2 * most, 2), np.int64)
    size = np.empty(2 * most)
    n, floor = 0, 0.0
    for t in range(candidates):
        if distinct:
            i, j = unordered_pair(numbers[t])
        else:
            bits = draw(key, t)
            i, j = below(bits, k), below(bits >> np.uint64(32), k)
        size[n] = abs(gain[i] - gain[j])
        if size[n] <= floor or size[n] < threshold or string[i] == string[j]:
            continue
        if gain[i] < gain[j]:
            i, j = j, i
        pair[n, 0], pair[n, 1] = i, j
        n += 1
        if n == size.size:
            n = keep_largest(size, pair, n, most)
            floor = size[n - 1]
    n = keep_largest(size, pair, n, most)
    return pair[:n].copy()


@kernel
def ranked_pairs(
    gain: Float64, string: Int64, order: Int64, partners: Int64, threshold: float
) -> Int64:
    """Return pairs (better, worse) of hypotheses in the order of their gains, int64 [p, 2].

    string (int64 [k]): the same number for the same words.
    order (int64 [k]): the hypotheses in descending order of gain.
    partners (int64 [k]): the hypothesis at place p of `order` meets those at ``partners[p]`` and
        after.
    threshold: gains that differ by less make no pair, nor do equal ones.
    """
    k = gain.size
    pairs = np.empty((np.sum(k - partners), 2), np.int64)
    count = 0
    for place in range(k):
        i = order[place]
        for other in range(partners[place], k):
            j = order[other]
            size = gain[i] - gain[j]
            if not (size == 0.0 or size < threshold or string[i] == string[j]):
                pairs[count, 0], pairs[count, 1] = i, j
                count += 1
    return pairs[:count].copy()

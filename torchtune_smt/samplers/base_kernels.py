"""Kernels that samplers share: equal strings, and pairs in the order of gains."""

from __future__ import annotations

import numpy as np

from torchtune_smt.core.arrays import Float64, Int32, Int64
from torchtune_smt.core.compiled import kernel
from torchtune_smt.core.random_kernels import GAMMA


@kernel
def same_words(token_begin: Int64, tokens: Int32, i: int | np.int64, j: int | np.int64) -> bool:
    """Say whether hypotheses i and j are the same string."""
    length = token_begin[i + 1] - token_begin[i]
    if token_begin[j + 1] - token_begin[j] != length:
        return False
    for k in range(length):
        if tokens[token_begin[i] + k] != tokens[token_begin[j] + k]:
            return False
    return True


@kernel
def number_strings(token_begin: Int64, tokens: Int32) -> Int64:
    """Return for each hypothesis the first one with its words (int64 [k])."""
    numbers = np.empty(token_begin.size - 1, np.int64)
    room = 16
    while room < 2 * numbers.size:
        room *= 2
    mask = np.uint64(room - 1)
    slots = np.full(room, -1, np.int64)
    for h in range(numbers.size):
        value = np.uint64(0)
        for i in range(token_begin[h], token_begin[h + 1]):
            value = (value ^ np.uint64(tokens[i] + 1)) * GAMMA
            value ^= value >> np.uint64(32)
        slot = value & mask
        while slots[slot] >= 0 and not same_words(token_begin, tokens, slots[slot], h):
            slot = (slot + np.uint64(1)) & mask
        if slots[slot] < 0:
            slots[slot] = h
        numbers[h] = slots[slot]
    return numbers


@kernel
def ranked_pairs(
    gain: Float64,
    string: Int64,
    order: Int64,
    partners: Int64,
    threshold: float,
) -> Int64:
    """Return pairs (better, worse) of hypotheses in the order of their gains.

    Parameters
    ----------
    gain : float64 [k]
    string : int64 [k]
        The same number for the same words.
    order : int64 [k]
        The hypotheses in descending order of gain.
    partners : int64 [k]
        The hypothesis at place p of `order` meets those at ``partners[p]`` and after.
    threshold : float
        Gains that differ by less make no pair, nor do equal ones.

    Returns
    -------
    int64 [p, 2]
        By the place of the better, then by that of the worse.
    """
    k = gain.size
    pairs = np.empty((np.sum(k - partners), 2), np.int64)
    count = 0
    for place in range(k):
        i = order[place]
        for other in range(partners[place], k):
            j = order[other]
            size = gain[i] - gain[j]
            if size == 0.0 or size < threshold:
                continue
            if string[i] == string[j]:
                continue
            pairs[count, 0], pairs[count, 1] = i, j
            count += 1
    return pairs[:count].copy()

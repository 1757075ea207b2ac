"""Matches of character n-grams, for chrF."""

from __future__ import annotations

import numpy as np

from torchtune_smt.core.arrays import Int32, Int64
from torchtune_smt.core.compiled import inner, kernel

# A code point has 21 bits; what is above them is the node that an edge begins at.
BITS = 21


@inner
def edge_slot(keys: Int64, key: np.int64) -> int:
    """Return the slot of an edge of the trie: its own or a free one."""
    mask = keys.size - 1
    mixed = key * np.int64(0x9E3779B97F4A7C1)
    slot = int((mixed ^ (mixed >> 29)) & mask)
    while keys[slot] >= 0 and keys[slot] != key:
        slot = (slot + 1) & mask
    return slot


@kernel
def match_statistics(order: int, reference: Int32, begin: Int64, characters: Int32) -> Int32:
    """Return the statistics of hypotheses and one reference.

    The n-grams of the reference are a trie whose edges lie in a hash table.

    order: of the longest n-grams.
    reference: code points.
    begin, characters (int64 [k + 1], int32): hypothesis h is ``characters[begin[h]:begin[h + 1]]``.

    Returns int32 [k, 3 * order]: for each order n-grams in the hypothesis (0 where the reference
        has none), in the reference, and in both.
    """
    room = 16
    while room < 2 * order * reference.size:
        room *= 2
    keys = np.full(room, -1, np.int64)
    target = np.empty(room, np.int32)
    limit = np.zeros(order * reference.size + 1, np.int32)
    nodes = 1
    for i in range(reference.size):
        node = np.int64(0)
        for j in range(i, min(i + order, reference.size)):
            key = (node << BITS) | np.int64(reference[j])
            slot = edge_slot(keys, key)
            if keys[slot] < 0:
                keys[slot], target[slot] = key, nodes
                nodes += 1
            node = np.int64(target[slot])
            limit[node] += 1
    found = np.zeros((begin.size - 1, 3 * order), np.int32)
    # `used[node]` counts from h << 32 for hypothesis h, so that it needs no clearing.
    used = np.zeros(nodes, np.int64)
    for h in range(begin.size - 1):
        base, last = np.int64(h) << 32, begin[h + 1]
        for i in range(begin[h], last):
            node = np.int64(0)
            for n in range(min(order, last - i)):
                slot = edge_slot(keys, (node << BITS) | np.int64(characters[i + n]))
                if keys[slot] < 0:
                    break
                node = np.int64(target[slot])
                count = max(used[node], base)
                if count - base < limit[node]:
                    found[h, 3 * n + 2] += 1
                    used[node] = count + 1
        for n in range(min(order, reference.size)):
            found[h, 3 * n] = max(last - begin[h] - n, 0)
            found[h, 3 * n + 1] = reference.size - n
    return found

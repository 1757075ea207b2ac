"""Compiled queries of n-gram models, and the building of their tables.

A table's places are found by a mix of the 64-bit key, then by linear probing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numba import njit

from torchtune_smt.kernel_types import Floats, Ids, Offsets, Reals

if TYPE_CHECKING:
    from torchtune_smt.lm.tables import LmTables

PLACED, MISSING, DUPLICATE = 0, 1, 2


@njit(cache=True, nogil=True)
def mix(key: int) -> np.uint64:
    """Return a 64-bit hash: two rounds of multiplication and folding of the high half."""
    h = np.uint64(key)
    h ^= h >> np.uint64(32)
    h *= np.uint64(0xD6E8FEB86659FD93)
    h ^= h >> np.uint64(32)
    h *= np.uint64(0xD6E8FEB86659FD93)
    h ^= h >> np.uint64(32)
    return h


@njit(cache=True, nogil=True)
def transition(t: LmTables, node: int, word: int) -> int:
    """Return the node of the n-gram `node` + `word`, -1 where the model has none.

    `word` must be a word id of the model (0 is ``<unk>``).
    """
    if node == 0:
        return word + 1
    key = ((node << 32) | word) + 1
    mask = np.uint64(t.key.size - 1)
    slot = mix(key) & mask
    while True:
        found = t.key[slot]
        if found == key:
            longer: int = t.val[slot]
            return longer
        if found == 0:
            return -1
        slot = (slot + np.uint64(1)) & mask


@njit(cache=True, nogil=True)
def advance(t: LmTables, state: int, word: int) -> tuple[float, int]:
    """Return (log10 probability of `word` after `state`, the next state).

    A state is a node, as `LmTables.state` gives them; 0 knows no context.
    """
    context = state
    node = transition(t, context, word)
    while node < 0:
        context = t.suffix[context]
        node = transition(t, context, word)
    logp = t.prob[node] + 0.0
    # Most words extend the whole state: two reads of far memory are saved then.
    if context != state:
        logp += t.backoff_sum[state] - t.backoff_sum[context]
    return logp, t.state[node]


@njit(cache=True, nogil=True)
def score_sentences(
    t: LmTables, words: Ids, begin: Offsets, state: int, end_word: int, total: Reals
) -> None:
    """Write each sentence's log10 probability to `total`.

    Sentence i is ``words[begin[i]:begin[i + 1]]``, followed by `end_word` unless that is
    negative; each starts from `state`.
    """
    for i in range(begin.size - 1):
        now = state
        sum_ = 0.0
        for k in range(begin[i], begin[i + 1]):
            logp, now = advance(t, now, words[k])
            sum_ += logp
        if end_word >= 0:
            logp, now = advance(t, now, end_word)
            sum_ += logp
        total[i] = sum_


@njit(cache=True, nogil=True)
def link_order(t: LmTables, rows: Ids, first: int) -> tuple[int, int]:
    """Place the n-grams of one order, given as rows of word ids; they are nodes from `first` on.

    All shorter ones are placed already. Returns (row, code) of the first n-gram whose prefix or
    suffix is missing or which is a duplicate; code is `PLACED` when all went well.
    """
    count, order = rows.shape
    mask = np.uint64(t.key.size - 1)
    for row in range(count):
        prefix = 0
        for k in range(order - 1):
            prefix = transition(t, prefix, rows[row, k])
            if prefix < 0:
                return row, MISSING
        word = rows[row, order - 1]
        node = first + row
        if order > 1:
            suffix = transition(t, t.suffix[prefix], word)
            if suffix < 0:
                return row, MISSING
            key = ((prefix << 32) | word) + 1
            slot = mix(key) & mask
            while t.key[slot] != 0:
                if t.key[slot] == key:
                    return row, DUPLICATE
                slot = (slot + np.uint64(1)) & mask
            t.key[slot] = key
            t.val[slot] = node
            t.suffix[node] = suffix
            t.prefix[node] = prefix
        t.word[node] = word
    return -1, PLACED


@njit(cache=True, nogil=True)
def finish_nodes(t: LmTables, backoff: Floats, order: int, begin_node: int) -> None:
    """Fill what follows from the links, `prob` and the nodes' own `backoff`.

    Where `prob` is NaN it becomes what back-off gives. `begin_node` is that of ``<s>``.
    """
    size = t.prob.size
    # Whether the node must be kept in states: see LmTables.state.
    kept = np.zeros(size, np.bool_)
    for node in range(1, size):
        suffix, prefix = t.suffix[node], t.prefix[node]
        if np.isnan(t.prob[node]):
            t.prob[node] = t.prob[suffix] + backoff[prefix]
        t.backoff_sum[node] = t.backoff_sum[suffix] + backoff[node]
        if node != begin_node:
            t.prob_sum[node] = t.prob_sum[prefix] + t.prob[node]
        if t.length[node] > 1:
            kept[prefix] = True
        t.extends_left[suffix] = True
        if backoff[node] != 0:
            kept[node] = True
    for node in range(size - 1, 0, -1):
        if kept[node]:
            kept[t.suffix[node]] = True
    for node in range(1, size):
        if kept[node] and t.length[node] < order:
            t.state[node] = node
        else:
            t.state[node] = t.state[t.suffix[node]]

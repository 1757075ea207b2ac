"""Compiled queries of n-gram models, and the building of their tables.

`table` and `nodes` are the arrays of `torchtune_smt.lm.tables.LmTables`. Kernels take them apart,
and read records by element (``nodes[i].prob``): each access to a field of a tuple of arrays, or
to a column of an array of records, would count references, atomically. A table's places are found
by a mix of the 64-bit key, then by linear probing.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from torchtune_smt.core.arrays import Float32, Float64, Int32, Int64, Records
from torchtune_smt.core.compiled import inlined, inner, kernel

# What comes of a word behind a state, as a search remembers it.
#
# key     ``(state << 32 | word) + 1``; 0 where the place is empty
# logp    log10 of the word's probability
# node    the longest n-gram found, its `length`, and whether it `extends_left`; see tables.NODE
# state   its state, and that one's length, `reach`
_MEMO = np.dtype(
    [
        ("key", "i8"),
        ("logp", "f8"),
        ("node", "i4"),
        ("state", "i4"),
        ("length", "i1"),
        ("reach", "i1"),
        ("extends_left", "?"),
        ("pad", "i4"),
    ],
    align=True,
)
# Of the some thousand pairs of a sentence those that come most find a place of their own, and all
# lie in the cache of a processor's core, as a model does not.
_PLACES_BITS = 12

PLACED, MISSING, DUPLICATE = 0, 1, 2


@inner
def mix(key: int) -> np.uint64:
    """Return a 64-bit hash: two rounds of multiplication and folding of the high half."""
    h = np.uint64(key)
    h ^= h >> np.uint64(32)
    h *= np.uint64(0xD6E8FEB86659FD93)
    h ^= h >> np.uint64(32)
    h *= np.uint64(0xD6E8FEB86659FD93)
    h ^= h >> np.uint64(32)
    return h


@inner
def find(table: Records, node: int, word: int) -> np.int64:
    """Return the place in the table of the n-gram `node` + `word`, -1 where there is none.

    `node` must not be 0: words alone do not stand in the table.
    """
    key = ((node << 32) | word) + 1
    mask = np.uint64(table.size - 1)
    slot = mix(key) & mask
    while True:
        found = table[slot].key
        if found == key:
            return np.int64(slot)
        if found == 0:
            return np.int64(-1)
        slot = (slot + np.uint64(1)) & mask


@inner
def transition(table: Records, node: int, word: int) -> int:
    """Return the node of the n-gram `node` + `word`, -1 where the model has none.

    `word` must be a word id of the model (0 is ``<unk>``).
    """
    if node == 0:
        return word + 1
    slot = find(table, node, word)
    if slot < 0:
        return -1
    longer: int = table[slot].val
    return longer


@inner
def match(table: Records, nodes: Records, state: int, word: int) -> tuple[float, int, int]:
    """Return (log10 probability of `word` after `state`, node of the longest n-gram, next state).

    That n-gram is the longest one of the model that ends in `word` and consists of it and of
    words of the state before it. A state is a node, as `NODE` has them; 0 knows no context. The
    next state is known as soon as the table is read: where one word follows another, the search
    for the next one need not wait for the node.
    """
    context, slot = state, np.int64(-1)
    while context != 0 and slot < 0:
        slot = find(table, context, word)
        if slot < 0:
            context = nodes[context].suffix
    if slot < 0:
        node = word + 1
        after = nodes[node].state
    else:
        node = table[slot].val
        after = table[slot].state
    logp = nodes[node].prob + 0.0
    if context != state:
        logp += nodes[state].backoff_sum - nodes[context].backoff_sum
    return logp, node, after


class Asked(NamedTuple):
    """A model as a search asks it: its tables, and a memo of what they have said (`recall`)."""

    table: Records
    nodes: Records
    memo: Records


@kernel
def asked(table: Records, nodes: Records) -> Asked:
    """Return a model that nothing has been asked."""
    return Asked(table, nodes, np.zeros(1 << _PLACES_BITS, _MEMO))


@inner
def _remember(lm: Asked, place: np.uint64, key: int, state: int, word: int) -> None:
    """Write what comes of a word behind a state to its place in the memo."""
    nodes, memo = lm.nodes, lm.memo
    logp, node, after = match(lm.table, nodes, state, word)
    memo[place].key, memo[place].logp, memo[place].node = key, logp, node
    memo[place].state, memo[place].reach = after, nodes[after].length
    memo[place].length, memo[place].extends_left = nodes[node].length, nodes[node].extends_left


@inlined
def recall(lm: Asked, state: int, word: int) -> np.uint64:
    """Return the place in the memo that has what `match` returns of a state and a word.

    It stays there until another pair is asked for.
    """
    key = ((state << 32) | word) + 1
    place = (np.uint64(key) * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(64 - _PLACES_BITS)
    if lm.memo[place].key != key:
        _remember(lm, place, key, state, word)
    return place


@kernel
def score_sentences(
    table: Records,
    nodes: Records,
    words: Int32,
    begin: Int64,
    state: int,
    end_word: int,
    total: Float64,
) -> None:
    """Write each sentence's log10 probability to `total`.

    Sentence i is ``words[begin[i]:begin[i + 1]]``, followed by `end_word` unless that is
    negative; each starts from `state`.
    """
    for i in range(begin.size - 1):
        now = state
        sum_ = 0.0
        for k in range(begin[i], begin[i + 1]):
            logp, _, now = match(table, nodes, now, words[k])
            sum_ += logp
        if end_word >= 0:
            logp, _, now = match(table, nodes, now, end_word)
            sum_ += logp
        total[i] = sum_


@kernel
def link_order(table: Records, nodes: Records, rows: Int32, first: int) -> tuple[int, int]:
    """Place the n-grams of one order, given as rows of word ids; they are nodes from `first` on.

    All shorter ones are placed already. Returns (row, code) of the first n-gram whose prefix or
    suffix is missing or which is a duplicate; code is `PLACED` when all went well.
    """
    count, order = rows.shape
    mask = np.uint64(table.size - 1)
    for row in range(count):
        prefix = 0
        for k in range(order - 1):
            prefix = transition(table, prefix, rows[row, k])
            if prefix < 0:
                return row, MISSING
        word = rows[row, order - 1]
        node = first + row
        if order > 1:
            suffix = transition(table, nodes[prefix].suffix, word)
            if suffix < 0:
                return row, MISSING
            key = ((prefix << 32) | word) + 1
            slot = mix(key) & mask
            while table[slot].key != 0:
                if table[slot].key == key:
                    return row, DUPLICATE
                slot = (slot + np.uint64(1)) & mask
            table[slot].key = key
            table[slot].val = node
            nodes[node].suffix = suffix
            nodes[node].prefix = prefix
        nodes[node].word = word
    return -1, PLACED


@kernel
def finish_nodes(table: Records, nodes: Records, backoff: Float32, order: int) -> None:
    """Fill what follows from the links, `prob` and the nodes' own `backoff`.

    Where `prob` is NaN it becomes what back-off gives.
    """
    size = nodes.size
    # Whether the node must be kept in states: see `state` of tables.NODE.
    kept = np.zeros(size, np.bool_)
    for node in range(1, size):
        suffix, prefix = nodes[node].suffix, nodes[node].prefix
        if np.isnan(nodes[node].prob):
            nodes[node].prob = nodes[suffix].prob + backoff[prefix]
        nodes[node].backoff_sum = nodes[suffix].backoff_sum + backoff[node]
        if nodes[node].length > 1:
            kept[prefix] = True
        nodes[suffix].extends_left = True
        if backoff[node] != 0:
            kept[node] = True
    for node in range(size - 1, 0, -1):
        if kept[node]:
            kept[nodes[node].suffix] = True
    for node in range(1, size):
        if kept[node] and nodes[node].length < order:
            nodes[node].state = node
        else:
            nodes[node].state = nodes[nodes[node].suffix].state
    for slot in range(table.size):
        if table[slot].key != 0:
            table[slot].state = nodes[table[slot].val].state


@kernel
def leads_nowhere_else(table: Records, nodes: Records, words: int, order: int) -> bool:
    """Return whether all nodes that are named exist, and every search comes to an end.

    Suffixes and prefixes have smaller numbers, so that node 0 ends every chain of them, and at
    least half of the places in the table are empty. `words` is the number of words.
    """
    sound = nodes[0].word == -1 and nodes[0].length == 0 and nodes[0].state == 0
    sound &= nodes[0].suffix == 0 and nodes[0].prefix == 0
    sound &= nodes[0].prob == 0.0 and nodes[0].backoff_sum == 0.0
    for i in range(1, nodes.size):
        sound &= 0 <= nodes[i].suffix < i and 0 <= nodes[i].prefix < i
        sound &= 0 <= nodes[i].state <= i and 0 <= nodes[i].word < words
        sound &= 1 <= nodes[i].length <= order
        sound &= np.isfinite(nodes[i].prob) and np.isfinite(nodes[i].backoff_sum)
    used = 0
    for slot in range(table.size):
        if table[slot].key != 0:
            used += 1
            sound &= words < table[slot].val < nodes.size and 0 <= table[slot].state < nodes.size
    return sound and used == nodes.size - 1 - words and 2 * used <= table.size

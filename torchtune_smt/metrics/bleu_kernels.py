"""Kernels of sentence-level BLEU: n-gram tries of the references, matches, and scores.

The n-grams of all references of a sentence form a trie whose nodes are rows (word, sibling,
first child, limit): `limit` is the highest count of the n-gram in any one reference. Words at
the root are found by a small hash table, deeper ones by walking siblings, of which there is
seldom more than one.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from torchtune_smt.core.arrays import Float64, Int32, Int64
from torchtune_smt.core.compiled import inner, kernel

WORD, SIBLING, CHILD, LIMIT = 0, 1, 2, 3
ORDER = 4
STATISTICS = 2 * ORDER + 2
# sacrebleu's ways to smooth; 0 is none.
FLOOR, ADD_K, EXP = 1, 2, 3

Nodes = NDArray[np.int32]
Counts = NDArray[np.int64]


@kernel
def root_slot(roots: Int32, nodes: Nodes, word: int) -> int:
    """Return the slot of `word` among the hashed nodes of length one: its own or a free one."""
    mask = roots.size - 1
    slot = ((word * 0x9E3779B1) >> 7) & mask
    while roots[slot] >= 0 and nodes[roots[slot], WORD] != word:
        slot = (slot + 1) & mask
    return slot


@kernel
def build_trie(
    tokens: Int32, begin: Int64, first: int, last: int, roots: Int32, nodes: Nodes
) -> int:
    """Write the trie of references `first` to ``last - 1`` of one sentence.

    tokens, begin: reference j is ``tokens[begin[j]:begin[j + 1]]``.
    roots: filled with -1, its size a power of two of at least twice the number of tokens.
    nodes (int32 [room, 4]): room for four nodes a token.

    Returns int: the number of nodes.
    """
    count = 0
    occurrences = np.zeros(nodes.shape[0], np.int32)
    for j in range(first, last):
        occurrences[:count] = 0
        for i in range(begin[j], begin[j + 1]):
            parent, slot = -1, -1
            for k in range(i, min(i + ORDER, begin[j + 1])):
                if parent < 0:
                    slot = root_slot(roots, nodes, tokens[k])
                    node = roots[slot]
                else:
                    node = nodes[parent, CHILD]
                    while node >= 0 and nodes[node, WORD] != tokens[k]:
                        node = nodes[node, SIBLING]
                if node < 0:
                    node = count
                    count += 1
                    nodes[node, WORD], nodes[node, SIBLING] = tokens[k], -1
                    nodes[node, CHILD], nodes[node, LIMIT] = -1, 0
                    if parent < 0:
                        roots[slot] = node
                    else:
                        nodes[node, SIBLING] = nodes[parent, CHILD]
                        nodes[parent, CHILD] = node
                occurrences[node] += 1
                nodes[node, LIMIT] = max(nodes[node, LIMIT], occurrences[node])
                parent = node
    return count


@kernel
def build_tries(
    tokens: Int32, begin: Int64, group: Int64, root_begin: Int64, roots: Int32, nodes: Nodes
) -> Int64:
    """Write the tries of all sentences one after the other.

    group (int64 [sentences + 1]): sentence s has the references ``group[s]`` to ``group[s + 1] -
        1``.
    root_begin (int64 [sentences + 1]): its hash table is ``roots[root_begin[s]:root_begin[s +
        1]]``.

    Returns int64 [sentences + 1]: where the nodes of each sentence begin; links between nodes count
        from there.
    """
    node_begin = np.zeros(group.size, np.int64)
    for s in range(group.size - 1):
        room = node_begin[s] + ORDER * (begin[group[s + 1]] - begin[group[s]])
        node_begin[s + 1] = node_begin[s] + build_trie(
            tokens,
            begin,
            group[s],
            group[s + 1],
            roots[root_begin[s] : root_begin[s + 1]],
            nodes[node_begin[s] : room],
        )
    return node_begin


@kernel
def match_statistics(
    sentence: int,
    root_begin: Int64,
    roots: Int32,
    node_begin: Int64,
    nodes: Nodes,
    length_begin: Int64,
    lengths: Int64,
    token_begin: Int64,
    tokens: Int32,
) -> Counts:
    """Return BLEU's statistics of each hypothesis of one sentence; see `BleuReferences.statistics`.

    root_begin, roots, node_begin, nodes: as from `build_tries`.
    length_begin, lengths: reference lengths of sentence s, ascending:
        ``lengths[length_begin[s]:length_begin[s + 1]]``.
    token_begin, tokens (int64 [k + 1], int32 array): the hypotheses.
    """
    root = roots[root_begin[sentence] : root_begin[sentence + 1]]
    trie = nodes[node_begin[sentence] : node_begin[sentence + 1]]
    k = token_begin.size - 1
    statistics = np.zeros((k, STATISTICS), np.int64)
    # `used[node]` counts from h << 32 for hypothesis h, so that it needs no clearing.
    used = np.zeros(trie.shape[0], np.int64)
    for h in range(k):
        base = np.int64(h) << 32
        end = token_begin[h + 1]
        for i in range(token_begin[h], end):
            node = root[root_slot(root, trie, tokens[i])]
            if node < 0:
                continue
            n = 0
            while True:
                count = max(used[node], base)
                if count - base < trie[node, LIMIT]:
                    statistics[h, n] += 1
                    used[node] = count + 1
                n += 1
                if n == ORDER or i + n >= end:
                    break
                node = trie[node, CHILD]
                while node >= 0 and trie[node, WORD] != tokens[i + n]:
                    node = trie[node, SIBLING]
                if node < 0:
                    break
        length = end - token_begin[h]
        for n in range(ORDER):
            statistics[h, ORDER + n] = max(length - n, 0)
        statistics[h, 2 * ORDER] = length
        closest = lengths[length_begin[sentence]]
        for j in range(length_begin[sentence] + 1, length_begin[sentence + 1]):
            if abs(lengths[j] - length) < abs(closest - length):
                closest = lengths[j]
        statistics[h, 2 * ORDER + 1] = closest
    return statistics


@inner
def root(product: float, orders: int) -> float:
    """Return the geometric mean of `orders` numbers from their product."""
    if orders == 4:
        return math.sqrt(math.sqrt(product))
    return math.pow(product, 1.0 / orders)


@kernel
def smoothed_bleu(
    statistics: Counts,
    add_first: float,
    add: float,
    add_length: float,
    short_references: bool,
    grounding: bool,
) -> Float64:
    """Return BLEU (0..1) with numbers added to its counts, for rows of BLEU's statistics.

    add_first, add: added to matches and counts of words, and of longer n-grams (there more than 0).
    add_length: added to the reference's length in the brevity penalty.
    short_references: count only orders up to the reference's length.
    grounding: subtract the precision that as long a hypothesis without any match has.
    """
    gains = np.zeros(statistics.shape[0])
    for h in range(statistics.shape[0]):
        row = statistics[h]
        c, r = row[2 * ORDER], row[2 * ORDER + 1]
        orders = min(ORDER, r) if short_references else ORDER
        if c == 0 or orders == 0 or (row[0] == 0 and add_first == 0.0):
            continue
        product, unmatched = 1.0, 1.0
        for n in range(orders):
            extra = add_first if n == 0 else add
            count = row[ORDER + n] + extra
            product *= (row[n] + extra) / count
            unmatched *= extra / count
        gain = root(product, orders)
        if grounding:
            gain -= root(unmatched, orders)
        if c < r + add_length:
            gain *= np.exp(1.0 - (r + add_length) / c)
        gains[h] = gain
    return gains


@kernel
def sacrebleu_bleu(statistics: Counts, method: int, value: float, effective_order: bool) -> Float64:
    """Return sacrebleu's BLEU (0..1) of each row of BLEU's statistics; see `bleu.SacreBleu`."""
    gains = np.zeros(statistics.shape[0])
    for h in range(statistics.shape[0]):
        row = statistics[h]
        # Without a matching word nothing longer matches, and sacrebleu smooths nothing then.
        if row[0] == 0:
            continue
        product = 1.0
        halved = 1.0
        orders = ORDER
        for n in range(ORDER):
            extra = value if method == ADD_K and n > 0 else 0.0
            matches, count = row[n] + extra, row[ORDER + n] + extra
            if count == 0.0:
                if effective_order:
                    orders = n
                else:
                    product = 0.0
                break
            if matches == 0.0 and method == EXP:
                halved *= 0.5
                matches = halved
            elif matches == 0.0 and method == FLOOR:
                matches = value
            product *= matches / count
        gain = root(product, orders)
        c, r = row[2 * ORDER], row[2 * ORDER + 1]
        if c < r:
            gain *= np.exp(1.0 - r / c)
        gains[h] = gain
    return gains


@kernel
def liang_bleu(statistics: Counts) -> Float64:
    """Return Liang's sum of BLEUs (0..15/16) of each row of BLEU's statistics."""
    gains = np.zeros(statistics.shape[0])
    for h in range(statistics.shape[0]):
        row = statistics[h]
        product = 1.0
        gain = 0.0
        for n in range(ORDER):
            if row[n] == 0:
                break
            product *= row[n] / row[ORDER + n]
            gain += root(product, n + 1) / 2.0 ** (ORDER - n)
        c, r = row[2 * ORDER], row[2 * ORDER + 1]
        if 0 < c < r:
            gain *= np.exp(1.0 - r / c)
        gains[h] = gain
    return gains

"""Kernels that find what of a grammar can match one sentence."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from torchtune_smt.core.arrays import Float64, Int32, Int64, Integers
from torchtune_smt.core.compiled import inner, kernel
from torchtune_smt.core.sequences_kernels import longer
from torchtune_smt.core.sorting_kernels import number

GAP = -1
"""The non-terminal on a source side; on target sides -1 and -2 are the first and the second."""


class SentenceGrammar(NamedTuple):
    """The rules that can match one sentence, in a trie over their source sides.

    Node 0 is the root. Every other node has rules, or leads to one that has.

    child_begin (int32 [nodes + 1])
    child_symbol (int32 [edges])
    child_node (int32 [edges]): edge i of node n, ``child_begin[n] <= i < child_begin[n + 1]``,
        leads along the symbol ``child_symbol[i]`` (a source word id, or -1 for the non-terminal;
        ascending within a node) to the node ``child_node[i]``.
    rule_begin (int32 [nodes + 1])
    rule (int64 [rules]): ``rule[rule_begin[n]:rule_begin[n + 1]]`` are the ids in the grammar of
        the rules whose source side ends in node n, best first.
    dense (float64 [rules, features]): their values of the features `Grammar.dense_names`.
    """

    child_begin: Int32
    child_symbol: Int32
    child_node: Int32
    rule_begin: Int32
    rule: Int64
    dense: Float64


@kernel
def build_trie(length: Int32, symbols: Int32) -> tuple[Int32, Int32, Int32]:
    """Return the symbols of a trie's nodes, their `child_begin`, and where each sequence ends.

    Equal sequences share their node; see `torchtune_smt.grammar.base.Trie`.
    """
    node = np.zeros(length.size, np.int32)
    node_symbol, children = np.zeros(1024, np.int32), np.zeros(1024, np.int32)
    least, most = 0, 0
    for k in range(symbols.size):
        least, most = min(least, symbols[k]), max(most, symbols[k])
    kinds = most - least + 1
    # The nodes of the level above are level..count-1.
    level, count, depth = 0, 1, 0
    while True:
        longer_ones = 0
        for i in range(length.size):
            longer_ones += length[i] > depth
        if longer_ones == 0:
            break
        key = np.empty(longer_ones, np.int64)
        k, at = 0, 0
        for i in range(length.size):
            if length[i] > depth:
                key[k] = (node[i] - level) * kinds + symbols[at + depth] - least
                k += 1
            at += length[i]
        distinct, index = number(key)
        node_symbol = longer(node_symbol, count + distinct.size)
        children = longer(children, count + distinct.size)
        for d in range(distinct.size):
            node_symbol[count + d] = distinct[d] % kinds + least
            children[count + d] = 0
            children[level + distinct[d] // kinds] += 1
        k = 0
        for i in range(length.size):
            if length[i] > depth:
                node[i] = count + index[k]
                k += 1
        level, count = count, count + distinct.size
        depth += 1
    child_begin = np.ones(count + 1, np.int32)
    for n in range(count):
        child_begin[n + 1] = child_begin[n] + children[n]
    return node_symbol[:count].copy(), child_begin, node


@inner
def lower_bound(array: Integers, begin: int, end: int, wanted: int) -> int:
    """Return the first place in ``array[begin:end]`` (ascending) that is not below `wanted`."""
    while begin < end:
        middle = (begin + end) >> 1
        if array[middle] < wanted:
            begin = middle + 1
        else:
            end = middle
    return begin


@inner
def place(array: Integers, begin: int, end: int, wanted: int) -> int:
    """Return the place of `wanted` in ``array[begin:end]`` (ascending), or -1."""
    at = lower_bound(array, begin, end, wanted)
    return at if at < end and array[at] == wanted else -1


@kernel
def match(
    symbol: Int32, child_begin: Int32, source: Int32, words: Int32, max_span: int
) -> tuple[Int32, Int32]:
    """Return the nodes of a trie that match some span of the sentence.

    A node matches span [s, e) when its words stand in this order, its first symbol begins at s,
    its last ends at e, each gap covers one word at least, and e - s <= max_span. The search goes
    breadth first; a node carries the list of its spans, sorted; after a gap only the shortest for
    each start, the longer ones being implied.

    symbol, child_begin: the trie.
    source (int32 [n]): words; negative ones are unknown and match gaps only.
    words: the different known words of it, ascending.

    Returns node (int32 [m]): the matching nodes of the trie, the root first.
    Returns begin (int32 [m + 1]): children of the i-th of them are numbers ``begin[i]..begin[i + 1]
        - 1`` of this list.
    """
    n = source.size
    number = np.empty(n, np.int32)  # which of the words stands there, or -1
    for i in range(n):
        number[i] = place(words, 0, words.size, source[i])
    spans = np.zeros(words.size, np.int64)  # of the child along each word, then where they go
    target = np.empty(words.size, np.int32)

    node = np.empty(256, np.int32)
    begin = np.empty(257, np.int32)
    item_begin = np.empty(257, np.int32)
    item_start = np.empty(1024, np.int32)
    item_end = np.empty(1024, np.int32)
    item_start, item_end = longer(item_start, n), longer(item_end, n)
    for s in range(n):
        item_start[s] = s
        item_end[s] = s
    node[0] = 0
    item_begin[0] = 0
    item_begin[1] = n
    count = 1
    items = n
    q = 0
    while q < count:
        begin[q] = count
        here = node[q]
        first, last = child_begin[here], child_begin[here + 1]
        if first == last:
            q += 1
            continue
        in_gap = q > 0 and symbol[here] == GAP
        i0, i1 = item_begin[q], item_begin[q + 1]
        # The longest that the children can need: one gap and all the words.
        node = longer(node, count + words.size + 1)
        begin = longer(begin, count + words.size + 2)
        item_begin = longer(item_begin, count + words.size + 2)

        if symbol[first] == GAP:
            item_start = longer(item_start, items + i1 - i0)
            item_end = longer(item_end, items + i1 - i0)
            before = items
            for i in range(i0, i1):
                s, e = item_start[i], item_end[i]
                if i > i0 and item_start[i - 1] == s:
                    continue
                if e < n and e + 1 - s <= max_span:
                    item_start[items] = s
                    item_end[items] = e + 1
                    items += 1
            if items > before:
                node[count] = first
                count += 1
                item_begin[count] = items
            first += 1

        if first < last:
            for i in range(i0, i1):
                s, e = item_start[i], item_end[i]
                stop = min(n, s + max_span)
                if not in_gap:
                    stop = min(stop, e + 1)
                for p in range(e, stop):
                    if number[p] >= 0:
                        spans[number[p]] += 1
            needed = items
            for w in range(words.size):
                target[w] = -1
                if spans[w] > 0:
                    child = place(symbol, first, last, words[w])
                    if child >= 0:
                        node[count] = child
                        target[w] = count
                        count += 1
                        begin_of_items = needed
                        needed += spans[w]
                        spans[w] = begin_of_items
                        item_begin[count] = needed
            item_start = longer(item_start, needed)
            item_end = longer(item_end, needed)
            if needed > items:
                for i in range(i0, i1):
                    s, e = item_start[i], item_end[i]
                    stop = min(n, s + max_span)
                    if not in_gap:
                        stop = min(stop, e + 1)
                    for p in range(e, stop):
                        if number[p] >= 0 and target[number[p]] >= 0:
                            at = spans[number[p]]
                            item_start[at] = s
                            item_end[at] = p + 1
                            spans[number[p]] = at + 1
            items = needed
            for w in range(words.size):
                spans[w] = 0
        q += 1
    begin[count] = count
    return node[:count].copy(), begin[: count + 1].copy()


@kernel
def prune(
    symbol: Int32, child_begin: Int32, rule_begin: Int32
) -> tuple[Int32, Int32, Int32, Int32]:
    """Return a trie without the nodes (but the root) under which no rule ends.

    symbol (int32 [m])
    child_begin (int32 [m + 1]): a trie in the numbering of `match`.
    rule_begin (int32 [m + 1]): node i has ``rule_begin[i + 1] - rule_begin[i]`` rules.

    Returns child_begin, child_symbol, child_node, rule_begin
    """
    m = symbol.size
    number = np.zeros(m, np.int32)  # 1: kept; then the new number
    for i in range(m - 1, -1, -1):
        kept = i == 0 or rule_begin[i + 1] > rule_begin[i]
        for c in range(child_begin[i], child_begin[i + 1]):
            kept = kept or number[c] > 0
        number[i] = kept
    kept_nodes = 0
    for i in range(m):
        if number[i]:
            number[i] = kept_nodes
            kept_nodes += 1
        else:
            number[i] = -1
    new_child_begin = np.zeros(kept_nodes + 1, np.int32)
    new_rule_begin = np.zeros(kept_nodes + 1, np.int32)
    child_symbol = np.empty(kept_nodes - 1, np.int32)
    child_node = np.empty(kept_nodes - 1, np.int32)
    edges = 0
    for i in range(m):
        if number[i] < 0:
            continue
        for c in range(child_begin[i], child_begin[i + 1]):
            if number[c] >= 0:
                child_symbol[edges] = symbol[c]
                child_node[edges] = number[c]
                edges += 1
        new_child_begin[number[i] + 1] = edges
        new_rule_begin[number[i] + 1] = rule_begin[i + 1]
    return new_child_begin, child_symbol, child_node, new_rule_begin

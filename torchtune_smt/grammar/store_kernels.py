"""Kernels that check the grammar of a file."""

from __future__ import annotations

import numpy as np

from torchtune_smt.core.arrays import Int32, Int64
from torchtune_smt.core.compiled import kernel
from torchtune_smt.grammar.matching_kernels import GAP


@kernel
def is_trie(
    symbol: Int32,
    child_begin: Int32,
    node_source: Int32,
    source_begin: Int64,
    source_symbols: Int32,
) -> bool:
    """Return whether children come behind their parents, each has one, and sides end where they do.

    Offsets and ids are within their arrays; see `Trie` and `Grammar`.
    """
    nodes = symbol.size
    if nodes == 0 or child_begin[0] != 1 or child_begin[nodes] != nodes or node_source[0] != -1:
        return False
    parent = np.zeros(nodes, np.int32)
    for node in range(nodes):
        first, last = child_begin[node], child_begin[node + 1]
        if not node < first <= last <= nodes:
            return False
        for child in range(first, last):
            parent[child] = node
    for node in range(1, nodes):
        side = node_source[node]
        if side >= 0:
            here = node
            for k in range(source_begin[side + 1] - 1, source_begin[side] - 1, -1):
                if here == 0 or symbol[here] != source_symbols[k]:
                    return False
                here = parent[here]
            if here != 0:
                return False
    return True


@kernel
def are_rules(
    rule_begin: Int64,
    rule_source: Int32,
    source_begin: Int64,
    source_symbols: Int32,
    target_begin: Int64,
    target_symbols: Int32,
) -> bool:
    """Return whether rules are consecutive, and have their source side's gaps once each."""
    for side in range(rule_begin.size - 1):
        gaps = 0
        for k in range(source_begin[side], source_begin[side + 1]):
            gaps += source_symbols[k] == GAP
        for rule in range(rule_begin[side], rule_begin[side + 1]):
            if rule_source[rule] != side:
                return False
            first = second = 0
            for k in range(target_begin[rule], target_begin[rule + 1]):
                first += target_symbols[k] == -1
                second += target_symbols[k] == -2
            if gaps > 2 or first != (gaps > 0) or second != (gaps > 1):
                return False
    return True

"""Kernels that check the grammar of a file."""

from __future__ import annotations

import numpy as np

from torchtune_smt.compiled import kernel
from torchtune_smt.grammar.matching_kernels import GAP
from torchtune_smt.kernel_types import Ids, Offsets


@kernel
def is_trie(
    symbol: Ids, child_begin: Ids, node_source: Ids, source_begin: Offsets, source_symbols: Ids
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
    rule_begin: Offsets,
    rule_source: Ids,
    source_begin: Offsets,
    source_symbols: Ids,
    target_begin: Offsets,
    target_symbols: Ids,
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

"""The trie over the source sides of a grammar."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from torchtune_smt.core.arrays import Int32, Int64
from torchtune_smt.core.sequences import SequenceTable
from torchtune_smt.core.sorting_kernels import ascending, number


class Trie(NamedTuple):
    """Symbol sequences merged at their common prefixes; node 0 is the root.

    Nodes are numbered by depth, then parent, then symbol, so that the children of node n are the
    nodes ``child_begin[n]..child_begin[n + 1] - 1``, with ascending symbols.

    Attributes
    ----------
    symbol : int32 [nodes]
        The symbol on the edge into a node; `GAP` is smaller than every word. The root's is unused.
    child_begin : int32 [nodes + 1]
    """

    symbol: Int32
    child_begin: Int32


def build_trie(begin: Int64, symbols: Int32) -> tuple[Trie, Int32]:
    """Return the trie of some sequences, and for each the node where it ends.

    Parameters
    ----------
    begin : int64 [n + 1]
    symbols : int32
        Sequence s is ``symbols[begin[s]:begin[s + 1]]``; symbols are -2 or larger.

    Returns
    -------
    trie : Trie
    node : int32 [n]
        Equal sequences share their node; nodes order sequences by length, then symbol by symbol.
    """
    length = np.diff(begin)
    node = np.zeros(length.size, np.int64)
    symbol_levels, parent_levels = [np.zeros(1, np.int64)], [np.full(1, -1, np.int64)]
    count = 1
    active = np.flatnonzero(length > 0)
    depth = 0
    while active.size:
        # Symbols -2 and -1 are moved to 0 and 1, so that the key sorts as (parent, symbol).
        key = (node[active] << 32) | (symbols[begin[active] + depth].astype(np.int64) + 2)
        distinct, inverse = number(key)
        parent_levels.append(distinct >> 32)
        symbol_levels.append((distinct & 0xFFFFFFFF) - 2)
        node[active] = count + inverse
        count += distinct.size
        depth += 1
        active = active[length[active] > depth]
    children = np.bincount(np.concatenate(parent_levels)[1:], minlength=count)
    child_begin = np.ones(count + 1, np.int32)
    child_begin[1:] += np.cumsum(children).astype(np.int32)
    trie = Trie(np.concatenate(symbol_levels).astype(np.int32), child_begin)
    return trie, node.astype(np.int32)


def ordered_trie(
    sequences: SequenceTable[np.int32],
) -> tuple[Trie, Int32, Int32, Int64]:
    """Order sequences by the nodes of their trie where they end.

    Returns
    -------
    trie : Trie
    node_number : int32 [nodes]
        The number in this order of the sequence that ends in a node, or -1.
    number : int32 [n]
        The number of each sequence.
    order : int64 [n]
        Which sequence has a number.
    """
    trie, node = build_trie(sequences.begin, sequences.symbols)
    order = ascending(node.astype(np.int64))
    number = np.empty(order.size, np.int32)
    number[order] = np.arange(order.size)
    node_number = np.full(trie.symbol.size, -1, np.int32)
    node_number[node] = number
    return trie, node_number, number, order

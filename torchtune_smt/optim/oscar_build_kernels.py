"""Building the tree of lazy OSCAR's groups, and reading all of it."""

from __future__ import annotations

import numpy as np

from torchtune_smt.core.arrays import Float64, Int64
from torchtune_smt.core.compiled import kernel
from torchtune_smt.optim.oscar_groups_kernels import SMALLEST
from torchtune_smt.optim.oscar_tree_kernels import (
    ACTIVE,
    AFTER,
    BEFORE,
    CHILD,
    CLOCK,
    ENTRIES,
    GROUPS,
    LAST,
    LEAF,
    LEVEL,
    NODES,
    PASSED,
    RANK,
    ROOT,
    SIZE,
    VALUE,
    Tree,
    above,
    as_int64,
    hang,
    new_node,
    pass_head,
    set_event,
    slant,
)

# Entries of a new node: it can take some more before it is split.
FILL = 24


@kernel
def in_order(tree: Tree) -> tuple[Float64, Int64, Int64]:
    """Return |w|, the number of members and the number of each group, in descending order."""
    n = tree.counts[GROUPS]
    magnitude = np.empty(n)
    members, group = np.empty(n, np.int64), np.empty(n, np.int64)
    leaf = tree.counts[ROOT]
    while tree.link[leaf, LEVEL] > 0:
        leaf = as_int64(tree.link[leaf, CHILD])
    s, passed = slant(tree), tree.numbers[PASSED]
    k = 0
    while leaf >= 0:
        value, rank = above(tree, leaf)
        for i in range(tree.link[leaf, ENTRIES]):
            # In the order of `position`, and so rounded as there.
            a = value + tree.real[leaf, VALUE + i] + s * (rank + tree.real[leaf, RANK + i])
            magnitude[k] = max(a - passed, SMALLEST)
            members[k] = tree.link[leaf, SIZE + i]
            group[k] = tree.link[leaf, CHILD + i]
            k += 1
        leaf = as_int64(tree.link[leaf, AFTER])
    return magnitude, members, group


@kernel
def build(tree: Tree, magnitude: Float64, members: Int64, group: Int64) -> None:
    """Write all nodes anew, and set the clock to 0.

    Parameters
    ----------
    tree : Tree
        With enough nodes; it has the groups already, and their members.
    magnitude, members, group
        As `in_order` returns them.
    """
    tree.numbers[CLOCK] = tree.numbers[PASSED] = 0.0
    tree.counts[NODES] = 0
    leaf = new_node(tree, 0)
    rank = 0
    for k in range(group.size):
        if tree.link[leaf, ENTRIES] == FILL:
            after = new_node(tree, 0)
            tree.link[leaf, AFTER] = after
            tree.link[after, BEFORE] = leaf
            leaf = after
        i = tree.link[leaf, ENTRIES]
        tree.link[leaf, ENTRIES] = i + 1
        tree.real[leaf, VALUE + i] = magnitude[k]
        tree.real[leaf, RANK + i] = rank + 0.5 * (members[k] + 1)
        tree.link[leaf, CHILD + i] = group[k]
        tree.link[leaf, SIZE + i] = members[k]
        tree.group[group[k], LEAF] = leaf
        rank += members[k]
    tree.counts[GROUPS], tree.counts[ACTIVE], tree.counts[LAST] = group.size, rank, leaf
    for leaf in range(tree.counts[NODES]):
        # The nodes above are not there yet, and add nothing.
        for i in range(as_int64(tree.link[leaf, ENTRIES])):
            set_event(tree, leaf, i)
    begin, end = 0, tree.counts[NODES]
    while end - begin > 1:
        level = tree.link[begin, LEVEL] + 1
        parent = -1
        for node in range(begin, end):
            if parent < 0 or tree.link[parent, ENTRIES] == FILL:
                parent = new_node(tree, level)
            i = as_int64(tree.link[parent, ENTRIES])
            tree.link[parent, ENTRIES] = i + 1
            hang(tree, node, parent, i, 0.0, 0.0)
            pass_head(tree, node)
        begin, end = end, tree.counts[NODES]
    tree.counts[ROOT] = begin

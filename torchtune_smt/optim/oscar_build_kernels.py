"""Building the tree of lazy OSCAR's groups, and reading all of it."""

from __future__ import annotations

import numpy as np

from torchtune_smt.core.arrays import Float64, Int64
from torchtune_smt.core.compiled import kernel
from torchtune_smt.optim import oscar_tree_kernels as t
from torchtune_smt.optim.oscar_groups_kernels import SMALLEST
from torchtune_smt.optim.oscar_tree_kernels import Tree, as_int64

# Entries of a new node: it can take some more before it is split.
FILL = 24


@kernel
def in_order(tree: Tree) -> tuple[Float64, Int64, Int64]:
    """Return |w|, the number of members and the number of each group, in descending order."""
    n = tree.counts[t.GROUPS]
    magnitude = np.empty(n)
    members, group = np.empty(n, np.int64), np.empty(n, np.int64)
    leaf = tree.counts[t.ROOT]
    while tree.link[leaf, t.LEVEL] > 0:
        leaf = as_int64(tree.link[leaf, t.CHILD])
    s, passed = t.slant(tree), tree.numbers[t.PASSED]
    k = 0
    while leaf >= 0:
        value, rank = t.above(tree, leaf)
        for i in range(tree.link[leaf, t.ENTRIES]):
            # In the order of `position`, and so rounded as there.
            a = value + tree.real[leaf, t.VALUE + i] + s * (rank + tree.real[leaf, t.RANK + i])
            magnitude[k] = max(a - passed, SMALLEST)
            members[k] = tree.link[leaf, t.SIZE + i]
            group[k] = tree.link[leaf, t.CHILD + i]
            k += 1
        leaf = as_int64(tree.link[leaf, t.AFTER])
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
    tree.numbers[t.CLOCK] = tree.numbers[t.PASSED] = 0.0
    tree.counts[t.NODES] = 0
    leaf = t.new_node(tree, 0)
    rank = 0
    for k in range(group.size):
        if tree.link[leaf, t.ENTRIES] == FILL:
            after = t.new_node(tree, 0)
            tree.link[leaf, t.AFTER] = after
            tree.link[after, t.BEFORE] = leaf
            leaf = after
        i = tree.link[leaf, t.ENTRIES]
        tree.link[leaf, t.ENTRIES] = i + 1
        tree.real[leaf, t.VALUE + i] = magnitude[k]
        tree.real[leaf, t.RANK + i] = rank + 0.5 * (members[k] + 1)
        tree.link[leaf, t.CHILD + i] = group[k]
        tree.link[leaf, t.SIZE + i] = members[k]
        tree.group[group[k], t.LEAF] = leaf
        rank += members[k]
    tree.counts[t.GROUPS], tree.counts[t.ACTIVE], tree.counts[t.LAST] = group.size, rank, leaf
    for leaf in range(tree.counts[t.NODES]):
        # The nodes above are not there yet, and add nothing.
        for i in range(as_int64(tree.link[leaf, t.ENTRIES])):
            t.set_event(tree, leaf, i)
    begin, end = 0, tree.counts[t.NODES]
    while end - begin > 1:
        level = tree.link[begin, t.LEVEL] + 1
        parent = -1
        for node in range(begin, end):
            if parent < 0 or tree.link[parent, t.ENTRIES] == FILL:
                parent = t.new_node(tree, level)
            i = as_int64(tree.link[parent, t.ENTRIES])
            tree.link[parent, t.ENTRIES] = i + 1
            t.hang(tree, node, parent, i, 0.0, 0.0)
            t.pass_head(tree, node)
        begin, end = end, tree.counts[t.NODES]
    tree.counts[t.ROOT] = begin

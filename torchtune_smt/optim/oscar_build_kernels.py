"""Building the tree of lazy OSCAR's groups, and reading all of it."""

from __future__ import annotations

import math

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
    FIRST,
    FREE,
    GROUP,
    GROUPS,
    LAST,
    LEAF,
    LEVEL,
    NEXT,
    NODES,
    PASSED,
    PREVIOUS,
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
def group_equals(tree: Tree, weight: Float64, order: Int64) -> tuple[Float64, Int64, Int64]:
    """Make groups of equal |w|.

    Parameters
    ----------
    tree : Tree
        No coordinate is a member of a group; all numbers of groups are free, from 0 on.
    weight : float64 [D]
    order : int64 [u]
        Coordinates whose weight is not 0, in descending order of |w|.

    Returns
    -------
    magnitude : float64 [groups]
    members : int64 [groups]
    group : int64 [groups]
        Their numbers.
    """
    magnitude = np.empty(order.size)
    members = np.empty(order.size, np.int64)
    n = 0
    for place in range(order.size):
        j = order[place]
        a = abs(weight[j])
        if n == 0 or a != magnitude[n - 1]:
            group = tree.counts[FREE]
            tree.counts[FREE] = tree.group[group, FIRST]
            tree.group[group, FIRST] = j
            tree.member[j, NEXT] = tree.member[j, PREVIOUS] = j
            magnitude[n], members[n] = a, 1
            n += 1
        else:
            first = tree.group[n - 1, FIRST]
            last = tree.member[first, PREVIOUS]
            tree.member[last, NEXT] = tree.member[first, PREVIOUS] = j
            tree.member[j, PREVIOUS], tree.member[j, NEXT] = last, first
            members[n - 1] += 1
        tree.member[j, GROUP] = n - 1
    return magnitude[:n], members[:n], np.arange(n)


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


@kernel
def write(tree: Tree, weight: Float64, magnitude: Float64, group: Int64) -> None:
    """Bring all weights up to date; `magnitude` and `group` are those of `in_order`."""
    for k in range(group.size):
        first = tree.group[group[k], FIRST]
        j = first
        while True:
            weight[j] = math.copysign(magnitude[k], weight[j])
            j = tree.member[j, NEXT]
            if j == first:
                break


@kernel
def signed_blocks(tree: Tree, weight: Float64, group: Int64, result: Int64) -> None:
    """Write 2 b, or 2 b + 1 where w < 0, for the members of the b-th group of `in_order`."""
    for b in range(group.size):
        first = tree.group[group[b], FIRST]
        j = first
        while True:
            result[j] = 2 * b + (weight[j] < 0.0)
            j = tree.member[j, NEXT]
            if j == first:
                break

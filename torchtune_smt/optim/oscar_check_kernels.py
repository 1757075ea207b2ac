"""Whether the groups of lazy OSCAR that a file has are groups, in a tree."""

from __future__ import annotations

import math

import numpy as np

from torchtune_smt.core.arrays import Bool
from torchtune_smt.core.compiled import kernel
from torchtune_smt.optim.oscar_tree_kernels import (
    ACTIVE,
    AFTER,
    BEFORE,
    CHILD,
    ENTRIES,
    EVENT,
    FANOUT,
    FIRST,
    FREE,
    GROUP,
    GROUPS,
    HEAD_RANK,
    HEAD_VALUE,
    LAST,
    LEAF,
    LEFT,
    LEVEL,
    NEVER,
    NEXT,
    NODES,
    PARENT,
    PREVIOUS,
    RANK,
    ROOT,
    SIZE,
    SLOT,
    VALUE,
    Tree,
    as_int64,
    earliest,
)


@kernel
def is_whole(tree: Tree, length: int) -> bool:
    """Return whether all kernels find what they look for in a tree of `length` weights.

    The shapes of the arrays are right, and there are as many nodes as are in use. Where groups are
    is not checked, but for its being finite.
    """
    nodes, groups = tree.link.shape[0], tree.group.shape[0]
    used = np.zeros(groups, np.bool_)
    root = tree.counts[ROOT]
    if tree.counts[NODES] != nodes or not 0 <= root < nodes or tree.link[root, PARENT] != -1:
        return False
    for number in tree.numbers:
        if not math.isfinite(number):
            return False
    seen = np.zeros(nodes, np.bool_)
    # Nodes to look at, the next one last: leaves come in their order.
    open_nodes = np.empty(nodes + FANOUT, np.int64)
    open_nodes[0], n_open = root, 1
    last, members, found = -1, 0, 0
    while n_open > 0:
        n_open -= 1
        node = open_nodes[n_open]
        if seen[node]:
            return False
        seen[node] = True
        level, entries = tree.link[node, LEVEL], tree.link[node, ENTRIES]
        if level < 0 or not 0 <= entries <= FANOUT or (level > 0 and entries == 0):
            return False
        for i in range(entries, FANOUT):
            if tree.link[node, CHILD + i] != -1 or tree.real[node, EVENT + i] != NEVER:
                return False
        for i in range(entries):
            at = tree.real[node, VALUE + i] + tree.real[node, RANK + i]
            if not math.isfinite(at) or math.isnan(tree.real[node, EVENT + i]):
                return False
        if level > 0:
            for i in range(entries - 1, -1, -1):
                child = as_int64(tree.link[node, CHILD + i])
                if not 0 <= child < nodes or n_open == open_nodes.size:
                    return False
                above = tree.link[child, PARENT] == node and tree.link[child, SLOT] == i
                head = tree.real[node, HEAD_VALUE + i] + tree.real[node, HEAD_RANK + i]
                if not above or tree.link[child, LEVEL] != level - 1 or not math.isfinite(head):
                    return False
                if tree.real[node, EVENT + i] != earliest(tree, child):
                    return False
                open_nodes[n_open] = child
                n_open += 1
            continue
        # A leaf without entries is all there is.
        alone = last < 0 and tree.link[node, AFTER] == -1
        if tree.link[node, BEFORE] != last or (entries == 0 and not alone):
            return False
        if last >= 0 and tree.link[last, AFTER] != node:
            return False
        last = node
        for i in range(entries):
            group, size = tree.link[node, CHILD + i], tree.link[node, SIZE + i]
            if not 0 <= group < groups or used[group] or tree.group[group, LEAF] != node:
                return False
            used[group] = True
            if not _is_ring(tree, group, size, length):
                return False
            found += 1
            members += size
    if last < 0 or tree.link[last, AFTER] != -1 or tree.counts[LAST] != last:
        return False
    entries = tree.link[last, ENTRIES]
    if entries > 0 and tree.real[last, EVENT + entries - 1] != NEVER:
        return False
    for j in range(tree.member.shape[0]):
        members -= tree.member[j, GROUP] != -1
    free = _free(tree, used)
    return (
        members == 0
        and tree.counts[GROUPS] == found
        and tree.counts[ACTIVE] == np.sum(tree.member[:, GROUP] != -1)
        and free == groups - found
        and 0 <= tree.counts[LEFT] <= free
    )


@kernel
def _is_ring(tree: Tree, group: int, size: int, length: int) -> bool:
    """Return whether `size` members of a group follow one another in both directions."""
    first = as_int64(tree.group[group, FIRST])
    rows = min(length, tree.member.shape[0])
    j = first
    for k in range(size):
        if not 0 <= j < rows or tree.member[j, GROUP] != group or (k > 0 and j == first):
            return False
        after = as_int64(tree.member[j, NEXT])
        if not 0 <= after < rows or tree.member[after, PREVIOUS] != j:
            return False
        j = after
    return size > 0 and j == first


@kernel
def _free(tree: Tree, used: Bool) -> int:
    """Return how many groups are in the list of those not in use, marking them; -1: it is none."""
    free = 0
    group = tree.counts[FREE]
    while group != -1:
        if not 0 <= group < used.size or used[group]:
            return -1
        used[group] = True
        free += 1
        group = as_int64(tree.group[group, FIRST])
    return free

"""Whether the groups of lazy OSCAR that a file has are groups, in a tree."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from torchtune_smt.core.arrays import Int64
from torchtune_smt.optim import oscar_tree_kernels as t
from torchtune_smt.optim.oscar_tree_kernels import FANOUT, Tree


def is_whole(tree: Tree, length: int) -> bool:
    """Return whether all kernels find what they look for in a tree of `length` weights.

    The shapes of the arrays are right, and there are as many nodes as are in use. Where groups are
    is not checked, but for its being finite.
    """
    if tree.counts[t.NODES] != len(tree.link) or not np.isfinite(tree.numbers).all():
        return False
    leaves = _leaves(tree)
    return leaves is not None and _in_a_row(tree, leaves) and _has_groups(tree, leaves, length)


def _leaves(tree: Tree) -> Int64 | None:
    """Return the leaves in order; None if a node, or what it says of those below, is damaged."""
    nodes, node = len(tree.link), tree.counts[[t.ROOT]]
    if not 0 <= node[0] < nodes or tree.link[node[0], t.PARENT] != -1:
        return None
    level = int(tree.link[node[0], t.LEVEL])
    while level >= 0:
        link, entries = tree.link[node], tree.link[node, t.ENTRIES]
        value, rank, event, *head = tree.real[node].reshape(-1, 5, FANOUT).transpose(1, 0, 2)
        child = link[:, t.CHILD : t.SIZE]
        used = np.arange(FANOUT) < entries[:, None]
        if not (
            (link[:, t.LEVEL] == level).all()
            and _are_below(FANOUT + 1, entries)
            and (child[~used] == -1).all()
            and (event[~used] == t.NEVER).all()
            and np.isfinite([value[used], rank[used]]).all()
            and not np.isnan(event).any()
        ):
            return None
        if level == 0:
            return node
        below = child[used].astype(np.int64)
        if not (
            entries.all()
            and _are_below(nodes, below)
            and (tree.link[below, t.PARENT] == node.repeat(entries)).all()
            and (tree.link[below, t.SLOT] == np.nonzero(used)[1]).all()
            and (tree.real[below, t.EVENT : t.HEAD_VALUE].min(axis=1) == event[used]).all()
            and np.isfinite([part[used] for part in head]).all()
        ):
            return None
        node, level = below, level - 1
    return None


def _in_a_row(tree: Tree, leaves: Int64) -> bool:
    """Return whether leaves know their neighbours; one without entries is all there is."""
    entries = tree.link[leaves, t.ENTRIES]
    last = leaves[-1], t.EVENT + entries[-1] - 1
    return bool(
        (tree.link[leaves, t.BEFORE] == np.append(-1, leaves[:-1])).all()
        and (tree.link[leaves, t.AFTER] == np.append(leaves[1:], -1)).all()
        and tree.counts[t.LAST] == leaves[-1]
        and (entries.all() or leaves.size == 1)
        and (entries[-1] == 0 or tree.real[last] == t.NEVER)
    )


def _has_groups(tree: Tree, leaves: Int64, length: int) -> bool:
    """Return whether all groups are in leaves or free, and each of the former is one ring."""
    entries = tree.link[leaves, t.ENTRIES]
    used = np.arange(FANOUT) < entries[:, None]
    group = tree.link[leaves, t.CHILD : t.SIZE][used]
    size = tree.link[leaves, t.SIZE :][used]
    groups, rows = len(tree.group), min(length, len(tree.member))
    free: list[int] = []
    number = int(tree.counts[t.FREE])
    while 0 <= number < groups and len(free) < groups:
        free.append(number)
        number = int(tree.group[number, t.FIRST])
    j = np.flatnonzero(tree.member[:, t.GROUP] != -1)
    if not (
        number == -1
        and np.array_equal(np.sort([*group, *free]), np.arange(groups))
        and (tree.group[group, t.LEAF] == leaves.repeat(entries)).all()
        and tree.counts[t.GROUPS] == group.size
        and tree.counts[t.ACTIVE] == j.size == size.sum(dtype=np.int64)
        and 0 <= tree.counts[t.LEFT] <= len(free)
        and _are_below(rows, j)
    ):
        return False
    first, of, after = tree.group[group, t.FIRST], *tree.member[j, t.GROUP : t.PREVIOUS].T
    if not (
        _are_below(rows, first, after)
        and _are_below(groups, of)
        and (tree.member[first, t.GROUP] == group).all()
        and (tree.member[after, t.GROUP] == of).all()
        and (tree.member[after, t.PREVIOUS] == j).all()
        and (size > 0).all()
        and (np.bincount(of, minlength=groups)[group] == size).all()
    ):
        return False
    # The least member of each ring, of ever longer parts of it.
    least, after = np.arange(j.size), np.searchsorted(j, after)
    for _ in range(int(size.max(initial=0)).bit_length()):
        least, after = np.minimum(least, least[after]), after[after]
    return bool(np.unique(least).size == group.size)


def _are_below(end: int, *parts: NDArray[np.integer]) -> bool:
    return all(((part >= 0) & (part < end)).all() for part in parts)

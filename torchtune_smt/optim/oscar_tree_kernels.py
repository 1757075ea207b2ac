"""The order of lazy OSCAR's groups: a tree with range updates and events.

Groups of weights with equal |w| stand in descending order of |w|. Under the flow c ↦ prox_{cΩ} a
group of mean rank r moves at the speed -(λ1 + λ2 (d - r)) a unit of c: at the clock τ (c since the
tree was built) it is at

    value + λ2 · τ · rank - S,    S = ∫ (λ1 + λ2 d) dτ,

where `value` and `rank` are sums over the nodes from the root to the group's leaf. So a change of
the ranks of all groups from a place on is an addition to the entries behind the path to that
place, O(FANOUT) a level, which changes no |w| at the clock of the moment. d enters through S alone.

Neighbours with n1 and n2 members close at the speed λ2 (n1 + n2) / 2 and meet at the clock
2 (value1 - value2) / (λ2 (n1 + n2)), an event, which stays true while both are unchanged and
neighbours. Each entry of a node has the earliest event below it.

A tree of as_int64 nodes and not a binary one: a read of memory brings eight values, additions take
as many at once, and there are five levels for 10^6 groups, not 20. Two levels of blocks of a
thousand would be no slower at that size, but a step would cost O(√groups).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from torchtune_smt.core.arrays import Float64, Int32, Int64
from torchtune_smt.core.compiled import inlined, inner

FANOUT = 32
NEVER = float("inf")

# Columns of `Tree.real`: of the entries of a node. The head of an entry is the first group below
# it, as it is inside the entry's node; leaves have none.
VALUE, RANK, EVENT, HEAD_VALUE, HEAD_RANK = (FANOUT * i for i in range(5))
# Columns of `Tree.link`: of a node (the leaves are at level 0, and know their neighbours), then
# of its entries: the child, or in a leaf the group and its number of members.
ENTRIES, PARENT, SLOT, LEVEL, BEFORE, AFTER = range(6)
CHILD, SIZE = 8, 8 + FANOUT
# Columns of `Tree.group` and `Tree.member`.
LEAF, FIRST = range(2)
GROUP, NEXT, PREVIOUS = range(3)
# Places of `Tree.numbers` and `Tree.counts`.
CLOCK, PASSED, LAMBDA1, LAMBDA2 = range(4)
ROOT, LAST, NODES, ROOM, GROUPS, ACTIVE, FREE, LEFT, WORK = range(9)


class Tree(NamedTuple):
    """The groups, their members and their order.

    real, link (float64 [nodes, 5 FANOUT], int32 [nodes, 8 + 2 FANOUT]): nodes; rows from
        ``counts[NODES]`` on are not in use. Entries not in use have the event NEVER and the child
        -1.
    group (int32 [groups, 2]): leaf and a member of each group. Numbers not in use form a list: the
        next one in FIRST.
    member (int32 [D, 4]): of each coordinate the group (-1: the weight is 0) and, in the ring of
        its members, the next and the one before.
    numbers (float64 [4]): τ, S, λ1 and λ2.
    counts (int64 [9]): root, last leaf, nodes in use, nodes there is room for, groups, weights that
        are not 0, first unused number of a group (-1: none), changes left until the tree is to be
        built anew, nodes visited.
    """

    real: Float64
    link: Int32
    group: Int32
    member: Int32
    numbers: Float64
    counts: Int64


@inlined
def as_int64(number: int) -> int:
    """Return an int32 as an int64: functions that meet both are compiled for each."""
    return int(np.int64(number))


@inlined
def fanout(tree: Tree) -> int:
    """Return FANOUT; loops of a length that the compiler knows it unrolls, without vectors."""
    return int((tree.link.shape[1] - CHILD) // 2)


@inlined
def slant(tree: Tree) -> float:
    """Return by how much a rank of 1 raises a value at the clock of the moment."""
    return float(tree.numbers[LAMBDA2] * tree.numbers[CLOCK])


@inlined
def above(tree: Tree, node: int) -> tuple[float, float]:
    """Return what the nodes above one add to the value and the rank of its entries."""
    value = rank = 0.0
    parent = as_int64(tree.link[node, PARENT])
    while parent >= 0:
        slot = tree.link[node, SLOT]
        value += tree.real[parent, VALUE + slot]
        rank += tree.real[parent, RANK + slot]
        node = parent
        parent = as_int64(tree.link[node, PARENT])
        tree.counts[WORK] += 1
    return value, rank


@inlined
def place(tree: Tree, leaf: int, group: int) -> int:
    """Return which entry of a leaf a group is."""
    result = 0
    for i in range(FANOUT):
        result += i * (tree.link[leaf, CHILD + i] == group)
    return result


@inlined
def position(tree: Tree, leaf: int, i: int) -> float:
    """Return |w| of an entry of a leaf; what rounding makes of a very small one may be negative."""
    value, rank = above(tree, leaf)
    value += tree.real[leaf, VALUE + i]
    rank += tree.real[leaf, RANK + i]
    return float(value + slant(tree) * rank - tree.numbers[PASSED])


@inlined
def key(tree: Tree, leaf: int, i: int) -> float:
    """Return where an entry of a leaf is, as `find` gives |w|: value + λ2 · τ · rank."""
    return float(tree.real[leaf, VALUE + i] + slant(tree) * tree.real[leaf, RANK + i])


@inlined
def place_at(tree: Tree, leaf: int, y: float) -> int:
    """Return before which entry of a leaf a group at y belongs, behind equal ones."""
    entries = tree.link[leaf, ENTRIES]
    result = 0
    for i in range(FANOUT):
        result += (i < entries) & (key(tree, leaf, i) >= y)
    return result


@inlined
def shift(tree: Tree, node: int, i: int, by: float, alone: bool) -> None:
    """Add to the ranks of all groups behind an entry; no |w| changes at this clock.

    With `alone`, only to those of the node.
    """
    amount = slant(tree) * by
    entries = fanout(tree)
    while node >= 0:
        for k in range(entries):
            tree.real[node, VALUE + k] -= amount if k > i else 0.0
        for k in range(entries):
            tree.real[node, RANK + k] += by if k > i else 0.0
        tree.counts[WORK] += 1
        if alone:
            return
        i = tree.link[node, SLOT]
        node = tree.link[node, PARENT]


@inlined
def set_event(tree: Tree, leaf: int, i: int) -> None:
    """Compute when an entry of a leaf meets the next group."""
    gap = tree.real[leaf, VALUE + i]
    members = tree.link[leaf, SIZE + i]
    if i + 1 < tree.link[leaf, ENTRIES]:
        gap -= tree.real[leaf, VALUE + i + 1]
        members += tree.link[leaf, SIZE + i + 1]
    else:
        after = as_int64(tree.link[leaf, AFTER])
        if after < 0:
            tree.real[leaf, EVENT + i] = NEVER
            return
        gap += above(tree, leaf)[0] - (above(tree, after)[0] + tree.real[after, VALUE])
        members += tree.link[after, SIZE]
    event = 0.0
    if gap > 0.0:
        half = 0.5 * tree.numbers[LAMBDA2] * members
        event = gap / half if half > 0.0 else NEVER
    tree.real[leaf, EVENT + i] = event


@inlined
def earliest(tree: Tree, node: int) -> float:
    """Return the earliest event of a node's entries."""
    # Four chains, since each comparison waits for the one before it.
    a = b = c = d = NEVER
    for i in range(0, FANOUT, 4):
        a = min(a, tree.real[node, EVENT + i])
        b = min(b, tree.real[node, EVENT + i + 1])
        c = min(c, tree.real[node, EVENT + i + 2])
        d = min(d, tree.real[node, EVENT + i + 3])
    return min(min(a, b), min(c, d))


@inlined
def pass_event(tree: Tree, node: int) -> None:
    """Tell the nodes above one that its events have changed."""
    parent = as_int64(tree.link[node, PARENT])
    while parent >= 0:
        event = earliest(tree, node)
        slot = tree.link[node, SLOT]
        tree.counts[WORK] += 1
        if tree.real[parent, EVENT + slot] == event:
            return
        tree.real[parent, EVENT + slot] = event
        node = parent
        parent = as_int64(tree.link[node, PARENT])


@inlined
def pass_head(tree: Tree, node: int) -> None:
    """Tell the nodes above one that its first group has changed."""
    parent = as_int64(tree.link[node, PARENT])
    while parent >= 0:
        slot = tree.link[node, SLOT]
        value, rank = tree.real[node, VALUE], tree.real[node, RANK]
        if tree.link[node, LEVEL] > 0:
            value += tree.real[node, HEAD_VALUE]
            rank += tree.real[node, HEAD_RANK]
        tree.real[parent, HEAD_VALUE + slot] = value
        tree.real[parent, HEAD_RANK + slot] = rank
        tree.counts[WORK] += 1
        if slot > 0:
            return
        node = parent
        parent = as_int64(tree.link[node, PARENT])


@inlined
def changed(tree: Tree, leaf: int, i: int) -> None:
    """Set right what depends on entry i of a leaf, which has changed, or been put in or out."""
    if i < tree.link[leaf, ENTRIES]:
        set_event(tree, leaf, i)
    if i > 0:
        set_event(tree, leaf, i - 1)
    else:
        pass_head(tree, leaf)
        before = as_int64(tree.link[leaf, BEFORE])
        if before >= 0:
            set_event(tree, before, as_int64(tree.link[before, ENTRIES]) - 1)
            pass_event(tree, before)
    pass_event(tree, leaf)


@inner
def copy_entry(tree: Tree, node: int, i: int, to: int, k: int) -> None:
    """Copy entry i of a node to entry k of the node `to`, of the same level."""
    for column in range(0, 5 * FANOUT, FANOUT):
        tree.real[to, column + k] = tree.real[node, column + i]
    child = tree.link[node, CHILD + i]
    tree.link[to, CHILD + k] = child
    if tree.link[node, LEVEL] > 0:
        tree.link[child, PARENT] = to
        tree.link[child, SLOT] = k
    else:
        tree.link[to, SIZE + k] = tree.link[node, SIZE + i]
        if to != node:
            tree.group[child, LEAF] = to


@inlined
def open_entry(tree: Tree, node: int, i: int) -> None:
    """Make room before entry i of a node that is not full."""
    width = fanout(tree)
    columns = 5 if tree.link[node, LEVEL] > 0 else 3
    for column in range(0, columns * FANOUT, FANOUT):
        real = tree.real[node, column : column + width]
        last = 0.0
        for k in range(width):
            here = real[k]
            real[k] = last if k > i else here
            last = here
    for column in (CHILD, SIZE):
        link = tree.link[node, column : column + width]
        last_link = link[0]
        for k in range(width):
            here_link = link[k]
            link[k] = last_link if k > i else here_link
            last_link = here_link
    entries = tree.link[node, ENTRIES] + 1
    tree.link[node, ENTRIES] = entries
    if tree.link[node, LEVEL] > 0:
        for k in range(i + 1, entries):
            tree.link[tree.link[node, CHILD + k], SLOT] = k


@inlined
def close_entry(tree: Tree, node: int, i: int) -> None:
    """Take entry i out of a node."""
    width = fanout(tree) - 1
    columns = 5 if tree.link[node, LEVEL] > 0 else 3
    for column in range(0, columns * FANOUT, FANOUT):
        real = tree.real[node, column : column + width + 1]
        for k in range(width):
            real[k] = real[k + 1] if k >= i else real[k]
    for column in (CHILD, SIZE):
        link = tree.link[node, column : column + width + 1]
        for k in range(width):
            link[k] = link[k + 1] if k >= i else link[k]
    entries = tree.link[node, ENTRIES] - 1
    tree.link[node, ENTRIES] = entries
    tree.link[node, CHILD + entries] = -1
    tree.real[node, EVENT + entries] = NEVER
    if tree.link[node, LEVEL] > 0:
        for k in range(i, entries):
            tree.link[tree.link[node, CHILD + k], SLOT] = k


@inner
def new_node(tree: Tree, level: int) -> int:
    """Return an empty node."""
    node: int = tree.counts[NODES]
    tree.counts[NODES] = node + 1
    for k in range(FANOUT):
        tree.link[node, CHILD + k] = -1
    for k in range(FANOUT):
        tree.real[node, EVENT + k] = NEVER
    tree.link[node, ENTRIES] = 0
    tree.link[node, LEVEL] = level
    for column in (PARENT, SLOT, BEFORE, AFTER):
        tree.link[node, column] = -1
    return node


@inner
def hang(tree: Tree, node: int, parent: int, i: int, value: float, rank: float) -> None:
    """Write entry i of `parent`: a node, and what is to be added to its values and ranks."""
    tree.real[parent, VALUE + i] = value
    tree.real[parent, RANK + i] = rank
    tree.real[parent, EVENT + i] = earliest(tree, node)
    tree.link[parent, CHILD + i] = node
    tree.link[node, PARENT] = parent
    tree.link[node, SLOT] = i


@inner
def split(tree: Tree, node: int) -> None:
    """Move the second half of a node to a new one; the node above has room."""
    level = as_int64(tree.link[node, LEVEL])
    other = new_node(tree, level)
    kept = FANOUT // 2
    for i in range(kept, FANOUT):
        copy_entry(tree, node, i, other, i - kept)
        tree.link[node, CHILD + i] = -1
        tree.real[node, EVENT + i] = NEVER
    tree.link[node, ENTRIES] = kept
    tree.link[other, ENTRIES] = FANOUT - kept
    if level == 0:
        after = tree.link[node, AFTER]
        tree.link[other, BEFORE] = node
        tree.link[other, AFTER] = after
        tree.link[node, AFTER] = other
        if after >= 0:
            tree.link[after, BEFORE] = other
        else:
            tree.counts[LAST] = other
    parent = as_int64(tree.link[node, PARENT])
    if parent < 0:
        parent = new_node(tree, level + 1)
        tree.counts[ROOT] = parent
        tree.link[parent, ENTRIES] = 1
        hang(tree, node, parent, 0, 0.0, 0.0)
        pass_head(tree, node)
    slot = as_int64(tree.link[node, SLOT])
    open_entry(tree, parent, slot + 1)
    value, rank = tree.real[parent, VALUE + slot], tree.real[parent, RANK + slot]
    hang(tree, other, parent, slot + 1, value, rank)
    pass_head(tree, other)
    tree.real[parent, EVENT + slot] = earliest(tree, node)
    tree.counts[WORK] += 2


@inner
def make_room(tree: Tree, leaf: int) -> None:
    """Split a full leaf, and before it the full nodes above it."""
    while tree.link[leaf, ENTRIES] == FANOUT:
        node = leaf
        parent = as_int64(tree.link[node, PARENT])
        while parent >= 0 and tree.link[parent, ENTRIES] == FANOUT:
            node = parent
            parent = as_int64(tree.link[node, PARENT])
        split(tree, node)


@inlined
def find(tree: Tree, magnitude: float) -> tuple[int, int, float]:
    """Return the leaf, which has room, and the place where a group at |w| belongs, behind equals.

    Third comes |w| as the leaf's entries have it: see `key`.
    """
    s = slant(tree)
    while True:
        y = magnitude + tree.numbers[PASSED]
        node = tree.counts[ROOT]
        while tree.link[node, LEVEL] > 0:
            entries = tree.link[node, ENTRIES]
            slot = -1
            for i in range(FANOUT):
                value = tree.real[node, VALUE + i] + tree.real[node, HEAD_VALUE + i]
                rank = tree.real[node, RANK + i] + tree.real[node, HEAD_RANK + i]
                slot += (i < entries) & (value + s * rank >= y)
            slot = max(slot, 0)
            y -= tree.real[node, VALUE + slot] + s * tree.real[node, RANK + slot]
            node = as_int64(tree.link[node, CHILD + slot])
            tree.counts[WORK] += 1
        tree.counts[WORK] += 1
        if tree.link[node, ENTRIES] < FANOUT:
            return node, place_at(tree, node, y), y
        make_room(tree, node)


@inner
def drop(tree: Tree, leaf: int) -> None:
    """Take a leaf without entries out of the tree, unless it is all there is."""
    before, after = as_int64(tree.link[leaf, BEFORE]), as_int64(tree.link[leaf, AFTER])
    if before < 0 and after < 0:
        # Its slots above, which are 0, cost nothing.
        pass_event(tree, leaf)
        return
    if after >= 0:
        tree.link[after, BEFORE] = before
    else:
        tree.counts[LAST] = before
    if before >= 0:
        tree.link[before, AFTER] = after
        set_event(tree, before, as_int64(tree.link[before, ENTRIES]) - 1)
        pass_event(tree, before)
    node = leaf
    while tree.link[node, ENTRIES] == 0:
        parent, slot = as_int64(tree.link[node, PARENT]), as_int64(tree.link[node, SLOT])
        close_entry(tree, parent, slot)
        if slot == 0 and tree.link[parent, ENTRIES] > 0:
            pass_head(tree, parent)
        node = parent
        tree.counts[WORK] += 1
    pass_event(tree, node)

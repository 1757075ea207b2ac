"""Lazy OSCAR: coordinates leave and join groups, groups merge and die."""

from __future__ import annotations

import math

from torchtune_smt.core.arrays import Float64
from torchtune_smt.core.compiled import inlined, inner
from torchtune_smt.optim import oscar_tree_kernels as t
from torchtune_smt.optim.oscar_tree_kernels import Tree, as_int64

# What a living weight is at least, whatever rounding says: its sign must not be lost.
SMALLEST = 1e-300


@inlined
def read(tree: Tree, weight: Float64, j: int) -> float:
    """Bring a weight up to date and return it."""
    group = as_int64(tree.member[j, t.GROUP])
    if group < 0:
        return 0.0
    leaf = as_int64(tree.group[group, t.LEAF])
    magnitude = max(t.position(tree, leaf, t.place(tree, leaf, group)), SMALLEST)
    result = math.copysign(magnitude, weight[j])
    weight[j] = result
    return result


@inlined
def free_group(tree: Tree, group: int) -> None:
    """Give back the number of a group."""
    tree.group[group, t.FIRST] = tree.counts[t.FREE]
    tree.counts[t.FREE] = group
    tree.counts[t.GROUPS] -= 1


@inlined
def take_out(tree: Tree, j: int, leaf: int, i: int, alone: bool) -> None:
    """Take a coordinate out of its group, entry i of a leaf; all groups below move up by a rank.

    With `alone`, those of the leaf do: the caller puts the coordinate in again there.
    """
    members = tree.link[leaf, t.SIZE + i]
    t.shift(tree, leaf, i, -1.0, alone)
    tree.counts[t.ACTIVE] -= 1
    if members == 1:
        free_group(tree, as_int64(tree.link[leaf, t.CHILD + i]))
        t.close_entry(tree, leaf, i)
        if tree.link[leaf, t.ENTRIES] == 0:
            t.drop(tree, leaf)
            return
    else:
        after, before = tree.member[j, t.NEXT], tree.member[j, t.PREVIOUS]
        tree.member[before, t.NEXT] = after
        tree.member[after, t.PREVIOUS] = before
        tree.group[tree.link[leaf, t.CHILD + i], t.FIRST] = after
        tree.link[leaf, t.SIZE + i] = members - 1
        # The mean of one rank less; |w| stays at this clock.
        tree.real[leaf, t.RANK + i] -= 0.5
        tree.real[leaf, t.VALUE + i] += 0.5 * t.slant(tree)
    t.changed(tree, leaf, i)


@inlined
def put_in(tree: Tree, j: int, leaf: int, i: int, y: float, alone: bool) -> None:
    """Put a coordinate in as a group of one, as `find` says; all below move down by a rank.

    With `alone`, those of the leaf do.
    """
    if i > 0:
        rank = tree.real[leaf, t.RANK + i - 1] + 0.5 * (tree.link[leaf, t.SIZE + i - 1] + 1)
    elif tree.link[leaf, t.ENTRIES] > 0:
        rank = tree.real[leaf, t.RANK] - 0.5 * (tree.link[leaf, t.SIZE] - 1)
    else:
        rank = 1.0 - t.above(tree, leaf)[1]
    group = tree.counts[t.FREE]
    tree.counts[t.FREE] = tree.group[group, t.FIRST]
    tree.counts[t.GROUPS] += 1
    tree.counts[t.ACTIVE] += 1
    tree.counts[t.LEFT] -= 1
    tree.group[group, t.LEAF] = leaf
    tree.group[group, t.FIRST] = j
    tree.member[j, t.GROUP] = group
    tree.member[j, t.NEXT] = tree.member[j, t.PREVIOUS] = j
    t.open_entry(tree, leaf, i)
    tree.real[leaf, t.VALUE + i] = y - t.slant(tree) * rank
    tree.real[leaf, t.RANK + i] = rank
    tree.link[leaf, t.CHILD + i] = group
    tree.link[leaf, t.SIZE + i] = 1
    t.shift(tree, leaf, i, 1.0, alone)
    if alone:
        # `take_out` compared the last entry with a leaf that kept its ranks.
        t.set_event(tree, leaf, as_int64(tree.link[leaf, t.ENTRIES]) - 1)
    t.changed(tree, leaf, i)


@inlined
def stays(tree: Tree, leaf: int, i: int, y: float) -> bool:
    """Say whether a coordinate may leave entry i of a leaf and join at y without going elsewhere.

    It may where other entries of the leaf are on both sides of y, and there is room.
    """
    single = tree.link[leaf, t.SIZE + i] == 1
    first, last = 0, tree.link[leaf, t.ENTRIES] - 1
    if single:
        first += int(i == first)
        last -= int(i == last)
    elif last == t.FANOUT - 1:
        return False
    return first <= last and t.key(tree, leaf, first) >= y and y > t.key(tree, leaf, last)


@inner
def move(tree: Tree, weight: Float64, j: int, new: float) -> None:
    """Give a coordinate, which is up to date, a new weight."""
    if new == weight[j]:
        return
    weight[j] = new
    magnitude = abs(new)
    group = as_int64(tree.member[j, t.GROUP])
    leaf = i = -1
    y = 0.0
    alone = False
    if group >= 0:
        leaf = as_int64(tree.group[group, t.LEAF])
        i = t.place(tree, leaf, group)
        value, rank = t.above(tree, leaf)
        y = magnitude + tree.numbers[t.PASSED] - value - t.slant(tree) * rank
        alone = magnitude > 0.0 and stays(tree, leaf, i, y)
        if (
            alone
            and tree.link[leaf, t.SIZE + i] == 1
            and 0 < i < tree.link[leaf, t.ENTRIES] - 1
            and t.key(tree, leaf, i - 1) >= y > t.key(tree, leaf, i + 1)
        ):
            tree.real[leaf, t.VALUE + i] = y - t.slant(tree) * tree.real[leaf, t.RANK + i]
            t.changed(tree, leaf, i)
            return
        take_out(tree, j, leaf, i, alone)
        tree.member[j, t.GROUP] = -1
    if magnitude == 0.0:
        return
    if alone:
        i = t.place_at(tree, leaf, y)
    else:
        leaf, i, y = t.find(tree, magnitude)
    put_in(tree, j, leaf, i, y, alone)


@inlined
def joined(tree: Tree, one: int, other: int, members: int, others: int) -> int:
    """Make the members of two groups one group; return its number, that of the larger."""
    if members < others:
        one, other = other, one
    a, b = tree.group[one, t.FIRST], tree.group[other, t.FIRST]
    j = b
    for _ in range(min(members, others)):
        tree.member[j, t.GROUP] = one
        j = tree.member[j, t.NEXT]
    # Two rings become one.
    after, last = tree.member[a, t.NEXT], tree.member[b, t.PREVIOUS]
    tree.member[a, t.NEXT] = b
    tree.member[b, t.PREVIOUS] = a
    tree.member[last, t.NEXT] = after
    tree.member[after, t.PREVIOUS] = last
    free_group(tree, other)
    return one


@inner
def merge(tree: Tree, leaf: int, i: int) -> None:
    """Merge an entry of a leaf with the group behind it.

    The mean of both places, each weighed by its members, goes on as if they had met in time.
    """
    other, k = leaf, i + 1
    gap = 0.0
    if k == tree.link[leaf, t.ENTRIES]:
        other, k = as_int64(tree.link[leaf, t.AFTER]), 0
        gap = t.above(tree, other)[0] - t.above(tree, leaf)[0]
    gap += tree.real[other, t.VALUE + k] - tree.real[leaf, t.VALUE + i]
    one, two = as_int64(tree.link[leaf, t.CHILD + i]), as_int64(tree.link[other, t.CHILD + k])
    members, others = as_int64(tree.link[leaf, t.SIZE + i]), as_int64(tree.link[other, t.SIZE + k])
    tree.real[leaf, t.VALUE + i] += gap * others / (members + others)
    tree.real[leaf, t.RANK + i] += 0.5 * others
    tree.link[leaf, t.SIZE + i] = members + others
    group = joined(tree, one, two, members, others)
    tree.group[group, t.LEAF] = leaf
    tree.link[leaf, t.CHILD + i] = group
    t.close_entry(tree, other, k)
    if other != leaf:
        if tree.link[other, t.ENTRIES] == 0:
            t.drop(tree, other)
        else:
            t.changed(tree, other, k)
    t.changed(tree, leaf, i)


@inner
def kill_last(tree: Tree, weight: Float64, leaf: int, i: int) -> None:
    """Make the members of the last group 0."""
    group = as_int64(tree.link[leaf, t.CHILD + i])
    members = as_int64(tree.link[leaf, t.SIZE + i])
    j = tree.group[group, t.FIRST]
    for _ in range(members):
        weight[j] = 0.0
        tree.member[j, t.GROUP] = -1
        j = tree.member[j, t.NEXT]
    tree.counts[t.ACTIVE] -= members
    free_group(tree, group)
    t.close_entry(tree, leaf, i)
    if tree.link[leaf, t.ENTRIES] == 0:
        t.drop(tree, leaf)
    else:
        t.changed(tree, leaf, i)


@inlined
def due(tree: Tree, node: int) -> int:
    """Return an entry of a node whose event is due, or -1."""
    clock = tree.numbers[t.CLOCK]
    for i in range(t.FANOUT):
        if tree.real[node, t.EVENT + i] <= clock:
            return i
    return -1


@inner
def advance(tree: Tree, weight: Float64, step: float, dimension: int) -> None:
    """Take a proximal step: let the clock go on, merge what has met, drop what has come to 0.

    In what order neighbours that have met are merged makes no difference: that is the pooling of
    adjacent violators.
    """
    tree.numbers[t.CLOCK] += step
    tree.numbers[t.PASSED] += step * (tree.numbers[t.LAMBDA1] + tree.numbers[t.LAMBDA2] * dimension)
    while True:
        node = tree.counts[t.ROOT]
        i = due(tree, node)
        if i < 0:
            break
        while tree.link[node, t.LEVEL] > 0:
            node = as_int64(tree.link[node, t.CHILD + i])
            i = due(tree, node)
        merge(tree, node, i)
    while tree.counts[t.GROUPS] > 0:
        leaf = tree.counts[t.LAST]
        i = as_int64(tree.link[leaf, t.ENTRIES]) - 1
        if t.position(tree, leaf, i) > 0.0:
            break
        kill_last(tree, weight, leaf, i)

"""Lazy OSCAR: coordinates leave and join groups, groups merge and die."""

from __future__ import annotations

import math

from torchtune_smt.core.arrays import Float64
from torchtune_smt.core.compiled import inlined, inner
from torchtune_smt.optim.oscar_tree_kernels import (
    ACTIVE,
    AFTER,
    CHILD,
    CLOCK,
    ENTRIES,
    EVENT,
    FANOUT,
    FIRST,
    FREE,
    GROUP,
    GROUPS,
    LAMBDA1,
    LAMBDA2,
    LAST,
    LEAF,
    LEFT,
    LEVEL,
    NEXT,
    PASSED,
    PREVIOUS,
    RANK,
    ROOT,
    SIZE,
    VALUE,
    Tree,
    above,
    as_int64,
    changed,
    close_entry,
    drop,
    find,
    key,
    open_entry,
    place,
    place_at,
    position,
    set_event,
    shift,
    slant,
)

# What a living weight is at least, whatever rounding says: its sign must not be lost.
SMALLEST = 1e-300


@inlined
def read(tree: Tree, weight: Float64, j: int) -> float:
    """Bring a weight up to date and return it."""
    group = as_int64(tree.member[j, GROUP])
    if group < 0:
        return 0.0
    leaf = as_int64(tree.group[group, LEAF])
    magnitude = max(position(tree, leaf, place(tree, leaf, group)), SMALLEST)
    result = math.copysign(magnitude, weight[j])
    weight[j] = result
    return result


@inlined
def free_group(tree: Tree, group: int) -> None:
    """Give back the number of a group."""
    tree.group[group, FIRST] = tree.counts[FREE]
    tree.counts[FREE] = group
    tree.counts[GROUPS] -= 1


@inlined
def take_out(tree: Tree, j: int, leaf: int, i: int, alone: bool) -> None:
    """Take a coordinate out of its group, entry i of a leaf; all groups below move up by a rank.

    With `alone`, those of the leaf do: the caller puts the coordinate in again there.
    """
    members = tree.link[leaf, SIZE + i]
    shift(tree, leaf, i, -1.0, alone)
    tree.counts[ACTIVE] -= 1
    if members == 1:
        free_group(tree, as_int64(tree.link[leaf, CHILD + i]))
        close_entry(tree, leaf, i)
        if tree.link[leaf, ENTRIES] == 0:
            drop(tree, leaf)
            return
    else:
        after, before = tree.member[j, NEXT], tree.member[j, PREVIOUS]
        tree.member[before, NEXT] = after
        tree.member[after, PREVIOUS] = before
        tree.group[tree.link[leaf, CHILD + i], FIRST] = after
        tree.link[leaf, SIZE + i] = members - 1
        # The mean of one rank less; |w| stays at this clock.
        tree.real[leaf, RANK + i] -= 0.5
        tree.real[leaf, VALUE + i] += 0.5 * slant(tree)
    changed(tree, leaf, i)


@inlined
def put_in(tree: Tree, j: int, leaf: int, i: int, y: float, alone: bool) -> None:
    """Put a coordinate in as a group of one, as `find` says; all below move down by a rank.

    With `alone`, those of the leaf do.
    """
    if i > 0:
        rank = tree.real[leaf, RANK + i - 1] + 0.5 * (tree.link[leaf, SIZE + i - 1] + 1)
    elif tree.link[leaf, ENTRIES] > 0:
        rank = tree.real[leaf, RANK] - 0.5 * (tree.link[leaf, SIZE] - 1)
    else:
        rank = 1.0 - above(tree, leaf)[1]
    group = tree.counts[FREE]
    tree.counts[FREE] = tree.group[group, FIRST]
    tree.counts[GROUPS] += 1
    tree.counts[ACTIVE] += 1
    tree.counts[LEFT] -= 1
    tree.group[group, LEAF] = leaf
    tree.group[group, FIRST] = j
    tree.member[j, GROUP] = group
    tree.member[j, NEXT] = tree.member[j, PREVIOUS] = j
    open_entry(tree, leaf, i)
    tree.real[leaf, VALUE + i] = y - slant(tree) * rank
    tree.real[leaf, RANK + i] = rank
    tree.link[leaf, CHILD + i] = group
    tree.link[leaf, SIZE + i] = 1
    shift(tree, leaf, i, 1.0, alone)
    if alone:
        # `take_out` compared the last entry with a leaf that kept its ranks.
        set_event(tree, leaf, as_int64(tree.link[leaf, ENTRIES]) - 1)
    changed(tree, leaf, i)


@inlined
def stays(tree: Tree, leaf: int, i: int, y: float) -> bool:
    """Say whether a coordinate may leave entry i of a leaf and join at y without going elsewhere.

    It may where other entries of the leaf are on both sides of y, and there is room.
    """
    single = tree.link[leaf, SIZE + i] == 1
    first, last = 0, tree.link[leaf, ENTRIES] - 1
    if single:
        first += int(i == first)
        last -= int(i == last)
    elif last == FANOUT - 1:
        return False
    return first <= last and key(tree, leaf, first) >= y and y > key(tree, leaf, last)


@inner
def move(tree: Tree, weight: Float64, j: int, new: float) -> None:
    """Give a coordinate, which is up to date, a new weight."""
    if new == weight[j]:
        return
    weight[j] = new
    magnitude = abs(new)
    group = as_int64(tree.member[j, GROUP])
    leaf = i = -1
    y = 0.0
    alone = False
    if group >= 0:
        leaf = as_int64(tree.group[group, LEAF])
        i = place(tree, leaf, group)
        value, rank = above(tree, leaf)
        y = magnitude + tree.numbers[PASSED] - value - slant(tree) * rank
        alone = magnitude > 0.0 and stays(tree, leaf, i, y)
        if (
            alone
            and tree.link[leaf, SIZE + i] == 1
            and 0 < i < tree.link[leaf, ENTRIES] - 1
            and key(tree, leaf, i - 1) >= y > key(tree, leaf, i + 1)
        ):
            tree.real[leaf, VALUE + i] = y - slant(tree) * tree.real[leaf, RANK + i]
            changed(tree, leaf, i)
            return
        take_out(tree, j, leaf, i, alone)
        tree.member[j, GROUP] = -1
    if magnitude == 0.0:
        return
    if alone:
        i = place_at(tree, leaf, y)
    else:
        leaf, i, y = find(tree, magnitude)
    put_in(tree, j, leaf, i, y, alone)


@inlined
def joined(tree: Tree, one: int, other: int, members: int, others: int) -> int:
    """Make the members of two groups one group; return its number, that of the larger."""
    if members < others:
        one, other = other, one
    a, b = tree.group[one, FIRST], tree.group[other, FIRST]
    j = b
    while True:
        tree.member[j, GROUP] = one
        j = tree.member[j, NEXT]
        if j == b:
            break
    # Two rings become one.
    after, last = tree.member[a, NEXT], tree.member[b, PREVIOUS]
    tree.member[a, NEXT] = b
    tree.member[b, PREVIOUS] = a
    tree.member[last, NEXT] = after
    tree.member[after, PREVIOUS] = last
    free_group(tree, other)
    return one


@inner
def merge(tree: Tree, leaf: int, i: int) -> None:
    """Merge an entry of a leaf with the group behind it.

    The mean of both places, each weighed by its members, goes on as if they had met in time.
    """
    other, k = leaf, i + 1
    gap = 0.0
    if k == tree.link[leaf, ENTRIES]:
        other, k = as_int64(tree.link[leaf, AFTER]), 0
        gap = above(tree, other)[0] - above(tree, leaf)[0]
    gap += tree.real[other, VALUE + k] - tree.real[leaf, VALUE + i]
    one, two = as_int64(tree.link[leaf, CHILD + i]), as_int64(tree.link[other, CHILD + k])
    members, others = as_int64(tree.link[leaf, SIZE + i]), as_int64(tree.link[other, SIZE + k])
    tree.real[leaf, VALUE + i] += gap * others / (members + others)
    tree.real[leaf, RANK + i] += 0.5 * others
    tree.link[leaf, SIZE + i] = members + others
    group = joined(tree, one, two, members, others)
    tree.group[group, LEAF] = leaf
    tree.link[leaf, CHILD + i] = group
    close_entry(tree, other, k)
    if other != leaf:
        if tree.link[other, ENTRIES] == 0:
            drop(tree, other)
        else:
            changed(tree, other, k)
    changed(tree, leaf, i)


@inner
def kill_last(tree: Tree, weight: Float64, leaf: int, i: int) -> None:
    """Make the members of the last group 0."""
    group = as_int64(tree.link[leaf, CHILD + i])
    first = tree.group[group, FIRST]
    j = first
    while True:
        weight[j] = 0.0
        tree.member[j, GROUP] = -1
        j = tree.member[j, NEXT]
        if j == first:
            break
    tree.counts[ACTIVE] -= tree.link[leaf, SIZE + i]
    free_group(tree, group)
    close_entry(tree, leaf, i)
    if tree.link[leaf, ENTRIES] == 0:
        drop(tree, leaf)
    else:
        changed(tree, leaf, i)


@inlined
def due(tree: Tree, node: int) -> int:
    """Return an entry of a node whose event is due, or -1."""
    clock = tree.numbers[CLOCK]
    for i in range(FANOUT):
        if tree.real[node, EVENT + i] <= clock:
            return i
    return -1


@inner
def advance(tree: Tree, weight: Float64, step: float, dimension: int) -> None:
    """Take a proximal step: let the clock go on, merge what has met, drop what has come to 0.

    In what order neighbours that have met are merged makes no difference: that is the pooling of
    adjacent violators.
    """
    tree.numbers[CLOCK] += step
    tree.numbers[PASSED] += step * (tree.numbers[LAMBDA1] + tree.numbers[LAMBDA2] * dimension)
    while True:
        node = tree.counts[ROOT]
        i = due(tree, node)
        if i < 0:
            break
        while tree.link[node, LEVEL] > 0:
            node = as_int64(tree.link[node, CHILD + i])
            i = due(tree, node)
        merge(tree, node, i)
    while tree.counts[GROUPS] > 0:
        leaf = tree.counts[LAST]
        i = as_int64(tree.link[leaf, ENTRIES]) - 1
        if position(tree, leaf, i) > 0.0:
            break
        kill_last(tree, weight, leaf, i)

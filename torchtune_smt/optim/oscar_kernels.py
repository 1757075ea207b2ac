"""Lazy OSCAR: coordinates leave and join groups, groups merge and die; steps, and loops of them."""

from __future__ import annotations

import math

import numpy as np

from torchtune_smt.core.arrays import Float64, Int64, Integers
from torchtune_smt.core.compiled import inlined, inner, kernel
from torchtune_smt.losses.slope_kernels import slope
from torchtune_smt.optim import oscar_tree_kernels as t
from torchtune_smt.optim.oscar_tree_kernels import ACTIVE, GROUP, LEFT, Tree, as_int64
from torchtune_smt.optim.row_kernels import RowSteps

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

    tree: with enough nodes; it has the groups already, and their members.
    magnitude, members, group: as `in_order` returns them.
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


# Why a kernel stopped: nothing is wrong, the tree is to be built anew, a margin or a weight is not
# finite, more weights than `dimension` would not be 0.
DONE, BUILD, MARGIN, WEIGHT, DIMENSION = range(5)


@inner
def allowed(
    tree: Tree,
    weight: Float64,
    feature: Integers,
    value: Float64,
    factor: float,
    unregularized: int,
    dimension: int,
) -> int:
    """Return `DONE`, or why a gradient step must not be taken."""
    active = tree.counts[ACTIVE]
    finite = True
    for p in range(feature.size):
        j = as_int64(feature[p])
        new = weight[j] + factor * value[p]
        finite &= math.isfinite(new)
        if j >= unregularized:
            active += int(new != 0.0) - as_int64(tree.member[j, GROUP] >= 0)
    if not finite:
        return WEIGHT
    return DONE if active <= dimension else DIMENSION


@inner
def descend(
    tree: Tree,
    weight: Float64,
    feature: Integers,
    value: Float64,
    factor: float,
    unregularized: int,
) -> None:
    """Take a gradient step on coordinates that are up to date."""
    for p in range(feature.size):
        j = as_int64(feature[p])
        new = weight[j] + factor * value[p]
        if j < unregularized:
            weight[j] = new
        else:
            move(tree, weight, j, new)


@kernel
def catch_up(tree: Tree, weight: Float64, indices: Int64, unregularized: int) -> None:
    """Bring some weights up to date."""
    for j in indices:
        if j >= unregularized:
            read(tree, weight, j)


@kernel
def step(
    tree: Tree,
    weight: Float64,
    indices: Int64,
    gradient: Float64,
    rate: float,
    size: float,
    unregularized: int,
    dimension: int,
) -> int:
    """Take a gradient step of the length `rate` and a proximal one of the length `size`."""
    catch_up(tree, weight, indices, unregularized)
    why = allowed(tree, weight, indices, gradient, -rate, unregularized, dimension)
    if why == DONE:
        descend(tree, weight, indices, gradient, -rate, unregularized)
        advance(tree, weight, size, dimension)
    return why


@kernel
def rows(
    tree: Tree,
    weight: Float64,
    step: int,
    steps: RowSteps,
    rates: tuple[float, float],
    unregularized: int,
    dimension: int,
    begin: int,
) -> tuple[int, int]:
    """Take a step after each row, as `torchtune_smt.optim.row_kernels` do.

    `step` counts steps; `rates` are lr and the power of the schedule. Returns (step stopped before,
    why).
    """
    row_begin, feature, value, order, kind, margins = steps
    lr, power = rates
    for taken in range(begin, margins.size):
        first, end = row_begin[order[taken]], row_begin[order[taken] + 1]
        if tree.counts[LEFT] < end - first:
            return taken, BUILD
        z = 0.0
        for p in range(first, end):
            j = as_int64(feature[p])
            z += (weight[j] if j < unregularized else read(tree, weight, j)) * value[p]
        margins[taken] = z
        if not math.isfinite(z):
            return taken, MARGIN
        factor = slope(kind, z) * (lr / (step + 1) ** power)
        if factor != 0.0:
            some, values = feature[first:end], value[first:end]
            why = allowed(tree, weight, some, values, factor, unregularized, dimension)
            if why != DONE:
                return taken, why
            descend(tree, weight, some, values, factor, unregularized)
        step += 1
        advance(tree, weight, lr / (step + 1) ** power, dimension)
    return margins.size, DONE

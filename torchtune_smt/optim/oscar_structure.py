"""The weights of one parameter as OSCAR's groups, in order."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from torchtune_smt.core.archive import DAMAGED
from torchtune_smt.core.arrays import Float64, Int32, Int64
from torchtune_smt.optim import oscar_tree_kernels as t
from torchtune_smt.optim.oscar_kernels import FILL, build, in_order
from torchtune_smt.optim.oscar_tree_kernels import FANOUT, Tree

# Weights put in, at least, until a tree is built anew; of a large one, a quarter of its groups.
CHANGES = 1024


class OscarStructure:
    """Groups of equal |w| that move, merge and die: all weights that are not 0.

    The tree is built anew from time to time, so that its nodes stay full enough and its clock
    small: O(groups), after at least a quarter as many changes.

    Memory: 16 bytes a coordinate, and about 100 a group.

    weight (float64 or float32 [D])
    unregularized: this many first coordinates do not take part.
    lambda1, lambda2: of OSCAR.

    As attributes:
    tree: for the kernels.
    released: all weights are up to date, and may be changed by others from now on.
    """

    def __init__(self, weight: Float64, unregularized: int, lambda1: float, lambda2: float) -> None:
        order = np.flatnonzero(weight[unregularized:]) + unregularized
        order = order[np.argsort(-np.abs(weight[order]), kind="stable")]
        magnitude = np.abs(weight[order].astype(np.float64))
        # Equal ones are a group.
        first = np.append(-1.0, magnitude[:-1])[: order.size] != magnitude
        begin = np.flatnonzero(first)
        size = np.diff(begin, append=order.size)
        number = np.arange(begin.size)
        ring = np.arange(1, order.size + 1)
        ring[begin + size - 1] = begin
        member = np.full((weight.size, 4), -1, np.int32)
        member[order, t.GROUP] = number.repeat(size)
        member[order, t.NEXT], member[order[ring], t.PREVIOUS] = order[ring], order
        self.released = False
        self.tree = Tree(
            np.zeros((0, 5 * FANOUT)),
            np.zeros((0, t.CHILD + 2 * FANOUT), np.int32),
            np.zeros((begin.size, 2), np.int32),
            member,
            np.array([0.0, 0.0, lambda1, lambda2]),
            np.zeros(9, np.int64),
        )
        self.tree.group[:, t.FIRST] = order[begin]
        self.tree.counts[t.FREE] = -1
        self._build(0, magnitude[begin], size, number)

    def make_room(self, changes: int) -> None:
        """Have room for some weights to be put in."""
        if self.tree.counts[t.LEFT] < changes:
            self._build(changes, *in_order(self.tree))

    def lengthen(self, length: int) -> None:
        """Follow a parameter that has grown."""
        old = self.tree.member.shape[0]
        if length > old:
            # By a quarter at a time, so that growing costs O(1) a coordinate.
            member = np.full((max(length, old * 5 // 4), 4), -1, np.int32)
            member[:old] = self.tree.member
            self.tree = self.tree._replace(member=member)

    def write(self, weight: Float64) -> None:
        """Bring all weights up to date."""
        magnitude, _, group = in_order(self.tree)
        of_group = np.empty(len(self.tree.group))
        of_group[group] = magnitude
        active, number = self._active()
        weight[active] = np.copysign(of_group[number], weight[active])

    def signed_blocks(self, weight: Float64) -> Int64:
        """Return the group of each coordinate, as `Oscar.groups` numbers them."""
        _, _, group = in_order(self.tree)
        block = np.empty(len(self.tree.group), np.int64)
        block[group] = np.arange(group.size)
        active, number = self._active()
        result = np.full(weight.size, -1)
        result[active] = 2 * block[number] + (weight[active] < 0.0)
        return result

    def to_tensors(self) -> dict[str, Tensor]:
        """Return a copy of all there is."""
        nodes = int(self.tree.counts[t.NODES])
        parts = self.tree._asdict()
        parts |= {name: parts[name][:nodes] for name in ("real", "link")}
        return {name: torch.from_numpy(part.copy()) for name, part in parts.items()}

    @classmethod
    def from_tensors(cls, tensors: dict[str, Tensor], length: int) -> OscarStructure:
        """Return what `to_tensors` was called of; it goes on with the same bits.

        length: D.

        Raises ValueError: the tensors are no structure of D weights.
        """
        parts = {name: tensor.numpy().copy() for name, tensor in tensors.items()}
        result = cls(np.zeros(0), 0, 0.0, 0.0)
        empty = result.tree._asdict()
        if not (
            parts.keys() == empty.keys()
            and all(parts[name].dtype == empty[name].dtype for name in parts)
            and all(parts[name].shape[1:] == empty[name].shape[1:] for name in parts)
            and all(parts[name].shape == empty[name].shape for name in ("numbers", "counts"))
            and parts["real"].shape[0] == parts["link"].shape[0] < 2**31
            and is_whole(Tree(**parts), length)
        ):
            raise ValueError(f"{DAMAGED}: its groups are no groups of the weights")
        nodes, groups = parts["real"].shape[0], parts["group"].shape[0]
        result.tree = Tree(**parts)
        left, room = parts["counts"][[t.LEFT, t.ROOM]].tolist()
        # There must be room for all the nodes that the changes left may split.
        room = min(room, _nodes_for(groups, groups))
        result._make_nodes(max(room, 2 * nodes + _nodes_for(0, left)))
        result.tree.real[:nodes], result.tree.link[:nodes] = parts["real"], parts["link"]
        return result

    def _active(self) -> tuple[Int64, Int32]:
        """Return the coordinates that are not 0, and the number of the group of each."""
        number = self.tree.member[:, t.GROUP]
        active = np.flatnonzero(number >= 0)
        return active, number[active]

    def _build(self, changes: int, magnitude: Float64, members: Int64, group: Int64) -> None:
        changes = max(changes, CHANGES, group.size // 4)
        self._make_groups(group.size + changes)
        self._make_nodes(_nodes_for(group.size, changes))
        build(self.tree, magnitude, members, group)
        self.tree.counts[t.LEFT] = changes

    def _make_groups(self, number: int) -> None:
        """Have at least this many groups, used or not."""
        old = self.tree.group
        if old.shape[0] < number:
            group = np.zeros((number, 2), np.int32)
            group[: old.shape[0]] = old
            group[old.shape[0] :, t.FIRST] = np.arange(old.shape[0] + 1, number + 1)
            group[-1, t.FIRST] = self.tree.counts[t.FREE]
            self.tree.counts[t.FREE] = old.shape[0]
            self.tree = self.tree._replace(group=group)

    def _make_nodes(self, number: int) -> None:
        """Have room for at least this many nodes; what is in them is lost."""
        if self.tree.real.shape[0] < number:
            self.tree = self.tree._replace(
                real=np.zeros((number, self.tree.real.shape[1])),
                link=np.zeros((number, self.tree.link.shape[1]), np.int32),
            )
        self.tree.counts[t.ROOM] = self.tree.real.shape[0]


def _nodes_for(groups: int, changes: int) -> int:
    """Return how many nodes a tree may come to have while groups are put in."""
    # A new node is split after FANOUT - FILL new entries, its halves after more. The nodes above
    # the leaves are fewer than a quarter.
    leaves = groups // FILL + changes // (FANOUT - FILL) + 1
    return leaves * 5 // 4 + 16


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

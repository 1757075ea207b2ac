"""The weights of one parameter as OSCAR's groups, in order."""

from __future__ import annotations

import numpy as np
import torch
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
    small: O(groups), after at least a quarter as many changes. It takes 16 bytes a coordinate, and
    about 100 a group.

    weight (float64 or float32 [D]): of which `unregularized` first ones do not take part.

    As an attribute `tree`: for the kernels.
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
        """Return what `to_tensors` was called of, for D weights; it goes on with the same bits.

        Raises ValueError: they are no such tensors, or of other weights.
        """
        parts = {name: tensor.numpy().copy() for name, tensor in tensors.items()}
        result = cls(np.zeros(0), 0, 0.0, 0.0)
        empty = result.tree._asdict()
        kinds = [{k: (v.dtype, v.shape[-1]) for k, v in some.items()} for some in (empty, parts)]
        if kinds[0] != kinds[1] or not is_inside(Tree(**parts), length):
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


def is_inside(tree: Tree, length: int) -> bool:
    """Return whether all that a tree of `length` weights points at is inside of its arrays."""
    nodes, groups, coordinates = len(tree.link), len(tree.group), min(length, len(tree.member))
    link, counts = tree.link, tree.counts
    leaf, child = link[:, t.LEVEL] <= 0, link[:, t.CHILD : t.SIZE]
    used = child[leaf][child[leaf] >= 0]
    if (used >= groups).any():
        return False
    ranges = [
        (link[:, t.ENTRIES], 0, FANOUT + 1),
        (link[:, t.SLOT], -1, FANOUT),
        (link[:, [t.PARENT, t.BEFORE, t.AFTER]], -1, nodes),
        (child[~leaf], -1, nodes),
        (child[leaf], -1, groups),
        (tree.group[used, t.LEAF], 0, nodes),
        (tree.member[:, t.GROUP], -1, groups),
        (tree.member[coordinates:, t.GROUP], -1, 0),
        (tree.member[:, [t.NEXT, t.PREVIOUS]], -1, coordinates),
        (counts[[t.ROOT, t.LAST]], 0, nodes),
        (counts[t.FREE], -1, groups),
        (counts[[t.GROUPS, t.LEFT]], 0, groups + 1),
        (counts[t.NODES], nodes, nodes + 1),
        (np.array(len(tree.real)), nodes, nodes + 1),
    ]
    if not all(((low <= part) & (part < end)).all() for part, low, end in ranges):
        return False
    # In a number of a group that is not in use is the next one.
    first, most = tree.group[:, t.FIRST], np.full(groups, groups)
    most[used] = coordinates
    # As many groups as there are room for are written down, leaf after leaf.
    node, found = int(counts[t.ROOT]), 0
    for _ in range(nodes):
        node = int(child[node, 0]) if link[node, t.LEVEL] > 0 else node
    for _ in range(nodes):
        found += int(link[node, t.ENTRIES]) if node >= 0 else 0
        node = int(link[node, t.AFTER]) if node >= 0 else node
    return bool(((first >= -1) & (first < most)).all() and node < 0 and found == counts[t.GROUPS])

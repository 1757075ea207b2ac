"""Algorithm 2 of Liu et al. (2013): which features may share a weight, learnt from pairs."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

import numpy as np
import torch

from torchtune_smt.core.accepts import above, accepting, integer
from torchtune_smt.core.arrays import Float64, Int64, Integers
from torchtune_smt.core.rows import Rows
from torchtune_smt.losses.slope_kernels import HINGE
from torchtune_smt.optim.fobos import FOBOS
from torchtune_smt.optim.lazy_oscar import FobosOscar
from torchtune_smt.optim.sparse import SCHEDULE, SCHEDULES
from torchtune_smt.regularizers import NoRegularizer
from torchtune_smt.regularizers.base import given_dimension_error
from torchtune_smt.regularizers.oscar import Oscar
from torchtune_smt.tuners.grouping.base import GroupLearner, LearntGroups, Problem, judged, lifetime

# Steps between two reports.
CHUNK = 1 << 19


@dataclass(frozen=True)
class StepLearning(GroupLearner):
    """The options of Algorithm 2's steps.

    regularizer: without a `dimension`, d is the number of sparse features that have a place in the
        first weights.
    lr: η0.
    passes: n = passes · N steps, N the number of pairs.
    """

    needs: ClassVar[Mapping[str, tuple[str, type]]] = {
        **GroupLearner.needs,
        "optimizer": ("fobos_oscar", FobosOscar),
    }
    takes_not: ClassVar[Mapping[str, str]] = {
        "optimizer.average": "has no mean of weights: their groups would not be equal"
    }

    accepts = accepting(lr=above(0), schedule=SCHEDULE, passes=integer(1))

    lr: float = 1.0
    schedule: str = "1/t"
    passes: int = 20

    @abstractmethod
    def learnt(self, problem: Problem, stream: int, what: str) -> Learned:
        """Return weights and their groups; `stream` is of random numbers, `what` is shown."""

    def find(self, problem: Problem) -> LearntGroups:
        """See `GroupLearner`."""
        found = self.learnt(problem, 2, "learning groups")
        blocks = found.blocks
        remarks, numbers = judged(problem, self.regularizer, found.weights, blocks, found.last)
        numbers |= {"oscar/loss": found.loss, "oscar/steps": found.steps}
        text = f"{found.steps:,} steps, twice,"
        if found.shards:
            numbers["oscar/shards"] = found.shards
            text = f"{found.steps:,} steps on {found.shards} shards, twice,"
        return LearntGroups(blocks, found.dimension, text, remarks, numbers)

    def again(self, problem: Problem) -> Int64:
        """See `GroupLearner`."""
        return self.learnt(problem, 3, "learning groups in another order").blocks

    def _oscar(self, problem: Problem) -> tuple[Oscar, int]:
        """Return OSCAR with its d, and this; not fewer than sparse features may get a weight."""
        dimension = problem.dimension(self.regularizer)
        if self.regularizer.dimension is not None:
            count = count_features(problem.start, problem.n_dense, problem.pairs.feature)
            if dimension < count:
                raise given_dimension_error(dimension, "sparse features in the pairs", count)
        return replace(self.regularizer, dimension=dimension), dimension


@dataclass(frozen=True)
class GroupLearning(StepLearning):
    """Algorithm 2: FOBOS with OSCAR on the hinge of random pairs.

    One pair a step, drawn uniformly with replacement, and OSCAR's prox with each. Dense features
    are updated and not regularised. Steps count from t = 1 at each call.
    """

    def learnt(self, problem: Problem, stream: int, what: str) -> Learned:
        """See `StepLearning`."""
        pairs, n_dense = problem.pairs, problem.n_dense
        oscar, dimension = self._oscar(problem)
        parameter = torch.nn.Parameter(torch.from_numpy(problem.start.copy()))
        optimizer = FobosOscar(
            [parameter], self.lr, oscar, schedule=self.schedule, unregularized=n_dense
        )
        n = len(pairs)
        steps = self.passes * n
        draw = problem.draw(stream)
        total = 0.0
        recent = min(lifetime(oscar, dimension), n)
        last_fired = []
        for begin in range(0, steps, CHUNK):
            order = draw.integers(n, size=min(CHUNK, steps - begin))
            margins = optimizer.step_rows(pairs, HINGE, order=order)
            last = margins[max(steps - n - begin, 0) :]
            total += float(np.maximum(1.0 - last, 0.0).sum())
            first = max(steps - recent - begin, 0)
            last_fired.append(order[first:][margins[first:] < 1.0])
            problem.show(what, begin + order.size, steps, "step")
        optimizer.flush()
        blocks: Int64 = optimizer.groups().numpy()
        fired = np.concatenate(last_fired)
        return Learned(blocks, parameter.detach().numpy(), dimension, steps, total / n, fired)


class Learned(NamedTuple):
    """What steps have come to.

    blocks, weights (int64, float64 [D]): groups (see `LearntGroups.blocks`) of the last weights.
    dimension, steps: d; n.
    loss: mean hinge of the last pass (of the last N steps), each before its step.
    last: the pairs with a margin below 1 in the last steps, as many as a weight lives that nothing
        supports (see `lifetime`), or a pass; where OSCAR follows on each step.
    shards: 0 where the steps were taken one after the other.
    """

    blocks: Int64
    weights: Float64
    dimension: int
    steps: int
    loss: float
    last: Int64 | None = None
    shards: int = 0


def count_features(weights: Float64, first: int, found: Integers) -> int:
    """Return how many features OSCAR pulls at, 1 at least: `first` on, with a weight or found."""
    known = weights != 0
    known[found] = True
    return max(int(np.count_nonzero(known[first:])), 1)


@dataclass(frozen=True)
class ShardSteps:
    """A pass over a shard of the pairs, which can be taken anywhere.

    pairs, start: features, and their weights so far, are numbered from 0 for this shard.
    before: steps that the shard has taken.
    """

    pairs: Rows
    start: Float64
    before: int
    lr: float
    schedule: str
    seed: tuple[int, ...]

    def take(self) -> StepsResult:
        """Take as many steps as there are pairs, each on a random one, without a regulariser."""
        parameter = torch.nn.Parameter(torch.from_numpy(self.start.copy()))
        optimizer = FOBOS([parameter], self.lr, NoRegularizer(), schedule=self.schedule)
        n = len(self.pairs)
        # No rows make its state, of which the number of steps is all that matters here.
        optimizer.step_rows(self.pairs, HINGE, order=np.empty(0, np.int64))
        optimizer.state[parameter]["step"] = self.before
        order = np.random.default_rng(self.seed).integers(n, size=n)
        margins = optimizer.step_rows(self.pairs, HINGE, order=order)
        loss = float(np.maximum(1.0 - margins, 0.0).sum())
        return StepsResult(parameter.detach().numpy(), loss)


class StepsResult(NamedTuple):
    """The weights of a shard, and the sum of the hinges, each before its step."""

    weights: Float64
    loss: float


def one_step() -> ShardSteps:
    """Return the smallest task: one pair of one feature."""
    pair = Rows(np.array([0, 1]), np.zeros(1, np.int32), np.ones(1))
    return ShardSteps(pair, np.zeros(1), before=0, lr=1.0, schedule="1/t", seed=(0,))


Compute = Callable[[Iterable[ShardSteps]], Iterator[StepsResult]]
"""Takes the steps of some shards, wherever; results come in the order of the shards."""


def compute_here(tasks: Iterable[ShardSteps]) -> Iterator[StepsResult]:
    """Take the steps of some shards in this process, one after the other."""
    return (task.take() for task in tasks)


@dataclass(frozen=True)
class MixedLearning(StepLearning):
    """Algorithm 2 of Liu et al. (2013) on shards, mixed as in Simianer et al. (2012), Algorithm 3.

    In each pass each shard starts from the same weights and takes a step on a random pair of its
    own as often as it has pairs, without OSCAR. The mean of the weights over shards, of those that
    a shard does not know as they were, then takes one proximal step of OSCAR, as long as all of the
    steps of a shard together. The result depends on the number of shards, and not on where they
    are computed.

    schedule: t counts the steps of a shard.
    shards: each pair is in one; there are no more than pairs.
    """

    accepts = accepting(shards=integer(1))

    shards: int = 8
    compute: Compute = compute_here

    def learnt(self, problem: Problem, stream: int, what: str) -> Learned:
        """See `StepLearning`. The shards are those of any stream."""
        n_dense, (oscar, dimension) = problem.n_dense, self._oscar(problem)
        shards = cut(problem.pairs, self.shards, (*problem.seed, 5))
        weights = problem.start.copy()
        blocks = np.full(weights.size, -1, np.int64)
        loss = 0.0
        for done in range(self.passes):
            how, seed = (self.lr, self.schedule), (*problem.seed, stream, done)
            tasks = (
                ShardSteps(pairs, weights[features], done * len(pairs), *how, (*seed, number))
                for number, (features, pairs) in enumerate(shards)
            )
            moved = np.zeros(weights.size)
            loss = 0.0
            for (features, _), result in zip(shards, self.compute(tasks), strict=True):
                moved[features] += result.weights - weights[features]
                loss += result.loss
            weights += moved / len(shards)
            length = sum(self._length(done, len(pairs)) for _, pairs in shards) / len(shards)
            sparse, group = oscar.groups(torch.from_numpy(weights[n_dense:]), length)
            weights[n_dense:], blocks[n_dense:] = sparse.numpy(), group.numpy()
            problem.show(what, done + 1, self.passes, "pass")
        count = len(problem.pairs)
        steps = self.passes * count
        return Learned(blocks, weights, dimension, steps, loss / count, shards=len(shards))

    def _length(self, done: int, steps: int) -> float:
        """Return the sum of the sizes of a shard's steps in a pass, after `done` passes."""
        t = np.arange(done * steps + 1, (done + 1) * steps + 1, dtype=np.float64)
        return float(self.lr * (t ** -SCHEDULES[self.schedule]).sum())


def cut(pairs: Rows, shards: int, seed: Sequence[int]) -> list[tuple[Int64, Rows]]:
    """Return random shards of pairs, whose sizes differ by one at most; see `Rows.numbered`."""
    order = np.random.default_rng(seed).permutation(len(pairs))
    parts = np.array_split(order, min(shards, len(pairs)))
    return [pairs.chosen(np.sort(part)).numbered() for part in parts]

"""Groups learnt on shards of the pairs: shards take steps, their weights mix, one prox follows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch

from torchtune_smt.core.arguments import check_whole
from torchtune_smt.core.arrays import Float64, Int64
from torchtune_smt.core.rows import Rows
from torchtune_smt.losses.slope_kernels import HINGE
from torchtune_smt.optim.fobos import FOBOS
from torchtune_smt.optim.schedules import SCHEDULES
from torchtune_smt.regularizers import NoRegularizer
from torchtune_smt.tuners.base import Show
from torchtune_smt.tuners.gradient import check_pairs
from torchtune_smt.tuners.group_diagnosis import judged
from torchtune_smt.tuners.group_learner import LearntGroups
from torchtune_smt.tuners.learn_groups import StepLearning, oscar_dimension


@dataclass(frozen=True)
class ShardSteps:
    """A pass over a shard of the pairs, which can be taken anywhere.

    Attributes
    ----------
    pairs : Rows
        Features are numbered from 0 for this shard.
    start : float64 [features of the shard]
        Their weights so far.
    before : int
        Steps that the shard has taken.
    lr, schedule
        As for `MixedLearning`.
    seed : tuple of int
        Names the random stream.
    """

    pairs: Rows
    start: Float64
    before: int
    lr: float
    schedule: str
    seed: tuple[int, ...]

    def take(self) -> StepsResult:
        """Take as many steps as there are pairs, each on a random one, without a regulariser.

        Raises
        ------
        DivergenceError
            A margin is not finite.
        """
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
    """What a shard has come to.

    Attributes
    ----------
    weights : float64 [features of the shard]
    loss : float
        The sum of the hinges, each before its step.
    """

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

    Parameters
    ----------
    regularizer, lr, schedule, passes
        See `StepLearning`; t counts the steps of a shard.
    shards : int
        Each pair is in one; there are no more than pairs.
    compute : callable
        See `Compute`.

    Raises
    ------
    ValueError
        A value is out of range.
    """

    shards: int = 8
    compute: Compute = compute_here

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole("shards", self.shards, 1)

    def find(
        self, pairs: Rows, start: Float64, n_dense: int, seed: Sequence[int], show: Show
    ) -> LearntGroups:
        """Return the groups; see `GroupLearner.find`."""
        check_pairs(len(pairs))
        dimension = oscar_dimension(pairs, start, n_dense, self.regularizer)
        mixed = self._mixed(pairs, start, n_dense, dimension, (seed, 2), "learning groups", show)
        remarks, numbers = judged(
            pairs, n_dense, self.regularizer, dimension, mixed.weights, mixed.blocks
        )
        steps, shards = self.passes * len(pairs), min(self.shards, len(pairs))
        numbers |= {"oscar/loss": mixed.loss, "oscar/steps": steps, "oscar/shards": shards}
        text = f"{steps:,} steps on {shards} shards, twice,"
        return LearntGroups(mixed.blocks, dimension, text, remarks, numbers)

    def again(
        self, pairs: Rows, start: Float64, n_dense: int, seed: Sequence[int], show: Show
    ) -> Int64:
        """Return the groups of another order; see `GroupLearner.again`."""
        dimension = oscar_dimension(pairs, start, n_dense, self.regularizer)
        what = "learning groups in another order"
        return self._mixed(pairs, start, n_dense, dimension, (seed, 3), what, show).blocks

    def _mixed(
        self,
        pairs: Rows,
        start: Float64,
        n_dense: int,
        dimension: int,
        seed: tuple[Sequence[int], int],
        what: str,
        show: Show,
    ) -> Mixed:
        """Learn from shards, which are those of the first part of the seed."""
        options = replace(self, regularizer=replace(self.regularizer, dimension=dimension))
        common, stream = seed
        # 1, 4 and 6 name the streams of the pairs and of the control; see `GroupingTuner`.
        shards = cut(pairs, self.shards, (*common, 5))

        def on_pass(done: int) -> None:
            show(what, done, self.passes, "pass")

        return learn_mixed(shards, start, n_dense, options, (*common, stream), on_pass)


class Shard(NamedTuple):
    """Some of the pairs.

    Attributes
    ----------
    features : int64 array
        Those that fire in them, ascending.
    pairs : Rows
        Features are places in `features`.
    """

    features: Int64
    pairs: Rows


class Mixed(NamedTuple):
    """What was learnt.

    Attributes
    ----------
    weights : float64 [D]
    blocks : int64 [D]
        See `Oscar.groups`; -1 for dense features.
    loss : float
        Mean hinge of the last pass, each before its step.
    """

    weights: Float64
    blocks: Int64
    loss: float


def cut(pairs: Rows, shards: int, seed: Sequence[int]) -> list[Shard]:
    """Return random shards of pairs, whose sizes differ by one at most."""
    order = np.random.default_rng(seed).permutation(len(pairs))
    parts = np.array_split(order, min(shards, len(pairs)))
    return [Shard(*pairs.chosen(np.sort(part)).numbered()) for part in parts]


def learn_mixed(
    shards: Sequence[Shard],
    start: Float64,
    n_dense: int,
    options: MixedLearning,
    seed: Sequence[int],
    on_pass: Callable[[int], None] = lambda done: None,
) -> Mixed:
    """Learn groups from shards of pairs; see `MixedLearning`.

    Parameters
    ----------
    shards : sequence of Shard
    start : float64 [D]
        W^1.
    n_dense : int
        Ids below it are dense features, which OSCAR leaves alone.
    options : MixedLearning
        With d in its regulariser.
    seed : sequence of int
        Names the random streams.
    on_pass : callable
        Told how many passes are done.

    Raises
    ------
    DivergenceError
        A margin is not finite.
    """
    weights = start.copy()
    blocks = np.full(start.size, -1, np.int64)
    count = sum(len(shard.pairs) for shard in shards)
    loss = 0.0
    for done in range(options.passes):
        tasks = (
            ShardSteps(
                shard.pairs,
                weights[shard.features],
                done * len(shard.pairs),
                options.lr,
                options.schedule,
                (*seed, done, number),
            )
            for number, shard in enumerate(shards)
        )
        moved = np.zeros(weights.size)
        loss = 0.0
        for shard, result in zip(shards, options.compute(tasks), strict=True):
            moved[shard.features] += result.weights - weights[shard.features]
            loss += result.loss
        weights += moved / len(shards)
        length = sum(_length(options, done, len(shard.pairs)) for shard in shards) / len(shards)
        sparse, group = options.regularizer.groups(torch.from_numpy(weights[n_dense:]), length)
        weights[n_dense:], blocks[n_dense:] = sparse.numpy(), group.numpy()
        on_pass(done + 1)
    return Mixed(weights, blocks, loss / count)


def _length(options: MixedLearning, done: int, steps: int) -> float:
    """Return the sum of the sizes of a shard's steps in a pass, after `done` passes."""
    t = np.arange(done * steps + 1, (done + 1) * steps + 1, dtype=np.float64)
    return float(options.lr * (t ** -SCHEDULES[options.schedule]).sum())

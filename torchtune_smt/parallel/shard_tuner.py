"""Epochs on shards, whose weights are mixed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from torchtune_smt.core.arrays import Int64
from torchtune_smt.core.checks import DAMAGED, well_formed, whole
from torchtune_smt.core.container import checksum
from torchtune_smt.core.returned import checked_numbers
from torchtune_smt.core.state import packed, unpacked
from torchtune_smt.core.weights import Weights
from torchtune_smt.kbest.sentences import Sentences
from torchtune_smt.parallel.columns import Columns
from torchtune_smt.parallel.engine import Engine
from torchtune_smt.parallel.jobs import Job, utilisation_numbers
from torchtune_smt.parallel.shard_worker import (
    ShardResult,
    ShardTask,
    State,
    active,
    weights_of_state,
)
from torchtune_smt.tuners.base import Report, Tuner
from torchtune_smt.tuners.gradient import check_pairs
from torchtune_smt.tuners.online import OnlineTuner


class ShardTuner(Tuner):
    """Each epoch goes through all shards, and mixes what has come out of them.

    Parameters
    ----------
    weights : Weights
    sentences : Sentences
    shards : sequence of int64 arrays
        The sentences of each.
    mixing : Mixing
        See `torchtune_smt.parallel.mixing`.
    engine : Engine
        Its workers are `ShardWorker`s.
    labels : sequence of str
        What the shards are called.
    """

    unit = "epoch"
    advice = OnlineTuner.advice
    results = ("best", "last", "average")

    def __init__(
        self,
        weights: Weights,
        sentences: Sentences,
        shards: Sequence[Int64],
        mixing: Any,
        engine: Engine,
        labels: Sequence[str],
    ) -> None:
        self.weights = weights
        self.sentences = sentences
        self.shards = shards
        self.mixing = mixing
        self.engine = engine
        self._labels = labels
        # Of the epoch under way, with how many pairs it has found; and what the shards go on from,
        # where they do.
        self._columns: Columns | None = None
        self._found = 1
        self._states: list[State] = []
        # Workers, numbered as their first results come; what they did in this epoch, as seen here.
        self._workers: dict[str, int] = {}
        self._jobs: list[Job] = []

    def round(self, number: int, done: int = 0) -> Iterator[Report]:
        """Compute an epoch on each shard, yielding after each, in their order, and mix.

        Raises
        ------
        InputError
            No shard has found a pair to learn from in the first epoch.
        """
        weights = self.weights
        columns = self._columns
        if columns is None:
            columns = self._columns = Columns(weights.features, weights.n_dense, len(self.shards))
        self._jobs.clear()
        left = range(done, len(self.shards))
        if not done:
            self._found = 0
        results = self.engine.map(active(weights), (self._task(number, z) for z in left))
        for z, result in zip(left, results, strict=True):
            columns.add(result.weights)
            weights.grow()
            if result.state is not None:
                self._states[z:] = [unpacked(*result.state), *self._states[z + 1 :]]
            self._found += result.pairs
            yield self._report(z, result)
        if number == 1:
            check_pairs(self._found)
        must = f"combine of {type(self.mixing).__name__} must return a weight for each feature,"
        wanted = (weights.parameter.numel(),)
        mixed = checked_numbers(self.mixing.combine(columns), wanted, must)
        with torch.no_grad():
            weights.parameter.copy_(torch.from_numpy(mixed))
        weights.version += 1
        self._columns = None

    def summary(self, kept: bool) -> Report:
        """Return how many features have a weight."""
        count = int(self.weights.parameter.count_nonzero())
        return Report("round", utilisation_numbers(self._jobs), f"{count:,} active features")

    def state_dict(self) -> dict[str, Any]:
        """Return what the shards of the epoch under way have added up to."""
        columns = None if self._columns is None else self._columns.state_dict()
        return {
            "shards": self._digest(),
            "columns": columns,
            "states": self._states,
            "found": self._found,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over what `state_dict` gave."""
        with well_formed():
            saved, states = state_dict["columns"], list(state_dict["states"])
            shards = state_dict["shards"]
            # In a checkpoint of an earlier version it is not said: there may have been some.
            found = whole(state_dict.get("found", 1), 0)
        if shards != self._digest():
            raise ValueError("its shards had other sentences")
        if len(states) > (0 if self.mixing.resends else len(self.shards)):
            raise ValueError(DAMAGED)
        for state in states:
            weights_of_state(state)
        columns = None
        if saved is not None:
            columns = Columns(self.weights.features, self.weights.n_dense, len(self.shards))
            columns.load_state_dict(saved)
        self._columns, self._states, self._found = columns, states, found

    def _digest(self) -> str:
        """Return what differs where shards do: labels are in a file that may have changed."""
        return checksum(np.concatenate([part for z in self.shards for part in ([z.size], z)]))

    def _task(self, epoch: int, z: int) -> ShardTask:
        keeps = not self.mixing.resends
        state = packed(self._states[z]) if keeps and epoch > 1 else None
        return ShardTask(epoch, self.sentences.part(self.shards[z]), keeps, state)

    def _report(self, z: int, result: ShardResult) -> Report:
        size = int(self.shards[z].size)
        worker = self._workers.setdefault(result.worker, len(self._workers) + 1)
        job = Job(worker, result.begin, result.seconds, result.learning)
        self._jobs.append(job)
        numbers = {
            "train/loss": result.loss,
            "train/gain": result.gain,
            "train/pairs": result.pairs,
            "parallel/shard_features": len(result.weights),
            **job.numbers(),
            "speed/shard_sentences_per_second": size / result.seconds,
        }
        text = (
            f"  shard {self._labels[z]}: {size:,} sentences, gain {result.gain:.4f}, "
            f"{len(result.weights):,} active features"
        )
        return Report("part", numbers, text, size)

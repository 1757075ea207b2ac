"""Mixing the weights of shards (Simianer et al. 2012, Algorithms 2, 3 and 4)."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import numpy as np
import torch

from torchtune_smt.core.accepts import accepting, check_arguments, integer, least
from torchtune_smt.core.archive import checksum
from torchtune_smt.core.arrays import Bool, Float64, Int64
from torchtune_smt.core.checks import checked_numbers
from torchtune_smt.core.errors import InputError
from torchtune_smt.core.snapshot import FrozenWeights
from torchtune_smt.core.state import packed, unpacked
from torchtune_smt.core.textio import read_lines
from torchtune_smt.core.vocabulary import Vocabulary
from torchtune_smt.core.weights import Weights
from torchtune_smt.kbest.sentences import Sentences
from torchtune_smt.parallel.base import Strategy, Work
from torchtune_smt.parallel.engine import Engine, Job, utilisation_numbers
from torchtune_smt.parallel.shard_worker import ShardResult, ShardTask, State, active
from torchtune_smt.tuners.base import Report, Tuner
from torchtune_smt.tuners.gradient import check_pairs
from torchtune_smt.tuners.online import OnlineTuner


def random_shards(sentences: int, shards: int, seed: int) -> list[Int64]:
    """Return the sentences (int64, ascending) of each shard; sizes differ by one at most.

    Raises InputError: there are fewer sentences than shards.
    """
    if sentences < shards:
        raise InputError(
            f"parallel.shards={shards}, and there are {sentences} sentences to tune on; give no "
            "more shards than sentences"
        )
    # Epochs, which draw with the same seed, count from 1.
    order = np.random.default_rng((seed, 0)).permutation(sentences)
    return [np.sort(part) for part in np.array_split(order, shards)]


def labelled_shards(path: str, lines: Sequence[int], total: int) -> dict[str, Int64]:
    """Return the sentences (int64, ascending) of each label, labels in alphabetical order.

    path: a label in each of the text's `total` lines.
    lines: the line of each sentence, from 1.

    Raises InputError: the file is bad, has another number of lines, or one without a label.
    """
    labels = [line.strip() for line in read_lines(path)]
    if len(labels) != total:
        raise InputError(
            f"has {len(labels)} lines, and the text that is tuned on has {total}: each line needs "
            "a label, and the labels of another text tell nothing",
            path=path,
        )
    found: dict[str, list[int]] = {}
    for sentence, line in enumerate(lines):
        if not labels[line - 1]:
            raise InputError("has no label; each line of the text needs one", path=path, line=line)
        found.setdefault(labels[line - 1], []).append(sentence)
    return {label: np.array(found[label], np.int64) for label in sorted(found)}


class Columns:
    """Sums over the columns of the matrix W [shards, D] of weights, of which no row is kept.

    A shard that does not know a feature has weight 0 for it.

    features: takes the names of the shards' features; ids are in it.
    n_dense: ids below it are dense features.
    shards: how many will be added.
    """

    def __init__(self, features: Vocabulary, n_dense: int, shards: int) -> None:
        self.features, self.n_dense, self.shards = features, n_dense, shards
        # Of totals, squares and counts, with some room.
        self._room: Float64 = np.zeros((3, len(features)))

    @property
    def total(self) -> Float64:
        """Σ_z W[z, k] of each feature k."""
        return self._sums(0)

    @property
    def squares(self) -> Float64:
        """Σ_z W[z, k]², of which the l2 norm of a column is the root."""
        return self._sums(1)

    @property
    def count(self) -> Int64:
        """The shards with a weight that is not 0."""
        return self._sums(2).astype(np.int64)

    def add(self, weights: FrozenWeights) -> None:
        """Add the weights of a shard; sums have the bits of the order in which shards come."""
        ids, values = self.features.intern_all(weights.features), weights.values
        self._sums(slice(3))[:, ids] += [values, values**2, values != 0]

    def mean(self) -> Float64:
        """Return the mean over shards of each weight."""
        return self.total / self.shards

    def norm(self) -> Float64:
        """Return the l2 norm of each column."""
        return np.sqrt(self.squares)

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Return the sums."""
        return {"sums": torch.from_numpy(self._sums(slice(3)).flatten())}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over what `state_dict` gave."""
        self._room = state_dict["sums"].numpy().reshape(3, -1)

    def _sums(self, which: int | slice) -> Float64:
        """Return some of the sums (float64 [3, D]) of all features that there are now."""
        length, known = len(self.features), self._room.shape[1]
        if known < length:
            # A quarter more each time keeps the cost of growing constant per feature.
            room = max(length, known * 5 // 4)
            self._room = np.pad(self._room, ((0, 0), (0, room - known)))
        found: Float64 = self._room[which, :length]
        return found


SHARD_SIZE: Final = 1000
"""Sentences of a shard, about (Simianer et al. 2012)."""


class Mixing(Strategy):
    """Each shard tunes on its own for an epoch; then all weights become one.

    A subclass says by `combine` how. The optimizer of a shard begins anew when its weights do.

    shards: random shards, whose sizes differ by one at most; by default of about 1,000 sentences.
    labels: a file with a label in each line of the text that is tuned on: a shard for each label.

    As attributes:
    resends: whether shards begin each epoch with the mixed weights, or go on with their own.

    Raises ValueError: there are both.
    """

    accepts = accepting(shards=integer(1).or_null())
    shards_data: ClassVar[bool] = True
    resends: ClassVar[bool] = True

    def __init__(self, shards: int | None = None, labels: str | None = None) -> None:
        check_arguments(type(self), {"shards": shards})
        if shards is not None and labels is not None:
            raise ValueError(
                f"labels={labels} says which shards there are, and so does shards={shards}; give "
                "one of them"
            )
        self.shards, self.labels = shards, labels

    @abstractmethod
    def combine(self, columns: Columns) -> Float64:
        """Return the mixed weights (float64 [D]) of an epoch, by the ids of `columns`."""

    def tuner(self, work: Work) -> ShardTuner:
        """Return the tuner whose rounds are epochs on all shards."""
        if self.labels is not None:
            found = labelled_shards(self.labels, work.lines, work.total_lines)
        else:
            shards = self.shards or max(1, round(len(work.sentences) / SHARD_SIZE))
            parts = random_shards(len(work.sentences), shards, work.seed)
            found = {str(z): part for z, part in enumerate(parts, 1)}
        words = np.array([len(source.words) for source in work.sentences.sources])
        # The longest first: at the end of an epoch no worker waits long for another one.
        labels = sorted(found, key=lambda label: -int(words[found[label]].sum()))
        parts = [found[label] for label in labels]
        return ShardTuner(work.weights, work.sentences, parts, self, work.engine, labels)


class IterMix(Mixing):
    """IterMixSGD, Algorithm 3: the mean over shards after each epoch is where all go on from."""

    def combine(self, columns: Columns) -> Float64:
        """Return the mean over shards."""
        return columns.mean()


class Mix(IterMix):
    """MixSGD, Algorithm 2: shards never hear of each other; what counts is the mean of all.

    The paper's result is the mean over the ends of all epochs, too: tuner.result=average. The state
    of each shard is kept here, so memory grows with their number.
    """

    resends: ClassVar[bool] = False


class IterSel(Mixing):
    """IterSelSGD, Algorithm 4: as `IterMix`, with the features alone that matter to most shards.

    A feature matters by the l2 norm of its column of W [shards, D]. Dense features always stay, and
    are not counted.

    features: keep so many sparse features, those of the largest norm; names decide between equal
        ones.
    threshold: keep those of a norm above it.
    strength: take the proximal step of strength · Σ_k ‖W[:, k]‖₂ instead: each column is shrunk by
        the factor max(0, 1 - strength / norm) before the mean is taken.
    shards, labels: see `Mixing`.

    Raises ValueError: not exactly one of the three is given.
    """

    accepts = accepting(
        features=integer(1).or_null(),
        **dict.fromkeys(("threshold", "strength"), least(0).or_null()),
    )

    def __init__(
        self,
        features: int | None = 100_000,
        threshold: float | None = None,
        strength: float | None = None,
        shards: int | None = None,
        labels: str | None = None,
    ) -> None:
        super().__init__(shards, labels)
        given = {"features": features, "threshold": threshold, "strength": strength}
        check_arguments(type(self), given)
        if sum(value is not None for value in given.values()) != 1:
            raise ValueError(
                "give one of features, threshold and strength, and set the others to null (there "
                f"are {', '.join(f'{name}={value}' for name, value in given.items())})"
            )
        self.features, self.threshold, self.strength = features, threshold, strength

    def combine(self, columns: Columns) -> Float64:
        """Return the mean over shards of what is selected, 0 for the rest."""
        mixed, norm = columns.mean(), columns.norm()
        sparse = slice(columns.n_dense, None)
        if self.strength is not None:
            # A column of norm 0 has the mean 0.
            shrunk = np.maximum(norm[sparse] - self.strength, 0)
            mixed[sparse] *= shrunk / np.where(norm[sparse] > 0, norm[sparse], 1)
        elif self.threshold is not None:
            mixed[sparse][norm[sparse] <= self.threshold] = 0
        elif self.features is not None and np.count_nonzero(norm[sparse]) > self.features:
            mixed[sparse][~_largest(columns, norm[sparse], self.features)] = 0
        return mixed


def _largest(columns: Columns, norm: Float64, k: int) -> Bool:
    """Return which k sparse features have the largest norm; the first names of equal ones."""
    least = np.partition(norm, -k)[-k]
    chosen: Bool = norm > least
    ties: Int64 = np.flatnonzero(norm == least)
    names = columns.features.names(ties + columns.n_dense)
    by_name = sorted(range(ties.size), key=names.__getitem__)
    chosen[ties[by_name[: k - int(chosen.sum())]]] = True
    return chosen


@dataclass(eq=False, repr=False)
class ShardTuner(Tuner):
    """Each epoch goes through all shards, and mixes what has come out of them.

    shards: the sentences of each.
    engine: its workers are `ShardWorker`s.
    labels: what the shards are called.
    """

    unit = "epoch"
    advice = OnlineTuner.advice
    results = ("best", "last", "average")

    weights: Weights
    sentences: Sentences
    shards: Sequence[Int64]
    mixing: Mixing
    engine: Engine
    labels: Sequence[str]

    def __post_init__(self) -> None:
        # Of the epoch under way, with how many pairs it has found; and what shards go on from.
        self._columns: Columns | None = None
        self._found = 1
        self._states: list[State] = []
        # Workers, numbered as their first results come; what they did in this epoch, as seen here.
        self._workers: dict[str, int] = {}
        self._jobs: list[Job] = []

    def round(self, number: int, done: int = 0) -> Iterator[Report]:
        """Compute an epoch on each shard, yielding after each, in their order, and mix."""
        weights = self.weights
        columns = self._columns = self._columns or self._no_columns()
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
        columns = self._columns and self._columns.state_dict()
        state = {"shards": self._digest(), "columns": columns}
        return {**state, "states": self._states, "found": self._found}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over what `state_dict` gave."""
        if state_dict["shards"] != self._digest():
            raise ValueError("its shards had other sentences")
        self._states, self._found = list(state_dict["states"]), state_dict["found"]
        self._columns = None
        if state_dict["columns"] is not None:
            self._columns = self._no_columns()
            self._columns.load_state_dict(state_dict["columns"])

    def _no_columns(self) -> Columns:
        return Columns(self.weights.features, self.weights.n_dense, len(self.shards))

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
            f"  shard {self.labels[z]}: {size:,} sentences, gain {result.gain:.4f}, "
            f"{len(result.weights):,} active features"
        )
        return Report("part", numbers, text, size)

"""An epoch on one shard: a pure function of weights, shard and epoch."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from torchtune_smt.core.rows import Rows
from torchtune_smt.core.snapshot import FrozenWeights, Snapshot
from torchtune_smt.core.state import packed, unpacked
from torchtune_smt.core.vocabulary import Vocabulary
from torchtune_smt.core.weights import Weights
from torchtune_smt.decoders.base import Decoder, lists_of
from torchtune_smt.kbest.lists import KBestLists, Source
from torchtune_smt.kbest.sentences import Sentences
from torchtune_smt.tuners.base import Tuner
from torchtune_smt.tuners.gradient import NoPairsError
from torchtune_smt.tuners.online import OUTSIDE_DECODING

State = dict[str, Any]
"""What a shard goes on from: names, weights and the state of its tuner, as tensors and numbers."""


@dataclass(frozen=True)
class ShardTask:
    """An epoch (from 1) on a shard; `keeps` says whether the shard's state is to be returned.

    It goes on from `state`, as `packed` gives it; None: from the common weights.
    """

    epoch: int
    sentences: Sentences
    keeps: bool = False
    state: tuple[Any, dict[str, Any]] | None = None


@dataclass(frozen=True)
class ShardResult:
    """What has come out of an epoch on a shard.

    Weights are the dense ones and those that are not 0; `loss` is a mean over `pairs` (or lists),
    `gain` over sentences. For times see `Job`, by the clock of the worker's machine; `worker` is
    machine and process, and `state` that of `ShardTask`.
    """

    weights: FrozenWeights
    loss: float
    gain: float
    pairs: int
    begin: float
    seconds: float
    learning: float
    worker: str
    state: tuple[Any, dict[str, Any]] | None


class OwnFeatures(Decoder):
    """A decoder whose lists are in the ids of some weights, whatever it has met before.

    Names that are new are added when a list has them: those of the lists of one call in
    alphabetical order.
    """

    def __init__(self, decoder: Decoder, weights: Weights) -> None:
        self.decoder, self._weights = decoder, weights
        self.dense_names, self.words = decoder.dense_names, decoder.words
        self.features = weights.features

    def decode(
        self, sources: Sequence[Source], snapshot: Snapshot, *, k: int | None = None
    ) -> KBestLists:
        """Return the k-best list of each sentence (see `Decoder.decode`)."""
        lists = lists_of(self.decoder, sources, snapshot, k)
        weights, rows = self._weights, lists.rows
        assert lists.features is not None
        met = rows.numbered()[0]
        new = met[weights.own_ids(lists.features, met) < 0]
        weights.features.intern(sorted(lists.features.names(new)))
        weights.grow()
        feature = weights.own_ids(lists.features, rows.feature).astype(np.int32)
        renamed = Rows(rows.begin, feature, rows.value).sorted()
        return replace(lists, rows=renamed, features=weights.features)


class ShardWorker:
    """Computes epochs on shards; `make` is as in `torchtune_smt.parallel.base.Work`.

    The decoder goes on from one to the next, with the features that it has found. Their ids, and
    with them the last bits of sums, do not depend on that: see `OwnFeatures`.
    """

    def __init__(
        self, make: Callable[[Weights, Sentences, Decoder], Tuner], decoder: Decoder
    ) -> None:
        self._make, self._decoder = make, decoder

    def __call__(self, common: FrozenWeights, task: ShardTask) -> ShardResult:
        """Go once through the sentences of a shard."""
        begin, start = time.time(), time.perf_counter()
        weights = Weights(self._decoder.dense_names)
        state = None if task.state is None else unpacked(*task.state)
        fill(weights, common if state is None else _weights_of(state))
        decoder = OwnFeatures(self._decoder, weights)
        tuner = self._make(weights, task.sentences, decoder)
        if state is not None:
            tuner.load_state_dict(state["tuner"])
        loss = gain = outside = 0.0
        pairs = 0
        try:
            for report in tuner.round(task.epoch):
                count = int(report.numbers.get("train/pairs", 0))
                loss += report.numbers.get("train/loss", 0.0) * count
                gain += report.numbers.get("train/gain", 0.0) * report.sentences
                outside += report.numbers.get(OUTSIDE_DECODING, 0.0) * report.sentences
                pairs += count
        except NoPairsError:
            # Others may have some; without pairs no step was taken.
            pass
        return ShardResult(
            active(weights),
            loss / max(pairs, 1),
            gain / len(task.sentences),
            pairs,
            begin,
            time.perf_counter() - start,
            outside / 1000,
            f"{platform.node()}:{os.getpid()}",
            packed(_state(weights, tuner)) if task.keeps else None,
        )


def active(weights: Weights) -> FrozenWeights:
    """Return the dense weights and those that are not 0, over a vocabulary of them alone."""
    values = weights.parameter.detach().double().numpy()
    dense = np.arange(weights.n_dense)
    ids = np.append(dense, np.flatnonzero(values[dense.size :]) + dense.size)
    names = weights.features.part(ids)
    return FrozenWeights(names, values[ids], weights.version, weights.n_dense)


def fill(weights: Weights, values: FrozenWeights) -> None:
    """Set weights; those that others have are as they were."""
    ids = torch.from_numpy(weights.features.intern_all(values.features)).long()
    weights.grow()
    with torch.no_grad():
        weights.parameter[ids] = torch.from_numpy(values.values).to(weights.parameter.dtype)


def _state(weights: Weights, tuner: Tuner) -> State:
    names = weights.features.to_arrays()
    return {
        "features": {name: torch.from_numpy(part) for name, part in names.items()},
        "weights": weights.parameter.detach().double(),
        "tuner": tuner.state_dict(),
    }


def _weights_of(state: State) -> FrozenWeights:
    names = {name: part.numpy() for name, part in state["features"].items()}
    return FrozenWeights(Vocabulary.from_arrays(names), state["weights"].numpy())

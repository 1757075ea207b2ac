"""Damaged checkpoints and accumulated k-best lists."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from forging import damaged

from torchtune_smt.core.rows import Rows
from torchtune_smt.core.weights import Weights
from torchtune_smt.kbest.lists import KBest, KBestLists
from torchtune_smt.kbest.store import ListStore
from torchtune_smt.losses.slope_kernels import HINGE
from torchtune_smt.optim import FobosOscar
from torchtune_smt.regularizers import Oscar
from torchtune_smt.runs.checkpoint import load_checkpoint, save_checkpoint
from torchtune_smt.runs.rounds import Best, Progress, Rounds
from torchtune_smt.samplers import AllPairs, pair_rows
from torchtune_smt.tuners.base import Report, Tuner

_DENSE, _FEATURES = 2, 40
_FINGERPRINT = {"seed": "1", "tuner": "x"}


class _Still(Tuner):
    """Weights with an optimizer."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = Weights([f"dense {i}" for i in range(_DENSE)])
        oscar = Oscar(1e-3, 1e-4)
        self.optimizer = FobosOscar(
            [self.weights.parameter], regularizer=oscar, unregularized=_DENSE
        )

    def round(self, number: int, done: int = 0) -> Iterator[Report]:
        return iter(())

    def state_dict(self) -> dict[str, Any]:
        return self.optimizer.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.optimizer.load_state_dict(state_dict)


def _rows(rows: int, draw: np.random.Generator) -> Rows:
    """Return rows of six features each."""
    columns = [np.sort(draw.choice(_FEATURES, 6, replace=False)) for _ in range(rows)]
    feature = np.concatenate(columns).astype(np.int32)
    return Rows(np.arange(rows + 1) * 6, feature, draw.normal(size=6 * rows).round(2))


def write(path: Path) -> None:
    """Write the checkpoint of a run with an optimizer."""
    tuner = _Still()
    weights = tuner.weights
    weights.features.intern([f"sparse {i}" for i in range(_FEATURES - _DENSE)])
    weights.grow()
    tuner.optimizer.step_rows(_rows(30, np.random.default_rng(1)), HINGE)
    best = Best(1, 41.5, weights.parameter.detach().clone())
    run = Rounds(tuner, lambda: 0.0)
    run.progress = Progress(2, 3, 70, best, torch.ones(_FEATURES - 3).double(), 0, 9, 41.5)
    save_checkpoint(path, weights, run, _FINGERPRINT)


def result(path: Path) -> list[object]:
    """Return what a run that goes on from a checkpoint does."""
    tuner = _Still()
    weights, run = tuner.weights, Rounds(tuner, lambda: 0.0)
    load_checkpoint(path, weights, run, _FINGERPRINT)
    tuner.optimizer.step_rows(_rows(30, np.random.default_rng(2)), HINGE)
    tuner.optimizer.flush()
    names = weights.features.names(range(len(weights.features)))
    return [str(run.progress), names, weights.parameter.tolist()]


def _lists(sentences: range, draw: np.random.Generator) -> KBestLists:
    k = 6
    kbests = [
        KBest(
            index=sentence,
            rows=_rows(k, draw),
            score=draw.normal(size=k),
            gain=draw.random(k),
            token_begin=np.arange(k + 1) * 3,
            tokens=draw.integers(0, 50, 3 * k).astype(np.int32),
        )
        for sentence in sentences
    ]
    lists = KBestLists.of(kbests)
    statistics = draw.integers(0, 9, (lists.n_hypotheses, 10))
    return replace(lists, statistics=statistics.astype(np.int32))


def fill(folder: Path) -> ListStore:
    """Return accumulated lists that lie in a folder."""
    draw = np.random.default_rng(5)
    lists = ListStore(folder=folder, n_dense=_DENSE)
    for _ in range(2):
        lists.add(_lists(range(4), draw))
        lists.end_iteration()
    return lists


@cache
def _state(folder: Path) -> dict[str, Any]:
    return fill(folder).state_dict()


def _use(folder: Path, _: Path) -> list[object]:
    """Return what tuners take from lists; it reads all of their arrays."""
    lists = ListStore.open(folder, n_dense=_DENSE)
    lists.load_state_dict(_state(folder.with_name("another")))
    lists.require(_FEATURES)
    flat = lists.lists()
    pairs = pair_rows(lists, AllPairs(), (1, 2))
    everything = vars(flat) | vars(flat.rows) | {f"pairs' {k}": v for k, v in vars(pairs).items()}
    found = [array.tolist() for array in everything.values() if isinstance(array, np.ndarray)]
    new = lists.add(_lists(range(1), np.random.default_rng(5)))
    return [*found, lists.features().tolist(), new]


TARGETS = {
    "checkpoint": damaged(
        "checkpoint",
        lambda folder: (folder.mkdir(), write(folder / "checkpoint")),
        lambda folder, _: result(folder / "checkpoint"),
    ),
    "lists": damaged("lists", fill, _use),
}

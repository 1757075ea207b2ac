"""Damaged checkpoints and accumulated k-best lists."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
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
from torchtune_smt.optim import FOBOS, SGD, AdaGrad, CumulativeL1, FobosOscar
from torchtune_smt.optim.sparse import SparseOptimizer
from torchtune_smt.regularizers import L1, ElasticNet, Oscar
from torchtune_smt.runs.checkpoint import load_checkpoint, save_checkpoint
from torchtune_smt.runs.rounds import Best, Progress, Rounds
from torchtune_smt.samplers import AllPairs, pair_rows
from torchtune_smt.tuners.base import Report, Tuner

_DENSE, _FEATURES, _ROWS = 2, 40, 30
_OPTIMIZERS: list[Callable[[Weights], SparseOptimizer]] = [
    lambda w: FobosOscar([w.parameter], regularizer=Oscar(1e-3, 1e-4), unregularized=_DENSE),
    lambda w: AdaGrad([w.parameter], regularizer=L1(0.01), unregularized=_DENSE),
    lambda w: FOBOS([w.parameter], regularizer=ElasticNet(0.01, 0.1), unregularized=_DENSE),
    lambda w: SGD([w.parameter], average="step"),
    lambda w: FOBOS([w.parameter], regularizer=L1(0.01), unregularized=_DENSE, average="step"),
    lambda w: CumulativeL1([w.parameter], regularizer=L1(0.01), unregularized=_DENSE),
]
_FINGERPRINT = {"seed": "1", "tuner": "x"}


class _Still(Tuner):
    """Weights with an optimizer."""

    def __init__(self, kind: int) -> None:
        super().__init__()
        self.weights = Weights([f"dense {i}" for i in range(_DENSE)])
        self.optimizer = _OPTIMIZERS[kind](self.weights)

    def round(self, number: int, done: int = 0) -> Iterator[Report]:
        return iter(())

    def state_dict(self) -> dict[str, Any]:
        return self.optimizer.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.optimizer.load_state_dict(state_dict)


def _rows(seed: int) -> Rows:
    draw = np.random.default_rng(seed)
    columns = [np.sort(draw.choice(_FEATURES, 5, replace=False)) for _ in range(_ROWS)]
    feature = np.concatenate(columns).astype(np.int32)
    return Rows(np.arange(_ROWS + 1) * 5, feature, draw.normal(size=5 * _ROWS))


def _work_on(weights: Weights, optimizer: SparseOptimizer) -> list[float]:
    """Return weights after more steps of both kinds."""
    weights.features.intern([f"sparse {i}" for i in range(_FEATURES - _DENSE)])
    weights.grow()
    optimizer.delayed = True
    optimizer.step_rows(_rows(2), HINGE)
    index = torch.tensor([[1, 5, 7]])
    value = torch.tensor([0.1, -0.2, 0.3], dtype=torch.float64)
    weights.parameter.grad = torch.sparse_coo_tensor(index, value, (len(weights),)).coalesce()
    optimizer.step()
    optimizer.catch_up(torch.arange(0, _FEATURES, 3))
    optimizer.end_epoch()
    optimizer.flush()
    found: list[float] = weights.parameter.detach().tolist()
    return found


def write(path: Path, kind: int) -> None:
    """Write the checkpoint of a run with an optimizer of some kind."""
    tuner = _Still(kind)
    weights, optimizer = tuner.weights, tuner.optimizer
    weights.features.intern([f"sparse {i}" for i in range(_FEATURES - _DENSE)])
    weights.grow()
    optimizer.step_rows(_rows(1), HINGE)
    best = Best(1, 41.5, weights.parameter.detach().clone())
    total = torch.ones(_FEATURES - 3, dtype=torch.float64)
    run = Rounds(tuner, lambda: 0.0)
    run.progress = Progress(2, 3, 70, best, total, 0, 9, 41.5)
    save_checkpoint(path, weights, run, _FINGERPRINT)


def result(path: Path, kind: int) -> list[object]:
    """Return what a run that goes on from a checkpoint does."""
    tuner = _Still(kind)
    weights, run = tuner.weights, Rounds(tuner, lambda: 0.0)
    load_checkpoint(path, weights, run, _FINGERPRINT)
    progress = run.progress
    assert progress.best is not None or progress.round > 0
    numbers = [progress.round, progress.done, progress.sentences, progress.records]
    tensors = [progress.best.weights.tolist() if progress.best else None]
    tensors += [progress.total.tolist() if progress.total is not None else None]
    names = weights.features.names(range(len(weights.features)))
    return [numbers, tensors, names, _work_on(weights, tuner.optimizer)]


def _write_all(folder: Path) -> None:
    for kind in range(len(_OPTIMIZERS)):
        (folder / str(kind)).mkdir(parents=True)
        write(folder / str(kind) / "checkpoint", kind)


def _result(folder: Path, name: Path) -> list[object]:
    kind = name.parent.name
    return result(folder / kind / "checkpoint", int(kind))


def _kbest(sentence: int, draw: np.random.Generator) -> KBest:
    k = 6
    rows = [np.sort(draw.choice(_FEATURES, 6, replace=False)) for _ in range(k)]
    tokens = draw.integers(0, 50, 3 * k).astype(np.int32)
    return KBest(
        index=sentence,
        rows=Rows(
            np.arange(k + 1) * 6,
            np.asarray(np.concatenate(rows), np.int32),
            draw.normal(size=6 * k).round(2),
        ),
        score=draw.normal(size=k),
        gain=draw.random(k),
        token_begin=np.arange(k + 1) * 3,
        tokens=tokens,
    )


def _lists(sentences: Iterable[int], draw: np.random.Generator) -> KBestLists:
    kbests = KBestLists.of([_kbest(sentence, draw) for sentence in sentences])
    statistics = draw.integers(0, 9, (kbests.n_hypotheses, 10))
    return replace(kbests, statistics=statistics.astype(np.int32))


def fill(folder: Path) -> ListStore:
    """Return accumulated lists that lie in a folder."""
    draw = np.random.default_rng(5)
    lists = ListStore(folder=folder, n_dense=_DENSE)
    for _ in range(2):
        lists.add(_lists(range(4), draw))
        lists.end_iteration()
    return lists


def _use(lists: ListStore) -> list[object]:
    """Return what tuners take from lists; it reads all of their arrays."""
    lists.require(_FEATURES)
    flat = lists.lists()
    pairs = pair_rows(lists, AllPairs(), (1, 2))
    everything = vars(flat) | vars(flat.rows) | {f"pairs' {k}": v for k, v in vars(pairs).items()}
    found = [array.tolist() for array in everything.values() if isinstance(array, np.ndarray)]
    start = np.linspace(-1, 1, _FEATURES)
    optimizer = SGD([torch.nn.Parameter(torch.from_numpy(start))])
    optimizer.step_rows(pairs, HINGE)
    draw = np.random.default_rng(5)
    new = lists.add(_lists([0], draw))
    return [*found, start.tolist(), lists.features().tolist(), new]


@cache
def _state(folder: Path) -> dict[str, Any]:
    return fill(folder).state_dict()


def _result_of_lists(folder: Path, _: Path) -> list[object]:
    lists = ListStore.open(folder, n_dense=_DENSE)
    lists.load_state_dict(_state(folder.with_name("another")))
    return _use(lists)


TARGETS = {
    "checkpoint": damaged("checkpoint", _write_all, _result),
    "lists": damaged("lists", fill, _result_of_lists),
}

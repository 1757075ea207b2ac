"""Who owns the weights: takes over names of features, and takes steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import cast

import numpy as np
import torch

from torchtune_smt.core.accepts import declared
from torchtune_smt.core.arrays import Float64, Int64, Integers
from torchtune_smt.core.rows import Rows
from torchtune_smt.core.scoring import sparse_vector
from torchtune_smt.core.snapshot import NamedWeights
from torchtune_smt.core.vocabulary import Vocabulary
from torchtune_smt.core.weights import Weights
from torchtune_smt.kbest.lists import KBestLists
from torchtune_smt.losses.base import Loss, PairwiseLoss, is_listwise
from torchtune_smt.optim.adapter import LazyOptimizer, adapted
from torchtune_smt.optim.sparse import SparseOptimizer
from torchtune_smt.samplers import PairSampler
from torchtune_smt.tuners.gradient import Gradient, gradient, pair_gradient, sampled_rows


def take(weights: Weights, lists: KBestLists) -> KBestLists:
    """Return k-best lists in the ids of some weights.

    All names of the lists' vocabulary are added, so ids do not depend on which features lists have.
    """
    if lists.features is None or lists.features is weights.features:
        return lists
    ids = weights.take(lists.features)
    rows = lists.rows
    if not ids.is_identity:
        feature = ids.lookup(rows.feature).astype(np.int32)
        rows = Rows(rows.begin, feature, rows.value).sorted()
    return replace(lists, rows=rows, features=weights.features)


class Learner:
    """Weights with the optimizer, of ``weights.parameter``, that changes them.

    Nobody else changes them, and gradients may come from anywhere. ``weights.version`` counts the
    steps.
    """

    def __init__(self, weights: Weights, optimizer: LazyOptimizer | torch.optim.Optimizer) -> None:
        self.weights = weights
        self.optimizer = adapted(optimizer)
        self._snapshot = _Live(weights, self.optimizer)

    def snapshot(self) -> NamedWeights:
        """Return the weights of the moment, to be read.

        Reading brings just these up to date, where the optimizer puts updates off; another thread
        must not do so during a step, and takes ``weights.frozen()``.
        """
        return self._snapshot

    def take(self, lists: KBestLists) -> KBestLists:
        """Return k-best lists in the ids of the weights; see `take`."""
        return take(self.weights, lists)

    def apply(self, gradient: Gradient, *, max_age: int | None = None) -> None:
        """Take a step along a gradient, and add new features; none if it is of no pairs or lists.

        max_age: how many steps ago the weights may have been read; any by default.

        Raises DivergenceError: it is not finite; the weights are as they were.
        """
        age = self.weights.version - gradient.version
        if max_age is not None and age > max_age:
            raise ValueError(f"the gradient is {age} steps old, and may be {max_age}")
        if gradient.count == 0:
            return
        ids, features = gradient.feature, gradient.features
        if features is not None and features is not self.weights.features:
            spans = features.spans(ids)
            ids = self.weights.features.intern_spans(*spans).astype(np.int64)
        self.weights.grow()
        parameter = self.weights.parameter
        parameter.grad = sparse_vector(
            torch.from_numpy(ids).to(parameter.device),
            torch.from_numpy(gradient.value).to(parameter.device, parameter.dtype),
            parameter.numel(),
            ascending=bool((ids[1:] > ids[:-1]).all()),
        )
        try:
            self.optimizer.step()
        finally:
            parameter.grad = None
        self.weights.version += 1

    def step(
        self,
        lists: KBestLists,
        loss: Loss,
        sampler: PairSampler | None = None,
        seed: Sequence[int] = (),
        *,
        device: torch.device | str = "cpu",
    ) -> tuple[float, int]:
        """Take the step of a loss on k-best lists; with reduction "each", one a pair or list.

        The arguments are those of `gradient`.

        Returns loss: mean over pairs or lists, each before its step; 0 without any.
        Returns count: number of pairs or lists; 0 if no step was taken.
        """
        lists = self.take(lists)
        if loss.reduction != "each":
            found = gradient(lists, self._snapshot, loss, sampler, seed, device=device)
            self.apply(found)
            return found.loss, found.count
        if not is_listwise(loss):
            rows = sampled_rows(lists, sampler, seed)
            self._snapshot.catch_up(rows.numbered()[0])
            every = np.arange(len(rows))
            return self.step_rows(rows, cast(PairwiseLoss, loss), every, device=device), len(rows)
        total, count = 0.0, 0
        for s in range(len(lists)):
            found = gradient(lists.between(s, s + 1), self._snapshot, loss, device=device)
            self.apply(found)
            total += found.loss
            count += found.count
        return total / max(count, 1), count

    def step_rows(
        self, rows: Rows, loss: PairwiseLoss, chosen: Int64, *, device: torch.device | str = "cpu"
    ) -> float:
        """Take the step of a pairwise loss on some pairs; with reduction "each", one a pair.

        rows: the differences H(better) - H(worse), in the ids of the weights.
        chosen: those that are taken, in this order.

        Returns float: mean loss, each before its step; 0 without any.
        """
        if chosen.size == 0:
            return 0.0
        each = loss.reduction == "each"
        slope_kind: int | None = declared(loss, "slope_kind", "__call__") if each else None
        optimizer = self.optimizer
        lazy = isinstance(optimizer, SparseOptimizer) and optimizer.compiled()
        if lazy and slope_kind is not None:
            margins = cast(SparseOptimizer, optimizer).step_rows(rows, slope_kind, order=chosen)
            self.weights.version += chosen.size
            return float(loss(torch.from_numpy(margins)).mean())
        parts = list(chosen.reshape(-1, 1)) if each else [chosen]
        total = 0.0
        for part in parts:
            some = rows.chosen(part)
            found = pair_gradient(some, None, self._snapshot, loss, device=device)
            self.apply(found)
            total += found.loss
        return total / len(parts)


@dataclass(frozen=True)
class _Live:
    """Weights, brought up to date where they are read."""

    weights: Weights
    optimizer: LazyOptimizer

    @property
    def version(self) -> int:
        return self.weights.version

    @property
    def features(self) -> Vocabulary:
        return self.weights.features

    @property
    def n_dense(self) -> int:
        return self.weights.n_dense

    def read(self, features: Vocabulary | None, ids: Integers) -> Float64:
        own = self.weights.own_ids(features, ids)
        self.catch_up(own)
        return self.weights.read(None, own)

    def catch_up(self, ids: Int64) -> None:
        # -1 is nobody's.
        self.weights.grow()
        known = ids if ids.size == 0 or ids.min() >= 0 else ids[ids >= 0]
        index = torch.from_numpy(known.astype(np.int64, copy=False))
        self.optimizer.catch_up(index.to(self.weights.parameter.device))

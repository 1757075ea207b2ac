"""The gradient of a loss on k-best lists: it reads weights, and changes nothing.

So it can be computed in this thread, in another process or on another machine, with the same result
to the last bit; whoever owns the weights applies it (`torchtune_smt.tuners.learner`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from torchtune_smt.core.arrays import Float64, Int64
from torchtune_smt.core.errors import DivergenceError, InputError
from torchtune_smt.core.rows import Rows
from torchtune_smt.core.scoring import score_rows
from torchtune_smt.core.snapshot import Snapshot
from torchtune_smt.core.vocabulary import Vocabulary
from torchtune_smt.kbest.lists import KBestLists
from torchtune_smt.losses.base import (
    ListwiseLoss,
    Loss,
    PairwiseLoss,
    check_losses,
    is_listwise,
    listwise_losses,
    reduce,
)
from torchtune_smt.samplers import PairSampler, list_pairs


@dataclass(frozen=True)
class Gradient:
    """The sparse gradient of a mini-batch.

    It may be pickled: only the names of its own features go with it.

    feature, value (int64, float64 [u]): ids ascend.
    features: in which the ids are; None: they are the learner's.
    version: of the weights that it was computed at.
    loss: mean over the pairs or lists; 0 without any.
    count: of pairs or lists; without any there is no step to take.
    """

    feature: Int64
    value: Float64
    features: Vocabulary | None
    version: int
    loss: float
    count: int

    def __getstate__(self) -> dict[str, Any]:
        """Number the features anew, over a vocabulary of them alone."""
        state = dict(self.__dict__)
        if self.features is not None:
            state["features"] = self.features.part(self.feature)
            state["feature"] = np.arange(self.feature.size)
        return state


def gradient(
    lists: KBestLists,
    snapshot: Snapshot,
    loss: Loss,
    sampler: PairSampler | None = None,
    seed: Sequence[int] = (),
    *,
    device: torch.device | str = "cpu",
) -> Gradient:
    """Return the gradient of the sum, or the mean, of a loss on k-best lists.

    lists: with gains.
    loss: its reduction says whether the sum or the mean is taken; "each" counts as "sum".
    sampler: chooses the pairs; listwise losses need none.
    seed: the pairs of a list are drawn with ``(*seed, its index)``.
    device: where scores and loss are computed.

    Raises InputError: what a loss or sampler of a user's class gives is not what it must be.
    ValueError: a pairwise loss has no sampler.
    DivergenceError: a value of the loss is not finite.
    """
    if is_listwise(loss):
        return _list_gradient(lists, snapshot, loss, device)
    rows = sampled_rows(lists, sampler, seed)
    return pair_gradient(rows, lists.features, snapshot, cast(PairwiseLoss, loss), device=device)


def sampled_rows(lists: KBestLists, sampler: PairSampler | None, seed: Sequence[int]) -> Rows:
    """Return H(better) - H(worse) of the pairs that a sampler, which must be there, chooses."""
    if sampler is None:
        raise ValueError("a pairwise loss needs a sampler of pairs")
    return lists.rows.differences(list_pairs(lists, sampler, seed))


class NoPairsError(InputError):
    """There is nothing to learn from."""


def check_pairs(count: int) -> None:
    """Raise NoPairsError if all lists together have no pair: they would come again as they are."""
    if count == 0:
        raise NoPairsError(
            "no list has a pair of hypotheses to learn from: their gains are equal, or differ by "
            "less than sampler.threshold. Lower it, let lists be longer (decoder.k), or start "
            "from weights that give translations with some words right"
        )


def pair_gradient(
    rows: Rows,
    features: Vocabulary | None,
    snapshot: Snapshot,
    loss: PairwiseLoss,
    *,
    device: torch.device | str = "cpu",
) -> Gradient:
    """Return the gradient of a loss on pairs; else as `gradient`.

    rows: the differences H(better) - H(worse), in the ids of `features`, or of the snapshot.
    """

    def losses(margins: Tensor) -> Tensor:
        return check_losses(loss(margins), loss, margins)

    return _gradient(rows, features, snapshot, loss, losses, device)


def _list_gradient(
    lists: KBestLists, snapshot: Snapshot, loss: ListwiseLoss, device: torch.device | str
) -> Gradient:
    """Return the gradient on lists; those of one hypothesis have nothing to choose from.

    What all hypotheses of a list share has no gradient, not even by rounding.
    """
    sizes = np.diff(lists.begin)
    if (sizes < 2).any() or (sizes[1:] < sizes[:-1]).any():
        by_size = np.argsort(sizes, kind="stable")
        by_size = by_size[sizes[by_size] > 1]
        lists = lists.some(by_size)

    def losses(scores: Tensor) -> Tensor:
        gains = torch.from_numpy(finite_gains(lists)).to(scores)
        begin = torch.from_numpy(lists.begin).to(scores.device)
        return listwise_losses(loss, scores, gains, begin)

    return _gradient(lists.rows, lists.features, snapshot, loss, losses, device)


def finite_gains(lists: KBestLists) -> Float64:
    """Return all gains; raise ValueError if there are none, or some are not finite."""
    gain = lists.gain
    if gain is not None and np.isfinite(gain).all():
        return gain
    return np.concatenate([np.empty(0), *(kbest.finite_gains() for kbest in lists)])


def _gradient(
    rows: Rows,
    features: Vocabulary | None,
    snapshot: Snapshot,
    loss: Loss,
    losses_of: Callable[[Tensor], Tensor],
    device: torch.device | str,
) -> Gradient:
    """Return the gradient of what `losses_of` makes of the scores of rows, or margins."""
    feature, numbered = rows.numbered()
    values = snapshot.read(features, feature)
    # A caller may be somebody who needs no gradients.
    with torch.inference_mode(False), torch.enable_grad():
        weight = torch.from_numpy(values).to(device).requires_grad_()
        losses = losses_of(score_rows(numbered, weight, drop_noise=is_listwise(loss)))
        if losses.numel():
            torch.autograd.backward(reduce(losses, loss.reduction))
    version = snapshot.version
    if losses.numel() == 0:
        return Gradient(feature[:0], np.empty(0), features, version, 0.0, 0)
    if weight.grad is None:
        of = "scores" if is_listwise(loss) else "margins"
        raise InputError(f"the loss {type(loss).__name__} does not depend on the {of} it is given")
    places = weight.grad._indices()[0].cpu().numpy()
    value: Float64 = weight.grad._values().cpu().numpy()
    mean = float(losses.detach().mean())
    # Of a gradient that is not finite the optimizer says so.
    if not math.isfinite(mean) and np.isfinite(value).all() and not losses.isfinite().all():
        raise DivergenceError(
            f"a value of the loss {type(loss).__name__} is not finite: lower the learning rate, "
            "and check the feature values and gains of the k-best lists"
        )
    return Gradient(feature[places], value, features, version, mean, losses.numel())

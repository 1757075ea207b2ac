"""The step of an optimizer on the loss of a mini-batch of k-best lists."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import cast

import numpy as np
import torch
from torch import Tensor

from torchtune_smt.core.arrays import Float64, Int64
from torchtune_smt.core.errors import InputError
from torchtune_smt.core.rows import Rows
from torchtune_smt.core.scoring import SparseRows, bring_up_to_date
from torchtune_smt.core.shortcuts import declared
from torchtune_smt.core.weights import Readable
from torchtune_smt.kbest.lists import KBest
from torchtune_smt.losses.base import ListwiseLoss, Loss, PairwiseLoss, is_listwise, reduce
from torchtune_smt.optim.base import LazyOptimizer
from torchtune_smt.optim.sparse import SparseOptimizer


def take_step(
    weights: Readable,
    optimizer: LazyOptimizer,
    loss: Loss,
    kbests: Sequence[KBest],
    sample: Callable[[KBest], Int64],
) -> tuple[float, int]:
    """Take a step on k-best lists with gains, with a loss of either kind.

    Parameters
    ----------
    weights, optimizer, loss, kbests
        As for `pairwise_step` and `listwise_step`.
    sample : callable
        Returns pairs (int64 [p, 2]) from a list; not asked by listwise losses.

    Returns
    -------
    loss : float
        Mean over pairs or lists.
    count : int
        Number of pairs or lists; 0 if no step was taken.
    """
    if is_listwise(loss):
        return listwise_step(weights, optimizer, loss, kbests)
    pairs = [sample(kbest) for kbest in kbests]
    return pairwise_step(weights, optimizer, cast(PairwiseLoss, loss), kbests, pairs)


def check_pairs(count: int) -> None:
    """Raise InputError if all lists together have no pair, or there is no list of two hypotheses.

    The weights that stay as they are would bring the same lists again: to go on is of no use.
    """
    if count == 0:
        raise InputError(
            "no list has a pair of hypotheses to learn from: their gains are equal, or differ by "
            "less than sampler.threshold. Lower it, let lists be longer (decoder.k), or start "
            "from weights that give translations with some words right"
        )


def pairwise_step(
    weights: Readable,
    optimizer: LazyOptimizer,
    loss: PairwiseLoss,
    kbests: Sequence[KBest],
    pairs: Sequence[Int64],
) -> tuple[float, int]:
    """Take the step, or with reduction "each" the steps, of a pairwise loss.

    Parameters
    ----------
    weights : Weights
        Changed through `optimizer`.
    optimizer : LazyOptimizer
        Of ``weights.parameter``.
    loss : PairwiseLoss
    kbests, pairs
        As for `SparseRows.differences`.

    Returns
    -------
    loss : float
        Mean over the pairs, each before its step; 0 without pairs, and then no step is taken.
    pairs : int
        Their number.
    """
    parts = zip(kbests, pairs, strict=True)
    rows = Rows.joined([kbest.rows.differences(chosen) for kbest, chosen in parts])
    if len(rows) == 0:
        return 0.0, 0
    numbered = SparseRows.of(rows)
    bring_up_to_date(weights, numbered)
    if loss.reduction != "each":
        return _step_on_all(weights, optimizer, loss, numbered), len(rows)
    return rows_step(weights, optimizer, loss, rows, np.arange(len(rows))), len(rows)


def rows_step(
    weights: Readable,
    optimizer: LazyOptimizer,
    loss: PairwiseLoss,
    rows: Rows,
    chosen: Int64,
) -> float:
    """Take the step, or with reduction "each" the steps, of a pairwise loss on some pairs.

    Parameters
    ----------
    weights, optimizer, loss
        As for `pairwise_step`.
    rows : Rows
        The differences H(better) - H(worse).
    chosen : int64 [n]
        The rows to be taken (one at least), in this order.

    Returns
    -------
    float
        Mean loss, each before its step.
    """
    if loss.reduction != "each":
        return _step_on_chosen(weights, optimizer, loss, rows, chosen)
    slope: int | None = declared(loss, "slope", "__call__")
    if slope is not None and isinstance(optimizer, SparseOptimizer) and optimizer.compiled():
        margins = optimizer.step_rows(rows, slope, order=chosen)
        return float(loss(torch.from_numpy(margins)).mean())
    total = 0.0
    for number in chosen:
        total += _step_on_chosen(weights, optimizer, loss, rows, np.array([number]))
    return total / chosen.size


def _step_on_chosen(
    weights: Readable, optimizer: LazyOptimizer, loss: PairwiseLoss, rows: Rows, chosen: Int64
) -> float:
    """Take one step on some rows; return their mean loss before it."""
    some = SparseRows.of(rows.chosen(chosen))
    bring_up_to_date(weights, some)
    return _step_on_all(weights, optimizer, loss, some)


def _step_on_all(
    weights: Readable, optimizer: LazyOptimizer, loss: PairwiseLoss, rows: SparseRows
) -> float:
    """Take one step on rows that are up to date; return their mean loss before it."""
    losses = loss(rows.scores(weights.parameter))
    _step(optimizer, reduce(losses, loss.reduction))
    return float(losses.detach().mean())


def listwise_step(
    weights: Readable, optimizer: LazyOptimizer, loss: ListwiseLoss, kbests: Sequence[KBest]
) -> tuple[float, int]:
    """Take the step, or with reduction "each" the steps, of a listwise loss.

    Lists of one hypothesis have nothing to choose from and are left out.

    Parameters
    ----------
    weights, optimizer
        As for `pairwise_step`.
    loss : ListwiseLoss
    kbests : sequence of KBest
        With gains.

    Returns
    -------
    loss : float
        Mean over the lists, each before its step; 0 without lists, and then no step is taken.
    lists : int
        Number of lists with two hypotheses or more.

    Raises
    ------
    ValueError
        A list has no gains, or one of them is not finite.
    """
    chosen = [kbest for kbest in kbests if len(kbest) > 1]
    if not chosen:
        return 0.0, 0
    batches = [[kbest] for kbest in chosen] if loss.reduction == "each" else [chosen]
    total = 0.0
    for batch in batches:
        losses = list_losses(weights, loss, batch)
        _step(optimizer, reduce(losses, loss.reduction))
        total += float(losses.detach().sum())
    return total / len(chosen), len(chosen)


def list_losses(weights: Readable, loss: ListwiseLoss, kbests: Sequence[KBest]) -> Tensor:
    """Return the losses of some k-best lists, connected to ``weights.parameter``.

    What all hypotheses of a list share has no gradient, not even by rounding.

    Parameters
    ----------
    kbests : sequence of KBest
        With gains.

    Returns
    -------
    tensor [lists]
        In ascending order of length, lists of one length as given.
    """
    kbests = sorted(kbests, key=len)
    gains = [kbest.finite_gains() for kbest in kbests]
    rows = SparseRows.of_lists(kbests)
    bring_up_to_date(weights, rows)
    scores = rows.scores(weights.parameter, drop_noise=True)
    return torch.cat(
        [loss(some_scores, some_gains) for some_scores, some_gains in _by_length(scores, gains)]
    )


def _by_length(scores: Tensor, gains: list[Float64]) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the scores and gains of lists of equal length as matrices."""
    first, begin = 0, 0
    while first < len(gains):
        length, last = gains[first].size, first
        while last < len(gains) and gains[last].size == length:
            last += 1
        end = begin + (last - first) * length
        some_scores = scores[begin:end].view(-1, length)
        # As differences to the best score. Where its probability is next to 1, the derivative of
        # its own score is lost in rounding; now it is minus the sum of the others.
        best = some_scores.detach().argmax(1, keepdim=True)
        some_gains = torch.from_numpy(np.stack(gains[first:last]))
        yield some_scores - some_scores.gather(1, best), some_gains.to(scores)
        first, begin = last, end


def _step(optimizer: LazyOptimizer, total: Tensor) -> None:
    optimizer.zero_grad()
    torch.autograd.backward(total)
    optimizer.step()

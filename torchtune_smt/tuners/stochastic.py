"""Any loss, regulariser and optimizer on accumulated k-best lists, in passes of random order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from torchtune_smt.core.accepts import Checked, accepting, integer
from torchtune_smt.core.arrays import Float64, Int64
from torchtune_smt.core.checks import DEVICE, check_device
from torchtune_smt.core.errors import InputError
from torchtune_smt.core.rows import Rows
from torchtune_smt.core.scoring import sparse_vector, without_noise
from torchtune_smt.core.weights import Weights
from torchtune_smt.kbest.lists import KBestLists
from torchtune_smt.losses.base import (
    Loss,
    PairwiseLoss,
    check_loss,
    check_losses,
    is_listwise,
    reduce,
)
from torchtune_smt.losses.lists import listwise_losses
from torchtune_smt.optim.adapter import Shifted, check_averages
from torchtune_smt.samplers import PairSampler, pair_rows
from torchtune_smt.tuners.gradient import check_pairs, finite_gains
from torchtune_smt.tuners.learner import Learner
from torchtune_smt.tuners.solver import TOWARDS, Solution, Towards


@dataclass(frozen=True)
class Stochastic(Checked):
    """Minimises a regularised loss by steps on pairs or lists in random order.

    Each call begins at the weights that decoded, with a new optimizer, and takes `passes` passes
    over all pairs, or all lists where the loss is listwise, each in a new random order. The L1
    baseline of Liu et al. (2013) is the hinge after each pair with `CumulativeL1`.

    sampler: not asked by listwise losses.
    loss: with reduction "each" a step is taken after each pair or list.
    optimizer: returns a new optimizer of a list of parameters, such as ``functools.partial(FOBOS,
        ...)``.
    batch_size: pairs or lists of a step, with reduction "sum" or "mean".
    average: the weights are those that the optimizer has averaged.
    towards ("zero", "start"): what the regulariser pulls weights to; "start": its norm is of what
        they differ by from those that the call begins at.
    device ("cpu", "cuda"): where steps are taken.

    Raises ValueError: a value is out of range, or the device is not there.
    """

    accepts = accepting(passes=integer(1), batch_size=integer(1), towards=TOWARDS, device=DEVICE)

    sampler: PairSampler
    loss: Loss
    optimizer: Callable[[list[Tensor]], torch.optim.Optimizer]
    passes: int = 20
    batch_size: int = 100
    average: bool = False
    towards: Towards = "zero"
    device: str = "cpu"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_loss(self.loss)
        check_device(self.device)

    @property
    def takes_pairs(self) -> bool:
        """Whether the loss is one of pairs."""
        return not is_listwise(self.loss)

    def solve(self, lists: KBestLists, start: Float64, seed: Sequence[int]) -> Solution:
        """Return weights for the lists; see `Solver.solve`.

        The report has the mean ``loss`` in the last pass, and the number of ``pairs`` or ``lists``
        of a pass. `seed` decides on the pairs and on the order.

        Raises InputError: there are no pairs, or no lists with two hypotheses. DivergenceError:
        numbers are not finite any more. ValueError: an average is wanted, and the optimizer has
        none.
        """
        loss = self.loss
        if not is_listwise(loss):
            return self.solve_pairs(pair_rows(lists, self.sampler, seed), start, seed)
        usable: Int64 = np.flatnonzero(np.diff(lists.begin) > 1)
        if usable.size == 0:
            raise InputError(
                "no list has two hypotheses to choose from; let lists be longer (decoder.k)"
            )
        learner = self._begin(start)

        def step(chosen: Int64) -> float:
            return learner.step(lists.some(chosen), loss, device=self.device)[0]

        if self._stays:
            gains = torch.from_numpy(finite_gains(lists)).to(self.device)

            def list_losses(scores: Tensor, row: Tensor, chosen: Int64) -> Tensor:
                sizes = np.diff(lists.begin)[chosen]
                begin = torch.from_numpy(np.append(0, sizes.cumsum())).to(self.device)
                return listwise_losses(loss, scores, gains.index_select(0, row), begin)

            there = _Rows(lists.rows, lists.begin, self.device)
            stay = there.step_of(learner, loss, list_losses, drop_noise=True)
            return self._passes(learner, usable, stay, seed, "lists")

        return self._passes(learner, usable, step, seed, "lists")

    def solve_pairs(self, pairs: Rows, start: Float64, seed: Sequence[int]) -> Solution:
        """Return weights for pairs; else as `solve`."""
        check_pairs(len(pairs))
        learner = self._begin(start)
        loss = cast(PairwiseLoss, self.loss)

        def step(chosen: Int64) -> float:
            return learner.step_rows(pairs, loss, chosen, device=self.device)

        if self._stays:

            def pair_losses(margins: Tensor, row: Tensor, chosen: Int64) -> Tensor:
                return check_losses(loss(margins), loss, margins)

            there = _Rows(pairs, np.arange(len(pairs) + 1), self.device)
            stay = there.step_of(learner, loss, pair_losses, drop_noise=False)
            return self._passes(learner, np.arange(len(pairs)), stay, seed, "pairs")

        return self._passes(learner, np.arange(len(pairs)), step, seed, "pairs")

    @property
    def _stays(self) -> bool:
        """Whether all that steps need is on the device, and stays there."""
        return self.device != "cpu" and self.loss.reduction != "each"

    def _begin(self, start: Float64) -> Learner:
        """Return weights with a new optimizer."""
        weights = Weights.without_names(start, self.device)
        optimizer: Any = self.optimizer([weights.parameter])
        if self.towards == "start":
            optimizer = Shifted(optimizer, weights)
        learner = Learner(weights, optimizer)
        if self.average:
            check_averages(learner.optimizer)
        return learner

    def _passes(
        self,
        learner: Learner,
        items: Int64,
        step: Callable[[Int64], float],
        seed: Sequence[int],
        name: str,
    ) -> Solution:
        """Take all passes; `step` returns the mean loss of some items."""
        optimizer: Any = learner.optimizer
        generator = np.random.default_rng(seed)
        size = items.size if self.loss.reduction == "each" else self.batch_size
        mean = 0.0
        for _ in range(self.passes):
            order = generator.permutation(items)
            parts = [order[begin : begin + size] for begin in range(0, order.size, size)]
            mean = float(sum(step(part) * part.size for part in parts) / order.size)
            optimizer.end_epoch()
        optimizer.flush()
        final = optimizer.averaged() if self.average else learner.weights.parameter
        values = final.detach().to("cpu", torch.float64).numpy()
        return Solution(values, {"loss": mean, name: items.size})


class _Rows:
    """Rows on a device, where those that a step takes are put together.

    rows: in the ids of the weights.
    begin (int64 [items + 1]): the first row of each list, or pair.
    """

    def __init__(self, rows: Rows, begin: Int64, device: torch.device | str) -> None:
        self.begin, self.row_begin, self.device = begin, rows.begin, device
        self.starts = torch.from_numpy(rows.begin).to(device)
        self.feature = torch.from_numpy(rows.feature.astype(np.int64)).to(device)
        self.value = torch.from_numpy(rows.value).to(device)

    def step_of(
        self,
        learner: Learner,
        loss: Loss,
        losses_of: Callable[[Tensor, Tensor, Int64], Tensor],
        *,
        drop_noise: bool,
    ) -> Callable[[Int64], Any]:
        """Return a function that takes a step on some items, and returns their mean loss, there.

        losses_of: of the scores of all rows, the rows, and the items.
        drop_noise: see `torchtune_smt.core.scoring.score_rows`.
        """
        optimizer, weight = learner.optimizer, learner.weights.parameter

        def step(items: Int64) -> Tensor:
            begin, end = self.begin[items], self.begin[items + 1]
            row = _spread(begin, end - begin)
            sizes = self.row_begin[row + 1] - self.row_begin[row]
            rows = torch.from_numpy(row).to(self.device)
            length = torch.from_numpy(sizes).to(self.device)
            number = torch.arange(row.size, device=self.device)
            total = int(sizes.sum())
            owner = number.repeat_interleave(length, output_size=total)
            place = self.starts.index_select(0, rows) - (length.cumsum(0) - length)
            place = place.index_select(0, owner) + torch.arange(total, device=self.device)
            feature = self.feature.index_select(0, place)
            value = self.value.index_select(0, place).to(weight.dtype)
            optimizer.catch_up(feature)
            with torch.inference_mode(False), torch.enable_grad():
                chosen = weight.detach().index_select(0, feature).requires_grad_()
                scores = chosen.new_zeros(row.size).index_add(0, owner, chosen * value)
                losses = losses_of(scores, rows, items)
                torch.autograd.backward(reduce(losses, loss.reduction))
            parts = chosen.grad
            assert parts is not None
            if drop_noise:
                feature, parts = without_noise(feature, parts)
            weight.grad = sparse_vector(feature, parts, weight.numel(), ascending=False)
            optimizer.step()
            weight.grad = None
            learner.weights.version += 1
            return losses.detach().mean()

        return step


def _spread(begin: Int64, sizes: Int64) -> Int64:
    """Return begin[i], begin[i] + 1, ..., so many for each i."""
    within = np.arange(sizes.sum()) - np.repeat(sizes.cumsum() - sizes, sizes)
    result: Int64 = np.repeat(begin, sizes) + within
    return result

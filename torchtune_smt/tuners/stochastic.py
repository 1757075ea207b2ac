"""Any loss, regulariser and optimizer on accumulated k-best lists, in passes of random order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from torchtune_smt.core.accepts import Checked, accepting, integer
from torchtune_smt.core.arrays import Float64, Int64
from torchtune_smt.core.checks import DEVICE, check_device
from torchtune_smt.core.errors import InputError
from torchtune_smt.core.offsets import offsets, places_of
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
    listwise_losses,
    reduce,
)
from torchtune_smt.optim.adapter import Shifted, check_averages
from torchtune_smt.samplers import PairSampler, pair_rows
from torchtune_smt.tuners.gradient import check_pairs, finite_gains
from torchtune_smt.tuners.learner import Learner
from torchtune_smt.tuners.solver import TOWARDS, Solution, Towards

Step = Callable[[Int64], Any]
"""Takes a step on some lists, or pairs, and returns their mean loss, perhaps on the device."""


@dataclass(frozen=True)
class Stochastic(Checked):
    """Minimises a regularised loss by steps on pairs or lists in random order.

    Each call begins at the weights that decoded, with a new optimizer, and takes `passes` passes
    over all pairs, or all lists where the loss is listwise, each in a new random order. The L1
    baseline of Liu et al. (2013) is the hinge after each pair with `CumulativeL1`.

    sampler: not asked by listwise losses.
    optimizer: returns a new optimizer of a list of parameters, such as ``functools.partial(FOBOS,
        ...)``.
    batch_size: pairs or lists of a step, with reduction "sum" or "mean".
    average: the weights are those that the optimizer has averaged.
    towards ("zero", "start"): what the regulariser pulls weights to; "start": its norm is of what
        they differ by from those that the call begins at.
    device ("cpu", "cuda"): where steps are taken.
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

        The report has the mean ``loss`` in the last pass, and the number of ``pairs`` or ``lists``.

        Raises InputError: there are no pairs, or no lists with two hypotheses. DivergenceError:
        numbers are not finite any more.
        """
        loss = self.loss
        if not is_listwise(loss):
            return self.solve_pairs(pair_rows(lists, self.sampler, seed), start, seed)
        sizes = np.diff(lists.begin)
        usable: Int64 = np.flatnonzero(sizes > 1)
        if usable.size == 0:
            raise InputError("no list has two hypotheses to choose from: raise decoder.k")
        learner = self._begin(start)

        def step(chosen: Int64) -> float:
            return learner.step(lists.some(chosen), loss, device=self.device)[0]

        if not self._stays:
            return self._passes(learner, usable, step, seed, "lists")
        gains = torch.from_numpy(finite_gains(lists)).to(self.device)

        def list_losses(scores: Tensor, row: Tensor, chosen: Int64) -> Tensor:
            begin = torch.from_numpy(offsets(sizes[chosen])).to(self.device)
            return listwise_losses(loss, scores, gains.index_select(0, row), begin)

        stay = self._on_device(learner, lists.rows, lists.begin, list_losses)
        return self._passes(learner, usable, stay, seed, "lists")

    def solve_pairs(self, pairs: Rows, start: Float64, seed: Sequence[int]) -> Solution:
        """See `solve`."""
        check_pairs(len(pairs))
        learner = self._begin(start)
        loss = cast(PairwiseLoss, self.loss)
        step: Step = partial(learner.step_rows, pairs, loss, device=self.device)
        if self._stays:

            def pair_losses(margins: Tensor, row: Tensor, chosen: Int64) -> Tensor:
                return check_losses(loss(margins), loss, margins)

            step = self._on_device(learner, pairs, np.arange(len(pairs) + 1), pair_losses)
        return self._passes(learner, np.arange(len(pairs)), step, seed, "pairs")

    @property
    def _stays(self) -> bool:  # on the device, as all that steps need does
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
        self, learner: Learner, items: Int64, step: Step, seed: Sequence[int], name: str
    ) -> Solution:
        """Take all passes."""
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

    def _on_device(
        self,
        learner: Learner,
        rows: Rows,
        begin: Int64,
        losses_of: Callable[[Tensor, Tensor, Int64], Tensor],
    ) -> Step:
        """Return steps whose rows stay on the device, where those that one takes are put together.

        begin (int64 [items + 1]): the first row of each list, or pair.
        losses_of: of the scores of all rows, the rows, and the items.
        """
        device, optimizer, weight = self.device, learner.optimizer, learner.weights.parameter
        starts = torch.from_numpy(rows.begin).to(device)
        features = torch.from_numpy(rows.feature.astype(np.int64)).to(device)
        values = torch.from_numpy(rows.value).to(device)

        def step(items: Int64) -> Tensor:
            row = places_of(begin, items)[1]
            sizes = rows.begin[row + 1] - rows.begin[row]
            chosen_rows = torch.from_numpy(row).to(device)
            length = torch.from_numpy(sizes).to(device)
            number = torch.arange(row.size, device=device)
            total = int(sizes.sum())
            owner = number.repeat_interleave(length, output_size=total)
            place = starts.index_select(0, chosen_rows) - (length.cumsum(0) - length)
            place = place.index_select(0, owner) + torch.arange(total, device=device)
            feature = features.index_select(0, place)
            value = values.index_select(0, place).to(weight.dtype)
            optimizer.catch_up(feature)
            with torch.inference_mode(False), torch.enable_grad():
                chosen = weight.detach().index_select(0, feature).requires_grad_()
                scores = chosen.new_zeros(row.size).index_add(0, owner, chosen * value)
                losses = losses_of(scores, chosen_rows, items)
                torch.autograd.backward(reduce(losses, self.loss.reduction))
            parts = chosen.grad
            assert parts is not None
            if is_listwise(self.loss):
                feature, parts = without_noise(feature, parts)
            weight.grad = sparse_vector(feature, parts, weight.numel(), ascending=False)
            optimizer.step()
            weight.grad = None
            learner.weights.version += 1
            return losses.detach().mean()

        return step

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
from torchtune_smt.core.weights import Weights
from torchtune_smt.kbest.lists import KBestLists
from torchtune_smt.losses.base import Loss, PairwiseLoss, check_loss, is_listwise
from torchtune_smt.optim.adapter import check_averages
from torchtune_smt.samplers import PairSampler, pair_rows
from torchtune_smt.tuners.gradient import check_pairs
from torchtune_smt.tuners.learner import Learner
from torchtune_smt.tuners.solver import Solution


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
    device ("cpu", "cuda"): where steps are taken.

    Raises ValueError: a value is out of range, or the device is not there.
    """

    accepts = accepting(passes=integer(1), batch_size=integer(1), device=DEVICE)

    sampler: PairSampler
    loss: Loss
    optimizer: Callable[[list[Tensor]], torch.optim.Optimizer]
    passes: int = 20
    batch_size: int = 100
    average: bool = False
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

        return self._passes(learner, usable, step, seed, "lists")

    def solve_pairs(self, pairs: Rows, start: Float64, seed: Sequence[int]) -> Solution:
        """Return weights for pairs; else as `solve`."""
        check_pairs(len(pairs))
        learner = self._begin(start)
        loss = cast(PairwiseLoss, self.loss)

        def step(chosen: Int64) -> float:
            return learner.step_rows(pairs, loss, chosen, device=self.device)

        return self._passes(learner, np.arange(len(pairs)), step, seed, "pairs")

    def _begin(self, start: Float64) -> Learner:
        """Return weights with a new optimizer."""
        weights = Weights.without_names(start, self.device)
        learner = Learner(weights, self.optimizer([weights.parameter]))
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
            mean = sum(step(part) * part.size for part in parts) / order.size
            optimizer.end_epoch()
        optimizer.flush()
        final = optimizer.averaged() if self.average else learner.weights.parameter
        values = final.detach().to("cpu", torch.float64).numpy()
        return Solution(values, {"loss": mean, name: items.size})

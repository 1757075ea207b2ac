"""Online tuning: decode a mini-batch with the weights of the moment, take one step."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass
from typing import Any, Final

import numpy as np
import torch

from torchtune_smt.core.accepts import SWITCH, accepting, integer
from torchtune_smt.core.archive import well_formed, whole
from torchtune_smt.core.arrays import Int64
from torchtune_smt.core.weights import Weights
from torchtune_smt.decoders.base import Decoder, lists_of
from torchtune_smt.kbest.lists import KBestLists, Source
from torchtune_smt.kbest.sentences import Sentences
from torchtune_smt.losses import Loss
from torchtune_smt.metrics.base import BoundMetric, with_gains
from torchtune_smt.optim.adapter import Shifted, check_averages, learning_rate
from torchtune_smt.optim.sparse import with_updates_put_off
from torchtune_smt.samplers import PairSampler
from torchtune_smt.tuners.base import Report, Tuner
from torchtune_smt.tuners.gradient import check_pairs
from torchtune_smt.tuners.learner import Learner
from torchtune_smt.tuners.solver import TOWARDS, Towards

OUTSIDE_DECODING: Final = "speed/milliseconds_outside_decoding"
"""In the log: for each sentence of a mini-batch, gains, pairs, gradient and step."""


@dataclass(eq=False, repr=False)
class OnlineTuner(Tuner):
    """Pairwise online tuning (Green et al. 2013, Algorithm 1; Simianer et al. 2012, Algorithm 1).

    weights: changed in place, through `optimizer`, which is of ``weights.parameter``.
    metric: gains, for the references of the sentences tuned on.
    loss: a listwise one does not ask the sampler.
    batch_size: sentences decoded under the same weights; 20 in Green et al.
    shuffle: take the sentences in a new random order each epoch, or as given.
    seed: of the order and of the pairs.
    average: the average of a run's weights is what ``optimizer.averaged()`` returns.
    towards ("zero", "start"): what the regulariser pulls weights to; "start": its norm is of what
        they differ by from those that tuning begins at.
    """

    unit = "epoch"
    advice = "a smaller optimizer.lr, fewer features, a stronger regularizer or more sentences"
    results = ("best", "last", "average")
    accepts = accepting(batch_size=integer(1), shuffle=SWITCH, towards=TOWARDS)

    decoder: Decoder
    weights: Weights
    sentences: Sentences
    metric: BoundMetric
    sampler: PairSampler
    loss: Loss
    optimizer: Any
    _: KW_ONLY
    batch_size: int = 20
    shuffle: bool = True
    seed: int = 0
    average: bool = False
    towards: Towards = "zero"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.towards == "start":
            self.optimizer = Shifted(self.optimizer, self.weights)
        self.learner = Learner(self.weights, self.optimizer)
        self.optimizer = self.learner.optimizer
        if self.average:
            check_averages(self.optimizer)
        # Pairs, or lists, that the epoch has found so far. There may have been some where it is
        # taken up again, unless a state says that there were none.
        self.found = 1

    def round(self, number: int, done: int = 0) -> Iterator[Report]:
        """Go once through the sentences, yielding after each mini-batch.

        Raises InputError: the first epoch has found no pair to learn from.
        """
        if not done:
            self.found = 0
        for chosen in self.batches(number)[done:]:
            start = time.perf_counter()
            sources = self.sources(chosen)
            lists = lists_of(self.decoder, sources, self.learner.snapshot())
            decoded = time.perf_counter()
            lists = with_gains(self.metric, lists)
            loss, pairs = self.step(lists, number)
            gain = mean_gain(lists)
            end = time.perf_counter()
            self.found += pairs
            numbers = {
                **self.numbers(loss, gain, pairs),
                "speed/sentences_per_second": chosen.size / (end - start),
                OUTSIDE_DECODING: 1e3 * (end - decoded) / chosen.size,
            }
            yield Report("step", numbers, f"gain {gain:.4f}", chosen.size)
        if number == 1:
            check_pairs(self.found)
        self.optimizer.flush()
        self.optimizer.end_epoch()

    def batches(self, number: int) -> list[Int64]:
        """Return the sentences of each mini-batch of an epoch."""
        order = np.arange(len(self.sentences))
        if self.shuffle:
            order = np.random.default_rng((self.seed, number)).permutation(order)
        return [order[i : i + self.batch_size] for i in range(0, order.size, self.batch_size)]

    def sources(self, chosen: Int64) -> list[Source]:
        """Return the sources of some sentences."""
        return [self.sentences.sources[i] for i in chosen]

    def numbers(self, loss: float, gain: float, pairs: int) -> dict[str, float]:
        """Return what the log is to have of a mini-batch."""
        return {
            "train/loss": loss,
            "train/gain": gain,
            "train/pairs": pairs,
            "train/lr": learning_rate(self.optimizer),
        }

    def summary(self, kept: bool) -> Report:
        """Return how many features have a weight."""
        active = int(self.weights.parameter.count_nonzero())
        return Report("round", text=f"{active:,} active features")

    def averaged(self) -> torch.Tensor | None:
        """See `Tuner`."""
        return self.optimizer.averaged() if self.average else None

    def state_dict(self) -> dict[str, Any]:
        """Return the optimizer's, and how many pairs the epoch has found."""
        with with_updates_put_off():
            return {**self.learner.optimizer.state_dict(), "found": self.found}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over what `state_dict` gave."""
        with well_formed():
            optimizer = dict(state_dict)
            found = whole(optimizer.pop("found"), 0)
        self.optimizer.load_state_dict(optimizer)
        self.found = found

    def step(self, lists: KBestLists, epoch: int) -> tuple[float, int]:
        """Take one step on lists with gains; return mean loss and number of pairs, or lists."""
        return self.learner.step(lists, self.loss, self.sampler, (self.seed, epoch))


def mean_gain(lists: KBestLists) -> float:
    """Return the mean gain of the first hypotheses of k-best lists."""
    return sum(float(one.finite_gains()[0]) for one in lists) / len(lists)

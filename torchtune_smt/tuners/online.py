"""Online tuning: decode a mini-batch with the weights of the moment, take one step."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from torchtune_smt.core.weights import Weights
from torchtune_smt.decoders.base import Decoder
from torchtune_smt.kbest.lists import KBest
from torchtune_smt.losses import Loss
from torchtune_smt.metrics.base import BoundMetric
from torchtune_smt.optim.adapter import adapted
from torchtune_smt.optim.base import LazyOptimizer
from torchtune_smt.samplers.pairs import PairSampler
from torchtune_smt.tuners.objective import take_step
from torchtune_smt.tuners.sentences import Sentences


@dataclass(frozen=True)
class BatchReport:
    """What one mini-batch did.

    Attributes
    ----------
    epoch, batch : int
        Counted from 1.
    sentences, pairs : int
    loss : float
        Mean over the pairs, before the step.
    gain : float
        Mean gain of the best hypotheses.
    seconds, decoding : float
        Wall-clock time of all, and of decoding in it.
    """

    epoch: int
    batch: int
    sentences: int
    pairs: int
    loss: float
    gain: float
    seconds: float
    decoding: float


class OnlineTuner:
    """Pairwise online tuning (Green et al. 2013, Algorithm 1; Simianer et al. 2012, Algorithm 1).

    Parameters
    ----------
    decoder : Decoder
    weights : Weights
        Changed in place, through `optimizer`.
    metric : BoundMetric
        Gains, for the references of the sentences tuned on.
    sampler : PairSampler
    loss : PairwiseLoss or ListwiseLoss
        A listwise one does not ask the sampler.
    optimizer : LazyOptimizer or torch.optim.Optimizer
        Of ``weights.parameter``.
    batch_size : int
        Sentences decoded under the same weights; 20 in Green et al.
    shuffle : bool
        Take the sentences in a new random order each epoch, or as given.
    seed : int
        Of the order and of the pairs.
    """

    def __init__(
        self,
        decoder: Decoder,
        weights: Weights,
        metric: BoundMetric,
        sampler: PairSampler,
        loss: Loss,
        optimizer: LazyOptimizer | torch.optim.Optimizer,
        *,
        batch_size: int = 20,
        shuffle: bool = True,
        seed: int = 0,
    ) -> None:
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, not {batch_size}")
        self.decoder = decoder
        self.weights = weights
        self.metric = metric
        self.sampler = sampler
        self.loss = loss
        self.optimizer = adapted(optimizer)
        self.batch_size = batch_size
        self.shuffle = shuffle
        self.seed = seed
        weights.before_read = self.optimizer.catch_up

    def epoch(self, sentences: Sentences, number: int, done: int = 0) -> Iterator[BatchReport]:
        """Go once through the sentences, yielding after each mini-batch.

        Parameters
        ----------
        number : int
            Of the epoch, from 1: with the seed it decides on order and pairs.
        done : int
            Mini-batches of this epoch that an earlier run has done already.
        """
        order = np.arange(len(sentences))
        if self.shuffle:
            order = np.random.default_rng((self.seed, number)).permutation(order)
        begins = range(done * self.batch_size, order.size, self.batch_size)
        for batch, begin in enumerate(begins, start=done + 1):
            start = time.perf_counter()
            chosen = order[begin : begin + self.batch_size]
            kbests = self.decoder.decode([sentences.sources[i] for i in chosen], self.weights)
            decoded = time.perf_counter()
            kbests = [kbest.with_gains(self.metric.gains(kbest)) for kbest in kbests]
            loss, pairs = self.step(kbests, number)
            gain = sum(float(k.finite_gains()[0]) for k in kbests) / len(kbests)
            end = time.perf_counter()
            yield BatchReport(
                number, batch, len(kbests), pairs, loss, gain, end - start, decoded - start
            )

    def step(self, kbests: Sequence[KBest], epoch: int) -> tuple[float, int]:
        """Take one step on lists with gains; return the mean loss and the number of pairs.

        Without pairs no step is taken. A listwise loss has lists in the place of pairs.
        """
        return take_step(
            self.weights,
            self.optimizer,
            self.loss,
            kbests,
            lambda kbest: self.sampler.sample(kbest, (self.seed, epoch, kbest.index)),
        )

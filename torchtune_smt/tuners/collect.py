"""Decoding a set of sentences, and adding what is new to accumulated k-best lists."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from torchtune_smt.core.arrays import Float64
from torchtune_smt.core.errors import InputError
from torchtune_smt.core.weights import Weights
from torchtune_smt.decoders.base import Decoder
from torchtune_smt.kbest.accumulated_lists import AccumulatedLists
from torchtune_smt.kbest.lists import KBest
from torchtune_smt.metrics.bleu import Counts
from torchtune_smt.metrics.corpus import bleu_of_statistics
from torchtune_smt.tuners.sentences import Sentences

# Sentences decoded between two reports.
_BATCH: Final = 64


@dataclass(frozen=True)
class Judge:
    """What the hypotheses of a k-best list are worth.

    Attributes
    ----------
    statistics : callable
        Returns BLEU's statistics (int64 [k, 10]) of a list.
    gains : callable
        Returns gains (float64 [k]) of a list with its statistics.
    """

    statistics: Callable[[KBest], Counts]
    gains: Callable[[KBest, Counts], Float64]


@dataclass(frozen=True)
class Collected:
    """What one pass over the sentences has brought.

    Attributes
    ----------
    new : int
        Hypotheses that no earlier iteration had.
    bleu : float
        Corpus BLEU (0..100) of the best hypotheses.
    seconds : float
    """

    new: int
    bleu: float
    seconds: float


class Collector:
    """Decodes sentences with the weights of the moment and adds to their k-best lists.

    Parameters
    ----------
    decoder : Decoder
    weights : Weights
    sentences : Sentences
        One at least.
    judge : Judge
    lists : AccumulatedLists
    on_batch : callable
        Told how many sentences have been decoded, every now and then.
    """

    def __init__(
        self,
        decoder: Decoder,
        weights: Weights,
        sentences: Sentences,
        judge: Judge,
        lists: AccumulatedLists,
        on_batch: Callable[[int], None] = lambda sentences: None,
    ) -> None:
        self.decoder = decoder
        self.weights = weights
        self.sentences = sentences
        self.judge = judge
        self.lists = lists
        self.on_batch = on_batch

    def collect(self) -> Collected:
        """Decode all sentences, and end an iteration of the lists.

        Raises
        ------
        InputError
            All lists have one hypothesis.
        """
        start = time.perf_counter()
        total = np.zeros(10, np.int64)
        sources = self.sentences.sources
        for begin in range(0, len(sources), _BATCH):
            batch = sources[begin : begin + _BATCH]
            kbests = self.decoder.decode(batch, self.weights)
            statistics = [self.judge.statistics(kbest) for kbest in kbests]
            pairs = zip(kbests, statistics, strict=True)
            kbests = [kbest.with_gains(self.judge.gains(kbest, counts)) for kbest, counts in pairs]
            total += np.sum([counts[0] for counts in statistics], axis=0)
            self.lists.add(kbests, statistics)
            self.on_batch(len(batch))
        new = self.lists.end_iteration()
        if self.lists.n_hypotheses <= len(self.sentences):
            raise InputError(
                "every list has one hypothesis, which leaves nothing to choose and to learn from; "
                "let lists be longer (decoder.k)"
            )
        return Collected(new, bleu_of_statistics(total), time.perf_counter() - start)

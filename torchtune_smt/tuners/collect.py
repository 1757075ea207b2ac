"""Decoding a set of sentences, and adding what is new to accumulated k-best lists."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from torchtune_smt.core.arrays import Float64, Int64
from torchtune_smt.core.errors import InputError
from torchtune_smt.core.weights import Weights
from torchtune_smt.decoders.base import Decoder
from torchtune_smt.kbest.lists import KBest, KBestLists
from torchtune_smt.kbest.sentences import Sentences
from torchtune_smt.kbest.store import ListStore
from torchtune_smt.metrics.bleu import Counts
from torchtune_smt.metrics.corpus import bleu_of_statistics
from torchtune_smt.tuners.base import Show
from torchtune_smt.tuners.learner import take

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
    lists : ListStore
    name : str
        What the sentences are called, where it is shown how many have been decoded.
    """

    def __init__(
        self,
        decoder: Decoder,
        weights: Weights,
        sentences: Sentences,
        judge: Judge,
        lists: ListStore,
        name: str = "",
    ) -> None:
        self.decoder = decoder
        self.weights = weights
        self.sentences = sentences
        self.judge = judge
        self.lists = lists
        self.name = name

    def collect(self, show: Show = lambda what, done, total, unit: None) -> Collected:
        """Decode all sentences, and end an iteration of the lists.

        Parameters
        ----------
        show : callable
            Told every now and then how many have been decoded.

        Raises
        ------
        InputError
            All lists have one hypothesis.
        """
        start = time.perf_counter()
        total: Int64 = np.zeros(10, np.int64)
        done, sources = 0, self.sentences.sources
        for kbests, statistics in self._decoded():
            judged = []
            for kbest, counts in zip(kbests, statistics, strict=True):
                gain = self.judge.gains(kbest, counts)
                judged.append(replace(kbest, gain=gain, statistics=counts.astype(np.int32)))
                total += counts[0]
            self.lists.add(KBestLists.of(judged))
            done += len(judged)
            show(f"decoding {self.name}".rstrip(), done, len(sources), "sent")
        new = self.lists.end_iteration()
        if self.lists.n_hypotheses <= len(self.sentences):
            raise InputError(
                "every list has one hypothesis, which leaves nothing to choose and to learn from; "
                "let lists be longer (decoder.k)"
            )
        return Collected(new, bleu_of_statistics(total), time.perf_counter() - start)

    def score(self) -> float:
        """Return corpus BLEU of the weights of the moment, and leave the lists as they are."""
        return bleu_of_statistics(
            np.sum([counts[0] for _, all_ in self._decoded() for counts in all_], axis=0)
        )

    def _decoded(self) -> Iterator[tuple[KBestLists, list[Counts]]]:
        """Yield lists of some sentences at a time, with the statistics of their hypotheses."""
        sources = self.sentences.sources
        for begin in range(0, len(sources), _BATCH):
            lists = self.decoder.decode(sources[begin : begin + _BATCH], self.weights)
            lists = take(self.weights, lists)
            yield lists, [self.judge.statistics(kbest) for kbest in lists]

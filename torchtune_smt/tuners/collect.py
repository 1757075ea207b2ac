"""Decoding a set of sentences, and adding what is new to accumulated k-best lists."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from torchtune_smt.core.arrays import Int64
from torchtune_smt.core.errors import InputError
from torchtune_smt.core.weights import Weights
from torchtune_smt.decoders.base import Decoder
from torchtune_smt.kbest.lists import KBestLists
from torchtune_smt.kbest.sentences import Sentences
from torchtune_smt.kbest.store import ListStore
from torchtune_smt.metrics.base import BoundMetric, Score, with_gains
from torchtune_smt.metrics.bleu import BleuReferences
from torchtune_smt.metrics.corpus import bleu_of_statistics
from torchtune_smt.tuners.base import Show, silent
from torchtune_smt.tuners.learner import take

# Sentences decoded between two reports.
_BATCH: Final = 64


@dataclass(frozen=True)
class Collected:
    """What one pass over the sentences has brought.

    Attributes
    ----------
    new : int
        Hypotheses that no earlier iteration had.
    score : Score
        Of the best hypotheses.
    seconds : float
    """

    new: int
    score: Score
    seconds: float


@dataclass(eq=False, repr=False)
class Collector:
    """Decodes sentences with the weights of the moment and adds to their k-best lists.

    Parameters
    ----------
    decoder : Decoder
    weights : Weights
    sentences : Sentences
        One at least.
    metric : BoundMetric
        Of the gains.
    lists : ListStore
    is_bleu : bool
        Whether weights are chosen by corpus BLEU, and not by the mean gain of their best
        hypotheses.
    name : str
        What the sentences are called, where it is shown how many have been decoded.
    """

    decoder: Decoder
    weights: Weights
    sentences: Sentences
    metric: BoundMetric
    lists: ListStore
    name: str = ""
    is_bleu: bool = True

    def __post_init__(self) -> None:
        references = self.sentences.references if self.sentences.has_references else []
        self._references = BleuReferences(references, self.decoder.words)

    def collect(self, show: Show = silent) -> Collected:
        """Decode all sentences, and end an iteration of the lists.

        Parameters
        ----------
        show : callable
            Told every now and then how many have been decoded.

        Raises InputError: all lists have one hypothesis.
        """
        start = time.perf_counter()
        total, gain = np.zeros(10, np.int64), 0.0
        done, sources = 0, self.sentences.sources
        for lists in self._decoded():
            lists = with_gains(self.metric, lists)
            total += _of_best(lists)
            gain += _gain_of_best(lists)
            self.lists.add(lists)
            done += len(lists)
            show(f"decoding {self.name}".rstrip(), done, len(sources), "sent")
        new = self.lists.end_iteration()
        if self.lists.n_hypotheses <= len(self.sentences):
            raise InputError(
                "every list has one hypothesis, which leaves nothing to choose and to learn from; "
                "let lists be longer (decoder.k)"
            )
        return Collected(new, self._score(total, gain), time.perf_counter() - start)

    def score(self) -> Score:
        """Return the score of the weights of the moment, and leave the lists as they are."""
        total, gain = np.zeros(10, np.int64), 0.0
        for lists in self._decoded():
            total += _of_best(lists)
            gain += 0.0 if self.is_bleu else _gain_of_best(with_gains(self.metric, lists))
        return self._score(total, gain)

    def _score(self, total: Int64, gain: float) -> Score:
        bleu = bleu_of_statistics(total)
        return Score(bleu if self.is_bleu else gain / len(self.sentences), bleu)

    def _decoded(self) -> Iterator[KBestLists]:
        """Yield lists of some sentences at a time, with the statistics of their hypotheses."""
        for lists in self.decoder.decode_all(self.sentences.sources, self.weights, _BATCH):
            yield self._references.with_statistics(take(self.weights, lists))


def _gain_of_best(lists: KBestLists) -> float:
    """Return the sum of the gains of the best hypotheses."""
    assert lists.gain is not None
    return float(lists.gain[lists.begin[:-1]].sum())


def _of_best(lists: KBestLists) -> Int64:
    """Return the sum of the statistics of the best hypotheses."""
    assert lists.statistics is not None
    total: Int64 = lists.statistics[lists.begin[:-1]].sum(axis=0, dtype=np.int64)
    return total

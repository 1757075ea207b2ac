"""Decoding a set of sentences, and adding what is new to accumulated k-best lists."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from torchtune_smt.core.arrays import Float64, Int64
from torchtune_smt.core.errors import InputError
from torchtune_smt.core.weights import Weights
from torchtune_smt.decoders.base import Decoder
from torchtune_smt.kbest.lists import KBestLists
from torchtune_smt.kbest.measure import BLEU, Measure
from torchtune_smt.kbest.sentences import ELSEWHERE, Sentences
from torchtune_smt.kbest.store import ListStore
from torchtune_smt.metrics.base import BoundMetric, Judge, Score
from torchtune_smt.metrics.bleu import BleuReferences
from torchtune_smt.metrics.corpus import bleu_of_statistics
from torchtune_smt.tuners.base import Show, silent
from torchtune_smt.tuners.learner import take

# Sentences decoded between two reports.
_BATCH: Final = 64


@dataclass(frozen=True)
class Collected:
    """What one pass over the sentences has brought.

    new: hypotheses that no earlier iteration had.
    score: of the best hypotheses.
    """

    new: int
    score: Score
    seconds: float


@dataclass(eq=False, repr=False)
class Collector:
    """Decodes sentences with the weights of the moment and adds to their k-best lists.

    sentences: one at least.
    metric: of the gains.
    name: what the sentences are called, where it is shown how many have been decoded.
    measure: what weights are chosen by: of the statistics of the lists.
    """

    decoder: Decoder
    weights: Weights
    sentences: Sentences
    metric: BoundMetric
    lists: ListStore
    name: str = ""
    measure: Measure = BLEU

    def __post_init__(self) -> None:
        references = self.sentences.references if self.sentences.has_references else []
        if self.measure != BLEU:
            # Which may be without words.
            references = [row if any(row) else ELSEWHERE for row in references]
        self._references = BleuReferences(references, self.decoder.words)
        self._judge = Judge(self.metric, self.measure)

    def collect(self, show: Show = silent) -> Collected:
        """Decode all sentences, and end an iteration of the lists.

        show: told every now and then how many have been decoded.

        Raises InputError: all lists have one hypothesis.
        """
        start = time.perf_counter()
        total, sums = np.zeros(10, np.int64), np.zeros(self.measure.width)
        done, sources = 0, self.sentences.sources
        for lists in self._decoded():
            lists = self._add(lists, total, sums)
            self.lists.add(lists)
            done += len(lists)
            show(f"decoding {self.name}".rstrip(), done, len(sources), "sent")
        new = self.lists.end_iteration()
        if self.lists.n_hypotheses <= len(self.sentences):
            raise InputError(
                "every list has one hypothesis, which leaves nothing to choose and to learn from; "
                "let lists be longer (decoder.k)"
            )
        return Collected(new, self._score(total, sums), time.perf_counter() - start)

    def score(self) -> Score:
        """Return the score of the weights of the moment, and leave the lists as they are."""
        total, sums = np.zeros(10, np.int64), np.zeros(self.measure.width)
        for lists in self._decoded():
            self._add(lists.chosen(lists.begin[:-1]), total, sums)
        return self._score(total, sums)

    def _add(self, lists: KBestLists, total: Int64, sums: Float64) -> KBestLists:
        """Return lists with statistics and gains; add BLEU's and the measure's of the best."""
        if self.measure == BLEU:
            lists = self._references.with_statistics(lists)
        lists = self._judge.judged(lists)
        assert lists.statistics is not None
        best = lists.begin[:-1]
        # Column by column, as a mean is summed.
        sums += lists.statistics[best].T.copy().sum(axis=1)
        bleu = lists.chosen(best) if self.measure != BLEU else lists
        counts = self._references.with_statistics(bleu).statistics
        assert counts is not None
        total += (counts if bleu is not lists else counts[best]).sum(axis=0, dtype=np.int64)
        return lists

    def _score(self, total: Int64, sums: Float64) -> Score:
        bleu = bleu_of_statistics(total)
        return Score(bleu if self.measure == BLEU else self._judge.of_sums(sums), bleu)

    def _decoded(self) -> Iterator[KBestLists]:
        """Yield lists of some sentences at a time."""
        for lists in self.decoder.decode_all(self.sentences.sources, self.weights, _BATCH):
            yield take(self.weights, lists)

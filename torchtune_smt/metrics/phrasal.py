"""Sentence-level BLEU as Phrasal tunes by default."""

from __future__ import annotations

from dataclasses import dataclass

from torchtune_smt.core.arrays import Float64
from torchtune_smt.core.vocabulary import Vocabulary
from torchtune_smt.kbest.lists import KBest
from torchtune_smt.metrics.base import References
from torchtune_smt.metrics.bleu import BleuPlusOne, BleuReferences, SentenceBleu
from torchtune_smt.metrics.nakov import NakovBleu


@dataclass(frozen=True)
class PhrasalBleu:
    """BLEU+1 times the length of the sentence's shortest reference: Phrasal's ``bleu-smooth``.

    A sentence weighs what its length makes it weigh in corpus BLEU. Gains are in 0..length, so
    that the threshold of a pair sampler is in these units.

    Parameters
    ----------
    nakov : bool
        Phrasal's ``bleu-nakov`` instead: `NakovBleu` with `smooth_unigrams`, times the length.
    """

    nakov: bool = False

    def bind(self, references: References, words: Vocabulary) -> BoundPhrasalBleu:
        """Prepare the references once; see `BleuReferences`."""
        metric = NakovBleu(smooth_unigrams=True) if self.nakov else BleuPlusOne()
        return BoundPhrasalBleu(metric, BleuReferences(references, words))


class BoundPhrasalBleu:
    """`PhrasalBleu` for one set of references."""

    def __init__(self, metric: SentenceBleu, references: BleuReferences) -> None:
        self._metric = metric
        self._references = references
        self._shortest = references.shortest()

    def gains(self, kbest: KBest) -> Float64:
        """Return the gain (float64 [k], 0..length of the shortest reference) of each hypothesis."""
        statistics = self._references.statistics(kbest)
        gains: Float64 = self._metric.score(statistics) * self._shortest[kbest.index]
        return gains

"""Error rates of words and of characters: edits, by the length of the reference."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from rapidfuzz.distance import Levenshtein
from rapidfuzz.process import cdist

from torchtune_smt.core.arrays import Float64, Int32
from torchtune_smt.core.vocabulary import Vocabulary
from torchtune_smt.kbest.lists import KBest
from torchtune_smt.kbest.measure import Measure, error_rate
from torchtune_smt.metrics.base import BoundCorpusMetric, CorpusMetric, References, references_of


@dataclass(frozen=True)
class ErrorRate(CorpusMetric):
    """Errors, by the length of the reference.

    A gain is the number of errors, below 0. Of several references that with the fewest errors
    counts, and their mean length (Nießen et al. 2000, "An evaluation tool for machine
    translation"). A reference may have no words.
    """

    @abstractmethod
    def errors(self, references: list[Int32], kbest: KBest, words: Vocabulary) -> Float64:
        """Return errors, and the mean length of the references (ids of words), float64 [k, 2]."""

    def bound(self, references: References, words: Vocabulary) -> BoundErrors:
        """See `CorpusMetric.bound`."""
        return BoundErrors(self, references, words)


@dataclass(frozen=True)
class WordErrorRate(ErrorRate):
    """WER: insertions, deletions and substitutions of words, by the words of the reference."""

    measure: ClassVar[Measure] = error_rate("WER", 3)

    def errors(self, references: list[Int32], kbest: KBest, words: Vocabulary) -> Float64:
        """See `ErrorRate.errors`."""
        lines = [*references, *(kbest.hypothesis(h) for h in range(len(kbest)))]
        return error_statistics(as_characters(lines), len(references))


@dataclass(frozen=True)
class CharacterErrorRate(ErrorRate):
    """CER: as `WordErrorRate`, of characters, the blanks between words among them."""

    measure: ClassVar[Measure] = error_rate("CER", 3)

    def errors(self, references: list[Int32], kbest: KBest, words: Vocabulary) -> Float64:
        """See `ErrorRate.errors`."""
        lines = [*references, *(kbest.hypothesis(h) for h in range(len(kbest)))]
        return error_statistics([" ".join(words.names(line)) for line in lines], len(references))


class BoundErrors(BoundCorpusMetric):
    """An error rate for one set of references."""

    def __init__(self, metric: ErrorRate, references: References, words: Vocabulary) -> None:
        super().__init__(metric, words)
        self._metric = metric
        self._references = [[words.intern(one) for one in some] for some in references]

    def count(self, kbest: KBest) -> Float64:
        """Return `ErrorRate.errors` of each hypothesis.

        Raises InputError: there are no references for ``kbest.index``.
        """
        references = references_of(self._references, kbest.index)
        return self._metric.errors(references, kbest, self._words)

    def gains_of_statistics(self, statistics: NDArray[Any]) -> Float64:
        """Return the gains of statistics [k, 2]: errors, below 0."""
        return -statistics[:, 0].astype(np.float64)


def error_statistics(texts: list[str], n: int) -> Float64:
    """Return errors, and the mean length of references, of texts behind the n references."""
    # Its loop over hypotheses is compiled, and prepares each reference once.
    found = cdist(texts[:n], texts[n:], scorer=Levenshtein.distance, dtype=np.float64)
    length = float(np.mean([len(text) for text in texts[:n]]))
    return np.column_stack([found.min(axis=0), np.full(len(texts) - n, length)])


def as_characters(sentences: list[Int32]) -> list[str]:
    """Return sentences of ids as strings with a character for each id, the same for the same."""
    _, numbers = np.unique(np.concatenate(sentences), return_inverse=True)
    text = numbers.astype("<u4").tobytes().decode("utf-32-le", "surrogatepass")
    ends = np.cumsum([sentence.size for sentence in sentences]).tolist()
    return [text[a:b] for a, b in zip([0, *ends], ends, strict=False)]

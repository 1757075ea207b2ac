"""Error rates of words and of characters: edits, by the length of the reference."""

from __future__ import annotations

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
class WordErrorRate(CorpusMetric):
    """WER: insertions, deletions and substitutions of words, by the words of the reference.

    A gain is the number of errors, below 0. Of several references that with the fewest errors
    counts, and their mean length (Nießen et al. 2000, "An evaluation tool for machine
    translation"). A reference may have no words.
    """

    measure: ClassVar[Measure] = error_rate("WER", 3)

    def bound(self, references: References, words: Vocabulary) -> BoundErrors:
        """See `CorpusMetric.bound`."""
        return BoundErrors(self, references, words)


@dataclass(frozen=True)
class CharacterErrorRate(CorpusMetric):
    """CER: as `WordErrorRate`, of characters, the blanks between words among them."""

    measure: ClassVar[Measure] = error_rate("CER", 3)

    def bound(self, references: References, words: Vocabulary) -> BoundErrors:
        """See `CorpusMetric.bound`."""
        return BoundErrors(self, references, words)


class BoundErrors(BoundCorpusMetric):
    """An error rate for one set of references."""

    def __init__(
        self,
        metric: WordErrorRate | CharacterErrorRate,
        references: References,
        words: Vocabulary,
    ) -> None:
        super().__init__(metric, words)
        self._of_words = isinstance(metric, WordErrorRate)
        self._references = [[words.intern(one) for one in some] for some in references]

    def count(self, kbest: KBest) -> Float64:
        """Return errors, and the mean length of the references, of each hypothesis.

        Raises InputError: there are no references for ``kbest.index``.
        """
        references = references_of(self._references, kbest.index)
        lines = [*references, *(kbest.hypothesis(h) for h in range(len(kbest)))]
        if self._of_words:
            texts = as_characters(lines)
        else:
            texts = [" ".join(self._words.names(line)) for line in lines]
        return error_statistics(texts, len(references))

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

"""Error rates of words and of characters, and TER: edits, by the length of the reference."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from rapidfuzz.distance import Levenshtein
from rapidfuzz.process import cdist

from torchtune_smt.core.arrays import Float64, Int32
from torchtune_smt.core.offsets import offsets
from torchtune_smt.core.vocabulary import Vocabulary
from torchtune_smt.kbest.lists import KBest
from torchtune_smt.kbest.measure import Measure, error_rate
from torchtune_smt.metrics.base import CorpusMetric, References, references_of
from torchtune_smt.metrics.ter_kernels import least_edits


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

    def prepared(self, references: References, words: Vocabulary) -> list[list[Int32]]:
        """Return the ids of words of all references."""
        return [[words.intern(one) for one in row] for row in references]

    def count(self, references: list[list[Int32]], kbest: KBest, words: Vocabulary) -> Float64:
        """Return `errors` of each hypothesis; see `CorpusMetric.count`."""
        return self.errors(references_of(references, kbest.index), kbest, words)

    def gains(self, statistics: NDArray[Any]) -> Float64:
        """Return the gains of statistics [k, 2]: errors, below 0."""
        return -statistics[:, 0].astype(np.float64)


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


@dataclass(frozen=True)
class TranslationEditRate(ErrorRate):
    """TER, as sacrebleu has it, of words as they are: edits and shifts, by the reference's words.

    Snover et al. (2006), "A study of translation edit rate with targeted human annotation".
    """

    measure: ClassVar[Measure] = error_rate("TER")

    def errors(self, references: list[Int32], kbest: KBest, words: Vocabulary) -> Float64:
        """See `ErrorRate.errors`."""
        lengths = [reference.size for reference in references]
        edits = least_edits(offsets(lengths), np.concatenate(references), *kbest.strings())
        return np.column_stack([edits, np.full(edits.size, float(np.mean(lengths)))])


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

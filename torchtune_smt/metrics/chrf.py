"""chrF: character n-grams (Popović 2015)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final
from weakref import WeakKeyDictionary

import numpy as np

from torchtune_smt.core.accepts import above, accepting, integer
from torchtune_smt.core.arrays import Int32, Int64
from torchtune_smt.core.offsets import gather, joined_offsets, offsets
from torchtune_smt.core.vocabulary import Vocabulary
from torchtune_smt.kbest.lists import KBest
from torchtune_smt.kbest.measure import Measure, Part
from torchtune_smt.kbest.measure_kernels import CHRF
from torchtune_smt.metrics.base import CorpusMetric, References, references_of
from torchtune_smt.metrics.chrf_kernels import match_statistics


@dataclass(frozen=True)
class ChrF(CorpusMetric):
    """chrF, as sacrebleu has it: the F-score of character n-grams; blanks are left out.

    A gain is chrF of the hypothesis by itself (0..1). Of several references that with the highest
    one counts. Popović (2015), "chrF: character n-gram F-score for automatic MT evaluation".

    order: of the longest n-grams.
    beta: how much more recall counts than precision.
    """

    accepts = accepting(order=integer(1), beta=above(0))

    order: int = 6
    beta: float = 2.0

    @property
    def measure(self) -> Measure:
        """Return chrF of a corpus."""
        return Measure(f"chrF{self.beta:g}", (Part(CHRF, 3 * self.order, 1.0, self.beta),))

    def prepared(self, references: References, words: Vocabulary) -> list[list[Int32]]:
        """Return the code points of all references."""
        return [[_characters("".join(one)) for one in row] for row in references]

    def count(self, references: list[list[Int32]], kbest: KBest, words: Vocabulary) -> Int32:
        """Return for each order n-grams in the hypothesis, in the reference, and in both."""
        token_begin, tokens = kbest.strings()
        begin, letters = gather(*_letters(words), tokens.astype(np.int64))
        found = [
            match_statistics(self.order, reference, begin[token_begin], letters)
            for reference in references_of(references, kbest.index)
        ]
        if len(found) == 1:
            return found[0]
        counts = np.stack(found)
        best = self.measure.scores(counts).argmax(axis=0)
        chosen: Int32 = counts[best, np.arange(best.size)]
        return chosen


_LETTERS: Final[WeakKeyDictionary[Vocabulary, tuple[Int64, Int32]]] = WeakKeyDictionary()


def _letters(words: Vocabulary) -> tuple[Int64, Int32]:
    """Return the code points of each word, behind each other: offsets, and items."""
    # Once for all lists, each of which minimum risk binds anew.
    begin, items = _LETTERS.get(words) or (np.zeros(1, np.int64), np.empty(0, np.int32))
    known, there = begin.size - 1, len(words)
    if known < there:
        new = [_characters(word) for word in words.names(range(known, there))]
        begin = joined_offsets([begin, offsets([word.size for word in new])])
        items = np.concatenate([items, *new])
        _LETTERS[words] = begin, items
    return begin, items


def _characters(line: str) -> Int32:
    """Return the code points of a line, blanks of all kinds left out."""
    text = "".join(line.split())
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.int32)

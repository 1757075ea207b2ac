"""chrF: character n-grams (Popović 2015)."""

from __future__ import annotations

from collections.abc import Sequence
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
from torchtune_smt.metrics import chrf_kernels as kernels
from torchtune_smt.metrics.base import (
    BoundCorpusMetric,
    CorpusMetric,
    References,
    references_of,
)

ORDER: Final = 6
BETA: Final = 2.0


@dataclass(frozen=True)
class ChrF(CorpusMetric):
    """chrF, as sacrebleu has it: the F-score of character n-grams; blanks are left out.

    A gain is chrF of the hypothesis by itself (0..1). Of several references that with the highest
    one counts. Popović (2015), "chrF: character n-gram F-score for automatic MT evaluation".

    order: of the longest n-grams.
    beta: how much more recall counts than precision.
    """

    accepts = accepting(order=integer(1), beta=above(0))

    order: int = ORDER
    beta: float = BETA

    @property
    def measure(self) -> Measure:
        """Return chrF of a corpus."""
        return measure(self.order, self.beta)

    def bound(self, references: References, words: Vocabulary) -> BoundChrF:
        """See `CorpusMetric.bound`."""
        return BoundChrF(self, references, words)


def measure(order: int = ORDER, beta: float = BETA) -> Measure:
    """Return what chrF is of a corpus."""
    return Measure(f"chrF{beta:g}", (Part(CHRF, 3 * order, 1.0, beta),))


class BoundChrF(BoundCorpusMetric):
    """chrF for one set of references."""

    def __init__(self, metric: ChrF, references: References, words: Vocabulary) -> None:
        super().__init__(metric, words)
        self._references = [[_characters("".join(r)) for r in some] for some in references]

    def count(self, kbest: KBest) -> Int32:
        """Return for each order n-grams in the hypothesis, in the reference, and in both.

        Raises InputError: there are no references for ``kbest.index``.
        """
        token_begin, tokens = kbest.strings()
        begin, letters = gather(*_letters(self._words), tokens.astype(np.int64))
        references = references_of(self._references, kbest.index)
        return _statistics(references, begin[token_begin], letters, self.measure)


def statistics(references: Sequence[str], hypotheses: Sequence[str], measure: Measure) -> Int32:
    """Return the statistics (int32 [k, 3 * order]) of hypotheses of one sentence, of text."""
    lines = [_characters(line) for line in hypotheses]
    characters = np.concatenate([np.empty(0, np.int32), *lines])
    begin = offsets([line.size for line in lines])
    return _statistics([_characters(line) for line in references], begin, characters, measure)


def _statistics(
    references: Sequence[Int32], begin: Int64, characters: Int32, measure: Measure
) -> Int32:
    order = measure.width // 3
    found = [
        kernels.match_statistics(order, reference, begin, characters) for reference in references
    ]
    if len(found) == 1:
        return found[0]
    counts = np.stack(found)
    best = measure.scores(counts).argmax(axis=0)
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

"""TER: edits and shifts (Snover et al. 2006)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from torchtune_smt.core.arrays import Float64, Int32
from torchtune_smt.core.offsets import offsets
from torchtune_smt.core.vocabulary import Vocabulary
from torchtune_smt.kbest.lists import KBest
from torchtune_smt.kbest.measure import Measure, error_rate
from torchtune_smt.metrics import ter_kernels as kernels
from torchtune_smt.metrics.base import (
    BoundCorpusMetric,
    CorpusMetric,
    References,
    references_of,
)


@dataclass(frozen=True)
class TranslationEditRate(CorpusMetric):
    """TER, as sacrebleu has it, of words as they are: edits and shifts, by the reference's words.

    A gain is the number of edits, below 0. Of several references that with the fewest edits
    counts, and their mean length. Snover et al. (2006), "A study of translation edit rate with
    targeted human annotation".
    """

    measure: ClassVar[Measure] = error_rate("TER")

    def bound(self, references: References, words: Vocabulary) -> BoundEdits:
        """See `CorpusMetric.bound`."""
        return BoundEdits(self, references, words)


class BoundEdits(BoundCorpusMetric):
    """TER for one set of references."""

    def __init__(
        self, metric: TranslationEditRate, references: References, words: Vocabulary
    ) -> None:
        super().__init__(metric, words)
        self._references = [[words.intern(one) for one in some] for some in references]

    def count(self, kbest: KBest) -> Float64:
        """Return edits, and the mean length of the references, of each hypothesis.

        Raises InputError: there are no references for ``kbest.index``.
        """
        return statistics(references_of(self._references, kbest.index), *kbest.strings())

    def gains_of_statistics(self, statistics: NDArray[Any]) -> Float64:
        """Return the gains of statistics [k, 2]: edits, below 0."""
        return -statistics[:, 0].astype(np.float64)


def statistics(references: list[Int32], begin: NDArray[np.int64], tokens: Int32) -> Float64:
    """Return edits and the mean length of the references of hypotheses of one sentence.

    references: ids of words.
    begin, tokens (int64 [k + 1], int32): hypothesis h is ``tokens[begin[h]:begin[h + 1]]``.
    """
    lengths = [reference.size for reference in references]
    edits = kernels.least_edits(offsets(lengths), np.concatenate(references), begin, tokens)
    return np.column_stack([edits, np.full(edits.size, float(np.mean(lengths)))])

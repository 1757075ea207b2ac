"""TER: edits and shifts (Snover et al. 2006)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from torchtune_smt.core.arrays import Float64, Int32
from torchtune_smt.core.offsets import offsets
from torchtune_smt.core.vocabulary import Vocabulary
from torchtune_smt.kbest.lists import KBest
from torchtune_smt.kbest.measure import Measure, error_rate
from torchtune_smt.metrics import ter_kernels as kernels
from torchtune_smt.metrics.errors import ErrorRate


@dataclass(frozen=True)
class TranslationEditRate(ErrorRate):
    """TER, as sacrebleu has it, of words as they are: edits and shifts, by the reference's words.

    Snover et al. (2006), "A study of translation edit rate with targeted human annotation".
    """

    measure: ClassVar[Measure] = error_rate("TER")

    def errors(self, references: list[Int32], kbest: KBest, words: Vocabulary) -> Float64:
        """Return edits, and the mean length of the references; see `ErrorRate.errors`."""
        return statistics(references, *kbest.strings())


def statistics(references: list[Int32], begin: NDArray[np.int64], tokens: Int32) -> Float64:
    """Return edits and the mean length of the references of hypotheses of one sentence.

    references: ids of words.
    begin, tokens (int64 [k + 1], int32): hypothesis h is ``tokens[begin[h]:begin[h + 1]]``.
    """
    lengths = [reference.size for reference in references]
    edits = kernels.least_edits(offsets(lengths), np.concatenate(references), begin, tokens)
    return np.column_stack([edits, np.full(edits.size, float(np.mean(lengths)))])

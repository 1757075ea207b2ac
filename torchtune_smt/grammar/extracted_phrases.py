"""Phrase tables that were extracted from a bitext, scored sentence by sentence from counts."""

from __future__ import annotations

import numpy as np

from torchtune_smt.core.arrays import Float64, Int64
from torchtune_smt.core.vocabulary import Vocabulary
from torchtune_smt.grammar.extracted_grammar import ExtractedGrammar, LeftOut
from torchtune_smt.grammar.extraction_kernels import UNIT
from torchtune_smt.grammar.phrase_table import RULE_COUNT, UNIQUE_RULE, reordering_names
from torchtune_smt.grammar.reordering import ReorderingType

DENSE_NAMES = [*(f"TranslationModel0_{i}" for i in range(4)), RULE_COUNT, UNIQUE_RULE]
# The columns of `ExtractedGrammar` in Moses's order: p(f|e), lex(f|e), p(e|f), lex(e|f).
_MOSES_ORDER = [1, 3, 0, 2]
# What is added to each count of an orientation, as in Moses.
_SMOOTHING = 0.5
# Of monotone, swap, discontinuous right and left, the column of each kind of model.
_COLUMNS = {
    "msd": [0, 1, 2, 2],
    "mslr": [0, 1, 2, 3],
    "monotonicity": [0, 1, 1, 1],
    "leftright": [0, 1, 0, 1],
}


class ExtractedPhrases(ExtractedGrammar):
    """A phrase table with reordering scores that keeps the counts of its extraction.

    Features of a phrase pair, logarithms being natural ones: ``TranslationModel0_0`` to ``_3``,
    p(f|e), lex(f|e), p(e|f), lex(e|f), as `ExtractedGrammar` has them; ``LogRuleCount``, of how
    often it occurred; ``UniqueRule``, 1 where that is once; and ``LexicalReordering0_0`` ..., for
    each orientation (count + 0.5) / (sum + 0.5 orientations).

    With a `train_index`, all are those of an extraction without the sentence.

    Parameters
    ----------
    source_words, target_words, arrays, table_limit
        See `ExtractedGrammar`. `extract_phrases` makes the arrays, and adds ``orientation`` (int32
        [rules, 8]: how often a phrase was monotone, swapped, discontinuous to the right and to the
        left, towards what is before it, then towards what is behind it), ``own_orientation`` (int16
        [own rules, 8], the part of each sentence), and ``point_begin`` (int64 [rules + 1]) with
        ``point`` (int32): the links in most sentences that a phrase occurs in, see
        `orientation_kernels.LINK`.
    reordering : ReorderingType
        With target sides.
    """

    gaps = False

    def __init__(
        self,
        source_words: Vocabulary,
        target_words: Vocabulary,
        arrays: dict[str, np.ndarray],
        *,
        reordering: ReorderingType,
        table_limit: int = 100,
    ) -> None:
        super().__init__(source_words, target_words, arrays, table_limit=table_limit)
        self.reordering: ReorderingType = reordering
        self.dense_names = [*DENSE_NAMES, *reordering_names(reordering)]

    def _with_counts(self, rule: Int64, dense: Float64, own: LeftOut) -> Float64:
        """Return all features, given those of any `ExtractedGrammar`."""
        counts = self.counts.rule_count[rule]
        orientation = self.arrays["orientation"][rule].astype(np.float64)
        here, place = self._places_of_own(rule, own)
        counts[here] -= own.total(self.arrays["own_low"])[place] / UNIT
        orientation[here] -= own.total(self.arrays["own_orientation"])[place]
        kind = self.reordering
        belongs = np.zeros((4, kind.orientations))
        belongs[range(4), _COLUMNS[kind.kind]] = 1.0
        directions = [d for d, used in enumerate((kind.backward, kind.forward)) if used]
        of_kind = orientation.reshape(-1, 2, 4)[:, directions] @ belongs
        total = counts[:, None, None] + _SMOOTHING * kind.orientations
        return np.column_stack(
            [
                dense[:, _MOSES_ORDER] * np.log(10.0),
                np.log(counts),
                counts == 1.0,
                np.log((of_kind + _SMOOTHING) / total).reshape(rule.size, kind.scores),
            ]
        )

    def rule_counts(self, rule: Int64) -> Float64:
        """Return how often phrase pairs occurred, float64 [rules]."""
        return self.counts.rule_count[rule]

    def rule_counts_without(self, rule: Int64, train_index: int) -> Float64:
        """Return how often phrase pairs occurred but for the sentences left out with one."""
        return self._counts_without(rule, self._own(train_index))

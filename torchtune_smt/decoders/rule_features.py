"""Sparse features of grammar rules, found once and kept."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from torchtune_smt.core.arrays import Int32, Int64
from torchtune_smt.core.offsets import gather, offsets
from torchtune_smt.core.sequences import SequenceTable
from torchtune_smt.core.vocabulary import Vocabulary
from torchtune_smt.features.template import RuleTemplate, escape
from torchtune_smt.grammar.base import Grammar


class RuleFeatures:
    """The feature ids of each rule of a grammar, found when the rule is first asked for.

    Parameters
    ----------
    grammar : Grammar
    templates : sequence of RuleTemplate
    features : Vocabulary
        Takes the names of the features.
    """

    def __init__(
        self, grammar: Grammar, templates: Sequence[RuleTemplate], features: Vocabulary
    ) -> None:
        self.grammar = grammar
        self.templates = list(templates)
        self.features = features
        # The rows that there are, and each rule's number among them plus one, so that pages of
        # zeros, which cost nothing, mean "not yet".
        self._rows = SequenceTable(np.int32, 1024)
        self._row_of: Int32 = np.zeros(len(grammar) if templates else 0, np.int32)
        self._source_text: dict[int, str] = {}
        self._target_text: dict[int, str] = {}

    def rows(self, rules: Int64) -> tuple[Int64, Int32]:
        """Return the features of rules in CSR form: begin int64 [n + 1], ids int32.

        A feature that fires twice in a rule stands twice. Not to be called from two threads.
        """
        if not self.templates:
            return np.zeros(rules.size + 1, np.int64), np.empty(0, np.int32)
        missing = rules[self._row_of[rules] == 0]
        if missing.size:
            self._find(missing)
        return gather(self._rows.begin, self._rows.symbols, self._row_of[rules] - np.int64(1))

    def of_word(self, word: str) -> Int32:
        """Return the features of the rule that passes a source word through."""
        text = [escape(word)]
        return self.features.intern(self._names(text, text))

    def _names(self, source: list[str], target: list[str]) -> list[str]:
        return [name for t in self.templates for name in t.features(source, target)]

    def _find(self, rules: Int64) -> None:
        grammar = self.grammar
        names: list[str] = []
        counts = []
        for rule in rules.tolist():
            source, target = grammar.sides(rule)
            found = self._names(
                [_text(self._source_text, grammar.source_words, symbol) for symbol in source],
                [_text(self._target_text, grammar.target_words, symbol) for symbol in target],
            )
            names += found
            counts.append(len(found))
        begin = offsets(counts)
        rows = self._rows.intern_spans(self.features.intern(names), begin[:-1], begin[1:])
        self._row_of[rules] = rows + np.int32(1)


def _text(known: dict[int, str], words: Vocabulary, symbol: int) -> str:
    """Return a symbol as it stands in feature names, from a dictionary that fills up."""
    text = known.get(symbol)
    if text is None:
        text = known[symbol] = f"[{-symbol}]" if symbol < 0 else escape(words[symbol])
    return text

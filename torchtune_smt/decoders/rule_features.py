"""Sparse features of grammar rules, found once and kept."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from torchtune_smt.core.arrays import Int32, Int64
from torchtune_smt.core.vocabulary import Vocabulary
from torchtune_smt.decoders import rule_features_kernels as kernels
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
        # A rule's entry in the pool is its number of features, then the features; begin holds the
        # place of the entry plus one, so that pages of zeros, which cost nothing, mean "not yet".
        self._begin: Int64 = np.zeros(len(grammar) if templates else 0, np.int64)
        self._pool: Int32 = np.empty(1024, np.int32)
        self._used = 0
        self._source_text: dict[int, str] = {}
        self._target_text: dict[int, str] = {}

    def rows(self, rules: Int64) -> tuple[Int64, Int32]:
        """Return the features of rules in CSR form: begin int64 [n + 1], ids int32.

        A feature that fires twice in a rule stands twice. Not to be called from two threads.
        """
        if not self.templates:
            return np.zeros(rules.size + 1, np.int64), np.empty(0, np.int32)
        missing = rules[self._begin[rules] == 0]
        if missing.size:
            self._find(missing)
        return kernels.gather(self._begin, self._pool, rules)

    def of_word(self, word: str) -> Int32:
        """Return the features of the rule that passes a source word through."""
        text = [escape(word)]
        return self.features.intern(self._names(text, text))

    def _names(self, source: list[str], target: list[str]) -> list[str]:
        return [name for t in self.templates for name in t.features(source, target)]

    def _find(self, rules: Int64) -> None:
        grammar = self.grammar
        names: list[str] = []
        counts = np.empty(rules.size, np.int64)
        for i, rule in enumerate(rules.tolist()):
            side = grammar.rule_source[rule]
            begin, end = grammar.source_begin[side], grammar.source_begin[side + 1]
            source: list[str] = []
            gaps = 0
            for symbol in grammar.source_symbols[begin:end].tolist():
                if symbol < 0:
                    gaps += 1
                    source.append(f"[{gaps}]")
                else:
                    source.append(_text(self._source_text, grammar.source_words, symbol))
            begin, end = grammar.target_begin[rule], grammar.target_begin[rule + 1]
            target = [
                f"[{-symbol}]"
                if symbol < 0
                else _text(self._target_text, grammar.target_words, symbol)
                for symbol in grammar.target_symbols[begin:end].tolist()
            ]
            found = self._names(source, target)
            names += found
            counts[i] = len(found)
        ids = self.features.intern(names)
        needed = self._used + ids.size + rules.size
        if needed > self._pool.size:
            self._pool = np.resize(self._pool, max(needed, self._pool.size * 3 // 2))
        self._used = kernels.store(self._begin, self._pool, self._used, rules, counts, ids)


def _text(known: dict[int, str], words: Vocabulary, word: int) -> str:
    """Return a word as it stands in feature names, from a dictionary that fills up."""
    text = known.get(word)
    if text is None:
        text = known[word] = escape(words[word])
    return text

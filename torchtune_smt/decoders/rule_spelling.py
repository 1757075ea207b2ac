"""The names of rules' features where all templates can be spelt by a kernel."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from torchtune_smt.core.arrays import Float64, Int32, Int64, UInt8
from torchtune_smt.core.offsets import gather, offsets
from torchtune_smt.core.shortcuts import declared
from torchtune_smt.core.vocabulary import Vocabulary
from torchtune_smt.features.spelling_kernels import PREFIXES, spell
from torchtune_smt.features.template import RuleTemplate, escape, min_count_of
from torchtune_smt.grammar.base import Grammar


class RuleSpelling:
    """Spells what the templates' `features` return, without a Python string for each name.

    Several threads may ask at once.

    Parameters
    ----------
    grammar : Grammar
    templates : sequence of RuleTemplate
        All of which say how they spell.
    """

    def __init__(self, grammar: Grammar, templates: Sequence[RuleTemplate]) -> None:
        self._grammar = grammar
        self._spelling = np.array([spelling_of(template) for template in templates], np.int64)
        self._least = np.array([min_count_of(template) for template in templates], np.float64)
        beginnings = [text.encode() for text in PREFIXES]
        # A bytearray, since numba compiles anew for arrays that are read-only.
        self._prefix = np.frombuffer(bytearray().join(beginnings), np.uint8)
        self._prefix_begin = offsets([len(text) for text in beginnings])
        self._source = _Texts(grammar.source_words)
        self._target = _Texts(grammar.target_words)

    def names(self, rules: Int64, occurred: Float64) -> tuple[UInt8, Int64, Int64]:
        """Return letters and begins of the names of rules, and the begins of each rule's names.

        Parameters
        ----------
        rules : int64 [n]
        occurred : float64 [n]
            How often each occurred.
        """
        grammar = self._grammar
        sides = grammar.rule_source[rules].astype(np.int64)
        source_first, source = gather(grammar.source_begin, grammar.source_symbols, sides)
        target_first, target = gather(grammar.target_begin, grammar.target_symbols, rules)
        return spell(
            self._spelling,
            self._least,
            occurred,
            self._prefix,
            self._prefix_begin,
            source,
            source_first,
            target,
            target_first,
            *self._source.of(source),
            *self._target.of(target),
        )


def spelling_of(template: RuleTemplate) -> int | None:
    """Return how a template spells, if its `features` are those of a class that says so."""
    found: int | None = declared(template, "spelling", "features")
    return found


class _Texts:
    """Words as they stand in feature names, made when they are first asked for."""

    def __init__(self, words: Vocabulary) -> None:
        self._words = words
        self._texts = Vocabulary()
        # Numbers plus one: pages of zeros, which cost nothing, mean "not yet".
        self._number: Int32 = np.zeros(len(words), np.int32)

    def of(self, symbols: Int32) -> tuple[Int32, UInt8, Int64]:
        """Return number plus one of each word's text, for those that occur, and all texts."""
        words = symbols[symbols >= 0]
        new = np.unique(words[self._number[words] == 0])
        if new.size:
            names = [escape(word) for word in self._words.names(new)]
            self._number[new] = self._texts.intern(names) + np.int32(1)
        return self._number, self._texts.symbols, self._texts.begin

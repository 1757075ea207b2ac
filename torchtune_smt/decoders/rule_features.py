"""Sparse features of grammar rules, found once and kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from itertools import product
from typing import Self, TypeVar

import numpy as np

from torchtune_smt.core.accepts import declared
from torchtune_smt.core.arrays import Bool, Float64, Int32, Int64, UInt8
from torchtune_smt.core.offsets import gather, offsets
from torchtune_smt.core.vocabulary import SequenceTable, Vocabulary, enlarged
from torchtune_smt.features import rule_kernels as kernels
from torchtune_smt.features.templates import (
    OF_CLASSES,
    UNKNOWN_CLASS,
    AlignedTemplate,
    OrientedTemplate,
    RuleTemplate,
    check_classes,
    checked_names,
    escape,
    min_count_of,
    of_classes,
)
from torchtune_smt.grammar.base import Grammar
from torchtune_smt.lm.classes import WordClasses


def spelling_of(template: RuleTemplate) -> int | None:
    """Return how a template spells, if its `features` are those of a class that says so."""
    found: int | None = declared(template, "spelling", "features")
    return found


class Texts:
    """Words of one side, or their classes, as they stand in feature names, made when asked for."""

    def __init__(self, words: Vocabulary, classes: Mapping[str, str] | None = None) -> None:
        self._words = words
        self._classes = classes
        self._texts = Vocabulary()
        # Numbers plus one: pages of zeros, which cost nothing, mean "not yet".
        self._number: Int32 = np.zeros(len(words), np.int32)
        self._known: dict[int, str] = {}

    def text(self, word: str) -> str:
        """Return the text of any word."""
        return escape(word if self._classes is None else self._classes.get(word, UNKNOWN_CLASS))

    def side(self, symbols: Sequence[int]) -> list[str]:
        """Return the texts of symbols of the grammar."""
        known = self._known
        for symbol in symbols:
            if symbol not in known:
                known[symbol] = f"[{-symbol}]" if symbol < 0 else self.text(self._words[symbol])
        return [known[symbol] for symbol in symbols]

    def of(self, symbols: Int32) -> tuple[Int32, UInt8, Int64]:
        """Return number plus one of each word's text, for those that occur, and all texts."""
        words = symbols[symbols >= 0]
        new = np.unique(words[self._number[words] == 0])
        if new.size:
            names = [self.text(word) for word in self._words.names(new)]
            self._number[new] = self._texts.intern(names) + np.int32(1)
        return self._number, self._texts.symbols, self._texts.begin


Links = Sequence[tuple[int, int]]
Sides = Sequence[tuple[list[str], list[str]]]
"""Both sides of a rule as words, and as classes where a template looks at these."""
OfRules = TypeVar("OfRules", bound=RuleTemplate)


class RuleFeatures:
    """The feature ids of each rule of a grammar, found when the rule is first asked for.

    Of several threads each takes a `sibling`. They wait for nobody: a rule that two find at once
    has the same names, so it gets the same ids, and the same row, from tables that do one call at
    a time. Where a rule has its row, that row and its ids are in these tables already.

    features: takes the names.
    orientations: how phrases can be ordered, if the decoder tells that.
    classes: of the words of the grammar.

    As attributes:
    per_rule: rows of features that a rule has: those of each use, and, where a template looks at
        orientation, behind them those of its orientations towards what is before it, then of those
        towards what is behind it.

    Raises ValueError: a template needs word alignments, counts, orientations or classes, and there
    are none.
    """

    def __init__(
        self,
        grammar: Grammar,
        templates: Sequence[RuleTemplate],
        features: Vocabulary,
        orientations: Sequence[str] = (),
        classes: WordClasses | None = None,
    ) -> None:
        self.grammar = grammar
        self.templates = list(templates)
        self.features = features
        self._aligned = [t for t in self.templates if isinstance(t, AlignedTemplate)]
        self._oriented = [t for t in self.templates if isinstance(t, OrientedTemplate)]
        if self._aligned and grammar.point_begin is None:
            raise ValueError(
                f"{self._aligned[0].name} features need the word alignment of each rule, and this "
                "grammar has none; take a phrase table with alignments"
            )
        if self._oriented and not orientations:
            name = self._oriented[0].name
            raise ValueError(f"{name} features are of the order of phrases; take decoder=phrase")
        words = grammar.source_words, grammar.target_words
        self._texts = [(Texts(words[0]), Texts(words[1]))]
        check_classes(self.templates, classes is not None)
        if classes is not None and any(map(of_classes, self.templates)):
            self._texts.append((Texts(words[0], classes.source), Texts(words[1], classes.target)))
        self._least = np.unique([float(min_count_of(template)) for template in self.templates])
        self._counted = bool(self._least.any())
        if self._counted:
            grammar.rule_counts(np.empty(0, np.int64))
        # What spells the names of templates that say how, of words and of classes: there are no
        # Python strings then.
        self._spelling: list[tuple[Int64, Float64, tuple[UInt8, Int64], tuple[Texts, Texts]]] = []
        spelt = all(spelling_of(template) is not None for template in self.templates)
        if spelt and not self._aligned and not self._oriented:
            for beginning, texts in zip(("", OF_CLASSES), self._texts, strict=False):
                some = [t for t in self.templates if of_classes(t) == bool(beginning)]
                how = np.array([spelling_of(template) for template in some], np.int64)
                least = np.array([min_count_of(template) for template in some], np.float64)
                prefixes = [f"{beginning}{text}".encode() for text in kernels.PREFIXES]
                # A bytearray, since numba compiles anew for arrays that are read-only.
                letters = np.frombuffer(bytearray().join(prefixes), np.uint8)
                begins = offsets([len(text) for text in prefixes])
                self._spelling.append((how, least, (letters, begins), texts))
        self.orientations = list(orientations) if self._oriented else []
        self.per_rule = 1 + 2 * len(self.orientations)
        # The rows that there are, and the numbers plus one among them of each rule's, so that pages
        # of zeros, which cost nothing, mean "not yet".
        self._rows = SequenceTable(np.int32, 1024)
        self._row_of: Int32 = np.zeros((len(grammar) if templates else 0, self.per_rule), np.int32)
        self._row_of_word: dict[tuple[str, bool], Int32] = {}
        # What a sentence's features are numbered with: zeros between two calls.
        self._place: Int32 = np.zeros(0, np.int32)

    def of_sentence(
        self,
        rules: Int64,
        words: Sequence[str] = (),
        dropped: Bool | None = None,
        train_index: int = -1,
    ) -> kernels.SentenceFeatures:
        """Return the features of rules, and behind them of those that copy source words.

        Those of the words that are `dropped` have an empty target side; by default none is. With a
        `train_index`, rules have occurred so often as in the bitext without this sentence.
        """
        if not self.templates:
            begin = np.zeros(rules.size + len(words) + 1, np.int64)
            return kernels.SentenceFeatures(begin, np.empty(0, np.int32), 1, np.empty(0, np.int32))
        of_rules = self._row_of[rules]
        # Another thread may have written down some of a rule's rows.
        missing = rules[(of_rules == 0).any(axis=1)]
        if missing.size:
            occurred = self.grammar.rule_counts(missing) if self._counted else None
            self._row_of[missing] = self._rows_of(missing, occurred)
            of_rules = self._row_of[rules]
        if self._counted and train_index >= 0:
            self._leave_out(train_index, rules, of_rules)
        fates = [False] * len(words) if dropped is None else dropped.tolist()
        rows = [of_rules.ravel(), *map(self._rows_of_word, words, fates)]
        if self._place.size < len(self.features):
            self._place = enlarged(self._place, len(self.features))
        begin, feature, ids = kernels.gather_rows(
            self._rows.begin, self._rows.symbols, np.concatenate(rows), self._place
        )
        ids.sort()
        kernels.number_rows(feature, ids, self._place)
        return kernels.SentenceFeatures(begin, feature, self.per_rule, ids)

    def sibling(self) -> Self:
        """Return one for another thread: what either finds, both know."""
        other = copy(self)
        other._place = np.zeros(0, np.int32)
        return other

    def _rows_of_word(self, word: str, dropped: bool) -> Int32:
        """Return the rows, plus one, of the rule that copies a source word, or drops it."""
        rows = self._row_of_word.get((word, dropped))
        if rows is None:
            sides = [
                ([source.text(word)], [] if dropped else [target.text(word)])
                for source, target in self._texts
            ]
            names = self._names(sides, [] if dropped else [(0, 0)], 0.0)
            rows = self._row_of_word[word, dropped] = self._intern(names)
        return rows

    def _intern(self, names: list[list[str]]) -> Int32:
        """Return the numbers, plus one, of rows of names."""
        begin = offsets([len(row) for row in names])
        ids = self.features.intern([name for row in names for name in row])
        return self._rows.intern_spans(ids, begin[:-1], begin[1:]) + np.int32(1)

    def _names(self, sides: Sides, links: Links | None, count: float) -> list[list[str]]:
        """Return the names of a rule's features, row by row; links are None if not known."""
        rows: list[list[str]] = [[]]
        for template in self._of(self.templates, count):
            rows[0] += checked_names(template, template.features(*sides[of_classes(template)]))
        if links is not None:
            for aligned in self._of(self._aligned, count):
                names = aligned.aligned_features(*sides[of_classes(aligned)], links)
                rows[0] += checked_names(aligned, names)
        oriented = self._of(self._oriented, count)
        for behind, orientation in product((False, True), self.orientations):
            rows.append([])
            for one in oriented:
                names = one.oriented_features(*sides[of_classes(one)], orientation, behind=behind)
                rows[-1] += checked_names(one, names)
        return rows

    def _of(self, templates: list[OfRules], count: float) -> list[OfRules]:
        """Return the templates whose features fire for a rule that occurred so often."""
        if not self._counted:
            return templates
        return [template for template in templates if count >= min_count_of(template)]

    def _leave_out(self, train_index: int, rules: Int64, of_rules: Int32) -> None:
        """Replace the rows of rules that fire less where a training sentence is left out."""
        counts = self.grammar.rule_counts(rules)
        without = self.grammar.rule_counts_without(rules, train_index)
        whole, left = (np.searchsorted(self._least, count, "right") for count in (counts, without))
        fewer = np.flatnonzero(left < whole)
        if fewer.size:
            of_rules[fewer] = self._rows_of(rules[fewer], without[fewer])

    def _rows_of(self, rules: Int64, occurred: Float64 | None) -> Int32:
        """Return the numbers, plus one, of the rows of rules [rules, per_rule]."""
        grammar = self.grammar
        occurred = np.zeros(rules.size) if occurred is None else occurred
        if self._spelling:
            begin: Int64 = np.zeros(rules.size + 1, np.int64)
            parts, owners = [], []
            numbers = grammar.rule_source[rules].astype(np.int64)
            source_first, left = gather(grammar.source_begin, grammar.source_symbols, numbers)
            target_first, right = gather(grammar.target_begin, grammar.target_symbols, rules)
            both = left, source_first, right, target_first
            for how, least, prefix, (sources, targets) in self._spelling:
                texts = sources.of(left) + targets.of(right)
                letters, name, own = kernels.spell(how, least, occurred, *(prefix + both + texts))
                parts.append(self.features.intern_spans(letters, name[:-1], name[1:]))
                owners.append(np.repeat(np.arange(rules.size), np.diff(own)))
                begin += own
            ids = np.concatenate(parts)[np.argsort(np.concatenate(owners), kind="stable")]
            return (self._rows.intern_spans(ids, begin[:-1], begin[1:]) + np.int32(1))[:, None]
        names: list[list[str]] = []
        links: Links | None = None
        for rule, count in zip(rules.tolist(), occurred.tolist(), strict=True):
            source, target = grammar.sides(rule)
            if self._aligned:
                links = grammar.links(rule) or None
            sides = [(left.side(source), right.side(target)) for left, right in self._texts]
            names += self._names(sides, links, count)
        return self._intern(names).reshape(-1, self.per_rule)

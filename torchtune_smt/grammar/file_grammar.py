"""Grammars and phrase tables whose feature values are given, as files hold them."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np

from torchtune_smt.core.arrays import Float64, Int32, Int64
from torchtune_smt.core.errors import InputError
from torchtune_smt.core.offsets import gather, offsets, places_of
from torchtune_smt.core.vocabulary import Vocabulary
from torchtune_smt.grammar.base import Grammar, ordered_trie
from torchtune_smt.grammar.reordering import ReorderingType

NO_LIMIT = 1 << 30


class Side(NamedTuple):
    """One side of all rules: ``symbols[begin[r]:begin[r + 1]]``, as `Grammar` has them."""

    words: Vocabulary
    begin: Int64
    symbols: Int32


class FileGrammar(Grammar):
    """A grammar with fixed feature values.

    source, target: of the rules, in any order; a rule that occurs again is dropped.
    dense (float64 [rules, features])

    As attributes:
    n_duplicates: how many rules were dropped, having occurred before.
    given (int64 [rules]): where rule r stood among those given.
    """

    table_limit = NO_LIMIT

    def __init__(self, source: Side, target: Side, dense_names: list[str], dense: Float64) -> None:
        self.source_words, self.target_words = source.words, target.words
        self.dense_names = list(dense_names)

        # The trie's nodes order the source sides.
        length, other = (np.diff(own.begin).astype(np.int32) for own in (source, target))
        self.trie, self.node_source, side, which = ordered_trie(length, source.symbols)
        self.source_begin, self.source_symbols = gather(source.begin, source.symbols, which)
        rules = side.astype(np.int64) << 32 | ordered_trie(other, target.symbols)[2]
        _, first = np.unique(rules, return_index=True)
        first.sort()
        self.n_duplicates = side.size - first.size

        side = side[first]
        order = np.argsort(side, kind="stable")
        self.rule_source = side[order]
        self.source_rule_begin = offsets(np.bincount(self.rule_source, minlength=which.size))
        self.given = first[order]
        self.dense = np.ascontiguousarray(dense[self.given])
        self.target_begin, self.target_symbols = gather(target.begin, target.symbols, self.given)

    def _rules(self, node: Int32, words: Int32, train_index: int) -> tuple[Int32, Int64, Float64]:
        if train_index >= 0:
            raise ValueError(
                "a grammar file holds no counts to subtract those of a training sentence from; "
                "tune on training data with a grammar extracted by this package"
            )
        side = self.node_source[node]
        first, last = self.source_rule_begin[side], self.source_rule_begin[side + 1]
        count = np.where(side < 0, 0, last - first)
        begin = offsets(count)
        rule = np.repeat(first - begin[:-1], count) + np.arange(begin[-1])
        return begin.astype(np.int32), rule, self.dense[rule]

    def values(self, rule: Int64) -> Float64:
        """Return the feature values of rules, float64 [rules, features]."""
        return self.dense[rule]


class PhraseTable(FileGrammar):
    """Phrase pairs with their scores: a grammar without gaps.

    dense (float64 [phrases, scores]): natural logarithms.
    reordering: what the last columns of `dense` are.
    point_begin, points: word alignment of each phrase pair, see `Grammar`.
    counts (float64 [phrases]): how often each occurred.
    uncounted: where the first line is that does not say so, if that is why there are no counts.
    """

    gaps = False

    def __init__(
        self,
        source: Side,
        target: Side,
        dense_names: list[str],
        dense: Float64,
        *,
        reordering: ReorderingType | None = None,
        point_begin: Int64 | None = None,
        points: Int32 | None = None,
        counts: Float64 | None = None,
        uncounted: tuple[Path, int] | None = None,
    ) -> None:
        super().__init__(source, target, dense_names, dense)
        self.reordering = reordering
        self._counts = None if counts is None else counts[self.given]
        self._uncounted = uncounted
        if point_begin is not None and points is not None:
            self.point_begin, places = places_of(point_begin, self.given)
            self.points = points[places]

    def rule_counts(self, rule: Int64) -> Float64:
        """Return how often phrases occurred, if all lines of the table say so."""
        if self._uncounted is not None:
            raise no_count(*self._uncounted, "min_count of a template")
        if self._counts is None:
            return super().rule_counts(rule)
        counts: Float64 = self._counts[rule]
        return counts


def no_count(path: Path, line: int, what: str) -> InputError:
    """Return the error of a line of a table that lacks what an option needs."""
    return InputError(
        f"has no positive third count behind the alignment, and {what} needs it; take a table with "
        "the counts of all phrase pairs, as train-model.perl writes it, or leave that option out",
        path=path,
        line=line,
    )

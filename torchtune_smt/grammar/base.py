"""What a grammar is to a decoder: rules, and for each sentence those that can match it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from itertools import count
from pathlib import Path
from types import MappingProxyType
from typing import ClassVar, NamedTuple

import numpy as np

from torchtune_smt.core.arrays import Float64, Int32, Int64
from torchtune_smt.core.vocabulary import Vocabulary
from torchtune_smt.grammar import matching_kernels as kernels
from torchtune_smt.grammar.matching_kernels import SentenceGrammar
from torchtune_smt.grammar.reordering import ReorderingType


class Trie(NamedTuple):
    """Symbol sequences merged at their common prefixes; node 0 is the root.

    Nodes are numbered by depth, then parent, then symbol, so that the children of node n are the
    nodes ``child_begin[n]..child_begin[n + 1] - 1``, with ascending symbols.

    symbol (int32 [nodes]): the symbol on the edge into a node; `GAP` is smaller than every word.
        The root's is unused.
    child_begin (int32 [nodes + 1])
    """

    symbol: Int32
    child_begin: Int32


def ordered_trie(length: Int32, symbols: Int32) -> tuple[Trie, Int32, Int32, Int64]:
    """Order sequences by the nodes of their trie where they end; equal ones are one.

    `symbols` are those of one sequence behind the other; nodes order them by length, then symbol by
    symbol.

    Returned are the trie; for each of its nodes the number in this order of the sequence that ends
    there, or -1; the number of each sequence; and which sequence has a number, one of equal ones.
    """
    symbol, child_begin, node = kernels.build_trie(length, symbols)
    ends = np.zeros(symbol.size, np.bool_)
    ends[node] = True
    node_number = np.where(ends, np.cumsum(ends, dtype=np.int32) - 1, -1).astype(np.int32)
    number = node_number[node]
    which = np.empty(np.count_nonzero(ends), np.int64)
    which[number] = np.arange(number.size)
    return Trie(symbol, child_begin), node_number, number, which


RULE_COUNT = "LogRuleCount"
UNIQUE_RULE = "UniqueRule"
"""Features of how often a rule occurred."""


class Grammar(ABC):
    """A synchronous context-free grammar with one category, X.

    Rules of one source side have consecutive ids, best first by the criterion of the table limit.
    On a source side, symbols >= 0 are ids in `source_words` and -1 is the non-terminal; on a target
    side, symbols >= 0 are ids in `target_words`, -1 is the non-terminal that comes first on the
    *source* side, -2 the other. The glue rules are not here: they belong to the decoder.

    dense_names: names of the features of a rule.
    target_begin (int64 [rules + 1])
    target_symbols: the target side of rule r is ``target_symbols[target_begin[r]:target_begin[r +
        1]]``.
    source_begin (int64 [source sides + 1])
    rule_source (int32 [rules]): the source side of rule r has number ``rule_source[r]``.
    source_rule_begin (int64 [source sides + 1]): rules of source side s are
        ``source_rule_begin[s]..source_rule_begin[s + 1] - 1``.
    trie: over the source sides.
    node_source (int32 [nodes of the trie]): the source side that ends in a node, or -1.
    table_limit: at most so many rules of one source side go into a `SentenceGrammar`.
    gaps: whether rules may have non-terminals; if not, they are phrase pairs.
    reordering: what the last columns of features are: one for each orientation of a phrase, of
        which a derivation has one or none.
    point_begin (int64 [alignments + 1])
    points (int32 [points, 2]): word alignments: places of a source and of a target word among the
        symbols of a rule. None if nobody knows them.
    rule_alignment (int32 [rules]): which of them a rule has; None: each has its own, in their
        order.
    feature_places: the file and the line where a feature is named first, of those that a file
        names.
    """

    gaps: ClassVar[bool] = True
    reordering: ReorderingType | None = None
    point_begin: Int64 | None = None
    points: Int32 | None = None
    rule_alignment: Int32 | None = None
    feature_places: Mapping[str, tuple[Path, int]] = MappingProxyType({})

    source_words: Vocabulary
    target_words: Vocabulary
    dense_names: list[str]
    target_begin: Int64
    target_symbols: Int32
    source_begin: Int64
    source_symbols: Int32
    rule_source: Int32
    source_rule_begin: Int64
    trie: Trie
    node_source: Int32
    table_limit: int

    def __len__(self) -> int:
        return self.rule_source.size

    def sentence_grammar(
        self, source: Int32, max_span: int, train_index: int = -1
    ) -> SentenceGrammar:
        """Return the rules that can match a sentence. May be called from several threads.

        The cost depends on the sentence and on what matches it, not on the size of the grammar.
        Raises ValueError: the grammar cannot leave this sentence out.

        source (int32 [n]): ids in `source_words`; negative: unknown.
        max_span: no X covers more words of the source than this.
        train_index: where the sentence is number `train_index` of the bitext that the grammar was
            extracted from: the result is that of an extraction without this sentence. -1 elsewhere.
        """
        # One type for the kernels, which would otherwise be compiled again.
        source = np.ascontiguousarray(source, np.int32)
        words = np.unique(source[source >= 0])
        node, begin = kernels.match(
            self.trie.symbol, self.trie.child_begin, source, words, max_span
        )
        rule_begin, rule, dense = self._rules(node, words, train_index)
        pruned = kernels.prune(self.trie.symbol[node], begin, rule_begin)
        return SentenceGrammar(*pruned, rule, dense)

    @abstractmethod
    def _rules(self, node: Int32, words: Int32, train_index: int) -> tuple[Int32, Int64, Float64]:
        """Return (begin int32 [m + 1], rule, dense): the rules of the trie's nodes `node` [m].

        `words` are the different known words of the sentence, ascending.
        """

    @abstractmethod
    def values(self, rule: Int64) -> Float64:
        """Return the feature values of rules, float64 [rules, features]."""

    def rule_counts(self, rule: Int64) -> Float64:
        """Return how often rules occurred in the bitext, or in how many sentences (float64)."""
        raise ValueError("this grammar does not say how often its rules occurred")

    def rule_counts_without(self, rule: Int64, train_index: int) -> Float64:
        """Return `rule_counts` of the bitext without those left out with one of its sentences."""
        raise ValueError("this grammar does not say how often its rules occurred in one sentence")

    def left_out_first(self, train_index: int) -> int:
        """Return the first of the training sentences that are left out together with one."""
        return train_index

    def rules_within_limit(self) -> Iterator[Int64]:
        """Yield the ids (int64) of all rules within the table limit, piece by piece."""
        for begin in range(0, len(self), 1 << 16):
            rule = np.arange(begin, min(begin + (1 << 16), len(self)))
            rank = rule - self.source_rule_begin[self.rule_source[rule]]
            yield rule[rank < self.table_limit]

    def links(self, rule: int) -> list[tuple[int, int]] | None:
        """Return the places of linked words of a rule, on both sides; None if nobody knows."""
        if self.point_begin is None or self.points is None:
            return None
        number = rule if self.rule_alignment is None else self.rule_alignment[rule]
        begin, end = self.point_begin[number], self.point_begin[number + 1]
        return [(s, t) for s, t in self.points[begin:end].tolist()]

    def sides(self, rule: int) -> tuple[list[int], list[int]]:
        """Return the symbols of both sides of a rule, -1 and -2 for its first and second gap."""
        side = self.rule_source[rule]
        source = self.source_symbols[self.source_begin[side] : self.source_begin[side + 1]]
        gaps = count(1)
        numbered = [s if s >= 0 else -next(gaps) for s in source.tolist()]
        target = self.target_symbols[self.target_begin[rule] : self.target_begin[rule + 1]]
        return numbered, target.tolist()

    def rule_text(self, rule: int) -> tuple[list[str], list[str]]:
        """Return both sides of a rule as strings, the non-terminals as ``[1]`` and ``[2]``."""
        source, target = self.sides(rule)
        return (
            [self.source_words[s] if s >= 0 else f"[{-s}]" for s in source],
            [self.target_words[s] if s >= 0 else f"[{-s}]" for s in target],
        )

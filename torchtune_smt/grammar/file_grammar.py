"""Grammars whose feature values are given, as files hold them."""

from __future__ import annotations

import numpy as np

from torchtune_smt.grammar import matching_kernels as kernels
from torchtune_smt.grammar.base import Grammar
from torchtune_smt.grammar.sequences import SequenceTable, gather
from torchtune_smt.grammar.trie import build_trie
from torchtune_smt.kernel_types import Ids, Offsets, Reals
from torchtune_smt.vocabulary import Vocabulary

NO_LIMIT = 1 << 30


class FileGrammar(Grammar):
    """A grammar with fixed feature values.

    Parameters
    ----------
    source_words, target_words : Vocabulary
    source_begin, target_begin : int64 [rules + 1]
    source_symbols, target_symbols : int32
        Sides of the rules, in any order; a rule that occurs again is dropped.
    dense_names : list of str
    dense : float64 [rules, features]
    table_limit : int, optional
        Use only the best so many rules of a source side; all by default.
    rank_by : str, optional
        The feature whose largest values come first among the rules of a source side. The given
        order by default.

    Attributes
    ----------
    dense : float64 [rules, features]
    n_duplicates : int
        How many rules were dropped, having occurred before.
    """

    def __init__(
        self,
        source_words: Vocabulary,
        target_words: Vocabulary,
        source_begin: Offsets,
        source_symbols: Ids,
        target_begin: Offsets,
        target_symbols: Ids,
        dense_names: list[str],
        dense: Reals,
        *,
        table_limit: int | None = None,
        rank_by: str | None = None,
    ) -> None:
        if table_limit is not None and table_limit < 1:
            raise ValueError(f"table_limit must be 1 or more, not {table_limit}")
        if rank_by is not None and rank_by not in dense_names:
            raise ValueError(f"rank_by: no feature {rank_by!r} among {', '.join(dense_names)}")
        self.source_words, self.target_words = source_words, target_words
        self.dense_names = list(dense_names)
        self.table_limit = NO_LIMIT if table_limit is None else table_limit

        self.trie, node = build_trie(source_begin, source_symbols)
        target = SequenceTable(node.size).intern(target_begin, target_symbols)
        rules = node.astype(np.int64) << 32 | target
        _, first = np.unique(rules, return_index=True)
        first.sort()
        self.n_duplicates = int(node.size - first.size)

        # Node numbers order the source sides; within a side: the criterion, then the given order.
        node = node[first]
        if rank_by is None:
            order = np.argsort(node, kind="stable")
        else:
            order = np.lexsort((-dense[first, self.dense_names.index(rank_by)], node))
        rules, node = first[order], node[order]
        self.dense = np.ascontiguousarray(dense[rules])
        self.target_begin, self.target_symbols = gather(target_begin, target_symbols, rules)

        nodes, begin, rule_source = np.unique(node, return_index=True, return_inverse=True)
        self.rule_source = rule_source.astype(np.int32)
        self.source_rule_begin = np.append(begin, node.size).astype(np.int64)
        self.source_begin, self.source_symbols = gather(source_begin, source_symbols, rules[begin])
        self.node_source = np.full(self.trie.symbol.size, -1, np.int32)
        self.node_source[nodes] = np.arange(nodes.size, dtype=np.int32)

    def _rules(self, node: Ids, source: Ids, train_index: int) -> tuple[Ids, Offsets, Reals]:
        if train_index >= 0:
            raise ValueError(
                "a grammar file holds no counts to subtract those of a training sentence from; "
                "tune on training data with a grammar extracted by this package"
            )
        begin, rule = kernels.all_rules(
            node, self.node_source, self.source_rule_begin, self.table_limit
        )
        return begin, rule, self.dense[rule]

    def values(self, rule: Offsets) -> Reals:
        """Return the feature values of rules, float64 [rules, features]."""
        return self.dense[rule]

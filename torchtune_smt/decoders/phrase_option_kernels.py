"""Kernels of the phrase-based decoder: options of a sentence, and what their orientations score.

An option's sparse features lie in rows (CSR): row ``rule * (1 + 2 c)`` holds those of each use, the
c rows behind it those of its orientations towards what is before it, then as many for its
orientations towards what is behind it; c is 0 where no feature looks at orientations.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from torchtune_smt.core.arrays import Float64, Int32
from torchtune_smt.core.compiled import kernel
from torchtune_smt.core.sequences_kernels import number_equal
from torchtune_smt.features.rule_kernels import SentenceFeatures
from torchtune_smt.grammar.matching_kernels import SentenceGrammar, place


class Options(NamedTuple):
    """What a phrase-based search knows of a sentence's rules beside `Targets`.

    option (int32 [n, longest + 1, 2]): options of `length` words from i on are rules ``option[i,
        length, 0]`` to ``option[i, length, 1] - 1``, best first, once they are sorted.
    forward_class (int32 [rules]): rules are of one class if their orientations towards what is
        behind them have equal scores and sparse features.
    """

    option: Int32
    forward_class: Int32


@kernel
def options_of(
    source: Int32,
    grammar: SentenceGrammar,
    dense: Float64,
    forward: int,
    orientations: int,
    sparse: SentenceFeatures,
    limit: int,
) -> Options:
    """Return the options of a sentence.

    source (int32 [n]): words of the table, -1 where unknown.
    grammar: the sentence's phrases; behind them one rule copies each word.
    dense: of `Targets`.
    forward: the first column of the orientations towards what is behind; -1 if there is none.
    limit: phrases of a source side, at most.
    """
    row_begin, feature, rows, _ = sparse
    child_begin, rule_begin = grammar.child_begin, grammar.rule_begin
    n, all_rules = source.size, dense.shape[0]
    option, longest = np.zeros((n, 8, 2), np.int32), 1
    for i in range(n):
        v = 0
        for j in range(i, n):
            if source[j] < 0:
                break
            at = place(grammar.child_symbol, child_begin[v], child_begin[v + 1], source[j])
            if at < 0:
                break
            v, length = grammar.child_node[at], j - i + 1
            if length >= option.shape[1]:
                more = np.zeros((n, 2 * length, 2), np.int32)
                more[:, :length] = option
                option = more
            longest = max(longest, length)
            first, last = rule_begin[v], rule_begin[v + 1]
            option[i, length, 0], option[i, length, 1] = first, min(last, first + limit)
        if option[i, 1, 0] == option[i, 1, 1]:
            copy = all_rules - n + i
            option[i, 1, 0], option[i, 1, 1] = copy, copy + 1
    option = option[:, : longest + 1].copy()
    # Scores and sparse features of the orientations towards what is behind an option.
    c, most = (rows - 1) // 2, 0
    for k in range(all_rules):
        for row in range(k * rows + 1 + c, (k + 1) * rows):
            most = max(most, row_begin[row + 1] - row_begin[row])
    known = orientations if forward >= 0 else 0
    behind = np.full((all_rules, known + c * most), -1, np.int64)
    if known > 0:
        bits = dense[:, forward : forward + known].copy().view(np.int64)
        for k in range(all_rules):
            for o in range(known):
                behind[k, o] = bits[k, o]
    for k in range(all_rules):
        for o in range(c):
            row = k * rows + 1 + c + o
            for q in range(row_begin[row + 1] - row_begin[row]):
                behind[k, known + o * most + q] = feature[row_begin[row] + q]
    row_ends = np.arange(all_rules + 1) * behind.shape[1]
    return Options(option, number_equal(row_ends, behind.ravel()).astype(np.int32))


@kernel
def weigh_orientations(
    dense: Float64,
    dense_weight: Float64,
    first: int,
    orientations: int,
    sparse: SentenceFeatures,
    weight: Float64,
    offset: int,
) -> Float64:
    """Return what the orientations of each rule in one direction score, float64 [rules, c].

    first: the direction's first dense column, -1 if it has none.
    sparse, weight: sparse features of options; see the module.
    offset: which row of an option is the direction's first one. No sparse features look at
        orientations if an option has one row.
    """
    row_begin, feature, rows, _ = sparse
    n = dense.shape[0]
    score = np.zeros((n, orientations if first >= 0 or rows > 1 else 0))
    for r in range(n):
        for o in range(score.shape[1]):
            if first >= 0:
                score[r, o] = dense[r, first + o] * dense_weight[first + o]
            if rows > 1:
                row = r * rows + offset + o
                for k in range(row_begin[row], row_begin[row + 1]):
                    score[r, o] += weight[feature[k]]
    return score

"""Kernels of the rules of a sentence: their target sides are laid out once, and scored anew.

Sparse features lie in rows (CSR): row ``rule * rows`` holds those of each use of a rule; for the
others see `torchtune_smt.decoders.rule_features.RuleFeatures`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from torchtune_smt.core.arrays import Float64, Int32, Int64, Records
from torchtune_smt.core.compiled import kernel
from torchtune_smt.decoders.search_kernels import Rules, add_word
from torchtune_smt.features.rule_kernels import SentenceFeatures
from torchtune_smt.lm.kernels import asked

_FEW = 64  # sorted by insertion

# What a decoder's own feature counts: rules, words, words that the language model does not know,
# rules that copy a word (or drop it).
_RULE, _WORD, _UNKNOWN, _COPY = range(4)


class Targets(NamedTuple):
    """Target sides and dense features of a sentence's rules, and what the language model says.

    begin (int32 [rules + 1])
    target, target_lm: symbols, as target words and as words of the language model; gaps are -1 and
        -2 in both.
    dense (float64 [rules, F + own]): behind those of the grammar the decoder's own; what depends on
        more than the rule (the language model, reordering) is 0 here, or what it could be.
    state (int32 [rules, 4]): the string before the first gap (left, full, right; see
        `search_kernels`), and where it ends in the rule's target side.
    alone (float64 [rules, 2]): Log10 probability of that string; and of all runs of words, each
        taken by itself.
    """

    begin: Int32
    target: Int32
    target_lm: Int32
    dense: Float64
    state: Int32
    alone: Float64


@kernel
def lay_out(
    target_begin: Int64,
    target_symbols: Int32,
    rule: Int64,
    dense: Float64,
    copies: Int32,
    lm_words: Int32,
    own: Float64,
    behind: int,
) -> Targets:
    """Return what of a sentence's rules does not depend on weights; `score_alone` does the rest.

    target_begin, target_symbols: target sides of the whole grammar.
    rule (int64 [r]): rules of the sentence.
    dense (float64 [r, F]): their features of the grammar.
    copies (int32 [n]): source words as target words: each makes a pass-through rule, behind the
        others; -1 for one that is dropped, the target side of whose rule is empty.
    lm_words: the language model's word of each target word.
    own (float64 [own, 4]): what the decoder's features have for each rule; each word; each word
        that the language model does not know; each rule that copies a word.
    behind: 1 if a gap, for what is translated before, stands in front of each target side (the
        string "before the first gap" is then that behind it); else 0.
    """
    r, n, columns = rule.size, copies.size, dense.shape[1]
    begin = np.zeros(r + n + 1, np.int32)
    for i in range(r):
        begin[i + 1] = begin[i] + behind + target_begin[rule[i] + 1] - target_begin[rule[i]]
    for i in range(n):
        begin[r + i + 1] = begin[r + i] + behind + (copies[i] >= 0)
    target = np.empty(begin[r + n], np.int32)
    target_lm = np.empty(begin[r + n], np.int32)
    values = np.zeros((r + n, columns + own.shape[0]), np.float64)
    for i in range(r + n):
        first = begin[i] + behind
        if behind:
            target[begin[i]] = target_lm[begin[i]] = -1
        if i < r:
            for f in range(columns):
                values[i, f] = dense[i, f]
            for k in range(begin[i + 1] - first):
                target[first + k] = target_symbols[target_begin[rule[i]] + k]
        elif copies[i - r] >= 0:
            target[first] = copies[i - r]
        for f in range(own.shape[0]):
            values[i, columns + f] = own[f, _RULE] + (own[f, _COPY] if i >= r else 0.0)
        for k in range(first, begin[i + 1]):
            target_lm[k] = target[k]
            if target[k] >= 0:
                target_lm[k] = lm_words[target[k]]
                for f in range(own.shape[0]):
                    values[i, columns + f] += own[f, _WORD]
                    if target_lm[k] == 0:
                        values[i, columns + f] += own[f, _UNKNOWN]
    state, alone = np.empty((r + n, 4), np.int32), np.empty((r + n, 2), np.float64)
    return Targets(begin, target, target_lm, values, state, alone)


@kernel
def score_alone(
    table: Records,
    nodes: Records,
    rule: Int64,
    targets: Targets,
    behind: int,
    known: Int32,
    known_score: Float64,
) -> None:
    """Fill ``state`` and ``alone`` of the rules of a sentence.

    table, nodes: `LmTables`.
    rule, behind: see `lay_out`.
    known, known_score: without rows; or, for a grammar without gaps, what has been found of each
        of its rules, and is not looked for again (int32 [rules of the grammar, 3]: left, 1 + full,
        right; 0 in the middle where it has not been), and its log10 probability.
    """
    begin, target_lm, state, alone = targets.begin, targets.target_lm, targets.state, targets.alone
    lm = asked(table, nodes)
    for i in range(begin.size - 1):
        remembered = i < rule.size and known.shape[0] > 0
        state[i, 3] = begin[i + 1]
        if remembered and known[rule[i], 1] > 0:
            m = rule[i]
            state[i, 0], state[i, 1], state[i, 2] = known[m, 0], known[m, 1] - 1, known[m, 2]
            alone[i, 0] = alone[i, 1] = known_score[m]
            continue
        left, full, right, p = 0, 0, 0, 0.0
        total, gaps = 0.0, 0
        for k in range(begin[i] + behind, begin[i + 1] + 1):
            if k < begin[i + 1] and target_lm[k] >= 0:
                left, full, right, p = add_word(lm, left, full, right, p, target_lm[k])
                continue
            # The end of a run of words.
            if gaps == 0:
                state[i, 0], state[i, 1], state[i, 2] = left, full, right
                state[i, 3], alone[i, 0] = k, p
            gaps += 1
            total += p
            left, full, right, p = 0, 0, 0, 0.0
        alone[i, 1] = total
        if remembered:
            m = rule[i]
            known[m, 0], known[m, 1], known[m, 2] = state[i, 0], 1 + state[i, 1], state[i, 2]
            known_score[m] = alone[i, 0]


@kernel
def score_rules(
    rule_begin: Int32,
    targets: Targets,
    dense_weight: Float64,
    sparse: SentenceFeatures,
    sparse_weight: Float64,
    lm_weight: float,
    limit: int,
) -> Rules:
    """Score the rules of one sentence under the current weights.

    `sparse_weight` has the weights of this sentence's features alone: the cost does not depend on
    the number of features there are.
    Rules are ordered by their score plus that of their words in the language model, each run
    of words taken by itself: the `limit` best of a node, best first, are the first in its order;
    others are not sorted.
    """
    dense, alone = targets.dense, targets.alone
    sparse_begin, sparse_feature, rows, _ = sparse
    n, columns = dense.shape
    score = np.empty((n, 2), np.float64)
    estimate = np.empty(n, np.float64)
    for r in range(n):
        s = 0.0
        for f in range(columns):
            s += dense[r, f] * dense_weight[f]
        for k in range(sparse_begin[r * rows], sparse_begin[r * rows + 1]):
            s += sparse_weight[sparse_feature[k]]
        score[r, 0], score[r, 1] = s, alone[r, 0]
        estimate[r] = s + lm_weight * alone[r, 1]
    order = np.arange(n).astype(np.int32)
    for v in range(rule_begin.size - 1):
        begin, end = rule_begin[v], rule_begin[v + 1]
        if min(end - begin, limit) > _FEW:
            # Insertion would take a time that grows with the square of their number.
            order[begin:end] = begin + np.argsort(-estimate[begin:end], kind="mergesort")
            continue
        for r in range(begin + 1, end):
            # Insert it among the best ones, equal ones in the order of the grammar.
            k = min(r, begin + limit)
            if k < r and estimate[order[k - 1]] >= estimate[r]:
                continue
            k -= k < r
            while k > begin and estimate[order[k - 1]] < estimate[r]:
                order[k] = order[k - 1]
                k -= 1
            order[k] = r
    return Rules(order, targets.state, score, lm_weight)

"""Kernels of the hierarchical decoder: the rules of one sentence, laid out and scored."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from torchtune_smt.core.arrays import Float64, Int32, Int64, Records
from torchtune_smt.core.compiled import kernel
from torchtune_smt.decoders.hiero_lm_kernels import add_word


class Rules(NamedTuple):
    """The scored rules of one sentence.

    Attributes
    ----------
    order : int32 [rules]
        The rules of trie node v, best first: ``order[rule_begin[v]:rule_begin[v + 1]]``.
    state : int32 [rules, 4]
        As `Targets` has it.
    score : float64 [rules, 2]
        W·features of the rule, the language model left out; log10 probability of the string before
        the first gap.
    """

    order: Int32
    state: Int32
    score: Float64


class Targets(NamedTuple):
    """Target sides and dense features of a sentence's rules, and what the language model says.

    Attributes
    ----------
    begin : int32 [rules + 1]
    target, target_lm : int32
        Symbols, as target words and as words of the language model; gaps are -1 and -2 in both.
    dense : float64 [rules, F + 5]
        Behind those of the grammar the columns LanguageModel (0 here), LanguageModel_OOV,
        WordPenalty, PassThrough, Glue.
    state : int32 [rules, 4]
        The string before the first gap (left, full, right; see `hiero_lm_kernels`), and where
        it ends in the rule's target side.
    alone : float64 [rules, 2]
        Log10 probability of that string; and of all runs of words, each taken by itself.
    """

    begin: Int32
    target: Int32
    target_lm: Int32
    dense: Float64
    state: Int32
    alone: Float64


@kernel
def local_rules(
    table: Records,
    nodes: Records,
    target_begin: Int64,
    target_symbols: Int32,
    rule: Int64,
    dense: Float64,
    copies: Int32,
    lm_words: Int32,
    word_value: float,
) -> Targets:
    """Return what of a sentence's rules does not depend on weights.

    Parameters
    ----------
    table, nodes
        `LmTables`.
    target_begin, target_symbols
        Target sides of the whole grammar.
    rule : int64 [r]
        Rules of the sentence.
    dense : float64 [r, F]
        Their features of the grammar.
    copies : int32 [n]
        Source words as target words: each makes a pass-through rule, behind the others; -1 for one
        that is dropped, the target side of whose rule is empty.
    lm_words : int32
        The language model's word of each target word.
    word_value : float
        Value of the word penalty for one word.
    """
    r, n, columns = rule.size, copies.size, dense.shape[1]
    begin = np.zeros(r + n + 1, np.int32)
    for i in range(r):
        begin[i + 1] = begin[i] + target_begin[rule[i] + 1] - target_begin[rule[i]]
    for i in range(n):
        begin[r + i + 1] = begin[r + i] + (copies[i] >= 0)
    target = np.empty(begin[r + n], np.int32)
    target_lm = np.empty(begin[r + n], np.int32)
    values = np.zeros((r + n, columns + 5), np.float64)
    for i in range(r + n):
        if i < r:
            for f in range(columns):
                values[i, f] = dense[i, f]
            first = target_begin[rule[i]]
            for k in range(begin[i + 1] - begin[i]):
                target[begin[i] + k] = target_symbols[first + k]
        else:
            if copies[i - r] >= 0:
                target[begin[i]] = copies[i - r]
            values[i, columns + 3] = 1.0
        for k in range(begin[i], begin[i + 1]):
            target_lm[k] = target[k]
            if target[k] >= 0:
                target_lm[k] = lm_words[target[k]]
                if target_lm[k] == 0:
                    values[i, columns + 1] += 1.0
                values[i, columns + 2] += word_value
    state = np.empty((r + n, 4), np.int32)
    alone = np.empty((r + n, 2), np.float64)
    for i in range(r + n):
        left, full, right, p = 0, 0, 0, 0.0
        total = 0.0
        first_gap = -1
        for k in range(begin[i], begin[i + 1]):
            if target_lm[k] >= 0:
                left, full, right, p = add_word(table, nodes, left, full, right, p, target_lm[k])
            else:
                if first_gap < 0:
                    first_gap = k
                    state[i, 0], state[i, 1], state[i, 2] = left, full, right
                    alone[i, 0] = p
                total += p
                left, full, right, p = 0, 0, 0, 0.0
        if first_gap < 0:
            first_gap = begin[i + 1]
            state[i, 0], state[i, 1], state[i, 2] = left, full, right
            alone[i, 0] = p
        state[i, 3] = first_gap
        alone[i, 1] = total + p
    return Targets(begin, target, target_lm, values, state, alone)


@kernel
def score_rules(
    rule_begin: Int32,
    targets: Targets,
    dense_weight: Float64,
    sparse_begin: Int64,
    sparse_feature: Int32,
    sparse_weight: Float64,
    lm_weight: float,
) -> Rules:
    """Score the rules of one sentence under the current weights.

    ``sparse_feature`` holds positions in `sparse_weight`, which has the weights of this
    sentence's features alone: the cost does not depend on the number of features there are.
    Rules are ordered by their score plus that of their words in the language model, each run
    of words taken by itself.
    """
    dense, alone = targets.dense, targets.alone
    n, columns = dense.shape
    score = np.empty((n, 2), np.float64)
    estimate = np.empty(n, np.float64)
    for r in range(n):
        s = 0.0
        for f in range(columns):
            s += dense[r, f] * dense_weight[f]
        for k in range(sparse_begin[r], sparse_begin[r + 1]):
            s += sparse_weight[sparse_feature[k]]
        score[r, 0], score[r, 1] = s, alone[r, 0]
        estimate[r] = s + lm_weight * alone[r, 1]
    order = np.arange(n).astype(np.int32)
    for v in range(rule_begin.size - 1):
        begin, end = rule_begin[v], rule_begin[v + 1]
        if end - begin > 1:
            order[begin:end] = begin + np.argsort(-estimate[begin:end], kind="mergesort")
    return Rules(order, targets.state, score)

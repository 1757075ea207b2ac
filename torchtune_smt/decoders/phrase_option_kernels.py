"""Kernels of the phrase-based decoder: options of a sentence, and what is read off at the end.

An option's sparse features lie in rows (CSR): row ``rule * (1 + 2 c)`` holds those of each use, the
c rows behind it those of its orientations towards what is before it, then as many for its
orientations towards what is behind it; c is 0 where no feature looks at orientations.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from torchtune_smt.core.arrays import Float64, Int32, Int64, Records
from torchtune_smt.core.compiled import inner, kernel
from torchtune_smt.core.sequences_kernels import longer, number_equal
from torchtune_smt.decoders.derivation_kernels import COUNT, FIRST, RANK1, Derivations, write_row
from torchtune_smt.decoders.search_kernels import CHILD1, RULE, Chart, Rules, add_word
from torchtune_smt.features.rule_kernels import SentenceFeatures
from torchtune_smt.grammar.matching_kernels import SentenceGrammar, place

LOG_10 = np.log(10.0)

_FEW = 64  # sorted by insertion


class Columns(NamedTuple):
    """Where dense features stand in a row.

    backward, forward: the first of a direction's orientations; -1 where the model has no such
        direction.
    """

    backward: int
    forward: int
    distortion: int
    language_model: int
    word_penalty: int
    phrase_penalty: int
    unknown_word: int


class Options(NamedTuple):
    """The options of a sentence: rules of the table, and behind them one that copies each word.

    option (int32 [n, longest + 1, 2]): options of `length` words from i on are rules ``option[i,
        length, 0]`` to ``option[i, length, 1] - 1``, best first, once they are sorted.
    lm_begin (int32 [rules + 1])
    lm_word: their words, as the language model has them.
    begin (int32 [rules + 1])
    symbol: their words as hypotheses have them, behind a gap for what is before them.
    dense (float64 [rules, dense features]): their features; those of reordering are what an
        orientation would give.
    forward_class (int32 [rules]): rules are of one class if their orientations towards what is
        behind them have equal scores and sparse features.
    """

    option: Int32
    lm_begin: Int32
    lm_word: Int32
    begin: Int32
    symbol: Int32
    dense: Float64
    forward_class: Int32


@kernel
def lay_out(
    source: Int32,
    grammar: SentenceGrammar,
    target_begin: Int64,
    target_symbols: Int32,
    copies: Int32,
    lm_words: Int32,
    columns: int,
    where: Columns,
    orientations: int,
    sparse: SentenceFeatures,
    table_limit: int,
) -> Options:
    """Return the options of a sentence.

    source (int32 [n]): words of the table, -1 where unknown.
    grammar: the sentence's phrases, whose features are the first columns.
    target_begin, target_symbols: target sides of the whole table.
    copies (int32 [n]): source words as target words; -1 for one that is dropped.
    lm_words: the language model's word of each target word.
    columns: number of dense features.
    sparse: of options; see the module.
    """
    row_begin, feature, rows, _ = sparse
    child_begin, rule_begin, rule = grammar.child_begin, grammar.rule_begin, grammar.rule
    n, r = source.size, rule.size
    # Phrases of the table that match a span.
    longest = 1
    width = 8
    node = np.full((n, width + 1), -1, np.int32)
    for i in range(n):
        v = 0
        for j in range(i, n):
            if source[j] < 0:
                break
            at = place(grammar.child_symbol, child_begin[v], child_begin[v + 1], source[j])
            if at < 0:
                break
            v = grammar.child_node[at]
            length = j - i + 1
            if length > width:
                more = np.full((n, 2 * width + 1), -1, np.int32)
                more[:, : width + 1] = node
                node = more
                width *= 2
            node[i, length] = v
            longest = max(longest, length)
    option = np.zeros((n, longest + 1, 2), np.int32)
    for i in range(n):
        for length in range(1, longest + 1):
            v = node[i, length]
            if v >= 0:
                first, last = rule_begin[v], rule_begin[v + 1]
                option[i, length, 0], option[i, length, 1] = first, min(last, first + table_limit)
        if option[i, 1, 0] == option[i, 1, 1]:
            option[i, 1, 0], option[i, 1, 1] = r + i, r + i + 1

    lm_begin = np.zeros(r + n + 1, np.int32)
    for k in range(r):
        lm_begin[k + 1] = lm_begin[k] + target_begin[rule[k] + 1] - target_begin[rule[k]]
    for k in range(r, r + n):
        lm_begin[k + 1] = lm_begin[k] + (copies[k - r] >= 0)
    begin = np.zeros(r + n + 1, np.int32)
    lm_word = np.empty(lm_begin[r + n], np.int32)
    symbol = np.empty(lm_begin[r + n] + r + n, np.int32)
    dense = np.zeros((r + n, columns))
    for k in range(r + n):
        begin[k + 1] = lm_begin[k + 1] + k + 1
        symbol[begin[k]] = -1
        for m in range(lm_begin[k + 1] - lm_begin[k]):
            word = target_symbols[target_begin[rule[k]] + m] if k < r else copies[k - r]
            symbol[begin[k] + 1 + m] = word
            lm_word[lm_begin[k] + m] = lm_words[word]
        if k < r:
            for f in range(grammar.dense.shape[1]):
                dense[k, f] = grammar.dense[k, f]
        else:
            dense[k, where.unknown_word] = -100.0
        dense[k, where.word_penalty] = lm_begin[k] - lm_begin[k + 1]
        dense[k, where.phrase_penalty] = 1.0
    # Scores and sparse features of the orientations towards what is behind an option.
    c, most = (rows - 1) // 2, 0
    for k in range(r + n):
        for row in range(k * rows + 1 + c, (k + 1) * rows):
            most = max(most, row_begin[row + 1] - row_begin[row])
    known = orientations if where.forward >= 0 else 0
    forward = np.full((r + n, known + c * most), -1, np.int64)
    if known > 0:
        bits = dense[:, where.forward : where.forward + known].copy().view(np.int64)
        for k in range(r + n):
            for o in range(known):
                forward[k, o] = bits[k, o]
    for k in range(r + n):
        for o in range(c):
            row = k * rows + 1 + c + o
            for q in range(row_begin[row + 1] - row_begin[row]):
                forward[k, known + o * most + q] = feature[row_begin[row] + q]
    row_ends = np.arange(r + n + 1) * forward.shape[1]
    classes = number_equal(row_ends, forward.ravel()).astype(np.int32)
    return Options(option, lm_begin, lm_word, begin, symbol, dense, classes)


@kernel
def score_alone(
    table: Records,
    nodes: Records,
    rule: Int64,
    lm_begin: Int32,
    lm_word: Int32,
    known: Int32,
    known_score: Float64,
) -> None:
    """Score phrases by themselves in the language model, and remember that.

    rule (int64 [r]): phrases of the table; `lm_begin` and `lm_word` are their words.
    known (int32 [phrases, 3]): (left, 1 + full, right) of each phrase's words, see
        `search_kernels`; 0 in the middle where they have not been scored yet.
    known_score (float64 [phrases]): log10 probability.
    """
    for k in range(rule.size):
        r = rule[k]
        if known[r, 1] == 0:
            left, full, right, p = 0, 0, 0, 0.0
            for q in range(lm_begin[k], lm_begin[k + 1]):
                left, full, right, p = add_word(table, nodes, left, full, right, p, lm_word[q])
            known[r, 0], known[r, 1], known[r, 2] = left, 1 + full, right
            known_score[r] = p


@kernel
def score_options(
    table: Records,
    nodes: Records,
    grammar: SentenceGrammar,
    known: Int32,
    known_score: Float64,
    options: Options,
    dense_weight: Float64,
    sparse: SentenceFeatures,
    weight: Float64,
    lm_weight: float,
    table_limit: int,
) -> Rules:
    """Score the options of one sentence under the current weights.

    known, known_score: as `score_alone` leaves them.
    dense_weight (float64 [dense features]): 0 for those of reordering.
    sparse, weight: sparse features of options, and the weights of those of this sentence alone.

    Returns Rules: the first `table_limit` in the order of a node are the best, best first, by their
        score with that of their words in the language model; others are not sorted.
    """
    row_begin, feature, rows, _ = sparse
    rule_begin, rule = grammar.rule_begin, grammar.rule
    n, columns = options.dense.shape
    state = np.empty((n, 4), np.int32)
    score = np.empty((n, 2), np.float64)
    estimate = np.empty(n, np.float64)
    for r in range(n):
        s = 0.0
        for f in range(columns):
            s += options.dense[r, f] * dense_weight[f]
        for k in range(row_begin[r * rows], row_begin[r * rows + 1]):
            s += weight[feature[k]]
        if r < rule.size:
            m = rule[r]
            state[r, 0], state[r, 1], state[r, 2] = known[m, 0], known[m, 1] - 1, known[m, 2]
            score[r, 1] = known_score[m]
        else:
            left, full, right, p = 0, 0, 0, 0.0
            for q in range(options.lm_begin[r], options.lm_begin[r + 1]):
                word = options.lm_word[q]
                left, full, right, p = add_word(table, nodes, left, full, right, p, word)
            state[r, 0], state[r, 1], state[r, 2], score[r, 1] = left, full, right, p
        state[r, 3] = options.lm_begin[r + 1]
        score[r, 0] = s
        estimate[r] = s + lm_weight * score[r, 1]
    order = np.arange(n).astype(np.int32)
    for v in range(rule_begin.size - 1):
        begin, end = rule_begin[v], rule_begin[v + 1]
        if min(end - begin, table_limit) > _FEW:
            # Insertion would take a time that grows with the square of their number.
            order[begin:end] = begin + np.argsort(-estimate[begin:end], kind="mergesort")
            continue
        for r in range(begin + 1, end):
            # Insert it among the best ones, equal ones in the order of the table.
            k = min(r, begin + table_limit)
            if k < r and estimate[order[k - 1]] >= estimate[r]:
                continue
            k -= k < r
            while k > begin and estimate[order[k - 1]] < estimate[r]:
                order[k] = order[k - 1]
                k -= 1
            order[k] = r
    return Rules(order, state, score)


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


@inner
def _path(edge: Int32, derivation: Int32, pool: Int32, item: Int32, last: int, path: Int32) -> int:
    """Write the edges of a derivation, the first one last; return their number."""
    steps = 0
    d = last
    while edge[derivation[d, 0], CHILD1] >= 0:
        e = derivation[d, 0]
        path[steps] = e
        steps += 1
        d = pool[item[edge[e, CHILD1], FIRST] + derivation[d, RANK1]]
    return steps


@inner
def _add_row(feature: Int32, begin: int, end: int, fired: Int32, firings: int) -> int:
    """Append a row of sparse features to those that fired."""
    for k in range(begin, end):
        fired[firings] = feature[k]
        firings += 1
    return firings


@kernel
def read_off(
    chart: Chart,
    span: Int32,
    derivations: Derivations,
    options: Options,
    where: Columns,
    orientations: int,
    sparse: SentenceFeatures,
) -> tuple[Int64, Int32, Int64, Int32, Float64, Float64]:
    """Return words, features and scores of the goal's derivations, in the form of `KBest`.

    The language model's feature is a natural logarithm.
    """
    row_begin, feature, rows, feature_id = sparse
    edge, derivation = chart.edge, derivations.derivation
    pool, item, begin, dense = derivations.pool, derivations.item, options.begin, options.dense
    first, k = item[chart.goal, FIRST], item[chart.goal, COUNT]
    n, columns = options.option.shape[0], dense.shape[1]
    c = (rows - 1) // 2
    path = np.empty(n + 1, np.int32)
    token_begin, entry_begin = np.zeros(k + 1, np.int64), np.zeros(k + 1, np.int64)
    tokens, fired = np.empty(1024, np.int32), np.empty(64, np.int32)
    id_, value = np.empty(1024, np.int32), np.empty(1024, np.float64)
    score = np.empty(k, np.float64)
    row = np.empty(columns, np.float64)
    entries, words = 0, 0
    for h in range(k):
        score[h] = derivations.score[pool[first + h]]
        steps = _path(edge, derivation, pool, item, pool[first + h], path)
        row[:] = 0.0
        firings, room = 0, 0
        end, before = -1, -1
        for step in range(steps - 1, -1, -1):
            e = path[step]
            r = edge[e, RULE]
            row[where.language_model] += LOG_10 * chart.edge_score[e, 1]
            if r < 0:
                continue
            tokens = longer(tokens, words + begin[r + 1] - begin[r])
            room += row_begin[(r + 1) * rows] - row_begin[r * rows]
            fired = longer(fired, room)
            for q in range(begin[r] + 1, begin[r + 1]):
                tokens[words] = options.symbol[q]
                words += 1
            for f in range(columns):
                if not (
                    where.backward >= 0 and where.backward <= f < where.backward + orientations
                ) and not (
                    where.forward >= 0 and where.forward <= f < where.forward + orientations
                ):
                    row[f] += dense[r, f]
            row[where.distortion] -= abs(span[e, 0] - end - 1)
            end = span[e, 1]
            at = r * rows
            firings = _add_row(feature, row_begin[at], row_begin[at + 1], fired, firings)
            if where.backward >= 0:
                row[where.backward + span[e, 2]] += dense[r, where.backward + span[e, 2]]
            if where.forward >= 0 and before >= 0:
                row[where.forward + span[e, 3]] += dense[before, where.forward + span[e, 3]]
            if c > 0:
                at = r * rows + 1 + span[e, 2]
                firings = _add_row(feature, row_begin[at], row_begin[at + 1], fired, firings)
                if before >= 0:
                    at = before * rows + 1 + c + span[e, 3]
                    firings = _add_row(feature, row_begin[at], row_begin[at + 1], fired, firings)
            before = r
        token_begin[h + 1] = words
        id_ = longer(id_, entries + columns + firings)
        value = longer(value, entries + columns + firings)
        entries = write_row(row, fired[:firings], feature_id, id_, value, entries)
        entry_begin[h + 1] = entries
    tokens, id_, value = tokens[:words].copy(), id_[:entries].copy(), value[:entries].copy()
    return token_begin, tokens, entry_begin, id_, value, score

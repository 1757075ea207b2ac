"""Kernels that score an extracted grammar's rules for one sentence, or check those of a file."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from torchtune_smt.core.arrays import Float64, Int32, Int64
from torchtune_smt.core.compiled import inner, kernel
from torchtune_smt.core.rows_kernels import number_distinct, places_of
from torchtune_smt.core.sequences_kernels import longer
from torchtune_smt.grammar.extraction_kernels import UNIT, exact_count
from torchtune_smt.grammar.matching_kernels import GAP, lower_bound, place

LOWEST = -99.0
"""log10 of a probability of 0, which no extracted rule has."""


class RuleCounts(NamedTuple):
    """Rules and their counts.

    Each count is there twice: as a float64, and as an int64 in units of ``1 / UNIT`` modulo 2^64,
    from which other counts can be subtracted without any error (`exact_count`).

    rule_begin (int64 [sources + 1]): rules of a source side are consecutive, most frequent first,
        then by target side.
    rule_target (int32 [rules]): target sides are numbered by length, then symbol by symbol.
    rule_count, source_count, target_count: of rules, source sides and target sides.
    log_p (float64 [rules, 2]): log10 of p(target | source), p(source | target).
    """

    rule_begin: Int64
    rule_target: Int32
    rule_low: Int64
    rule_count: Float64
    source_low: Int64
    source_count: Float64
    target_low: Int64
    target_count: Float64
    log_p: Float64


class Lexicon(NamedTuple):
    """Counts of word links; a word without a link is linked to NULL of the other language.

    begin (int64 [source words + 2]): links of source word f are entries ``begin[f]..begin[f + 1] -
        1``; the last f is NULL.
    target (int32 [entries]): ascending within a source word; the number of target words stands for
        NULL.
    links (int64 [entries]): how often they are linked.
    source_count, target_count (int64 [words + 1]): the sums for each word, and for NULL.
    """

    begin: Int64
    target: Int32
    links: Int64
    source_count: Int64
    target_count: Int64


@inner
def log_share(part: float, whole: float) -> float:
    """Return log10 of a share; `LOWEST` where the counts of a file do not add up."""
    return float(np.log10(part / whole)) if part > 0 and whole > 0 else LOWEST


@kernel
def log_probabilities(rule_source: Int32, counts: RuleCounts) -> None:
    """Fill ``counts.log_p``."""
    for r in range(rule_source.size):
        count = counts.rule_count[r]
        counts.log_p[r, 0] = np.log10(count / counts.source_count[rule_source[r]])
        counts.log_p[r, 1] = np.log10(count / counts.target_count[counts.rule_target[r]])


@kernel
def select(
    node: Int32,
    node_source: Int32,
    counts: RuleCounts,
    own_rule: Int32,
    own_low: Int64,
    table_limit: int,
) -> tuple[Int32, Int64, Float64]:
    """Return the best rules of each matching node, as if one sentence had not been counted.

    node (int32 [m])
    node_source: the source side of a node, or -1.
    own_rule, own_low: rules (ascending) and counts of the sentence to leave out; empty for none.

    Returns begin (int32 [m + 1])
    Returns rule (int64 [begin[m]]): most frequent first, then by target side.
    Returns dense (float64 [begin[m], 5]): columns 0 and 1: log10 of p(target | source), p(source |
        target); 4: 1.
    """
    m = node.size
    begin = np.zeros(m + 1, np.int32)
    room = 0
    for i in range(m):
        side = node_source[node[i]]
        if side >= 0:
            room += min(counts.rule_begin[side + 1] - counts.rule_begin[side], table_limit)
    rule = np.empty(room, np.int64)
    dense = np.empty((room, 5))
    kept, kept_count = np.empty(256, np.int64), np.empty(256)

    # What the sentence to leave out has added to the counts of target sides.
    own_target = np.unique(counts.rule_target[own_rule])
    own_target_low = np.zeros(own_target.size, np.int64)
    for k in range(own_rule.size):
        own_target_low[place(own_target, 0, own_target.size, counts.rule_target[own_rule[k]])] += (
            own_low[k]
        )

    found = 0
    for i in range(m):
        side = node_source[node[i]]
        if side >= 0:
            first, last = counts.rule_begin[side], counts.rule_begin[side + 1]
            own = lower_bound(own_rule, 0, own_rule.size, first)
            own_end = lower_bound(own_rule, own, own_rule.size, last)
            n = 0
            side_count = counts.source_count[side]
            if own == own_end:
                n = min(last - first, table_limit)
            else:
                side_low, own_side = counts.source_low[side], 0.0
                for k in range(own, own_end):
                    side_low -= own_low[k]
                    own_side += own_low[k] / UNIT
                side_count = exact_count(side_low, side_count - own_side)
                # Counts of other rules do not change, and those of own rules only fall: none
                # after the table_limit-th other rule can be among the best.
                others = 0
                k = own
                for r in range(first, last):
                    count = counts.rule_count[r]
                    if k < own_end and own_rule[k] == r:
                        rest = counts.rule_low[r] - own_low[k]
                        count = exact_count(rest, count - own_low[k] / UNIT)
                        k += 1
                        if count == 0.0:
                            continue
                    else:
                        others += 1
                    kept = longer(kept, n + 1)
                    kept_count = longer(kept_count, n + 1)
                    at = n
                    n += 1
                    target = counts.rule_target[r]
                    while at > 0 and (
                        kept_count[at - 1] < count
                        or (
                            kept_count[at - 1] == count
                            and counts.rule_target[kept[at - 1]] > target
                        )
                    ):
                        kept[at] = kept[at - 1]
                        kept_count[at] = kept_count[at - 1]
                        at -= 1
                    kept[at] = r
                    kept_count[at] = count
                    if others == table_limit:
                        break
                n = min(n, table_limit)
            for j in range(n):
                r = first + j if own == own_end else kept[j]
                rule[found] = r
                dense[found, 0] = counts.log_p[r, 0]
                dense[found, 1] = counts.log_p[r, 1]
                count = counts.rule_count[r]
                if own < own_end:
                    count = kept_count[j]
                    dense[found, 0] = log_share(count, side_count)
                if own_rule.size:
                    target = counts.rule_target[r]
                    at = place(own_target, 0, own_target.size, target)
                    if at >= 0:
                        low = own_target_low[at]
                        rest = exact_count(
                            counts.target_low[target] - low,
                            counts.target_count[target] - low / UNIT,
                        )
                        dense[found, 1] = log_share(count, rest)
                dense[found, 4] = 1.0
                found += 1
        begin[i + 1] = found
    return begin, rule[:found].copy(), dense[:found].copy()


@kernel
def lexical_scores(
    words: Int32,
    rule: Int64,
    rule_source: Int32,
    source_begin: Int64,
    source_symbols: Int32,
    target_begin: Int64,
    target_symbols: Int32,
    lexicon: Lexicon,
    own_link: Int32,
    dense: Float64,
) -> None:
    """Write the lexical scores of rules that match a sentence to columns 2 and 3 of `dense`.

    Column 2: the sum over the target's words e of log10 max w(e|f), over f among the source's words
    and NULL. Column 3: the same the other way round.

    words: ascending: the words of the rules' source sides, and maybe others.
    rule (int64 [rules]): rules of one source side are consecutive.
    own_link (int32 [links, 2]): links of the sentence to leave out, with those to NULL.
    """
    n_source_words = lexicon.begin.size - 2
    n_target_words = lexicon.target_count.size - 1
    null = words.size

    # Number the target words that occur, ascending, and NULL behind them; gaps are negative.
    begin, places = places_of(target_begin, rule)
    distinct, column = number_distinct(target_symbols[places])
    order = np.argsort(distinct)
    gaps = lower_bound(distinct[order], 0, distinct.size, 0)
    target_words = np.append(distinct[order][gaps:], n_target_words)
    n_words = target_words.size
    number = np.empty(distinct.size, np.int64)
    number[order] = np.arange(distinct.size) - gaps
    local = number[column]

    # Links between the words of the sentence and these.
    links = np.zeros((n_words, null + 1), np.int64)
    source_count = np.empty(null + 1, np.int64)
    target_count = np.empty(n_words, np.int64)
    for w in range(n_words):
        target_count[w] = lexicon.target_count[target_words[w]]
    for f in range(null + 1):
        word = words[f] if f < null else n_source_words
        source_count[f] = lexicon.source_count[word]
        first, last = lexicon.begin[word], lexicon.begin[word + 1]
        if last - first <= n_words:
            for k in range(first, last):
                w = place(target_words, 0, n_words, lexicon.target[k])
                if w >= 0:
                    links[w, f] = lexicon.links[k]
        else:
            for w in range(n_words):
                k = place(lexicon.target, first, last, target_words[w])
                if k >= 0:
                    links[w, f] = lexicon.links[k]
    for k in range(own_link.shape[0]):
        f = null if own_link[k, 0] == n_source_words else place(words, 0, null, own_link[k, 0])
        w = place(target_words, 0, n_words, own_link[k, 1])
        if f >= 0:
            source_count[f] -= 1
        if w >= 0:
            target_count[w] -= 1
        if f >= 0 and w >= 0:
            links[w, f] -= 1
    of_target = np.full((n_words, null + 1), LOWEST)  # log10 w(e|f)
    of_source = np.full((n_words, null + 1), LOWEST)  # log10 w(f|e)
    for w in range(n_words):
        for f in range(null + 1):
            if links[w, f] > 0:
                of_target[w, f] = log_share(links[w, f], source_count[f])
                of_source[w, f] = log_share(links[w, f], target_count[w])

    side = -1
    local_source = np.empty(64, np.int32)
    n = 0
    for i in range(rule.size):
        r = rule[i]
        if rule_source[r] != side:
            side = rule_source[r]
            n = 0
            for k in range(source_begin[side], source_begin[side + 1]):
                if source_symbols[k] >= 0:
                    local_source = longer(local_source, n + 1)
                    local_source[n] = lower_bound(words, 0, null, source_symbols[k])
                    n += 1
        total = 0.0
        for k in range(begin[i], begin[i + 1]):
            w = local[k]
            if w >= 0:
                best = of_target[w, null]
                for j in range(n):
                    best = max(best, of_target[w, local_source[j]])
                total += best
        dense[i, 2] = total
        total = 0.0
        for j in range(n):
            f = local_source[j]
            best = of_source[n_words - 1, f]
            for k in range(begin[i], begin[i + 1]):
                if local[k] >= 0:
                    best = max(best, of_source[local[k], f])
            total += best
        dense[i, 3] = total


@kernel
def is_trie(
    symbol: Int32,
    child_begin: Int32,
    node_source: Int32,
    source_begin: Int64,
    source_symbols: Int32,
) -> bool:
    """Return whether children come behind their parents, each has one, and sides end where they do.

    Offsets and ids are within their arrays; see `Trie` and `Grammar`.
    """
    nodes = symbol.size
    if nodes == 0 or child_begin[0] != 1 or child_begin[nodes] != nodes or node_source[0] != -1:
        return False
    parent = np.zeros(nodes, np.int32)
    for node in range(nodes):
        first, last = child_begin[node], child_begin[node + 1]
        if not node < first <= last <= nodes:
            return False
        for child in range(first, last):
            parent[child] = node
    for node in range(1, nodes):
        side = node_source[node]
        if side >= 0:
            here = node
            for k in range(source_begin[side + 1] - 1, source_begin[side] - 1, -1):
                if here == 0 or symbol[here] != source_symbols[k]:
                    return False
                here = parent[here]
            if here != 0:
                return False
    return True


@kernel
def are_rules(
    rule_begin: Int64,
    rule_source: Int32,
    source_begin: Int64,
    source_symbols: Int32,
    target_begin: Int64,
    target_symbols: Int32,
) -> bool:
    """Return whether rules are consecutive, and have their source side's gaps once each."""
    for side in range(rule_begin.size - 1):
        gaps = 0
        for k in range(source_begin[side], source_begin[side + 1]):
            gaps += source_symbols[k] == GAP
        for rule in range(rule_begin[side], rule_begin[side + 1]):
            if rule_source[rule] != side:
                return False
            first = second = 0
            for k in range(target_begin[rule], target_begin[rule + 1]):
                first += target_symbols[k] == -1
                second += target_symbols[k] == -2
            if gaps > 2 or first != (gaps > 0) or second != (gaps > 1):
                return False
    return True

"""Kernels of rule extraction: phrases of an aligned sentence pair, and their rules."""

from __future__ import annotations

import numpy as np

from torchtune_smt.core.arrays import Float64, Int32, Int64
from torchtune_smt.core.compiled import kernel
from torchtune_smt.grammar.room_kernels import longer

UNIT = 1 << 48
"""A count of 1 in the integers that counts are kept in.

The integers are taken modulo 2^64, that is, counts modulo 2^16; a float64 beside each tells its
size. What one sentence adds to one count must be below 2^15.
"""
PERIOD = 65536.0
"""2^64 / UNIT: what counts are kept modulo."""


@kernel
def find_phrases(
    n: int, m: int, links: Int32, max_length: int, unaligned_edges: bool
) -> tuple[Int32, Int32]:
    """Return the initial phrases of a sentence pair.

    A phrase is a source and a target span, of `max_length` words at most, with a link between
    them and no link from inside one to outside the other; without `unaligned_edges`, the words at
    all its four edges are aligned.

    Parameters
    ----------
    n, m : int
        Words of the source and of the target sentence.
    links : int32 [links, 2]
        (source, target) positions.

    Returns
    -------
    phrases : int32 [phrases, 6]
        Source begin and end, target begin and end, number of links, and whether the words at all
        four edges are aligned (1, or 0); by source begin, source end.
    index : int32 [n, max_length + 1, 2]
        The phrases on source span [s, s + k) are ``phrases[index[s, k, 0]:index[s, k, 1]]``.
    """
    source_low, source_high = np.full(m, n, np.int32), np.full(m, -1, np.int32)
    target_low, target_high = np.full(n, m, np.int32), np.full(n, -1, np.int32)
    links_before = np.zeros(n + 1, np.int32)
    for i in range(links.shape[0]):
        s, t = links[i, 0], links[i, 1]
        source_low[t], source_high[t] = min(source_low[t], s), max(source_high[t], s)
        target_low[s], target_high[s] = min(target_low[s], t), max(target_high[s], t)
        links_before[s + 1] += 1
    for s in range(n):
        links_before[s + 1] += links_before[s]

    index = np.zeros((n, max_length + 1, 2), np.int32)
    phrases = np.empty((256, 6), np.int32)
    count = 0
    for s in range(n):
        low, high = m, -1
        for e in range(s + 1, min(n, s + max_length) + 1):
            low, high = min(low, target_low[e - 1]), max(high, target_high[e - 1])
            index[s, e - s, 0] = count
            index[s, e - s, 1] = count
            if high < 0:
                continue
            tight = target_high[s] >= 0 and target_high[e - 1] >= 0
            if not (tight or unaligned_edges):
                continue
            consistent = high + 1 - low <= max_length
            for t in range(low, high + 1):
                if source_high[t] >= 0 and (source_low[t] < s or source_high[t] >= e):
                    consistent = False
                    break
            if not consistent:
                continue
            begin = low
            while True:
                end = high + 1
                while end - begin <= max_length:
                    if count == phrases.shape[0]:
                        phrases = longer(phrases, count + 1)
                    phrases[count, 0] = s
                    phrases[count, 1] = e
                    phrases[count, 2] = begin
                    phrases[count, 3] = end
                    phrases[count, 4] = links_before[e] - links_before[s]
                    phrases[count, 5] = tight and begin == low and end == high + 1
                    count += 1
                    if not unaligned_edges or end == m or source_high[end] >= 0:
                        break
                    end += 1
                if not unaligned_edges or begin == 0 or source_high[begin - 1] >= 0:
                    break
                begin -= 1
            index[s, e - s, 1] = count
    return phrases[:count], index


@kernel
def find_rules(
    p: int,
    phrases: Int32,
    index: Int32,
    max_symbols: int,
    max_gaps: int,
    tight_gaps: bool,
    rules: Int32,
) -> tuple[int, Int32]:
    """Find the rules that initial phrase `p` yields.

    They are p itself, and p with one or two smaller phrases replaced by gaps, where one link stays
    outside of the gaps, two gaps do not touch on the source side, and the source side has at most
    `max_symbols` symbols. With `tight_gaps`, words at edges of the smaller ones are aligned.

    Returns
    -------
    count : int
    rules : int32 [at least count, 2]
        The phrases in the gaps, in the order of the source side, -1 for none. `rules` as given,
        or a longer array in its place.
    """
    s, e = phrases[p, 0], phrases[p, 1]
    t0, t1 = phrases[p, 2], phrases[p, 3]
    links = phrases[p, 4]
    length = e - s
    count = 0
    if length <= max_symbols:
        rules[0, 0] = -1
        rules[0, 1] = -1
        count = 1
    if max_gaps == 0:
        return count, rules
    for a in range(s, e):
        for b in range(a + 1, e + 1):
            left = length - (b - a)  # words outside of the first gap
            for q in range(index[a, b - a, 0], index[a, b - a, 1]):
                if phrases[q, 2] < t0 or phrases[q, 3] > t1 or phrases[q, 5] < tight_gaps:
                    continue
                left_links = links - phrases[q, 4]
                if left_links == 0:
                    continue
                if left + 1 <= max_symbols:
                    if count == rules.shape[0]:
                        rules = longer(rules, count + 1)
                    rules[count, 0] = q
                    rules[count, 1] = -1
                    count += 1
                if max_gaps == 1:
                    continue
                # The second gap leaves at most max_symbols - 2 words, and one between the gaps.
                for c in range(b + 1, e):
                    for d in range(max(c + 1, c + left - (max_symbols - 2)), e + 1):
                        for r in range(index[c, d - c, 0], index[c, d - c, 1]):
                            if phrases[r, 2] < t0 or phrases[r, 3] > t1:
                                continue
                            if phrases[r, 5] < tight_gaps:
                                continue
                            if phrases[r, 2] < phrases[q, 3] and phrases[q, 2] < phrases[r, 3]:
                                continue
                            if left_links == phrases[r, 4]:
                                continue
                            if count == rules.shape[0]:
                                rules = longer(rules, count + 1)
                            rules[count, 0] = q
                            rules[count, 1] = r
                            count += 1
    return count, rules


@kernel
def _write_side(
    words: Int32, begin: int, end: int, gaps: Int32, labels: Int32, out: Int32, at: int
) -> int:
    """Write ``words[begin:end]`` with spans replaced by labels to `out`; return the place after.

    `gaps` int32 [2, 2]: (begin, end) of two spans in any order, begin -1 where there is none.
    """
    i = begin
    while i < end:
        if gaps[0, 0] == i:
            out[at] = labels[0]
            i = gaps[0, 1]
        elif gaps[1, 0] == i:
            out[at] = labels[1]
            i = gaps[1, 1]
        else:
            out[at] = words[i]
            i += 1
        at += 1
    return at


@kernel
def extract(
    source_begin: Int64,
    source: Int32,
    target_begin: Int64,
    target: Int32,
    link_begin: Int64,
    links: Int32,
    first: int,
    last: int,
    max_length: int,
    max_symbols: int,
    max_gaps: int,
    unaligned_edges: bool,
    tight_gaps: bool,
    share: bool,
) -> tuple[Int32, Int64, Int64, Int32, Int64, Int32]:
    """Extract the rules of the sentence pairs first..last-1.

    Parameters
    ----------
    source_begin, source, target_begin, target : int64, int32
        Words of all sentences.
    link_begin : int64
    links : int32 [links, 2]
    share : bool
        A phrase has a count of 1 in all, and its rules share it. Otherwise each rule has 1.

    Returns
    -------
    sentence : int32 [rules]
        Where a rule comes from; ascending.
    weight : int64 [rules]
        Its count, in units of ``1 / UNIT``.
    side_begin, side : int64 [rules + 1], int32
        Source sides; -1 is a gap.
    target_side_begin, target_side : int64 [rules + 1], int32
        Target sides; -1 and -2 are the gaps, in the order of the source side.
    """
    sentence, weight = np.empty(1024, np.int32), np.empty(1024, np.int64)
    side_begin, target_side_begin = np.empty(1025, np.int64), np.empty(1025, np.int64)
    side, target_side = np.empty(4096, np.int32), np.empty(4096, np.int32)
    rules = np.empty((256, 2), np.int32)
    gaps, target_gaps = np.empty((2, 2), np.int32), np.empty((2, 2), np.int32)
    source_labels, target_labels = np.array([-1, -1], np.int32), np.array([-1, -2], np.int32)
    count, n_side, n_target_side = 0, 0, 0
    for i in range(first, last):
        words = source[source_begin[i] : source_begin[i + 1]]
        target_words = target[target_begin[i] : target_begin[i + 1]]
        phrases, index = find_phrases(
            words.size,
            target_words.size,
            links[link_begin[i] : link_begin[i + 1]],
            max_length,
            unaligned_edges,
        )
        for p in range(phrases.shape[0]):
            n, rules = find_rules(p, phrases, index, max_symbols, max_gaps, tight_gaps, rules)
            if n == 0:
                continue
            sentence, weight = longer(sentence, count + n), longer(weight, count + n)
            side_begin = longer(side_begin, count + n + 1)
            target_side_begin = longer(target_side_begin, count + n + 1)
            side = longer(side, n_side + n * max_symbols)
            target_side = longer(target_side, n_target_side + n * max_length)
            share_of_rule = (UNIT + n // 2) // n if share else UNIT
            for k in range(n):
                for g in range(2):
                    q = rules[k, g]
                    gaps[g, 0] = phrases[q, 0] if q >= 0 else -1
                    gaps[g, 1] = phrases[q, 1] if q >= 0 else -1
                    target_gaps[g, 0] = phrases[q, 2] if q >= 0 else -1
                    target_gaps[g, 1] = phrases[q, 3] if q >= 0 else -1
                sentence[count] = i
                weight[count] = share_of_rule
                side_begin[count] = n_side
                n_side = _write_side(
                    words, phrases[p, 0], phrases[p, 1], gaps, source_labels, side, n_side
                )
                target_side_begin[count] = n_target_side
                n_target_side = _write_side(
                    target_words,
                    phrases[p, 2],
                    phrases[p, 3],
                    target_gaps,
                    target_labels,
                    target_side,
                    n_target_side,
                )
                count += 1
    side_begin[count] = n_side
    target_side_begin[count] = n_target_side
    return (
        sentence[:count].copy(),
        weight[:count].copy(),
        side_begin[: count + 1].copy(),
        side[:n_side].copy(),
        target_side_begin[: count + 1].copy(),
        target_side[:n_target_side].copy(),
    )


@kernel
def merge_equal(sentence: Int32, key: Int64, weight: Int64) -> int:
    """Sum, in place, the weights of equal keys within each sentence; return how many stay.

    `sentence` is ascending; within a sentence, keys ascend afterwards. Where weights of a sentence
    sum up to 2^63 or more, the result is -1 - sentence.
    """
    kept = 0
    begin = 0
    while begin < key.size:
        end = begin
        while end < key.size and sentence[end] == sentence[begin]:
            end += 1
        order = np.argsort(key[begin:end])
        keys, weights = key[begin:end][order], weight[begin:end][order]
        here = sentence[begin]
        for k in range(keys.size):
            if k > 0 and keys[k] == keys[k - 1]:
                weight[kept - 1] += weights[k]
                if weight[kept - 1] < 0:
                    return -1 - int(here)
            else:
                sentence[kept] = here
                key[kept] = keys[k]
                weight[kept] = weights[k]
                kept += 1
        begin = end
    return kept


@kernel
def add_counts(
    group: Int32, weight: Int64, approximate: Float64, low: Int64, count: Float64
) -> None:
    """Add weights up by group.

    Parameters
    ----------
    group : int32 [n]
    weight : int64 [n]
        Counts in units of ``1 / UNIT``, modulo 2^64.
    approximate : float64 [n], or empty
        The counts themselves, where they may exceed 2^15; empty: they are ``weight / UNIT``.
    low : int64 [groups], out
        The sums, in units of ``1 / UNIT`` modulo 2^64: exact.
    count : float64 [groups], out
        The sums, rounded.
    """
    for i in range(group.size):
        low[group[i]] += weight[i]
        if approximate.size:
            count[group[i]] += approximate[i]
        else:
            count[group[i]] += weight[i] / UNIT
    for g in range(low.size):
        count[g] = exact_count(low[g], count[g])


@kernel
def exact_count(low: int, approximate: float) -> float:
    """Return the count that is `low` in units of ``1 / UNIT`` modulo 2^64, and about `approximate`.

    One count has one float64, however it came about: counts that are equal stay equal when what is
    added in one order is taken away in another.
    """
    small = low / UNIT
    return float(np.rint((approximate - small) / PERIOD)) * PERIOD + small

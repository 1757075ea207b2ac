"""Kernels of extraction: phrases of an aligned sentence pair, rules, orientations and links."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from torchtune_smt.core.arrays import Float64, Int32, Int64
from torchtune_smt.core.compiled import inner, kernel
from torchtune_smt.core.sequences_kernels import hash_symbols, longer, table_size

UNIT = 1 << 48
"""A count of 1 in the integers that counts are kept in.

The integers are taken modulo 2^64, that is, counts modulo 2^16; a float64 beside each tells its
size. What one sentence adds to one count must be below 2^15.
"""
PERIOD = 65536.0
"""2^64 / UNIT: what counts are kept modulo."""


class Aligned(NamedTuple):
    """An aligned bitext.

    source_begin, source, target_begin, target: words of all sentences.
    links (int32 [links, 2]): (source, target) positions, ascending, none twice in a sentence.
    """

    source_begin: Int64
    source: Int32
    target_begin: Int64
    target: Int32
    link_begin: Int64
    links: Int32


class Shape(NamedTuple):
    """Which rules are extracted: see `torchtune_smt.grammar.extraction.extract_grammar`.

    With `tight_gaps`, words at edges of the phrases that leave gaps are aligned all the same.
    """

    max_length: int
    max_symbols: int
    max_gaps: int
    unaligned_edges: bool
    tight_gaps: bool


@kernel
def _reach(words: int, others: int, links: Int32, side: int) -> tuple[Int32, Int32]:
    """Return the first and the last word that each of a side is linked to; none: others, -1."""
    low, high = np.full(words, others, np.int32), np.full(words, -1, np.int32)
    for k in range(links.shape[0]):
        own, other = links[k, side], links[k, 1 - side]
        low[own], high[own] = min(low[own], other), max(high[own], other)
    return low, high


@kernel
def _links_before(n: int, links: Int32) -> Int32:
    """Return how many links the source words before each have (int32 [n + 1])."""
    before = np.zeros(n + 1, np.int32)
    for k in range(links.shape[0]):
        before[links[k, 0] + 1] += 1
    for s in range(n):
        before[s + 1] += before[s]
    return before


@kernel
def find_phrases(
    n: int, m: int, links: Int32, max_length: int, unaligned_edges: bool
) -> tuple[Int32, Int32]:
    """Return the initial phrases of a sentence pair.

    A phrase is a source and a target span, of `max_length` words at most, with a link between
    them and no link from inside one to outside the other; without `unaligned_edges`, the words at
    all its four edges are aligned.

    Returns phrases (int32 [phrases, 6]): source begin and end, target begin and end, number of
        links, and whether the words at all four edges are aligned (1, or 0); by source begin,
        source end.
    Returns index (int32 [n, max_length + 1, 2]): the phrases on source span [s, s + k) are
        ``phrases[index[s, k, 0]:index[s, k, 1]]``.
    """
    source_low, source_high = _reach(m, n, links, 1)
    target_low, target_high = _reach(n, m, links, 0)
    links_before = _links_before(n, links)
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
    p: int, phrases: Int32, index: Int32, shape: Shape, rules: Int32
) -> tuple[int, Int32]:
    """Find the rules that initial phrase `p` yields.

    They are p itself, and p with one or two smaller phrases replaced by gaps, where one link stays
    outside of the gaps, two gaps do not touch on the source side, and the source side has at most
    `max_symbols` symbols.

    Returns their number, and rules (int32 [at least so many, 2], as given or a longer array): the
    phrases in the gaps, in the order of the source side, -1 for none.
    """
    max_symbols, tight_gaps = shape.max_symbols, shape.tight_gaps
    s, e = phrases[p, 0], phrases[p, 1]
    t0, t1 = phrases[p, 2], phrases[p, 3]
    links = phrases[p, 4]
    length = e - s
    count = 0
    if length <= max_symbols:
        rules[0, 0] = -1
        rules[0, 1] = -1
        count = 1
    if shape.max_gaps == 0:
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
                if shape.max_gaps == 1:
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
    """Write ``words[begin:end]``, labels in the place of spans; return the place after."""
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
def _slot(
    side: Int32, begin: Int64, target_side: Int32, target_begin: Int64, rule: int, slots: int
) -> np.int64:
    """Return where a rule stands in a hash table of so many slots if nothing is in its way."""
    h = hash_symbols(side, begin[rule], begin[rule + 1])
    h ^= hash_symbols(target_side, target_begin[rule], target_begin[rule + 1]) * np.uint64(3)
    return np.int64((h ^ h >> np.uint64(32)) & np.uint64(slots - 1))


@inner
def _same(symbols: Int32, first: int, second: int, length: int) -> bool:
    """Return whether ``symbols`` has the same so many symbols from two places on."""
    for k in range(length):
        if symbols[first + k] != symbols[second + k]:
            return False
    return True


@kernel
def extract(
    bitext: Aligned, first: int, last: int, shape: Shape, share: bool
) -> tuple[Int64, Int64, Int32, Int32, Int32, Int32, Int32]:
    """Extract the rules of the sentence pairs first..last-1, none twice in one of them.

    share: a phrase has a count of 1 in all, and its rules share it. Otherwise each rule has 1.

    Returns rules (int64 [last - first]): how many each pair has, which are in the order in which
        they occur first.
    Returns weight (int64 [rules]): its count, in units of ``1 / UNIT``; negative where that is
        2^15 or more.
    Returns length, side (int32 [rules], int32): source sides, one behind the other; -1 is a gap.
    Returns target_length, target_side (int32 [rules], int32): target sides; -1 and -2 are the gaps,
        in the order of the source side.
    Returns rule (int32 [occurrences]): which rule each occurrence is of.
    """
    source_begin, source, target_begin, target, link_begin, links = bitext
    own = np.zeros(last - first, np.int64)
    weight = np.empty(1024, np.int64)
    begin, target_first = np.zeros(1025, np.int64), np.zeros(1025, np.int64)
    side, target_side = np.empty(4096, np.int32), np.empty(4096, np.int32)
    rule, table = np.empty(1024, np.int32), np.empty(1024, np.int32)
    rules = np.empty((256, 2), np.int32)
    gaps, target_gaps = np.empty((2, 2), np.int32), np.empty((2, 2), np.int32)
    source_labels, target_labels = np.array([-1, -1], np.int32), np.array([-1, -2], np.int32)
    count, occurrences = 0, 0
    for i in range(first, last):
        words = source[source_begin[i] : source_begin[i + 1]]
        target_words = target[target_begin[i] : target_begin[i + 1]]
        phrases, index = find_phrases(
            words.size,
            target_words.size,
            links[link_begin[i] : link_begin[i + 1]],
            shape.max_length,
            shape.unaligned_edges,
        )
        before = count
        table[:] = -1
        for p in range(phrases.shape[0]):
            n, rules = find_rules(p, phrases, index, shape, rules)
            if n == 0:
                continue
            weight, rule = longer(weight, count + n), longer(rule, occurrences + n)
            begin = longer(begin, count + n + 1)
            target_first = longer(target_first, count + n + 1)
            side = longer(side, begin[count] + n * shape.max_symbols)
            target_side = longer(target_side, target_first[count] + n * shape.max_length)
            if 2 * (count + n - before) > table.size:
                # Half full at most: the rules of this sentence pair go into a larger one.
                table = np.full(table_size(2 * (count + n - before)), -1, np.int32)
                for r in range(before, count):
                    slot = _slot(side, begin, target_side, target_first, r, table.size)
                    while table[slot] >= 0:
                        slot = (slot + 1) & (table.size - 1)
                    table[slot] = r
            share_of_rule = (UNIT + n // 2) // n if share else UNIT
            for k in range(n):
                for g in range(2):
                    q = rules[k, g]
                    gaps[g, 0] = phrases[q, 0] if q >= 0 else -1
                    gaps[g, 1] = phrases[q, 1] if q >= 0 else -1
                    target_gaps[g, 0] = phrases[q, 2] if q >= 0 else -1
                    target_gaps[g, 1] = phrases[q, 3] if q >= 0 else -1
                at, target_at = begin[count], target_first[count]
                begin[count + 1] = _write_side(
                    words, phrases[p, 0], phrases[p, 1], gaps, source_labels, side, at
                )
                target_first[count + 1] = _write_side(
                    target_words,
                    phrases[p, 2],
                    phrases[p, 3],
                    target_gaps,
                    target_labels,
                    target_side,
                    target_at,
                )
                length, target_length = begin[count + 1] - at, target_first[count + 1] - target_at
                slot = _slot(side, begin, target_side, target_first, count, table.size)
                found = table[slot]
                while found >= 0 and not (
                    begin[found + 1] - begin[found] == length
                    and target_first[found + 1] - target_first[found] == target_length
                    and _same(side, begin[found], at, length)
                    and _same(target_side, target_first[found], target_at, target_length)
                ):
                    slot = (slot + 1) & (table.size - 1)
                    found = table[slot]
                if found < 0:
                    found = count
                    table[slot], weight[found] = found, 0
                    count += 1
                if weight[found] >= 0:
                    weight[found] += share_of_rule
                rule[occurrences] = found
                occurrences += 1
        own[i - first] = count - before
    return (
        own,
        weight[:count].copy(),
        np.diff(begin[: count + 1]).astype(np.int32),
        side[: begin[count]].copy(),
        np.diff(target_first[: count + 1]).astype(np.int32),
        target_side[: target_first[count]].copy(),
        rule[:occurrences].copy(),
    )


@kernel
def most_frequent(pair: Int64, owners: int) -> Int64:
    """Return the most frequent item of each owner, of equally frequent ones the smallest.

    pair: ``owner << 32 | item``, ascending, of each owner one at least.
    """
    found = np.zeros(owners, np.int64)
    begin, most = 0, 0
    for i in range(1, pair.size + 1):
        if i < pair.size and pair[i] == pair[begin]:
            continue
        owner = pair[begin] >> 32
        if begin == 0 or pair[begin - 1] >> 32 != owner:
            most = 0
        if i - begin > most:
            found[owner], most = pair[begin] & 0xFFFFFFFF, i - begin
        begin = i
    return found


@kernel
def add_counts(
    group: Int32, weight: Int64, approximate: Float64, low: Int64, count: Float64
) -> None:
    """Add counts up by group: exactly in units of ``1 / UNIT`` modulo 2^64, and rounded.

    approximate (float64 [n], or empty): the counts themselves, where they may exceed 2^15; empty:
        they are ``weight / UNIT``.
    low, count: where the sums are added to.
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


# Units that orientation is told by; see `find_orientations`.
WORDS, PHRASES, BLOCKS = range(3)

MONOTONE, SWAP, RIGHT, LEFT = range(4)

LINK = 128
"""A link of a phrase is kept as ``LINK * source position + target position``."""


@inner
def _is_linked(linked: NDArray[np.bool_], s: int, t: int) -> bool:
    """Return whether two words are linked; the edges of both sentences are."""
    n, m = linked.shape
    if s < 0 or t < 0:
        return bool(s == -1 and t == -1)
    if s >= n or t >= m:
        return bool(s == n and t == m)
    return bool(linked[s, t])


@inner
def _has(corner: NDArray[np.bool_], s: int, t: int) -> bool:
    n, m = corner.shape
    inside = 0 <= s < n and 0 <= t < m
    return inside and bool(corner[s, t])


@inner
def _orientation(
    unit: int,
    linked: NDArray[np.bool_],
    along: NDArray[np.bool_],
    across: NDArray[np.bool_],
    t: int,
    s_along: int,
    s_across: int,
    step: int,
) -> int:
    """Return the orientation of a phrase towards its neighbour, target word `t`.

    along, across (bool [n, m]): corners of the units that it is monotone, or swapped, next to;
        these begin at source words `s_along`, a `step` from the phrase, and `s_across`.
    """
    monotone, swap = _is_linked(linked, s_along, t), _is_linked(linked, s_across, t)
    blocks = unit != WORDS
    if (monotone and not swap) or (blocks and _has(along, s_along, t)):
        return MONOTONE
    if (swap and not monotone) or (blocks and _has(across, s_across, t)):
        return SWAP
    # Neither: where the neighbour stands instead. Right is what there is at the edges.
    n = linked.shape[0]
    here, there = monotone and not blocks, swap and not blocks
    s = s_along + step
    while 0 <= s < n and not here:
        here = _has(along, s, t)
        s += step
    s = s_across - step
    while 0 <= s < n and not there:
        there = _has(across, s, t)
        s -= step
    return LEFT if there and not here else RIGHT


@kernel
def _mark_blocks(links: Int32, corner: NDArray[np.bool_]) -> None:
    """Mark the corners of all phrases of any length, with unaligned edges; see `corner` below.

    There are n^2 m^2 of them where few words are linked, so they are not written down.
    """
    _, n, m = corner.shape
    source_low, source_high = _reach(m, n, links, 1)
    target_low, target_high = _reach(n, m, links, 0)
    for s in range(n):
        low, high = m, -1
        for e in range(s, n):
            low, high = min(low, target_low[e]), max(high, target_high[e])
            consistent = high >= 0
            for t in range(low, high + 1):
                if source_high[t] >= 0 and (source_low[t] < s or source_high[t] > e):
                    consistent = False
                    break
            if not consistent:
                continue
            t = high
            while t == high or (t < m and source_high[t] < 0):
                corner[0, e, t] = True
                corner[1, s, t] = True
                t += 1
            t = low
            while t == low or (t >= 0 and source_high[t] < 0):
                corner[2, s, t] = True
                corner[3, e, t] = True
                t -= 1


@kernel
def find_orientations(
    bitext: Aligned, first: int, last: int, max_length: int, unit: int
) -> tuple[Int32, Int64, Int32]:
    """Return orientations and links of the phrases of the sentence pairs first..last-1.

    The phrases are those of `find_phrases`, with unaligned edges, in its order.

    unit: a phrase is monotone behind, or swapped with, what has its corner beside the phrase's own:
        a link (`WORDS`), a phrase (`PHRASES`), or a phrase of any length (`BLOCKS`; Galley &
        Manning 2008).

    Returns orientation (int32 [phrases, 2]): towards what is before it on the target side, and
        towards what is behind it.
    Returns point_begin (int64 [phrases + 1])
    Returns point: links of each phrase, ascending: see `LINK`.
    """
    source_begin, _, target_begin, _, link_begin, links = bitext
    orientation, point_begin = np.empty(2048, np.int32), np.empty(1025, np.int64)
    point = np.empty(4096, np.int32)
    count, points = 0, 0
    for i in range(first, last):
        n = source_begin[i + 1] - source_begin[i]
        m = target_begin[i + 1] - target_begin[i]
        own = links[link_begin[i] : link_begin[i + 1]]
        linked = np.zeros((n, m), np.bool_)
        for k in range(own.shape[0]):
            linked[own[k, 0], own[k, 1]] = True
        phrases, _ = find_phrases(n, m, own, max_length, True)
        # Corners: (last, last), (first, last), (first, first), (last, first) words of a unit.
        corner = np.zeros((4, n, m), np.bool_)
        if unit == WORDS:
            for c in range(4):
                for s in range(n):
                    for t in range(m):
                        corner[c, s, t] = linked[s, t]
        elif unit == BLOCKS:
            _mark_blocks(own, corner)
        else:
            for u in range(phrases.shape[0]):
                s0, s1, t0, t1 = phrases[u, 0], phrases[u, 1] - 1, phrases[u, 2], phrases[u, 3] - 1
                corner[0, s1, t1] = True
                corner[1, s0, t1] = True
                corner[2, s0, t0] = True
                corner[3, s1, t0] = True
        orientation = longer(orientation, 2 * (count + phrases.shape[0]))
        point_begin = longer(point_begin, count + phrases.shape[0] + 1)
        for p in range(phrases.shape[0]):
            s0, s1, t0, t1 = phrases[p, 0], phrases[p, 1], phrases[p, 2], phrases[p, 3]
            orientation[2 * count] = _orientation(
                unit, linked, corner[0], corner[1], t0 - 1, s0 - 1, s1, -1
            )
            orientation[2 * count + 1] = _orientation(
                unit, linked, corner[2], corner[3], t1, s1, s0 - 1, 1
            )
            point_begin[count] = points
            point = longer(point, points + phrases[p, 4])
            for s in range(s0, s1):
                for t in range(t0, t1):
                    if linked[s, t]:
                        point[points] = LINK * (s - s0) + t - t0
                        points += 1
            count += 1
    point_begin[count] = points
    return (
        orientation[: 2 * count].copy().reshape(count, 2),
        point_begin[: count + 1].copy(),
        point[:points].copy(),
    )


@inner
def _find_places(begin: int, end: int, gap: Int32, column: int, place: Int32) -> None:
    """Write where each word of a span stands on a rule's side, -1 for those in its gaps."""
    i, at = begin, 0
    while i < end:
        behind = i
        for g in range(2):
            if gap[g, column] == i:
                behind = gap[g, column + 1]
        if behind == i:
            place[i] = at
            i += 1
        while i < behind:
            place[i] = -1
            i += 1
        at += 1


@kernel
def find_links(bitext: Aligned, first: int, last: int, shape: Shape) -> tuple[Int64, Int32]:
    """Return the links of the rules of the sentence pairs first..last-1, in `extract`'s order.

    Returns point_begin (int64 [rules + 1])
    Returns point: links of each rule between its symbols, a gap being one, ascending: see `LINK`.
        Each rule has one.
    """
    source_begin, _, target_begin, _, link_begin, links = bitext
    point_begin, point = np.empty(1025, np.int64), np.empty(4096, np.int32)
    rules, gap = np.empty((256, 2), np.int32), np.empty((2, 4), np.int32)
    count, points = 0, 0
    for i in range(first, last):
        n = source_begin[i + 1] - source_begin[i]
        m = target_begin[i + 1] - target_begin[i]
        own = links[link_begin[i] : link_begin[i + 1]]
        place, target_place = np.empty(n, np.int32), np.empty(m, np.int32)
        of_word = _links_before(n, own)
        phrases, index = find_phrases(n, m, own, shape.max_length, shape.unaligned_edges)
        for p in range(phrases.shape[0]):
            found, rules = find_rules(p, phrases, index, shape, rules)
            s0, s1, t0, t1 = phrases[p, 0], phrases[p, 1], phrases[p, 2], phrases[p, 3]
            point_begin = longer(point_begin, count + found + 1)
            point = longer(point, points + found * phrases[p, 4])
            for r in range(found):
                for g in range(2):
                    for c in range(4):
                        gap[g, c] = phrases[rules[r, g], c] if rules[r, g] >= 0 else -1
                _find_places(s0, s1, gap, 0, place)
                _find_places(t0, t1, gap, 2, target_place)
                point_begin[count] = points
                for k in range(of_word[s0], of_word[s1]):
                    s, t = own[k, 0], own[k, 1]
                    if place[s] >= 0:
                        point[points] = LINK * place[s] + target_place[t]
                        points += 1
                count += 1
    point_begin[count] = points
    return point_begin[: count + 1].copy(), point[:points].copy()

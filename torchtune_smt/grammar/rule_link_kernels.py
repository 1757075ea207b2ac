"""Kernels of rule extraction: the word links of each rule that is found."""

from __future__ import annotations

import numpy as np

from torchtune_smt.core.arrays import Int32, Int64
from torchtune_smt.core.compiled import inner, kernel
from torchtune_smt.grammar.extraction_kernels import find_phrases, find_rules
from torchtune_smt.grammar.orientation_kernels import LINK
from torchtune_smt.grammar.room_kernels import longer


@inner
def _find_places(begin: int, end: int, gap: Int32, column: int, place: Int32) -> None:
    """Write where each word of a span stands on a rule's side, -1 for those in its gaps.

    `gap` int32 [2, 4]: (begin, end) of two spans in any order from `column` on, -1 where there is
    none.
    """
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
def find_links(
    source_begin: Int64,
    target_begin: Int64,
    link_begin: Int64,
    links: Int32,
    first: int,
    last: int,
    max_length: int,
    max_symbols: int,
    max_gaps: int,
    unaligned_edges: bool,
    tight_gaps: bool,
) -> tuple[Int64, Int32]:
    """Return the links of the rules of the sentence pairs first..last-1, in `extract`'s order.

    Parameters
    ----------
    source_begin, target_begin : int64
        Where sentences begin.
    link_begin : int64
    links : int32 [links, 2]
        Those of a sentence ascend.
    max_length, max_symbols, max_gaps, unaligned_edges, tight_gaps
        As `extraction_kernels.extract` takes them.

    Returns
    -------
    point_begin : int64 [rules + 1]
    point : int32
        Links of each rule between its symbols, a gap being one, ascending: see `LINK`. Each rule
        has one.
    """
    point_begin, point = np.empty(1025, np.int64), np.empty(4096, np.int32)
    rules, gap = np.empty((256, 2), np.int32), np.empty((2, 4), np.int32)
    count, points = 0, 0
    for i in range(first, last):
        n = source_begin[i + 1] - source_begin[i]
        m = target_begin[i + 1] - target_begin[i]
        own = links[link_begin[i] : link_begin[i + 1]]
        place, target_place = np.empty(n, np.int32), np.empty(m, np.int32)
        # Links of the words from s on begin at of_word[s].
        of_word = np.zeros(n + 1, np.int64)
        for k in range(own.shape[0]):
            of_word[own[k, 0] + 1] += 1
        for s in range(n):
            of_word[s + 1] += of_word[s]
        phrases, index = find_phrases(n, m, own, max_length, unaligned_edges)
        for p in range(phrases.shape[0]):
            found, rules = find_rules(p, phrases, index, max_symbols, max_gaps, tight_gaps, rules)
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

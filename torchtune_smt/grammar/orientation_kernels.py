"""Kernels that tell how the phrases of an aligned sentence pair are ordered, and their links."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from torchtune_smt.core.arrays import Int32, Int64
from torchtune_smt.core.compiled import inner, kernel
from torchtune_smt.grammar.extraction_kernels import find_phrases
from torchtune_smt.grammar.room_kernels import longer

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
    """Return the orientation of a phrase towards its neighbour on the target side.

    Parameters
    ----------
    linked : bool [n, m]
    along, across : bool [n, m]
        Corners of the units next to which a phrase is monotone, or swapped.
    t : int
        The neighbouring target word.
    s_along, s_across : int
        The source words beside the phrase where a monotone, or swapped, neighbour begins.
    step : int
        The way from the phrase to `s_along` and on, 1 or -1.
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
    source_low, source_high = np.full(m, n, np.int32), np.full(m, -1, np.int32)
    target_low, target_high = np.full(n, m, np.int32), np.full(n, -1, np.int32)
    for k in range(links.shape[0]):
        s, t = links[k, 0], links[k, 1]
        source_low[t], source_high[t] = min(source_low[t], s), max(source_high[t], s)
        target_low[s], target_high[s] = min(target_low[s], t), max(target_high[s], t)
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
    source_begin: Int64,
    target_begin: Int64,
    link_begin: Int64,
    links: Int32,
    first: int,
    last: int,
    max_length: int,
    unit: int,
) -> tuple[Int32, Int64, Int32]:
    """Return orientations and links of the phrases of the sentence pairs first..last-1.

    The phrases are those of `find_phrases`, with unaligned edges, in its order.

    Parameters
    ----------
    source_begin, target_begin : int64
        Where sentences begin.
    link_begin : int64
    links : int32 [links, 2]
    max_length : int
    unit : int
        A phrase is monotone behind, or swapped with, what has its corner beside the phrase's own:
        a link (`WORDS`), a phrase (`PHRASES`), or a phrase of any length (`BLOCKS`; Galley &
        Manning 2008).

    Returns
    -------
    orientation : int32 [phrases, 2]
        Towards what is before it on the target side, and towards what is behind it.
    point_begin : int64 [phrases + 1]
    point : int32
        Links of each phrase, ascending: see `LINK`.
    """
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

"""Exact search for a few weights on any metric with corpus statistics.

Only the direction of the weights W matters for which hypotheses are the best ones. Along half a
great circle, from one unit vector by way of a second one to the first one's opposite, the score of
a corpus changes only where the best hypothesis of some list does. All these angles are found at
once (Och 2003), and with them the score everywhere on it. Two features have two such halves, which
hold all that there is; for more, fans of them are laid through the best points so far.

Of equally good directions none is better on these lists, and on other ones those in the middle are:
what is returned is the middle of a *plateau*, the connected directions with the best score.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from operator import itemgetter
from typing import Final, NamedTuple, Self

import numpy as np

from torchtune_smt.core.arrays import Float64, Int32, Int64
from torchtune_smt.core.errors import InputError
from torchtune_smt.core.offsets import places_of
from torchtune_smt.core.rows import Rows
from torchtune_smt.kbest.lists import KBestLists
from torchtune_smt.kbest.lists_kernels import best
from torchtune_smt.tuners import mert_kernels as kernels
from torchtune_smt.tuners.solver import statistics_of

Score = Callable[[Float64], Float64]
"""Takes sums of statistics [..., k] and returns scores [...], of which the larger is better."""

NONE: Final = np.empty(0, np.int64)
# An angle (radians) as narrow as this is rounding's; scores that differ by less are equal.
NARROW: Final = 1e-9
EQUAL: Final = 1e-12
# Points that fans are laid through at the same time, at least so many lines in each; and how many
# more fans through the best point must find none that is better.
BEAM: Final = 3
SPOKES: Final = 16
LAST: Final = 1
# In which a point moves to the middle of its plateau.
ROUNDS: Final = 3


class Curve(NamedTuple):
    """The score (float64 [m]) along a line of weights, between its bounds (float64 [m + 1]).

    The ends of the line are the first bound and the last.
    """

    bound: Float64
    score: Float64

    def angles(self) -> Curve:
        """Return the curve over angles, of which γ is the tangent, without what is narrow."""
        bound = np.arctan(self.bound)
        wide = np.diff(bound) > NARROW
        return Curve(np.append(bound[:-1][wide], bound[-1]), self.score[wide])

    def plateaus(self, most: float) -> Float64:
        """Return the widest parts with such a score or a better one: float64 [parts, 2]."""
        inside = np.concatenate([[False], self.score >= most - EQUAL * abs(most), [False]])
        return self.bound[np.flatnonzero(inside[1:] != inside[:-1])].reshape(-1, 2)

    def around(self, place: float, most: float) -> tuple[float, float]:
        """Return of the parts with such a score the one that holds a place; if none, the place."""
        for low, high in self.plateaus(most).tolist():
            if low <= place <= high:
                return low, high
        return place, place

    def middle(self, low: float, high: float) -> float:
        """Return the middle of a part, but no place where the best hypothesis of a list changes.

        There hypotheses tie, and the score may be any.
        """
        here = slice(*np.searchsorted(self.bound, (low, high)).tolist())
        left, right = self.bound[here], self.bound[here.start + 1 : here.stop + 1]
        edge = np.minimum((right - left) / 4, (high - low) / 100)
        places = np.clip((low + high) / 2, left + edge, right - edge)
        return float(places[np.abs(places - (low + high) / 2).argmin()])


@dataclass(frozen=True)
class Candidates:
    """Lists of one hypothesis at least, as search needs them.

    begin, features, statistics (int64 [S + 1], float64 [d, n], int or float [n, k])
    """

    begin: Int64
    features: Float64
    statistics: Int32 | Float64
    score: Score

    @cached_property
    def room(self) -> tuple[Int64, Float64, Int32]:
        """What `kernels.envelopes` writes."""
        n = self.features.shape[1]
        return np.empty(self.begin.size - 1, np.int64), np.empty(n), np.empty((n, 2), np.int32)

    def standard(self) -> tuple[Self, Float64]:
        """Return them in features of unit spread within lists, and the spreads (float64 [d]).

        Features of no spread, which are the same throughout each list, are left out.

        Raises InputError: a feature is not finite, or as large as 1e150.
        """
        matrix, scale = self.features.copy(), np.empty(len(self.features))
        kernels.standardize(self.begin, matrix, scale)
        if not np.isfinite(scale).all():
            raise InputError(
                "a feature value of the lists is not finite, or as large as 1e150; check the lists"
            )
        return replace(self, features=matrix[scale > 0]), scale

    def some(self, lists: Int64) -> Self:
        """Return some of the lists."""
        begin, places = places_of(self.begin, lists)
        features = np.ascontiguousarray(self.features[:, places])
        return replace(self, begin=begin, features=features, statistics=self.statistics[places])

    def chosen(self, weights: Float64) -> Int64:
        """Return the best hypothesis of each list under weights; the first of ties."""
        scores, chosen = np.empty(self.features.shape[1]), np.empty(self.begin.size - 1, np.int64)
        kernels.combine(self.features, weights[None], scores[None])
        best(self.begin, scores, chosen)
        return chosen

    def at(self, weights: Float64) -> float:
        """Return the score of the best hypotheses under weights (float64 [d])."""
        best = self.statistics[self.chosen(weights)]
        return float(self.score(best.sum(axis=0, dtype=np.float64)))

    def changes(
        self, offset: Float64, slope: Float64, near: Int64 = NONE, far: float = math.inf
    ) -> tuple[Int64, Float64, Int32, Int64]:
        """Return what `kernels.envelopes` finds from scores on, growing so fast, and its order.

        Arrays but for the last are longer than that, and written over by the next call.
        """
        first, gamma, change = self.room
        n = kernels.envelopes(self.begin, offset, slope, near, far, first, gamma, change)
        return first, gamma, change, np.argsort(gamma[:n])

    def along(self, point: Float64, direction: Float64) -> Curve:
        """Return the score at ``point + γ direction`` for all γ."""
        lines = np.empty((2, self.features.shape[1]))
        kernels.combine(self.features, np.stack([point, direction]), lines)
        first, gamma, change, order = self.changes(*lines)
        change = change[order]
        sums = np.empty((order.size + 1, self.statistics.shape[1]), np.float64)
        sums[0] = self.statistics[first].sum(axis=0)
        sums[1:] = self.statistics[change[:, 1]] - self.statistics[change[:, 0]]
        np.cumsum(sums, axis=0, out=sums)
        return Curve(np.concatenate([[-np.inf], gamma[order], [np.inf]]), self.score(sums))


def candidates_of(
    lists: KBestLists, used: tuple[Int64, Rows] | None = None
) -> tuple[Int64, Candidates]:
    """Return the features that occur in lists (`used` of their rows), and a dense table of them.

    Raises InputError: the lists have no statistics.
    """
    active, rows = used or lists.rows.numbered()
    table = np.ascontiguousarray(rows.dense(active.size).T)
    return active, Candidates(lists.begin, table, statistics_of(lists), lists.measure.scores)


class _Point(NamedTuple):
    """A direction that was found: the middle of a plateau of some width (radians) on a circle."""

    score: float
    width: float
    direction: Float64


# What makes a point better than others.
_rank = itemgetter(0, 1)


def search(
    candidates: Candidates, starts: Sequence[Float64], seed: Sequence[int] = (0,)
) -> Float64:
    """Return weights (float64 [d]) of the best score found, in the middle of their plateau.

    Two features: the best there is. More: fans of half circles are laid through the best few
    points, at first through `starts` (float64 [d] each), and new ones through whatever is better,
    until none is. It is never worse than any of the starts. A feature that is the same throughout
    each list keeps its weight of the first start; the others its l1 norm together, or that of 1.

    Raises InputError: as `Candidates.standard`.
    """
    unit, scale = candidates.standard()
    active = scale > 0
    result = starts[0].copy()
    if not active.any():
        return result
    generator = np.random.default_rng(seed)
    found = _climb(unit, [start[active] * scale[active] for start in starts], generator)
    new = found / scale[active]
    norm = float(np.abs(result[active]).sum()) or 1.0
    result[active] = new * (norm / np.abs(new).sum())
    # The last word is with the features as they are, not with what rounding made of them.
    scores = [candidates.at(weights) for weights in (result, *starts)]
    return (result, *starts)[int(np.argmax(scores))]


def _climb(unit: Candidates, starts: Sequence[Float64], generator: np.random.Generator) -> Float64:
    d = len(unit.features)
    begin = [start / np.linalg.norm(start) for start in starts if start.any()] or [np.eye(d)[0]]
    known = [_Point(unit.at(point), 0.0, point) for point in begin]
    if d == 1:
        known += [_Point(unit.at(-point), 0.0, -point) for point in begin]
        return max(known, key=_rank).direction
    if d == 2:
        known += _fan(unit, -known[0].direction, generator)
        known += _fan(unit, known[0].direction, generator)
        return max(known, key=_rank).direction
    opened: set[bytes] = set()
    idle = 0
    while idle < LAST:
        known = sorted(known, key=_rank, reverse=True)[:BEAM]
        new = [one for one in known if one.direction.tobytes() not in opened] or known[:1]
        found = []
        for one in new:
            opened.add(one.direction.tobytes())
            found += [new for new in _fan(unit, one.direction, generator) if new.score > one.score]
        idle = 0 if found or len(new) > 1 else idle + 1
        known += found
    return _middle(unit, max(known, key=_rank), generator).direction


def _fan(unit: Candidates, point: Float64, generator: np.random.Generator) -> list[_Point]:
    """Return the best of each of a fan of half circles through a point, in all directions."""
    return [_best(unit, point, direction) for direction in _spokes(point, generator)]


def _spokes(point: Float64, generator: np.random.Generator) -> Float64:
    """Return unit vectors orthogonal to a point, in groups that are so to each other, too."""
    d, groups = point.size, []
    for _ in range(1 if d == 2 else -(-SPOKES // (d - 1))):
        around = np.column_stack([point, generator.standard_normal((d, d - 1))])
        groups.append(np.linalg.qr(around)[0].T[1:])
    return np.concatenate(groups)


def _best(unit: Candidates, point: Float64, direction: Float64) -> _Point:
    """Return the middle of the widest of the best plateaus on half a circle."""
    curve = unit.along(point, direction).angles()
    top = float(curve.score.max())
    parts = curve.plateaus(top)
    low, high = parts[np.diff(parts)[:, 0].argmax()].tolist()
    return _Point(top, high - low, _turned(point, direction, curve.middle(low, high)))


def _turned(point: Float64, direction: Float64, angle: float) -> Float64:
    """Return the unit vector at an angle from a point on the way to one orthogonal to it."""
    turned: Float64 = np.cos(angle) * point + np.sin(angle) * direction
    return turned / float(np.linalg.norm(turned))


def _middle(unit: Candidates, point: _Point, generator: np.random.Generator) -> _Point:
    """Return a point in the middle of its plateau, along lines in all directions in turn."""
    for _ in range(ROUNDS):
        for direction in _spokes(point.direction, generator)[: point.direction.size - 1]:
            # Not quite orthogonal any more once the point has moved in this round.
            across = direction - (direction @ point.direction) * point.direction
            across /= np.linalg.norm(across)
            curve = unit.along(point.direction, across).angles()
            low, high = curve.around(0.0, point.score)
            if low < high:
                middle = _turned(point.direction, across, curve.middle(low, high))
                point = _Point(point.score, high - low, middle)
    return point

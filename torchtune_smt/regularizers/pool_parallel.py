"""The pooling of OSCAR's proximal operator in torch ops, for devices with many threads."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

FEW = 2048
"""Corners that are bridged: with more of them, merging neighbours does as much at less cost."""
ROOM = 1 << 18
"""Numbers that one step of all searches looks at."""
LARGEST_SCALE = 1000
"""Of 2, so that it is a number: digits of |w| below 1e-290 are lost."""


def pool_parallel(
    magnitude: Tensor,
    lambda1: float,
    lambda2: float,
    dimension: int,
    *,
    merges: int = 10,
    tangents: int = 20,
) -> tuple[Tensor, Tensor]:
    """Pool adjacent violators: `torchtune_smt.regularizers.oscar_kernels.pool` in parallel.

    With z as there, blocks are the edges of the least concave majorant of the sums of z, and
    their slopes are the values. A corner is where two edges do not descend. In rounds, over all
    corners at once,

    1. edges that meet in corners are merged. This leaves a few corners between long concave
       pieces, and typically one large block that would swallow its neighbours one by one. So
       then
    2. the edge after a corner is drawn out to where it touches the piece before, and from there
       to where it touches the piece after: whatever lies below is no part of the majorant. Some
       rounds of this suffice, but for made-up numbers. Those that are left have
    3. every other corner bridged by the common tangent of its two pieces, which halves the number
       of pieces.

    Points of touch are found by search: step 3 takes O(log² u) calls of torch for each of O(log u)
    rounds, the others O(log u). Each round waits for the device two or three times.

    Parameters
    ----------
    magnitude : float64 [u]
        |w| that are not 0, descending, finite; at least one.
    lambda1, lambda2, dimension
        Strengths times the step; d.
    merges, tangents : int
        After how many rounds step 1, and step 2, come to an end.

    Returns
    -------
    begin : int64 [blocks + 1]
        The first rank of each block, and u.
    value : float64 [blocks]
        Descending. Equal |w| are in one block, whatever rounding says.
    """
    hull = _Hull.of(magnitude, lambda1 + lambda2 * (dimension - 1), lambda2)
    rounds = 0
    while (corner := hull.corners()).numel():
        if corner.numel() > FEW and rounds < merges:
            below = torch.zeros_like(hull.point[:, 0], dtype=torch.bool)
            below[corner] = True
        elif rounds < tangents:
            below = hull.below_bridges(corner, 1, common=False)
        else:
            below = hull.below_bridges(corner, 2, common=True)
        hull = hull.without(below)
        rounds += 1
    return hull.point[:, 0], hull.value


@dataclass(frozen=True)
class _Units:
    """What the whole numbers mean that sums are kept in, and the penalties.

    Sums of |w| are two whole numbers each, in units of `high` and of `high` · `low`, together
    exact to 2^-74 of the largest |w| for 10^7 of them. In floating point they would lose the digits
    that small penalties have. `highest` is the penalty of rank 0.
    """

    high: float
    low: float
    highest: float
    half_lambda2: float

    def value(self, p: Tensor, q: Tensor) -> Tensor:
        """Return the mean of z from points p to points q (int64 [..., 3])."""
        length, high, low = (q - p).double().unbind(-1)
        return self.less_penalty((high + low * self.low) / length * self.high, p, q)

    def less_penalty(self, mean: Tensor, p: Tensor, q: Tensor) -> Tensor:
        """Return the mean of z where that of |w| is known."""
        ranks = (p[..., 0] + q[..., 0] - 1).double()
        return mean - (self.highest - ranks * self.half_lambda2)


@dataclass(frozen=True)
class _Hull:
    """Points of the cumulative sums of z, among them all of the majorant.

    Attributes
    ----------
    point : int64 [points, 3]
        Ranks, ascending from 0 to u, and the sums of |w| in two parts.
    value : float64 [points - 1]
        Slopes of the edges from each point to the next: means of z.
    """

    point: Tensor
    value: Tensor
    units: _Units

    @classmethod
    def of(cls, magnitude: Tensor, highest: float, lambda2: float) -> _Hull:
        """Return the ends of runs in which neighbours do not descend, after the penalties."""
        bits = 61 - magnitude.numel().bit_length()
        exponent = min(bits - math.frexp(float(magnitude[0]))[1], LARGEST_SCALE)
        scaled = magnitude * math.ldexp(1.0, exponent)
        high = scaled.floor()
        low = (scaled - high) * math.ldexp(1.0, bits)
        apart = torch.ones(magnitude.numel() + 1, dtype=torch.bool, device=magnitude.device)
        torch.gt(magnitude[:-1] - magnitude[1:], lambda2, out=apart[1:-1])
        rank = apart.nonzero().squeeze(1)
        point = torch.stack([rank, _cumulated(high)[rank], _cumulated(low)[rank]], 1)
        units = _Units(math.ldexp(1.0, -exponent), math.ldexp(1.0, -bits), highest, lambda2 / 2)
        p, q = point[:-1], point[1:]
        # Single ones keep all their digits, however small they are beside the largest.
        alone = units.less_penalty(magnitude[rank[:-1]], p, q)
        return cls(point, torch.where(rank.diff() == 1, alone, units.value(p, q)), units)

    def corners(self) -> Tensor:
        """Return the points (int64) whose edges do not descend."""
        return (self.value[1:] >= self.value[:-1]).nonzero().squeeze(1) + 1

    def without(self, gone: Tensor) -> _Hull:
        """Return the hull without some inner points (bool [points])."""
        kept = (~gone).nonzero().squeeze(1)
        point, value = self.point[kept], self.value[kept[:-1]]
        new = (kept.diff() > 1).nonzero().squeeze(1)
        value[new] = self.units.value(point[new], point[new + 1])
        return _Hull(point, value, self.units)

    def below_bridges(self, corner: Tensor, every: int, *, common: bool) -> Tensor:
        """Return which points (bool) are below the bridges of some corners.

        Parameters
        ----------
        corner : int64 [corners]
            All of them.
        every : int
            1 bridges all corners, 2 every other.
        common : bool
            Whether bridges are the common tangents of the pieces that meet; else the tangent of
            both that comes of the edge after the corner.
        """
        ends = torch.cat([corner[:1] * 0, corner, corner[:1] * 0 + self.value.numel()])
        start, corner, end = ends[:-2:every], ends[1:-1:every], ends[2::every]
        size = int((end - start).max())
        probes = min(ROOM // corner.numel(), size)
        if common:
            probes = math.isqrt(probes)
        probes = max(probes, 1)

        def touch_after(a: Tensor) -> Tensor:
            """Return where tangents from points ([corners, ...]) touch the pieces after."""
            p = self.point[a].unsqueeze(-2)
            low, high = (x.view(-1, *[1] * (a.dim() - 1)).expand_as(a) for x in (corner + 1, end))
            return first_without(
                lambda b: self.value[b] >= self.units.value(p, self.point[b]),
                low,
                high,
                probes,
                size,
            )

        def edge_above_tangent(a: Tensor) -> Tensor:
            return self.value[a] > self.units.value(self.point[a], self.point[touch_after(a)])

        if common:
            a = first_without(edge_above_tangent, start, corner - 1, probes, size)
        else:
            q = self.point[corner + 1].unsqueeze(-2)
            before = corner.unsqueeze(-1) - 1
            steps = first_without(
                lambda n: self.value[before - n - 1] <= self.units.value(self.point[before - n], q),
                torch.zeros_like(corner),
                corner - 1 - start,
                probes,
                size,
            )
            a = corner - 1 - steps
        change = torch.zeros_like(self.point[:, 0])
        one = torch.ones_like(a)
        change.index_add_(0, a + 1, one)
        change.index_add_(0, touch_after(a), -one)
        return change.cumsum(0) > 0


def first_without(
    holds: Callable[[Tensor], Tensor], low: Tensor, high: Tensor, probes: int, size: int
) -> Tensor:
    """Return the first number of each range low..high for which a condition does not hold.

    It holds for all numbers before that one, and for none after it; `high` need not be asked.

    Parameters
    ----------
    holds : callable
        Takes numbers of each range (int64 [..., probes]) and returns bools. In an empty range,
        it is asked for ``high - 1``, and the answer is not used.
    low, high : int64 [...]
    probes : int
        How many numbers of a range each step looks at.
    size : int
        No range is longer.
    """
    number = torch.arange(1, probes + 1, device=low.device)
    while size > 0:
        length = high - low
        probe = low.unsqueeze(-1) + length.unsqueeze(-1) * number // (probes + 1)
        answer = holds(torch.minimum(probe, high.unsqueeze(-1) - 1))
        count = answer.sum(-1) * (length > 0)
        high = low + length * (count + 1) // (probes + 1)
        low = low + length * count // (probes + 1) + (count > 0)
        size //= probes + 1
    return low


def _cumulated(values: Tensor) -> Tensor:
    """Return the sums (int64 [n + 1]) of the first 0, 1, ..., n whole numbers."""
    sums = torch.zeros(values.numel() + 1, dtype=torch.int64, device=values.device)
    torch.cumsum(values.long(), 0, out=sums[1:])
    return sums

"""OSCAR's proximal operator in torch ops, for devices with many threads: sort, then pool."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType

import torch
from torch import Tensor

from torchtune_smt.regularizers.base import check_weights, dimension_error

FEW = 2048
"""Corners that are bridged: with more of them, merging neighbours does as much at less cost."""
ROOM = 1 << 18
"""Numbers that one step of all searches looks at."""
LARGEST_SCALE = 1000
"""Of 2, so that it is a number: digits of |w| below 1e-290 are lost."""


def prox_parallel(
    weights: Tensor,
    lambda1: float,
    lambda2: float,
    dimension: int,
    blocks: bool,
    tiles: ModuleType | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the proximal point and the blocks, in torch ops; see `ops.prox_oscar`.

    Only how many weights are not 0, the largest one and in pooling the number of corners come to
    the host.

    tiles: the kernels that do more of it (`regularizers.pool_tiles`), where there are any.
    """
    if not weights.is_floating_point():
        check_weights(weights)
    weights = weights.contiguous()
    magnitude, largest, active, room = weights, 0.0, 0, None
    if tiles is not None and 0 < weights.numel() <= tiles.MOST:
        magnitude, largest, active, room = tiles.survey(weights)
    elif weights.numel():
        magnitude = weights.abs()
        both = torch.stack([magnitude.amax().double(), magnitude.count_nonzero().double()])
        largest, active = both[0].item(), int(both[1])
    if not largest < math.inf:
        check_weights(weights, known=True)
    if dimension < active:
        raise dimension_error(dimension, active)
    block = torch.full((weights.numel() if blocks else 0,), -1, device=weights.device)
    if active == 0:
        return torch.zeros_like(weights), block
    places = None
    if active < weights.numel():
        # Many zeros would cost more to sort than to leave out.
        places = magnitude.nonzero().squeeze(1)
        magnitude = magnitude[places]
    magnitude, order = magnitude.sort(descending=True)
    magnitude = magnitude.double()
    if places is not None:
        order = places[order]
    if tiles is None or room is None:
        begin, value = pool_parallel(magnitude, lambda1, lambda2, dimension)
    else:
        highest = lambda1 + lambda2 * (dimension - 1)
        result, begins, corners, sums = tiles.pool_tiles(
            weights, magnitude, order, room, largest, highest, lambda2
        )
        if not corners.item():
            if blocks:
                block[order] = torch.where(result[order] != 0, begins.cumsum(0) - 1, -1)
            return result, block
        begin, value = pool_rest(begins, magnitude, sums)
    result = torch.zeros_like(weights)
    number = torch.zeros_like(order)
    number = number.index_fill_(0, begin[1:-1], 1).cumsum(0)
    result[order] = value.clamp_min(0.0)[number].to(weights.dtype)
    if blocks:
        block[order] = torch.where(value[number] > 0, number, -1)
    # No zero has a sign.
    return result.copysign(weights).add_(0.0), block


def pool_parallel(
    magnitude: Tensor,
    lambda1: float,
    lambda2: float,
    dimension: int,
    *,
    merges: int = 10,
    tangents: int = 20,
) -> tuple[Tensor, Tensor]:
    """Pool adjacent violators: `oscar_kernels.pool` in parallel.

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

    magnitude (float64 [u]): |w| that are not 0, descending, finite; at least one.
    merges, tangents: after how many rounds step 1, and step 2, come to an end.

    Returns begin, value (int64 [blocks + 1], float64 [blocks]): as there.
    """
    sums = Sums.of(magnitude, lambda1 + lambda2 * (dimension - 1), lambda2)
    apart = torch.ones(magnitude.numel(), dtype=torch.bool, device=magnitude.device)
    torch.gt(magnitude[:-1] - magnitude[1:], lambda2, out=apart[1:])
    return pool_rest(apart, magnitude, sums, merges=merges, tangents=tangents)


def pool_rest(
    begins: Tensor, magnitude: Tensor, sums: Sums, *, merges: int = 10, tangents: int = 20
) -> tuple[Tensor, Tensor]:
    """Pool blocks that are pooled in part: `begins` (bool [u]) says which ranks begin one."""
    hull = _Hull.of(begins, magnitude, sums)
    rounds = 0
    while (corner := hull.corners()).numel():
        if corner.numel() > FEW and rounds < merges:
            kept = torch.ones_like(hull.rank, dtype=torch.bool)
            kept.index_fill_(0, corner, False)
        elif rounds < tangents:
            kept = hull.above_bridges(corner, 1, common=False)
        else:
            kept = hull.above_bridges(corner, 2, common=True)
        hull = hull.reduced(kept)
        rounds += 1
    return hull.rank, hull.value


@dataclass(frozen=True)
class Sums:
    """The sums of |w| over ranks, as whole numbers, and the penalties.

    In floating point, sums of 10^7 numbers would lose the digits that small penalties have. These
    are exact to 2^-74 of the largest |w|, and more where there are fewer.

    high, low (int64 [u + 1]): two parts of each sum, in their units.
    penalty, half_lambda2: ranks p to q, without q, have the mean penalty
        ``penalty - half_lambda2 * (p + q)``.
    """

    high: Tensor
    low: Tensor
    high_unit: Tensor
    low_unit: float
    penalty: Tensor
    half_lambda2: float

    @classmethod
    def of(cls, magnitude: Tensor, highest: float, lambda2: float) -> Sums:
        """Add up |w| (float64 [u], descending)."""
        scale, low_scale = scales(magnitude.numel(), float(magnitude[0]))
        scaled = magnitude * scale
        high = _cumulated(scaled)
        low = _cumulated(scaled.frac_().mul_(low_scale))
        high_unit, penalty = magnitude.new_tensor([1 / scale, highest + lambda2 / 2])
        return cls(high, low, high_unit, 1 / scale / low_scale, penalty, lambda2 / 2)

    def value(self, p: Tensor, q: Tensor) -> Tensor:
        """Return the mean of z from ranks p (int64) to ranks q, without q."""
        # Few calls, since for few points the calls are what it costs.
        mean = (self.high[q] - self.high[p]) * self.high_unit
        mean.add_(self.low[q] - self.low[p], alpha=self.low_unit).div_(q - p)
        return mean.sub_(torch.add(self.penalty, p + q, alpha=-self.half_lambda2))


@dataclass(frozen=True)
class _Hull:
    """Points of the cumulative sums of z, among them all of the majorant.

    rank (int64 [points]): where they are, ascending from 0 to u.
    value (float64 [points - 1]): slopes of the edges from each point to the next: means of z.
    """

    rank: Tensor
    value: Tensor
    sums: Sums

    @classmethod
    def of(cls, begins: Tensor, magnitude: Tensor, sums: Sums) -> _Hull:
        """Return the points where blocks begin (bool [u], the first rank among them), and u."""
        rank = begins.nonzero().squeeze(1)
        # Single ones keep all their digits, however small they are beside the largest.
        value = magnitude[rank] - sums.penalty.add(2 * rank + 1, alpha=-sums.half_lambda2)
        hull = cls(torch.cat([rank, rank.new_full((1,), magnitude.numel())]), value, sums)
        hull._renew(hull.rank)
        return hull

    def corners(self) -> Tensor:
        """Return the points (int64) whose edges do not descend."""
        return (self.value[1:] >= self.value[:-1]).nonzero().squeeze(1) + 1

    def reduced(self, kept: Tensor) -> _Hull:
        """Return the hull of some of the points (bool [points], the ends among them)."""
        point = kept.nonzero().squeeze(1)
        hull = _Hull(self.rank[point], self.value[point[:-1]], self.sums)
        hull._renew(point)
        return hull

    def _renew(self, number: Tensor) -> None:
        """Compute the slopes of those edges that span several of what `number` counts."""
        new = (number.diff() > 1).nonzero().squeeze(1)
        self.value[new] = self.sums.value(self.rank[new], self.rank[new + 1])

    def above_bridges(self, corner: Tensor, every: int, *, common: bool) -> Tensor:
        """Return which points (bool) are not below the bridges of all corners, or every other.

        common: whether bridges are the common tangents of the pieces that meet; else the tangent of
            both that comes of the edge after the corner.
        """
        ends = torch.cat([corner[:1] * 0, corner, corner[:1] * 0 + self.value.numel()])
        start, corner, end = ends[:-2:every], ends[1:-1:every], ends[2::every]
        size = int((end - start).max())
        probes = min(ROOM // corner.numel(), size)
        if common:
            probes = math.isqrt(probes)
        probes = max(probes, 1)

        def touched(a: Tensor) -> Tensor:
            """Return where tangents from points ([corners, ...]) touch the pieces after."""
            first, last = (x.view(-1, *[1] * (a.dim() - 1)) for x in (corner + 1, end))
            origin = self.rank[a].unsqueeze(-1)

            def rises(n: Tensor) -> Tensor:
                b = first.unsqueeze(-1) + n
                return self.value[b] >= self.sums.value(origin, self.rank[b])

            return first + count_leading(rises, (last - first).expand_as(a), probes, size)

        if common:

            def outside(n: Tensor) -> Tensor:
                a = start.unsqueeze(-1) + n
                return self.value[a] > self.sums.value(self.rank[a], self.rank[touched(a)])

            a = start + count_leading(outside, corner - 1 - start, probes, size)
        else:
            before = corner - 1
            target = self.rank[corner + 1].unsqueeze(-1)

            def falls(n: Tensor) -> Tensor:
                a = before.unsqueeze(-1) - n
                return self.value[a - 1] <= self.sums.value(self.rank[a], target)

            a = before - count_leading(falls, before - start, probes, size)
        bridges = torch.zeros_like(self.rank, dtype=torch.int32)
        one = torch.ones_like(a, dtype=torch.int32)
        bridges.index_add_(0, a + 1, one)
        bridges.index_add_(0, touched(a), -one)
        return bridges.cumsum(0, dtype=torch.int32) == 0


def count_leading(
    holds: Callable[[Tensor], Tensor], length: Tensor, probes: int, size: int
) -> Tensor:
    """Return how many of the numbers from 0 a condition holds for, before the first without it.

    holds: takes numbers (int64 [..., probes]) for each search and returns bools. A search of length
        0 asks it for -1, and does not use the answer.
    length (int64 [...]): each search has the numbers below its length, `size` at most.
    probes: how many numbers each search looks at in one step.
    """
    stride = 1
    while stride * (probes + 1) <= size:
        stride *= probes + 1
    last = (length - 1).unsqueeze(-1)
    count = torch.zeros_like(length)
    while stride:
        # Digit by digit of the number, in base probes + 1.
        end = min(stride * (probes + 1), size + 1) - 1
        digits = torch.arange(stride - 1, end, stride, device=length.device)
        number = count.unsqueeze(-1) + digits
        held = holds(torch.minimum(number, last)) & (number <= last)
        count = torch.add(count, held.sum(-1), alpha=stride)
        stride //= probes + 1
    return count


def scales(number: int, largest: float) -> tuple[float, float]:
    """Return what |w| times it is whole numbers to add up, and their fractions times it are."""
    bits = 61 - number.bit_length()
    exponent = min(bits - math.frexp(largest)[1], LARGEST_SCALE)
    return math.ldexp(1.0, exponent), math.ldexp(1.0, bits)


def _cumulated(values: Tensor) -> Tensor:
    """Return the sums (int64 [n + 1]) of the whole parts of the first 0, 1, ..., n numbers."""
    sums = torch.zeros(values.numel() + 1, dtype=torch.int64, device=values.device)
    torch.cumsum(values.long(), 0, out=sums[1:])
    return sums

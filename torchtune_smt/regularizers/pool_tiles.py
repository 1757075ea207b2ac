"""The pooling of OSCAR's proximal operator on a GPU, by kernels of Triton, which comes with torch.

Blocks are the edges of the least concave majorant of the sums of z (see `pool_parallel`), so its
points are what is looked for. `_group` and `_merge` find those of tiles of `TILE` ranks. In `_tree`
the one of two neighbours that is ready last joins both, then goes on with what it has joined to
the next: a tree of joins in one launch. A join draws the common tangent: from a point of one side
to where it touches the other, there and back until both stay. As slopes to the points of a concave
chain rise and then fall, the search looks at the first and last point of each tile, then into one
tile alone. `_write` gives each weight the value of its block. Corners that are left (joins give up
after `TURNS`; rounding) are for `pool_parallel`.
"""

from __future__ import annotations

import struct
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from torchtune_smt.regularizers.pool_parallel import Sums, scales

TILE = 512
GROUP = 8
"""Ranks of a tile whose points are found by looking at all pairs."""
WARPS = 8
"""Threads in thirty-twos for all ranks of a tile."""
REGISTERS = 64
"""Of each of those threads: with more of them there would be fewer at a time."""
JOINING, MERGING = 4, 1
"""Threads in thirty-twos for a join of tiles, and of groups."""
TURNS = 64
MOST = 2**31 - 2 * TILE
"""Ranks are int32."""


@triton.jit
def _sum(high, low, units):
    return high.to(tl.float64) * tl.load(units + 2) + low.to(tl.float64) * tl.load(units + 3)


@triton.jit
def _slope(high, low, one, count, middle, units):
    """Return the mean of z over `count` ranks, whose first and last one add up to middle - 1."""
    mean = _sum(high, low, units) / tl.maximum(count, 1).to(tl.float64)
    # Single ones keep all their digits, however small they are beside the largest.
    mean = tl.where(count == 1, one, mean)
    return mean - (tl.load(units + 4) - tl.load(units + 5) * middle)


@triton.jit
def _between(size, high, low, p, q, mask, units):
    """Return the mean of z from ranks p to ranks q, without q, where the mask is set."""
    return _slope(
        tl.load(high + q, mask, 0) - tl.load(high + p, mask, 0),
        tl.load(low + q, mask, 0) - tl.load(low + p, mask, 0),
        tl.load(size + p, mask & (q - p == 1), 0.0),
        q - p,
        p.to(tl.float64) + q.to(tl.float64),
        units,
    )


@triton.jit
def _apart(size, b, mask, units):
    """Return whether |w| of ranks b - 1 and b differ enough, alone, not to be in one block."""
    gap = tl.load(size + b - 1, mask, 0.0) - tl.load(size + b, mask, 0.0)
    return gap > 2 * tl.load(units + 5)


@triton.jit
def _parts(size, i, mask, units):
    """Return |w| as whole numbers of two units."""
    scaled = tl.load(size + i, mask, 0.0) * tl.load(units)
    whole = scaled.to(tl.int64)
    return whole, ((scaled - whole.to(tl.float64)) * tl.load(units + 1)).to(tl.int64)


@triton.jit(do_not_specialize=["n"])
def _survey(weights, magnitude, found, n, TILE: tl.constexpr):
    """Write |w|, the bits of the largest (NaN are above all), and how many are not 0."""
    i = tl.program_id(0) * TILE + tl.arange(0, TILE)
    size = tl.abs(tl.load(weights + i, i < n, 0.0))
    tl.store(magnitude + i, size, i < n)
    # Of numbers without a sign, bits ascend as they do.
    bits = size.to(tl.float64).to(tl.int64, bitcast=True)
    tl.atomic_max(found, tl.max(bits))
    tl.atomic_add(found + 1, tl.sum((bits != 0).to(tl.int64)))


@triton.jit(do_not_specialize=["n", "tiles"])
def _add(size, total, units, n, tiles, TILE: tl.constexpr):
    """Write the sums of each tile, the first at 1 (int64 [2, tiles + 1])."""
    tile = tl.program_id(0)
    i = tile * TILE + tl.arange(0, TILE)
    whole, part = _parts(size, i, i < n, units)
    tl.store(total + tile + 1, tl.sum(whole))
    tl.store(total + tiles + 1 + tile + 1, tl.sum(part))


@triton.jit
def _look(best, at, size, high, low, origin, r, mask, point, side, units):
    """Return the best of points r to go to from the origin, and of one known before.

    On the right (side 1) the steepest slope, on the left (-1) the flattest; of equal ones the
    farthest. Slopes and points are times the side. What is masked but no point does not count.
    """
    p, q = tl.minimum(origin, r), tl.maximum(origin, r)
    key = side * _between(size, high, low, p, q, mask, units)
    key = tl.where(point, key, -float("inf"))
    top = tl.max(key)
    found = tl.max(tl.where(point & (key == top), side * r, -(2**31) + 1))
    at = tl.where(top > best, found, tl.where(top == best, tl.maximum(at, found), at))
    return tl.maximum(best, top), at


@triton.jit
def _look_into(
    best, at, size, high, low, flag, tile, mask, start, stop, origin, b, side, units,
    TILE: tl.constexpr,
):  # fmt: skip
    """Look at the points of one tile, of which ranks `start` to `stop` are left, but for b."""
    r = tile * TILE + tl.arange(0, TILE)
    mask = (r >= start) & (r <= tl.where(mask, stop, -1)) & (r != b)
    point = tl.load(flag + r, mask, 0) != 0
    return _look(best, at, size, high, low, origin, r, mask, point, side, units)


@triton.jit
def _tangent(
    size, high, low, flag, first, last, units, left, middle, right, limit, p, q, side,
    TILE: tl.constexpr,
):  # fmt: skip
    """Return where the tangent from p touches the tiles middle to right, whose end is `limit`.

    For the side -1, where that from q touches the tiles left to middle.
    """
    b = middle * TILE
    origin = tl.where(side > 0, p, q)
    # At first the tile where the last one touched, or the next that has points, and the end.
    near = tl.where(side > 0, tl.maximum(q // TILE, middle), tl.minimum(p // TILE, middle - 1))
    stop = tl.load(last + near, near < right, 0)
    while stop < 0:
        near = tl.where(side > 0, tl.load(first + near), -1 - stop)
        stop = tl.load(last + near, near < right, 0)
    start = tl.load(first + near, near < right, 0)
    best, at = _look_into(
        tl.full([], -float("inf"), tl.float64), tl.full([], -(2**31) + 1, tl.int32),
        size, high, low, flag, near, near < right, start, stop, origin, b, side, units, TILE,
    )  # fmt: skip
    far = tl.where(side > 0, limit, b)
    # The middle counts while it may be a corner.
    allowed = (far != origin) & ((side > 0) | ((p == b) & _apart(size, b, b > 0, units)))
    one, other = tl.minimum(origin, far), tl.maximum(origin, far)
    key = side * _between(size, high, low, one, other, allowed, units)
    if allowed & (key >= best):
        at = tl.where(key > best, side * far, tl.maximum(at, side * far))
        best = key
    # Beyond the farthest point of that tile slopes may go on: so do tiles, by their ends.
    lane = tl.arange(0, TILE)
    offset = 1
    farthest = tl.where(side > 0, stop, -start)
    while (at >= farthest) & (near + side * offset >= left) & (near + side * offset < right):
        k = near + side * (offset + lane // 2)
        mask = (k >= left) & (k < tl.where(side > 0, right, middle))
        stops = tl.load(last + k, mask, -1)
        mask = mask & (stops >= 0)
        r = tl.where(lane % 2 == 0, tl.load(first + k, mask, 0), stops)
        best, at = _look(best, at, size, high, low, origin, r, mask, mask, side, units)
        farthest = tl.max(tl.where(mask, side * r, -(2**31) + 1))
        offset += TILE // 2
    tile = side * at // TILE
    if (offset > 1) & (side * at != far) & (tile != near):
        best, at = _look_into(
            best, at, size, high, low, flag, tile, tile < right, tl.load(first + tile),
            tl.load(last + tile), origin, b, side, units, TILE,
        )  # fmt: skip
    return side * at


@triton.jit
def _join(
    size, high, low, flag, after, first, last, units, left, middle, right, n,
    TILE: tl.constexpr, TURNS: tl.constexpr,
):  # fmt: skip
    """Take away the points that the common tangent of both sides of the middle is above."""
    b = middle * TILE
    limit = tl.minimum(right * TILE, n)
    p = b
    q = b
    side = 1
    # Most middles stay: the blocks beside them say so.
    previous = tl.load(last + middle - 1)
    known = (previous >= 0) & (tl.load(last + middle) > b)
    following = tl.load(after + b, known, 1)
    falls = _between(size, high, low, previous, b, known, units)
    rises = _between(size, high, low, b, following, known, units)
    turn = tl.where(known & (falls > rises) & _apart(size, b, b > 0, units), TURNS, 0)
    while turn < TURNS:
        found = _tangent(
            size, high, low, flag, first, last, units, left, middle, right, limit, p, q, side,
            TILE,
        )  # fmt: skip
        turn = tl.where(found == tl.where(side > 0, q, p), TURNS, turn + 1)
        q = tl.where(side > 0, found, q)
        p = tl.where(side > 0, p, found)
        side = -side
    # Else the middle is a corner.
    if p < b:
        since = p // TILE
        until = tl.where(q == limit, right, q // TILE)
        tl.debug_barrier()
        tl.store(last + since, p)
        if q < limit:
            tl.store(first + until, q)
        # Tiles between have none; they say where there are some.
        chunk = since + 1
        while chunk < until:
            k = chunk + tl.arange(0, TILE)
            tl.store(last + k, tl.zeros_like(k) - 1 - since, k < until)
            tl.store(first + k, tl.zeros_like(k) + until, k < until)
            chunk += TILE
        tl.debug_barrier()


@triton.jit(do_not_specialize=["n", "tiles"])
def _group(
    size, before_tile, high, low, flag, before, after, units, n, tiles,
    TILE: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """Write the sums, and the points of groups.

    size (float64 [n]): |w|, descending.
    before_tile (int64 [2, tiles + 1]): sums before each tile, and of all.
    high, low (int64 [n + 1]): sums before each rank, and of all.
    flag (int8 [n]): whether each rank begins a block of its group.
    before, after (int32 [n]): of the last rank of a block its first, of the first the end.
    """
    tile = tl.program_id(0)
    base = tile * TILE
    end = tl.minimum(base + TILE, n)
    i = base + tl.arange(0, TILE)
    inside = i < end
    whole, part = _parts(size, i, inside, units)
    above = tl.load(before_tile + tile) + tl.cumsum(whole) - whole
    below = tl.load(before_tile + tiles + 1 + tile) + tl.cumsum(part) - part
    tl.store(high + i, above, inside)
    tl.store(low + i, below, inside)
    # The next tile writes the same.
    tl.store(high + end, tl.load(before_tile + tile + 1))
    tl.store(low + end, tl.load(before_tile + tiles + 1 + tile + 1))
    tl.debug_barrier()

    # A group's points: each slope that leads to them is above each that leads from them.
    start = i - i % GROUP
    stop = tl.minimum(start + GROUP, end)
    falls = tl.full([TILE], float("inf"), tl.float64)
    rises = tl.full([TILE], -float("inf"), tl.float64)
    own = tl.load(size + i, inside, 0.0)
    previous = tl.load(size + i - 1, inside & (i > start), 0.0)
    twice = 2.0 * i.to(tl.float64)
    penalty, half = tl.load(units + 4), tl.load(units + 5)
    for d in range(1, GROUP + 1):
        count = tl.zeros([], tl.float64) + d
        inverse = 1.0 / count
        mask = inside & (i - d >= start)
        whole = above - tl.load(high + i - d, mask, 0)
        part = below - tl.load(low + i - d, mask, 0)
        # Division: a product and what it lacks.
        total = _sum(whole, part, units)
        mean = total * inverse
        mean = tl.where(d == 1, previous, mean + tl.fma(-count, mean, total) * inverse)
        slope = mean - (penalty - half * (twice - d))
        falls = tl.where(mask, tl.minimum(falls, slope), falls)
        mask = inside & (i + d <= stop)
        whole = tl.load(high + i + d, mask, 0) - above
        part = tl.load(low + i + d, mask, 0) - below
        total = _sum(whole, part, units)
        mean = total * inverse
        mean = tl.where(d == 1, own, mean + tl.fma(-count, mean, total) * inverse)
        slope = mean - (penalty - half * (twice + d))
        rises = tl.where(mask, tl.maximum(rises, slope), rises)
    point = (falls > rises) & (previous - own > 2 * tl.load(units + 5))
    point = inside & ((i == start) | point)
    tl.store(flag + i, point.to(tl.int8), inside)
    tl.debug_barrier()
    here = tl.where(point, i, start)
    then = stop
    for d in range(1, GROUP):
        found = tl.load(flag + i - d, inside & (i - d >= start), 0) != 0
        here = tl.where(found, tl.maximum(here, i - d), here)
        found = tl.load(flag + i + d, inside & (i + d < stop), 0) != 0
        then = tl.where(found, tl.minimum(then, i + d), then)
    tl.store(before + i, here, inside)
    tl.store(after + i, then, inside)


@triton.jit(do_not_specialize=["n"])
def _merge(
    size, high, low, flag, before, after, first, last, units, n,
    TILE: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """Join the groups of each tile, one lane for each two: blocks at a corner swallow others.

    first, last (int32 [tiles]): written: the first and last point of each tile. A tile that loses
        all of them to a join has there the next tile with some, and -1 less that before.
    """
    tile = tl.program_id(0)
    base = tile * TILE
    end = tl.minimum(base + TILE, n)
    lane = tl.arange(0, TILE // (2 * GROUP))
    width = 2 * GROUP
    while width <= TILE:
        left_end = base + lane * width
        right_end = tl.minimum(left_end + width, end)
        b = left_end + width // 2
        going = b < end
        p = tl.load(before + b - 1, going, 0)
        q = tl.load(after + b, going, 1)
        corner = _between(size, high, low, p, b, going, units) <= _between(
            size, high, low, b, q, going, units
        )
        going = going & (corner | (_apart(size, b, going, units) == 0))
        joined = going
        tl.store(flag + b, tl.zeros_like(b).to(tl.int8), going)
        high_p, low_p = tl.load(high + p, going, 0), tl.load(low + p, going, 0)
        high_q, low_q = tl.load(high + q, going, 0), tl.load(low + q, going, 0)
        while tl.max(going.to(tl.int32)) > 0:
            middle = p.to(tl.float64) + q.to(tl.float64)
            value = _slope(high_q - high_p, low_q - low_p, 0.0, q - p, middle, units)
            has = going & (p > left_end)
            far = tl.load(before + p - 1, has, 0)
            high_far, low_far = tl.load(high + far, has, 0), tl.load(low + far, has, 0)
            one = tl.load(size + far, has & (p - far == 1), 0.0)
            middle = far.to(tl.float64) + p.to(tl.float64)
            slope = _slope(high_p - high_far, low_p - low_far, one, p - far, middle, units)
            swallow = has & (slope <= value)
            tl.store(flag + p, tl.zeros_like(p).to(tl.int8), swallow)
            p = tl.where(swallow, far, p)
            high_p = tl.where(swallow, high_far, high_p)
            low_p = tl.where(swallow, low_far, low_p)
            # That takes the mean down: what rises above it still does.
            has = going & (q < right_end)
            far = tl.load(after + q, has, 1)
            high_far, low_far = tl.load(high + far, has, 0), tl.load(low + far, has, 0)
            one = tl.load(size + q, has & (far - q == 1), 0.0)
            middle = far.to(tl.float64) + q.to(tl.float64)
            slope = _slope(high_far - high_q, low_far - low_q, one, far - q, middle, units)
            going = has & (slope >= value)
            tl.store(flag + q, tl.zeros_like(q).to(tl.int8), going)
            q = tl.where(going, far, q)
            high_q = tl.where(going, high_far, high_q)
            low_q = tl.where(going, low_far, low_q)
            going = going | swallow
        tl.store(after + p, q, joined)
        tl.store(before + q - 1, p, joined)
        tl.debug_barrier()
        width = width * 2
    tl.store(first + tile, base)
    tl.store(last + tile, tl.load(before + end - 1))


@triton.jit(do_not_specialize=["n", "tiles"])
def _tree(
    size, high, low, flag, after, first, last, arrived, units, n, tiles,
    TILE: tl.constexpr, TURNS: tl.constexpr,
):  # fmt: skip
    """Join tiles: what is left of the points of each is `first` to `last`, if that is not below 0.

    arrived (int32 [tiles]): zeros; of the tile in the middle of two neighbours, who is ready.
    """
    tile = tl.program_id(0)
    width = 1
    while width < tiles:
        left = tile // (2 * width) * (2 * width)
        middle = left + width
        ready = 1
        if middle < tiles:
            tl.debug_barrier()
            ready = tl.atomic_add(arrived + middle, 1)
        if ready == 0:
            width = tiles
        else:
            if middle < tiles:
                right = tl.minimum(middle + width, tiles)
                _join(
                    size, high, low, flag, after, first, last, units, left, middle, right, n,
                    TILE, TURNS,
                )  # fmt: skip
            width = width * 2


@triton.jit(do_not_specialize=["n", "tiles"])
def _write(
    size, high, low, flag, scratch, first, last, order, result, begins, corners, units, n, tiles,
    TILE: tl.constexpr,
):  # fmt: skip
    """Give each place of `result` the value of its block, clipped at 0.

    begins (bool [n]): written: whether each rank begins a block.
    corners (int32 [1]): added to: of the blocks those that are not below the one before.
    """
    tile = tl.program_id(0)
    base = tile * TILE
    end = tl.minimum(base + TILE, n)
    i = base + tl.arange(0, TILE)
    inside = i < end
    start = tl.load(first + tile)
    stop = tl.load(last + tile)
    # The next points outside.
    near = tile - 1
    previous = tl.load(last + near, near >= 0, 0)
    while previous < 0:
        near = -1 - previous
        previous = tl.load(last + near)
    near = tile + 1
    following = tl.load(last + near, near < tiles, 0)
    while following < 0:
        near = tl.load(first + near)
        following = tl.load(last + near, near < tiles, 0)
    following = tl.load(first + near, near < tiles, n)
    begin = inside & (i >= start) & (i <= stop) & (tl.load(flag + i, inside, 0) != 0)
    number = tl.cumsum(begin.to(tl.int32))
    count = tl.sum(begin.to(tl.int32))
    tl.store(scratch + base + number - 1, i, begin)
    tl.debug_barrier()
    p = tl.load(scratch + base + number - 1, inside & (number > 0), previous)
    q = tl.load(scratch + base + number, inside & (number < count), following)
    before = tl.load(scratch + base + number - 2, inside & (number > 1), previous)
    value = _between(size, high, low, p, q, inside, units)
    mask = begin & (i > 0)
    corner = mask & (_between(size, high, low, before, i, mask, units) <= value)
    count = tl.sum(corner.to(tl.int32))
    if count > 0:
        tl.atomic_add(corners, count)
    tl.store(begins + i, begin, inside)
    place = tl.load(order + i, inside, 0)
    tl.store(result + place, tl.maximum(value, 0.0), inside)


@triton.jit(do_not_specialize=["n"])
def _sign(weights, result, n, TILE: tl.constexpr):
    """Give each result the sign of its weight, but for 0."""
    i = tl.program_id(0) * TILE + tl.arange(0, TILE)
    size = tl.load(result + i, i < n, 0.0)
    own = tl.load(weights + i, i < n, 0.0)
    tl.store(result + i, tl.where((own < 0) & (size > 0), -size, size), i < n)


def _room(weights: Tensor) -> list[Tensor]:
    """Return what `pool_tiles` writes; each is aligned, as what is not would be compiled anew."""
    n = weights.numel()
    tiles = -(-n // TILE)
    sizes = {torch.int64: [n + 1] * 2, torch.int8: [n], torch.int32: [n, n, tiles, tiles]}
    parts = [weights.new_empty(k, dtype=dtype) for dtype, ks in sizes.items() for k in ks]
    total = weights.new_zeros(2 * tiles + 2, dtype=torch.int64)
    arrived = weights.new_zeros(tiles + 1, dtype=torch.int32)
    begins = weights.new_empty(n, dtype=torch.bool)
    return [*parts, total, arrived, begins, torch.empty_like(weights)]


def survey(weights: Tensor) -> tuple[Tensor, float, int, list[Tensor]]:
    """Return |w|, the largest of them (of NaN, NaN), how many are not 0, and room for the rest."""
    magnitude = torch.empty_like(weights)
    found = torch.zeros(2, dtype=torch.int64, device=weights.device)
    n = weights.numel()
    with torch.cuda.device_of(weights):
        _survey[(-(-n // TILE),)](weights, magnitude, found, n, TILE=TILE)
    # Made while the device is at work.
    room = _room(weights)
    bits, active = found.tolist()
    return magnitude, struct.unpack("d", struct.pack("q", bits))[0], active, room


def pool_tiles(
    weights: Tensor,
    magnitude: Tensor,
    order: Tensor,
    room: list[Tensor],
    largest: float,
    highest: float,
    lambda2: float,
) -> tuple[Tensor, Tensor, Tensor, Sums]:
    """Pool, and write the proximal point.

    magnitude (float64 [u]): |w| that are not 0, descending, finite; at least one.
    order (int64 [u]): their places.
    largest: magnitude[0].
    highest, lambda2: the penalty of the first rank, and how much less that of each next one is.

    Returns result (float [n])
    Returns begins (bool [u]): whether each rank begins a block.
    Returns corners (int32 [1]): how many blocks are not below the one before: if it is not 0,
        neither the blocks nor the result are the right ones yet, and `sums` are for the rounds.
    """
    n = magnitude.numel()
    tiles = -(-n // TILE)
    high, low, flag, before, after, first, last, total, arrived, begins, result = room
    total = total[: 2 * tiles + 2].view(2, -1)
    corners = arrived[:1]
    if n < weights.numel():
        result.zero_()
    scale, low_scale = scales(n, largest)
    numbers = [1 / scale, 1 / scale / low_scale, highest + lambda2 / 2, lambda2 / 2]
    # From pinned memory, since a copy from other memory waits until the sort is done.
    units = torch.tensor(
        [scale, low_scale, *numbers], dtype=torch.float64, pin_memory=magnitude.is_cuda
    ).to(magnitude.device, non_blocking=True)
    # Without fused multiplication, so that slopes are those of the rounds.
    launch: dict[str, Any] = {"TILE": TILE, "enable_fp_fusion": False}
    with torch.cuda.device_of(magnitude):
        _add[(tiles,)](magnitude, total, units, n, tiles, **launch)
        total = total.cumsum(1)
        _group[(tiles,)](
            magnitude, total, high, low, flag, before, after, units, n, tiles,
            GROUP=GROUP, num_warps=WARPS, maxnreg=REGISTERS, **launch,
        )  # fmt: skip
        _merge[(tiles,)](
            magnitude, high, low, flag, before, after, first, last, units, n,
            GROUP=GROUP, num_warps=MERGING, **launch,
        )  # fmt: skip
        _tree[(tiles,)](
            magnitude, high, low, flag, after, first, last, arrived, units, n, tiles,
            TURNS=TURNS, num_warps=JOINING, **launch,
        )  # fmt: skip
        _write[(tiles,)](
            magnitude, high, low, flag, before, first, last, order, result, begins, corners,
            units, n, tiles, num_warps=WARPS, **launch,
        )  # fmt: skip
        _sign[(-(-weights.numel() // TILE),)](weights, result, weights.numel(), TILE=TILE)
    sums = Sums(high[: n + 1], low[: n + 1], units[2], numbers[1], units[4], numbers[3])
    return result, begins[:n], corners, sums

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

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from torchtune_smt.regularizers.pool_parallel import Sums, scales

TILE = 2048
GROUP = 8
"""Ranks of a tile whose points are found by looking at all pairs."""
WIDE = 16
"""Warps for all ranks of a tile."""
LANES = 512
"""Points that a join looks at in one step."""
TURNS = 64
MOST = 2**31 - 2 * TILE
"""Ranks are int32."""


@triton.jit
def _slope(high, low, one, count, middle, options):
    """Return the mean of z over `count` ranks, whose first and last one add up to middle - 1."""
    count = tl.maximum(count, 1).to(tl.float64)
    mean = high.to(tl.float64) * tl.load(options + 2)
    mean = (mean + low.to(tl.float64) * tl.load(options + 3)) / count
    # Single ones keep all their digits, however small they are beside the largest.
    mean = tl.where(count == 1, one, mean)
    return mean - (tl.load(options + 4) - tl.load(options + 5) * middle)


@triton.jit
def _between(size, high, low, p, q, mask, options):
    """Return the mean of z from ranks p to ranks q, without q, where the mask is set."""
    return _slope(
        tl.load(high + q, mask, 0) - tl.load(high + p, mask, 0),
        tl.load(low + q, mask, 0) - tl.load(low + p, mask, 0),
        tl.load(size + p, mask & (q - p == 1), 0.0),
        q - p,
        p.to(tl.float64) + q.to(tl.float64),
        options,
    )


@triton.jit
def _apart(size, b, mask, options):
    """Return whether |w| of ranks b - 1 and b differ enough, alone, not to be in one block."""
    gap = tl.load(size + b - 1, mask, 0.0) - tl.load(size + b, mask, 0.0)
    return gap > 2 * tl.load(options + 5)


@triton.jit
def _parts(size, i, mask, options):
    """Return |w| as whole numbers of two units."""
    scaled = tl.load(size + i, mask, 0.0) * tl.load(options)
    whole = scaled.to(tl.int64)
    return whole, ((scaled - whole.to(tl.float64)) * tl.load(options + 1)).to(tl.int64)


@triton.jit(do_not_specialize=["n", "tiles"])
def _add(size, total, options, n, tiles, TILE: tl.constexpr):
    """Write the sums of each tile, the first at 1 (int64 [2, tiles + 1])."""
    tile = tl.program_id(0)
    i = tile * TILE + tl.arange(0, TILE)
    whole, part = _parts(size, i, i < n, options)
    tl.store(total + tile + 1, tl.sum(whole))
    tl.store(total + tiles + 1 + tile + 1, tl.sum(part))


@triton.jit
def _look(best, at, size, high, low, origin, r, mask, side, options):
    """Return the best of points r to go to from the origin, and of one known before.

    On the right (side 1) the steepest slope, on the left (-1) the flattest; of equal ones the
    farthest. Slopes and points are times the side.
    """
    p, q = tl.minimum(origin, r), tl.maximum(origin, r)
    key = side * _between(size, high, low, p, q, mask, options)
    key = tl.where(mask, key, -float("inf"))
    top = tl.max(key)
    found = tl.max(tl.where(mask & (key == top), side * r, -(2**31) + 1))
    at = tl.where(top > best, found, tl.where(top == best, tl.maximum(at, found), at))
    return tl.maximum(best, top), at


@triton.jit
def _look_into(
    best, at, size, high, low, flag, tile, start, stop, origin, b, side, options,
    TILE: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    """Look at the points of one tile, of which ranks `start` to `stop` are left, but for b."""
    for offset in range(0, TILE, LANES):
        r = tile * TILE + offset + tl.arange(0, LANES)
        mask = (r >= start) & (r <= stop) & (r != b)
        mask = mask & (tl.load(flag + r, mask, 0) != 0)
        best, at = _look(best, at, size, high, low, origin, r, mask, side, options)
    return best, at


@triton.jit
def _tangent(
    size, high, low, flag, first, last, options, left, middle, right, limit, p, q, side,
    TILE: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    """Return where the tangent from p touches the tiles middle to right, whose end is `limit`.

    For the side -1, where that from q touches the tiles left to middle.
    """
    b = middle * TILE
    origin = tl.where(side > 0, p, q)
    # At first the tile where the last one touched, and the point at the end.
    near = tl.minimum(tl.maximum(q // TILE, middle), right - 1)
    near = tl.where(side > 0, near, tl.minimum(p // TILE, middle - 1))
    start = tl.load(first + near)
    stop = tl.load(last + near)
    best, at = _look_into(
        tl.full([], -float("inf"), tl.float64), tl.full([], -(2**31) + 1, tl.int32),
        size, high, low, flag, near, start, stop, origin, b, side, options, TILE, LANES,
    )  # fmt: skip
    far = tl.where(side > 0, limit, b)
    allowed = (side > 0) | ((p == b) & _apart(size, b, b > 0, options))
    one = tl.arange(0, 32)
    best, at = _look(
        best, at, size, high, low, origin, far + 0 * one, allowed & (one == 0), side, options
    )
    # Beyond the farthest point of that tile slopes may go on.
    if (stop < 0) | tl.where(side > 0, at >= stop, -at <= start):
        since = tl.where(side > 0, middle, left)
        until = tl.where(side > 0, right, middle)
        while since < until:
            k = since + tl.arange(0, LANES)
            since += LANES
            r = tl.load(last + k, k < until, -1)
            some = (k < until) & (r >= 0)
            mask = some & (r != b)
            best, at = _look(best, at, size, high, low, origin, r, mask, side, options)
            r = tl.load(first + k, some, 0)
            mask = some & (r != b)
            best, at = _look(best, at, size, high, low, origin, r, mask, side, options)
        if side * at != far:
            near = side * at // TILE
            best, at = _look_into(
                best, at, size, high, low, flag, near, tl.load(first + near),
                tl.load(last + near), origin, b, side, options, TILE, LANES,
            )  # fmt: skip
    return side * at


@triton.jit
def _join(
    size, high, low, flag, first, last, options, left, middle, right, n,
    TILE: tl.constexpr, LANES: tl.constexpr, TURNS: tl.constexpr,
):  # fmt: skip
    """Take away the points that the common tangent of both sides of the middle is above."""
    b = middle * TILE
    limit = tl.minimum(right * TILE, n)
    p = b
    q = b
    side = 1
    turn = 0
    while turn < TURNS:
        found = _tangent(
            size, high, low, flag, first, last, options, left, middle, right, limit, p, q, side,
            TILE, LANES,
        )  # fmt: skip
        turn = tl.where(found == tl.where(side > 0, q, p), TURNS, turn + 1)
        q = tl.where(side > 0, found, q)
        p = tl.where(side > 0, p, found)
        side = -side
    # Else the middle is no corner.
    if p < b:
        since = p // TILE
        until = tl.where(q == limit, right, q // TILE)
        tl.debug_barrier()
        tl.store(last + since, p)
        if q < limit:
            tl.store(first + until, q)
        while since + 1 < until:
            k = since + 1 + tl.arange(0, LANES)
            tl.store(last + k, tl.full([LANES], -1, tl.int32), k < until)
            since += LANES
        tl.debug_barrier()


@triton.jit(do_not_specialize=["n", "tiles"])
def _group(
    size, total, high, low, flag, before, after, options, n, tiles,
    TILE: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """Write the sums, and the points of groups.

    size (float64 [n]): |w|, descending.
    total (int64 [2, tiles + 1]): sums before each tile, and of all.
    high, low (int64 [n + 1]): sums before each rank, and of all.
    flag (int8 [n]): whether each rank begins a block of its group.
    before, after (int32 [n]): of the last rank of a block its first, of the first the end.
    """
    tile = tl.program_id(0)
    base = tile * TILE
    end = tl.minimum(base + TILE, n)
    i = base + tl.arange(0, TILE)
    inside = i < end
    whole, part = _parts(size, i, inside, options)
    above = tl.load(total + tile) + tl.cumsum(whole) - whole
    below = tl.load(total + tiles + 1 + tile) + tl.cumsum(part) - part
    tl.store(high + i, above, inside)
    tl.store(low + i, below, inside)
    # The next tile writes the same.
    tl.store(high + end, tl.load(total + tile + 1))
    tl.store(low + end, tl.load(total + tiles + 1 + tile + 1))
    tl.debug_barrier()

    # A group's points: each slope that leads to them is above each that leads from them.
    start = i - i % GROUP
    stop = tl.minimum(start + GROUP, end)
    falls = tl.full([TILE], float("inf"), tl.float64)
    rises = tl.full([TILE], -float("inf"), tl.float64)
    own = tl.load(size + i, inside, 0.0)
    previous = tl.load(size + i - 1, inside & (i > start), 0.0)
    twice = 2.0 * i.to(tl.float64)
    for d in range(1, GROUP + 1):
        mask = inside & (i - d >= start)
        whole = above - tl.load(high + i - d, mask, 0)
        part = below - tl.load(low + i - d, mask, 0)
        slope = _slope(whole, part, previous, d, twice - d, options)
        falls = tl.where(mask, tl.minimum(falls, slope), falls)
        mask = inside & (i + d <= stop)
        whole = tl.load(high + i + d, mask, 0) - above
        part = tl.load(low + i + d, mask, 0) - below
        slope = _slope(whole, part, own, d, twice + d, options)
        rises = tl.where(mask, tl.maximum(rises, slope), rises)
    point = (falls > rises) & (previous - own > 2 * tl.load(options + 5))
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
    size, high, low, flag, before, after, first, last, options, n,
    TILE: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """Join the groups of each tile, one lane for each two: blocks at a corner swallow others.

    first, last (int32 [tiles]): written: the first and last point of each tile.
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
        corner = _between(size, high, low, p, b, going, options) <= _between(
            size, high, low, b, q, going, options
        )
        going = going & (corner | (_apart(size, b, going, options) == 0))
        joined = going
        tl.store(flag + b, tl.zeros_like(b).to(tl.int8), going)
        while tl.max(going.to(tl.int32)) > 0:
            value = _between(size, high, low, p, q, going, options)
            has = going & (p > left_end)
            far = tl.load(before + p - 1, has, 0)
            swallow = has & (_between(size, high, low, far, p, has, options) <= value)
            tl.store(flag + p, tl.zeros_like(p).to(tl.int8), swallow)
            p = tl.where(swallow, far, p)
            # That takes the mean down: what rises above it still does.
            has = going & (q < right_end)
            far = tl.load(after + q, has, 1)
            going = has & (_between(size, high, low, q, far, has, options) >= value)
            tl.store(flag + q, tl.zeros_like(q).to(tl.int8), going)
            q = tl.where(going, far, q)
            going = going | swallow
        tl.store(after + p, q, joined)
        tl.store(before + q - 1, p, joined)
        tl.debug_barrier()
        width = width * 2
    tl.store(first + tile, base)
    tl.store(last + tile, tl.load(before + end - 1))


@triton.jit(do_not_specialize=["n", "tiles"])
def _tree(
    size, high, low, flag, first, last, arrived, options, n, tiles,
    TILE: tl.constexpr, LANES: tl.constexpr, TURNS: tl.constexpr,
):  # fmt: skip
    """Join tiles: what is left of the points of each is `first` to `last`, nothing if that is -1.

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
                    size, high, low, flag, first, last, options, left, middle, right, n,
                    TILE, LANES, TURNS,
                )  # fmt: skip
            width = width * 2


@triton.jit(do_not_specialize=["n", "tiles"])
def _write(
    size, high, low, flag, scratch, first, last, order, result, begins, corners, options, n, tiles,
    TILE: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    """Give each weight of `result` the value of its block, clipped at 0, with its own sign.

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
    lane = tl.arange(0, LANES)
    previous = -1
    chunk = tile
    while (previous < 0) & (chunk > 0):
        chunk -= LANES
        k = chunk + lane
        previous = tl.max(tl.load(last + k, (k >= 0) & (k < tile), -1))
    following = n
    chunk = tile + 1
    while (following == n) & (chunk < tiles):
        k = chunk + lane
        some = tl.load(last + k, k < tiles, -1) >= 0
        following = tl.min(tl.load(first + k, some, n))
        chunk += LANES
    begin = inside & (i >= start) & (i <= stop) & (tl.load(flag + i, inside, 0) != 0)
    number = tl.cumsum(begin.to(tl.int32))
    count = tl.sum(begin.to(tl.int32))
    tl.store(scratch + base + number - 1, i, begin)
    tl.debug_barrier()
    p = tl.load(scratch + base + number - 1, inside & (number > 0), previous)
    q = tl.load(scratch + base + number, inside & (number < count), following)
    before = tl.load(scratch + base + number - 2, inside & (number > 1), previous)
    value = _between(size, high, low, p, q, inside, options)
    mask = begin & (i > 0)
    corner = mask & (_between(size, high, low, before, i, mask, options) <= value)
    count = tl.sum(corner.to(tl.int32))
    if count > 0:
        tl.atomic_add(corners, count)
    tl.store(begins + i, begin, inside)
    place = tl.load(order + i, inside, 0)
    own = tl.load(result + place, inside, 0.0)
    value = value.to(own.dtype)
    value = tl.where(value > 0, tl.where(own < 0, -value, value), 0.0)
    tl.store(result + place, value, inside)


def pool_tiles(
    magnitude: Tensor,
    order: Tensor,
    result: Tensor,
    largest: float,
    highest: float,
    lambda2: float,
) -> tuple[Tensor, Tensor, Sums]:
    """Pool, and write the proximal point.

    magnitude (float64 [u]): |w| that are not 0, descending, finite; at least one.
    order (int64 [u]): their places in `result`.
    result (float [n]): the weights; overwritten.
    largest: magnitude[0].
    highest, lambda2: the penalty of the first rank, and how much less that of each next one is.

    Returns begins (bool [u]): whether each rank begins a block.
    Returns corners (int32 [1]): how many blocks are not below the one before: if it is not 0,
        neither the blocks nor the result are the right ones yet.
    Returns sums: for the rounds that are needed then.
    """
    n = magnitude.numel()
    tiles = -(-n // TILE)
    scale, low_scale = scales(n, largest)
    numbers = [1 / scale, 1 / scale / low_scale, highest + lambda2 / 2, lambda2 / 2]
    options = magnitude.new_tensor([scale, low_scale, *numbers])
    new = magnitude.new_empty
    # One by one, as what is aligned otherwise would be compiled anew.
    high, low = (new(n + 1, dtype=torch.int64) for _ in range(2))
    before, after = (new(n, dtype=torch.int32) for _ in range(2))
    first, last = (new(tiles, dtype=torch.int32) for _ in range(2))
    flag, begins = new(n, dtype=torch.int8), new(n, dtype=torch.bool)
    total = magnitude.new_zeros(2, tiles + 1, dtype=torch.int64)
    arrived = magnitude.new_zeros(tiles + 1, dtype=torch.int32)
    # Without fused multiplication, so that slopes are those of the rounds.
    launch: dict[str, Any] = {"TILE": TILE, "enable_fp_fusion": False}
    with torch.cuda.device_of(magnitude):
        _add[(tiles,)](magnitude, total, options, n, tiles, **launch)
        total = total.cumsum(1)
        _group[(tiles,)](
            magnitude, total, high, low, flag, before, after, options, n, tiles,
            GROUP=GROUP, num_warps=WIDE, **launch,
        )  # fmt: skip
        _merge[(tiles,)](
            magnitude, high, low, flag, before, after, first, last, options, n,
            GROUP=GROUP, num_warps=4, **launch,
        )  # fmt: skip
        _tree[(tiles,)](
            magnitude, high, low, flag, first, last, arrived, options, n, tiles,
            LANES=LANES, TURNS=TURNS, num_warps=4, **launch,
        )  # fmt: skip
        corners = arrived[:1]
        _write[(tiles,)](
            magnitude, high, low, flag, before, first, last, order, result, begins, corners,
            options, n, tiles, LANES=128, num_warps=WIDE, **launch,
        )  # fmt: skip
    return begins, corners, Sums(high, low, options[2], numbers[1], options[4], numbers[3])

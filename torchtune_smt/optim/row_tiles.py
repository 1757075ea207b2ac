"""AdaGrad's steps on rows on a GPU, by kernels of Triton, which comes with torch.

What torch does in some thirty launches is two or three here. All is computed in float64. Rows
may be named repeatedly: what is read is written by another launch (`_caught_up`, `_written`), or
only for the first of equal ones (`_stepped`, whose rows ascend).
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, misc"

from __future__ import annotations

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

TILE = 1024
"""Numbers that a program works on."""
WIDEST = 1024
"""Numbers in a row at most."""


@triton.jit
def _double(high, low):
    """Return a number that came as two of float32, as those of the host do."""
    return tl.cast(high, tl.float64) + tl.cast(low, tl.float64)


@triton.jit
def _log1p(x):
    u = 1.0 + x
    return tl.where(u == 1.0, x, x * tl.log(u) / tl.where(u == 1.0, 1.0, u - 1.0))


@triton.jit
def _expm1(x):
    u = tl.exp(x)
    return tl.where(u == 1.0, x, x * (u - 1.0) / tl.where(u == 1.0, 1.0, tl.log(u)))


@triton.jit
def _pulled(w, step, times, lambda1, lambda2, PULL2: tl.constexpr):
    """Return weights after proximal steps of an elastic net; see `adagrad.elastic_steps`."""
    if PULL2:
        # Beyond that nothing is left.
        power = tl.minimum(_log1p(step * lambda2) * times, 700.0)
        most = lambda1 * _expm1(power) / lambda2
        kept = tl.exp(-power)
    else:
        most = step * times * lambda1
        kept = 1.0
    moved = tl.where(w > 0, tl.maximum(w - most, 0.0), tl.minimum(w + most, 0.0))
    return tl.where(step * times > 0, moved * kept, w)


@triton.jit
def _named(index, i, n, D):
    """Return rows that are named, and whether they are there: others are nobody's memory."""
    row = tl.load(index + i, i < n, 0)
    return row, (i < n) & (row >= 0) & (row < D)


@triton.jit
def _sizes(total, row, first, lr, ROOT: tl.constexpr):
    """Return steps of rows, and those of their regularisation."""
    divisor = tl.sqrt(total) if ROOT else total
    step = tl.where(total > 0, lr / tl.where(total > 0, divisor, 1.0), 0.0)
    return step, tl.where(row < first, 0.0, step)


@triton.jit(do_not_specialize=["n", "D", "now", "first"])
def _caught_up(
    weight, total, last, index, new, n, D, now, first, lr, lr_, l1, l1_, l2, l2_,
    W: tl.constexpr, LANES: tl.constexpr, ROWS: tl.constexpr, ROOT: tl.constexpr,
    ROWWISE: tl.constexpr, PULL: tl.constexpr, PULL2: tl.constexpr,
):  # fmt: skip
    """Write to `new` [n, W] what weights are after the steps that their rows have missed."""
    i = (tl.program_id(0) * ROWS + tl.arange(0, ROWS))[:, None]
    c = tl.arange(0, LANES)[None, :]
    row, here = _named(index, i, n, D)
    mask = here & (c < W)
    times = (now - tl.load(last + row, here, 0)).to(tl.float64)
    w = tl.load(weight + row * W + c, mask, 0).to(tl.float64)
    if ROWWISE:
        sums = tl.load(total + row, here, 0).to(tl.float64)
    else:
        sums = tl.load(total + row * W + c, mask, 0).to(tl.float64)
    _, step = _sizes(sums, row, first, _double(lr, lr_), ROOT)
    w = _pulled(w, step, times, _double(l1, l1_), _double(l2, l2_), PULL2)
    tl.store(new + i.to(tl.int64) * W + c, w.to(new.dtype.element_ty), mask)


@triton.jit(do_not_specialize=["n", "D", "now"])
def _written(
    weight, last, index, new, n, D, now,
    W: tl.constexpr, LANES: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Write new weights, of rows that are up to date then."""
    i = (tl.program_id(0) * ROWS + tl.arange(0, ROWS))[:, None]
    c = tl.arange(0, LANES)[None, :]
    row, here = _named(index, i, n, D)
    mask = here & (c < W)
    tl.store(weight + row * W + c, tl.load(new + i.to(tl.int64) * W + c, mask, 0), mask)
    tl.store(last + row, (now + row * 0).to(tl.int32), here)


@triton.jit(do_not_specialize=["n", "D", "now", "first"])
def _stepped(
    weight, total, last, index, gradient, faults, n, D, now, first, lr, lr_, l1, l1_, l2, l2_,
    largest, W: tl.constexpr, LANES: tl.constexpr, ROWS: tl.constexpr, ROOT: tl.constexpr,
    ROWWISE: tl.constexpr, PULL: tl.constexpr, PULL2: tl.constexpr,
):  # fmt: skip
    """Take a step on rows, which ascend, and are up to date if nothing is wrong.

    What is not finite is a fault, and counts as 0; so does all after a fault.
    """
    i = (tl.program_id(0) * ROWS + tl.arange(0, ROWS))[:, None]
    c = tl.arange(0, LANES)[None, :]
    row, here = _named(index, i, n, D)
    tl.store(faults + here.to(tl.int32) * 0, 1.0, (i < n) & (here == 0))
    one = here & ((i == 0) | (tl.load(index + i - 1, (i < n) & (i > 0), -1) != row))
    mask = one & (c < W)
    sound = tl.load(faults) + tl.load(faults + 1) + tl.load(faults + 2) == 0
    g = tl.load(gradient + i.to(tl.int64) * W + c, mask, 0).to(tl.float64)
    finite = tl.abs(g) < float("inf")
    bad = mask & (finite == 0)
    tl.store(faults + bad.to(tl.int32) * 0, 1.0, bad)
    if PULL:
        tl.store(faults + 2 + 0 * i, 1.0, one & (tl.load(last + row, one, now - 1) != now - 1))
    g = tl.where(finite, g, 0.0) * sound.to(tl.float64)
    squares = g * g
    if ROWWISE:
        at, inside = total + row, one
        squares = tl.sum(squares, 1, keep_dims=True) / W
    else:
        at, inside = total + row * W + c, mask
    sums = tl.load(at, inside, 0).to(tl.float64) + squares
    above = inside & ((sums < largest) == 0)
    tl.store(faults + 1 + above.to(tl.int32) * 0, 1.0, above)
    tl.store(at, sums.to(total.dtype.element_ty), inside)
    step, pull = _sizes(sums, row, first, _double(lr, lr_), ROOT)
    w = tl.load(weight + row * W + c, mask, 0).to(tl.float64) - step * g
    if PULL:
        w = _pulled(w, pull, 1.0, _double(l1, l1_), _double(l2, l2_), PULL2)
    tl.store(weight + row * W + c, w.to(weight.dtype.element_ty), mask)
    tl.store(last + row, (now + row * 0).to(tl.int32), one)


def _two(number: float) -> tuple[float, float]:
    """Return a number as two of float32, which is what kernels take."""
    high = float(np.float32(number))
    return high, number - high


class Rows:
    """Steps of one size and regularisation on the rows of a parameter.

    weight, total (float tensors [D, ...]): contiguous; `total` is the sums of squares, or [D].
    last (int32 tensor [D])
    sizes: lr, λ1, λ2.
    root: whether steps are divided by √G, not G.
    """

    def __init__(
        self,
        weight: Tensor,
        total: Tensor,
        last: Tensor,
        sizes: tuple[float, float, float],
        unregularized: int,
        root: bool,
    ) -> None:
        self.weight, self.total, self.last, self.first = weight, total, last, unregularized
        self.sizes = [part for size in sizes for part in _two(size)]
        width = max(weight[:1].numel(), 1)
        lanes = triton.next_power_of_2(width)
        self.shape = {"W": width, "LANES": lanes, "ROWS": max(TILE // lanes, 1)}
        rowwise = total.dim() < weight.dim()
        self.kind = {"ROOT": root, "ROWWISE": rowwise}
        self.kind |= {"PULL": any(sizes[1:]), "PULL2": sizes[2] != 0}

    def _programs(self, index: Tensor) -> tuple[int]:
        return (-(-index.numel() // self.shape["ROWS"]),)

    def catch_up(self, index: Tensor, now: int) -> None:
        """Take the regularisation that rows (int64 tensor [n]) have missed until step `now`."""
        n, D = index.numel(), self.last.numel()
        new = self.weight.new_empty((n, self.shape["W"]))
        with torch.cuda.device_of(new):
            _caught_up[self._programs(index)](
                self.weight, self.total, self.last, index, new, n, D, now, self.first, *self.sizes,
                **self.shape, **self.kind,
            )  # fmt: skip
            _written[self._programs(index)](
                self.weight, self.last, index, new, n, D, now, **self.shape
            )

    def step(self, index: Tensor, gradient: Tensor, now: int, faults: Tensor) -> None:
        """Take step `now`.

        index (int64 tensor [n]): ascending.
        gradient (float tensor [n, ...]): contiguous; of equal rows it is equal.
        faults (float tensor [3]): see `Faults`; so are rows that are out of date.
        """
        # As a number of float32; above that of float64 there is infinity alone.
        largest = {torch.float16: 65504.0, torch.float64: float("inf")}.get(self.total.dtype, 3e38)
        with torch.cuda.device_of(gradient):
            _stepped[self._programs(index)](
                self.weight, self.total, self.last, index, gradient, faults, index.numel(),
                self.last.numel(), now, self.first, *self.sizes, largest, **self.shape, **self.kind,
            )  # fmt: skip
        # What autograd has kept for a backward pass is another one now.
        torch.autograd.graph.increment_version(self.weight)

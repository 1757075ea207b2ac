"""The proximal operators as torch ops, ``torch.ops.torchtune_smt.*``, for CPU and CUDA tensors."""

from __future__ import annotations

import functools
import importlib
import math
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd import forward_ad

from torchtune_smt.core.arrays import Float64, Int64
from torchtune_smt.regularizers import oscar_kernels as kernels
from torchtune_smt.regularizers.base import (
    STRENGTH,
    UNCHECKED,
    check_weights,
    dimension_error,
    unchecked,
    unwrapped,
)
from torchtune_smt.regularizers.pool_parallel import prox_parallel
from torchtune_smt.regularizers.sort_kernels import sort_by_size


def triton_kernels(module: str) -> ModuleType | None:
    """Return a module of kernels for CUDA; None without Triton, or where AMD's GPUs are "cuda"."""
    return _imported(module) if torch.version.cuda is not None else None


@functools.cache
def _imported(module: str) -> ModuleType | None:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError:
        return None


def check_step(step: Tensor | float, shape: tuple[int, ...] | None = None) -> None:
    """Raise ValueError unless each step of a prox is finite, 0 or more, and goes with a shape."""
    if isinstance(step, Tensor):
        ends = zip(reversed(step.shape), reversed(shape or ()), strict=False)
        if shape is not None and (step.dim() > len(shape) or any(a not in (1, b) for a, b in ends)):
            raise ValueError(f"step must go with the shape {tuple(shape)}, not {tuple(step.shape)}")
        if UNCHECKED.get():
            return
        step = unwrapped(step)
        fit = (step >= 0) & step.isfinite()
        bad = None if fit.all() else step[~fit][0].item()
    else:
        bad = None if 0 <= step < math.inf else step
    if bad is not None:
        raise ValueError(f"step must be finite, 0 or more, not {bad}")


@torch.library.custom_op("torchtune_smt::prox_elastic_net", mutates_args=())
def prox_elastic_net(weights: Tensor, step: Tensor, lambda1: float, lambda2: float) -> Tensor:
    """Return argmin_v ½‖v - w‖² + step · (lambda1 Σ |v_i| + ½ lambda2 Σ v_i²).

    step: a scalar (on any device), or of the shape of `weights`.
    """
    check_weights(weights)
    check_step(step, weights.shape)
    moved = weights.sign() * (weights.abs() - step * lambda1).clamp_min(0)
    # Where weights have no dimension either, a step of more precision would make its own of them.
    return (moved / (1 + step * lambda2) if lambda2 else moved).to(weights.dtype)


def _elastic(weights: Tensor, step: Tensor, lambda1: float, lambda2: float) -> Tensor:
    """Return the same, with the derivatives that are meant: a weight without threshold is free."""
    check_weights(weights)
    check_step(step, weights.shape)
    threshold = step * lambda1
    alive = (weights.abs() > threshold) | (threshold == 0)
    moved = torch.where(alive, weights - weights.sign() * threshold, 0.0)
    return (moved / (1 + step * lambda2)).to(weights.dtype)


def _differentiable(op: Any, composed: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Teach an op the gradients of torch functions; return it as `torch.func` takes it, too.

    Of ops with gradients of their own that takes none, and forward-mode differentiation loses
    theirs without a word: there the functions themselves are called.
    """

    def keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        weights, step, *ctx.options = inputs
        ctx.save_for_backward(weights, step)

    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        with unchecked(True):
            of = torch.func.vjp(lambda *some: composed(*some, *ctx.options), *ctx.saved_tensors)
        return *of[1](gradient), *(None for _ in ctx.options)

    op.register_fake(lambda weights, *_: torch.empty_like(weights))
    op.register_autograd(backward, setup_context=keep)

    def call(weights: Tensor, step: Tensor | float, *options: Any) -> Tensor:
        if not isinstance(step, Tensor):
            step = torch.tensor(step, dtype=torch.float64)
        inputs = weights, step, *options
        result: Tensor = (composed if _transformed(inputs) else op)(*inputs)
        return result

    return call


def _transformed(inputs: tuple[Any, ...]) -> bool:
    return torch._C._are_functorch_transforms_active() or any(map(is_dual, inputs))


def is_dual(value: Any) -> bool:
    """Return whether forward-mode differentiation goes through a tensor."""
    if forward_ad._current_level < 0 or not isinstance(value, Tensor):
        return False
    return forward_ad.unpack_dual(value).tangent is not None  # type: ignore[no-untyped-call]


elastic_prox = _differentiable(prox_elastic_net, _elastic)


@torch.library.custom_op("torchtune_smt::prox_group", mutates_args=())
def prox_group(weights: Tensor, step: Tensor, strength: float) -> Tensor:
    """Return argmin_V ½‖V - W‖² + step · strength Σ_r ‖v_r‖₂ over the rows of W: shorter rows.

    Yuan and Lin (2006), with one factor for all groups. The derivatives are those that are meant.

    weights (float tensor [..., n]): its rows are along the last dimension: a vector is one group.
    step: a scalar (on any device), or [..., 1].
    """
    return _group(weights, step, strength)


def _lengths(weights: Tensor) -> Tensor:
    """Return the lengths of rows; none overflows, nor is 0 where a weight is not."""
    largest = weights.abs().amax(-1, keepdim=True) if weights.shape[-1] else weights.sum(-1, True)
    scale = torch.where(largest > 0, largest, 1)
    length: Tensor = torch.linalg.vector_norm(weights / scale, dim=-1, keepdim=True)
    return length * scale


def _group(weights: Tensor, step: Tensor, strength: float) -> Tensor:
    check_weights(weights)
    check_step(step, (*weights.shape[:-1], 1))
    length, less = _lengths(weights), step * strength
    alive = (length > less) | (less == 0)
    part = torch.where(length > 0, (length - less) / torch.where(length > 0, length, 1), 1)
    return torch.where(alive, weights * part, 0.0).to(weights.dtype)


group_prox = _differentiable(prox_group, _group)


def prox_serial(
    weights: Float64, lambda1: float, lambda2: float, dimension: int, blocks: bool
) -> tuple[Float64, Int64]:
    """Return the proximal point and the blocks, on the CPU: sort (by digits), then pool; O(n)."""
    values, places = weights, np.arange(0)
    if not weights.all():
        # Many zeros would cost more to sort than to leave out.
        places = np.flatnonzero(weights)
        values = weights[places]
    # numpy gives large arrays large pages, which is worth a third of the time of the loops.
    order, size = np.empty(values.size, np.int64), np.empty(values.size)
    sort_by_size(values, order, size)
    if places.size:
        order = places[order]
    if dimension < order.size:
        raise dimension_error(dimension, order.size)
    result = weights.copy()
    block = np.full(weights.size if blocks else 0, -1, np.int64)
    if order.size:
        begin, value = np.empty(order.size + 1, np.int64), np.empty(order.size)
        n = kernels.pool(size, lambda1, lambda2, dimension, begin, value)
        kernels.write(order, begin[: n + 1], value, result, block)
    return result, block


@torch.library.custom_op("torchtune_smt::prox_oscar", mutates_args=())
def prox_oscar(
    weights: Tensor, lambda1: float, lambda2: float, dimension: int, blocks: bool
) -> tuple[Tensor, Tensor]:
    """Return argmin_v ½‖v - w‖² + lambda1 Σ |v_i| + lambda2 Σ_{i<j} max(|v_i|, |v_j|).

    Liu et al. (2013), Algorithm 3: sort, pool adjacent violators, clip at 0, in float64. Tensors on
    CUDA are worked on where they are; those of other devices are copied to the CPU and back.

    weights (float tensor [n])
    lambda1, lambda2: strengths times the step.
    dimension: d, at least the number of weights that are not 0: zeros need not be given.
    blocks: whether to say which weights were pooled.

    Returns weights (tensor [n])
    Returns block (int64 tensor [n], or [0] without `blocks`): weights of equal absolute value by
        pooling have one number, counted from 0 in descending order of the result; those that are 0
        in it have -1.
    """
    STRENGTH.check("the largest penalty", lambda1 + lambda2 * max(dimension - 1, 0))
    check_weights(weights)
    values = weights.detach().to("cpu", torch.float64).contiguous().numpy()
    result, block = prox_serial(values, lambda1, lambda2, dimension, blocks)
    return (
        torch.from_numpy(result).to(weights.device, weights.dtype),
        torch.from_numpy(block).to(weights.device),
    )


@prox_oscar.register_kernel("cuda")
def _(
    weights: Tensor, lambda1: float, lambda2: float, dimension: int, blocks: bool
) -> tuple[Tensor, Tensor]:
    STRENGTH.check("the largest penalty", lambda1 + lambda2 * max(dimension - 1, 0))
    tiles = triton_kernels("torchtune_smt.regularizers.pool_tiles")
    return prox_parallel(weights.detach(), lambda1, lambda2, dimension, blocks, tiles)


@prox_oscar.register_fake
def _(
    weights: Tensor, lambda1: float, lambda2: float, dimension: int, blocks: bool
) -> tuple[Tensor, Tensor]:
    length = weights.numel() if blocks else 0
    return torch.empty_like(weights), weights.new_empty(length, dtype=torch.int64)


def _keep_oscar(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    weights, *ctx.options = inputs
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(weights, output[1])
    ctx.save_for_forward(weights, output[1])


def _oscar_backward(
    ctx: Any, gradient: Tensor, _: Tensor | None
) -> tuple[Tensor | None, None, None, None, None]:
    """Weights of a block move as one: each has the mean of its gradients, signs apart."""
    weights, block = ctx.saved_tensors
    lambda1, lambda2, dimension, blocks = ctx.options
    if not blocks:
        _, block = prox_oscar(weights.detach(), lambda1, lambda2, dimension, True)
    alive = block >= 0
    if lambda1 == 0 and (lambda2 == 0 or dimension == weights.numel()):
        # The last rank has no penalty: a zero that has it moves freely.
        zero = weights == 0
        alive = alive | (zero & ((zero.sum() == 1) | (lambda2 == 0)))
    kept = torch.where(alive, gradient, 0.0)
    if lambda2 and weights.numel():
        # Without it, weights of one size are no block, and each moves by itself.
        sign = weights.sign()
        living, number = block.clamp_min(0), (block >= 0).to(gradient)
        sums = torch.zeros_like(gradient).index_add(0, living, kept * sign)
        size = torch.zeros_like(gradient).index_add(0, living, number)
        kept = torch.where(block >= 0, sign * (sums / size.clamp_min(1))[living], kept)
    return kept, None, None, None, None


def _oscar_jvp(ctx: Any, tangent: Tensor, *_: None) -> tuple[Tensor, None]:
    # The Jacobian is symmetric, as those of all proxes are.
    moved = _oscar_backward(ctx, tangent, None)[0]
    assert moved is not None
    return moved.to(tangent), None


def _vmap_oscar(
    info: Any, dims: Any, weights: Tensor, *options: Any
) -> tuple[Any, tuple[int, int]]:
    each = [prox_oscar(vector, *options) for vector in weights.unbind(dims[0])]
    results, blocks = zip(*each, strict=True)
    return (torch.stack(results), torch.stack(blocks)), (0, 0)


prox_oscar.register_autograd(_oscar_backward, setup_context=_keep_oscar)
prox_oscar.register_vmap(_vmap_oscar)


class _TransformedOscar(torch.autograd.Function):
    forward = staticmethod(prox_oscar)
    setup_context = staticmethod(_keep_oscar)
    backward = staticmethod(_oscar_backward)
    jvp = staticmethod(_oscar_jvp)
    vmap = staticmethod(_vmap_oscar)


def oscar_prox(*inputs: Any) -> tuple[Tensor, Tensor]:
    """Return `prox_oscar`, as `torch.func` and forward-mode differentiation take it, too."""
    op: Any = _TransformedOscar.apply if _transformed(inputs) else prox_oscar
    result: tuple[Tensor, Tensor] = op(*inputs)
    return result

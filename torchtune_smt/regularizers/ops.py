"""The proximal operators as torch ops, ``torch.ops.torchtune_smt.*``, for CPU and CUDA tensors."""

from __future__ import annotations

import functools
import importlib
import math
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from torchtune_smt.regularizers.base import STRENGTH, UNCHECKED, check_weights
from torchtune_smt.regularizers.oscar_prox import prox_serial, prox_tiles


def check_step(step: Tensor | float, shape: tuple[int, ...] | None = None) -> None:
    """Raise ValueError unless each step of a prox is finite, 0 or more, and goes with a shape."""
    if isinstance(step, Tensor):
        ends = zip(reversed(step.shape), reversed(shape or ()), strict=False)
        if shape is not None and (step.dim() > len(shape) or any(a not in (1, b) for a, b in ends)):
            raise ValueError(f"step must go with the shape {tuple(shape)}, not {tuple(step.shape)}")
        if UNCHECKED.get():
            return
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

    Returns tensor like `weights`
    Raises ValueError: a weight is not finite, or a step or a strength is not or is
        negative.
    """
    check_weights(weights)
    check_step(step, weights.shape)
    STRENGTH.check("lambda1", lambda1)
    STRENGTH.check("lambda2", lambda2)
    moved = weights.sign() * (weights.abs() - step * lambda1).clamp_min(0)
    # Where weights have no dimension either, a step of more precision would make its own of them.
    return (moved / (1 + step * lambda2) if lambda2 else moved).to(weights.dtype)


@prox_elastic_net.register_fake
def _(weights: Tensor, step: Tensor, lambda1: float, lambda2: float) -> Tensor:
    return torch.empty_like(weights)


def _keep_elastic(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    weights, step, ctx.lambda1, ctx.lambda2 = inputs
    _save(ctx, weights, step, output)


def _save(ctx: Any, *tensors: Tensor) -> None:
    ctx.save_for_backward(*tensors)
    ctx.save_for_forward(*tensors)


def _elastic_moved(ctx: Any, gradient: Tensor) -> Tensor:
    weights, step, _ = ctx.saved_tensors
    threshold = step * ctx.lambda1
    alive = (weights.abs() > threshold) | (threshold == 0)
    moved: Tensor = torch.where(alive, gradient, 0.0) / (1 + step * ctx.lambda2)
    return moved


def _elastic_pull(ctx: Any) -> Tensor:
    weights, _, result = ctx.saved_tensors
    pull: Tensor = weights.sign() * ctx.lambda1 + result * ctx.lambda2
    return pull


def _elastic_backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    of_weights, of_step = _elastic_moved(ctx, gradient), None
    if ctx.needs_input_grad[1]:
        step = ctx.saved_tensors[1]
        of_step = (-of_weights * _elastic_pull(ctx)).sum_to_size(step.shape).to(step)
    return of_weights.to(gradient), of_step, None, None


def _elastic_jvp(ctx: Any, tangent: Tensor | None, of_step: Tensor | None, *_: None) -> Tensor:
    total = torch.zeros_like(ctx.saved_tensors[2]) if tangent is None else tangent
    if of_step is not None:
        total = total - of_step * _elastic_pull(ctx)
    return _elastic_moved(ctx, total).to(ctx.saved_tensors[0].dtype)


def _vmap_elastic(
    info: Any, dims: Any, weights: Tensor, step: Tensor, lambda1: float, lambda2: float
) -> tuple[Tensor, int]:
    weights, step = _in_front(info.batch_size, dims, weights, step)
    return prox_elastic_net(weights, step, lambda1, lambda2), 0


def _differentiable(op: Any, keep: Any, backward: Any, jvp: Any, vmap: Any) -> Any:
    """Teach an op its gradient and `torch.vmap`, and return it as `torch.func.grad` takes it, too.

    Of ops with gradients of their own that takes none, and forward-mode differentiation loses
    theirs without a word, but both take functions.
    """
    op.register_autograd(backward, setup_context=keep)
    op.register_vmap(vmap)
    methods = {"forward": op, "setup_context": keep, "backward": backward, "vmap": vmap, "jvp": jvp}
    function = type(
        op._name.rpartition(":")[2],
        (torch.autograd.Function,),
        {name: staticmethod(method) for name, method in methods.items()},
    )

    def call(*inputs: Any) -> Any:
        transformed = torch._C._are_functorch_transforms_active() or any(map(is_dual, inputs))
        return function.apply(*inputs) if transformed else op(*inputs)  # type: ignore[attr-defined]

    return call


def is_dual(value: Any) -> bool:
    """Return whether forward-mode differentiation goes through a tensor."""
    if forward_ad._current_level < 0 or not isinstance(value, Tensor):
        return False
    return forward_ad.unpack_dual(value).tangent is not None  # type: ignore[no-untyped-call]


_elastic_net = _differentiable(
    prox_elastic_net, _keep_elastic, _elastic_backward, _elastic_jvp, _vmap_elastic
)


def _in_front(size: int, dims: Any, weights: Tensor, step: Tensor) -> tuple[Tensor, Tensor]:
    """Return weights, and a step that they are broadcast with, whose first dimension is vmap's."""
    of_weights, of_step = dims[:2]
    if of_weights is None:
        weights = weights.expand(size, *weights.shape)
    else:
        weights = weights.movedim(of_weights, 0)
    if of_step is not None:
        step = step.movedim(of_step, 0)
        step = step.view(size, *[1] * (weights.dim() - step.dim()), *step.shape[1:])
    return weights, step


@torch.library.custom_op("torchtune_smt::prox_group", mutates_args=())
def prox_group(weights: Tensor, step: Tensor, strength: float) -> Tensor:
    """Return argmin_V ½‖V - W‖² + step · strength Σ_r ‖v_r‖₂ over the rows of W: shorter rows.

    Yuan and Lin (2006), with one factor for all groups.

    weights (float tensor [..., n]): its rows are along the last dimension: a vector is one group.
    step: a scalar (on any device), or [..., 1].

    Raises ValueError: a weight is not finite, or a step or the strength is not or is negative.
    """
    if not weights.dim():
        raise ValueError("the group lasso is of rows, not of a parameter of shape ()")
    check_weights(weights)
    check_step(step, (*weights.shape[:-1], 1))
    STRENGTH.check("strength", strength)
    return (weights * _kept(_lengths(weights), step * strength)).to(weights.dtype)


def _lengths(weights: Tensor) -> Tensor:
    """Return the lengths of rows; none overflows, nor is 0 where a weight is not."""
    largest = weights.abs().amax(-1, keepdim=True) if weights.shape[-1] else weights.sum(-1, True)
    scale = torch.where(largest > 0, largest, 1)
    length: Tensor = torch.linalg.vector_norm(weights / scale, dim=-1, keepdim=True)
    return length * scale


def _kept(length: Tensor, less: Tensor) -> Tensor:
    """Return which part of its length each row keeps; a row without length is as it is."""
    return torch.where(length > 0, (length - less).clamp_min(0) / length, 0)


@prox_group.register_fake
def _(weights: Tensor, step: Tensor, strength: float) -> Tensor:
    return torch.empty_like(weights)


def _keep_group(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    weights, step, ctx.strength = inputs
    _save(ctx, weights, step)


def _group_moved(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return what becomes of a gradient, where a row is a part of it, and the rows that live.

    Across a row it keeps the row's part, along the row all; a dead row has none.
    """
    weights, step = ctx.saved_tensors
    length, less = _lengths(weights), step * ctx.strength
    alive = (length > less) | (less == 0)
    unit = torch.where(length > 0, weights / length, 0.0)
    along = (gradient * unit).sum(-1, keepdim=True)
    part = torch.where(length > 0, _kept(length, less), 1)
    return torch.where(alive, part * gradient + (1 - part) * along * unit, 0.0), unit, alive


def _group_backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    of_weights, unit, alive = _group_moved(ctx, gradient)
    of_step = None
    if ctx.needs_input_grad[1]:
        step, along = ctx.saved_tensors[1], (gradient * unit).sum(-1, keepdim=True)
        of_step = torch.where(alive, -along * ctx.strength, 0.0).sum_to_size(step.shape).to(step)
    return of_weights.to(gradient), of_step, None


def _group_jvp(ctx: Any, tangent: Tensor | None, of_step: Tensor | None, _: None) -> Tensor:
    weights = ctx.saved_tensors[0]
    moved, unit, alive = _group_moved(
        ctx, torch.zeros_like(weights) if tangent is None else tangent
    )
    if of_step is not None:
        moved = moved - torch.where(alive, of_step * ctx.strength * unit, 0.0)
    return moved.to(weights.dtype)


def _vmap_group(
    info: Any, dims: Any, weights: Tensor, step: Tensor, strength: float
) -> tuple[Tensor, int]:
    weights, step = _in_front(info.batch_size, dims, weights, step)
    return prox_group(weights, step, strength), 0


group_prox = _differentiable(prox_group, _keep_group, _group_backward, _group_jvp, _vmap_group)


@torch.library.custom_op("torchtune_smt::prox_oscar", mutates_args=())
def prox_oscar(
    weights: Tensor, lambda1: float, lambda2: float, dimension: int, blocks: bool
) -> tuple[Tensor, Tensor]:
    """Return argmin_v ½‖v - w‖² + lambda1 Σ |v_i| + lambda2 Σ_{i<j} max(|v_i|, |v_j|).

    Liu et al. (2013), Algorithm 3: sort, pool adjacent violators, clip at 0, in float64. Tensors on
    CUDA are worked on where they are, with Triton; others are copied to the CPU and back.

    weights (float tensor [n]): finite.
    lambda1, lambda2: strengths times the step.
    dimension: d, at least the number of weights that are not 0: zeros need not be given.
    blocks: whether to say which weights were pooled.

    Returns weights (tensor [n])
    Returns block (int64 tensor [n], or [0] without `blocks`): weights of equal absolute value by
        pooling have one number, counted from 0 in descending order of the result; those that are 0
        in it have -1.

    Raises ValueError: a weight is not finite, a strength is not or is negative, or the dimension is
    too small.
    """
    _check_oscar(lambda1, lambda2, dimension)
    return _on_cpu(weights, lambda1, lambda2, dimension, blocks)


def _on_cpu(
    weights: Tensor, lambda1: float, lambda2: float, dimension: int, blocks: bool
) -> tuple[Tensor, Tensor]:
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
    _check_oscar(lambda1, lambda2, dimension)
    given = weights.detach(), lambda1, lambda2, dimension, blocks
    tiles = _tiles()
    found = None if tiles is None else prox_tiles(*given, tiles)
    return _on_cpu(*given) if found is None else found


@functools.cache
def _tiles() -> ModuleType | None:
    """Return the kernels of OSCAR's pooling, or None without Triton for CUDA."""
    if torch.version.cuda is None:
        return None
    try:
        return importlib.import_module("torchtune_smt.regularizers.pool_tiles")
    except ModuleNotFoundError:
        return None


@prox_oscar.register_fake
def _(
    weights: Tensor, lambda1: float, lambda2: float, dimension: int, blocks: bool
) -> tuple[Tensor, Tensor]:
    length = weights.numel() if blocks else 0
    return torch.empty_like(weights), weights.new_empty(length, dtype=torch.int64)


def _check_oscar(lambda1: float, lambda2: float, dimension: int) -> None:
    STRENGTH.check("lambda1", lambda1)
    STRENGTH.check("lambda2", lambda2)
    STRENGTH.check("the largest penalty", lambda1 + lambda2 * max(dimension - 1, 0))


def _keep_oscar(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    weights, *ctx.options = inputs
    ctx.mark_non_differentiable(output[1])
    _save(ctx, weights, output[1])


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


oscar_prox = _differentiable(prox_oscar, _keep_oscar, _oscar_backward, _oscar_jvp, _vmap_oscar)


def elastic_prox(weights: Tensor, step: Tensor | float, lambda1: float, lambda2: float) -> Tensor:
    """Return `prox_elastic_net` with a step that may be a number."""
    result: Tensor = _elastic_net(weights, as_step(step), lambda1, lambda2)
    return result


def as_step(step: Tensor | float) -> Tensor:
    """Return a step, which may be a number, as a tensor."""
    return step if isinstance(step, Tensor) else torch.tensor(step, dtype=torch.float64)

"""The proximal operators as torch ops, ``torch.ops.torchtune_smt.*``, for CPU and CUDA tensors."""

from __future__ import annotations

import torch
from torch import Tensor

from torchtune_smt.regularizers.oscar_prox import prox_parallel, prox_serial


@torch.library.custom_op("torchtune_smt::prox_elastic_net", mutates_args=())
def prox_elastic_net(weights: Tensor, step: Tensor, lambda1: float, lambda2: float) -> Tensor:
    """Return argmin_v ½‖v - w‖² + step · (lambda1 Σ |v_i| + ½ lambda2 Σ v_i²).

    Parameters
    ----------
    weights : float tensor of any shape
    step : float tensor
        A scalar (on any device), or of the shape of `weights`.
    lambda1, lambda2 : float

    Returns
    -------
    tensor like `weights`
    """
    moved = weights.sign() * (weights.abs() - step * lambda1).clamp_min(0)
    # Where weights have no dimension either, a step of more precision would make its own of them.
    return (moved / (1 + step * lambda2) if lambda2 else moved).to(weights.dtype)


@prox_elastic_net.register_fake
def _(weights: Tensor, step: Tensor, lambda1: float, lambda2: float) -> Tensor:
    return torch.empty_like(weights)


@torch.library.custom_op("torchtune_smt::prox_oscar", mutates_args=())
def prox_oscar(
    weights: Tensor, lambda1: float, lambda2: float, dimension: int, blocks: bool
) -> tuple[Tensor, Tensor]:
    """Return argmin_v ½‖v - w‖² + lambda1 Σ |v_i| + lambda2 Σ_{i<j} max(|v_i|, |v_j|).

    Liu et al. (2013), Algorithm 3: sort, pool adjacent violators, clip at 0, in float64. Tensors on
    CUDA are worked on where they are; those of other devices are copied to the CPU and back.

    Parameters
    ----------
    weights : float tensor [n]
        Finite.
    lambda1, lambda2 : float
        Strengths times the step.
    dimension : int
        d, at least the number of weights that are not 0: zeros need not be given.
    blocks : bool
        Whether to say which weights were pooled.

    Returns
    -------
    weights : tensor [n]
    block : int64 tensor [n], or [0] without `blocks`
        Weights of equal absolute value by pooling have one number, counted from 0 in descending
        order of the result; those that are 0 in it have -1.

    Raises
    ------
    ValueError
        A weight is NaN or infinite, or the dimension is too small.
    """
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
    return prox_parallel(weights.detach(), lambda1, lambda2, dimension, blocks)


@prox_oscar.register_fake
def _(
    weights: Tensor, lambda1: float, lambda2: float, dimension: int, blocks: bool
) -> tuple[Tensor, Tensor]:
    length = weights.numel() if blocks else 0
    return torch.empty_like(weights), weights.new_empty(length, dtype=torch.int64)


def elastic_prox(weights: Tensor, step: Tensor | float, lambda1: float, lambda2: float) -> Tensor:
    """Return `prox_elastic_net` with a step that may be a number."""
    if not isinstance(step, Tensor):
        step = torch.tensor(step, dtype=torch.float64)
    result: Tensor = prox_elastic_net(weights, step, lambda1, lambda2)
    return result

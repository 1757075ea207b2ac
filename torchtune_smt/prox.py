"""Proximal operators as functions of torch, for any program: prox(w) = argmin_v ½‖v - w‖² + Ω(v).

They know their gradients, backward and forward, and work under the transforms of `torch.func` and
`torch.compile`, on CPU and CUDA, in float32 and float64. Importing this brings torch and numpy, and
no more of weight. Weights must be finite, and a step, which multiplies all strengths, finite and 0
or more: anything else is a ValueError.
"""

from __future__ import annotations

from torch import Tensor

from torchtune_smt.regularizers import L1, L2, ElasticNet, Oscar
from torchtune_smt.regularizers.ops import group_prox

__all__ = ["prox_elastic_net", "prox_group", "prox_l1", "prox_l2", "prox_oscar"]


def prox_l1(weights: Tensor, step: Tensor | float, strength: float = 1.0) -> Tensor:
    """Return the soft threshold, of Ω(w) = step · strength Σ |w_i|.

    >>> prox_l1(torch.tensor([3.0, -0.5, -2.0]), 1.0)
    tensor([ 2., -0., -1.])
    """
    return L1(strength).prox(weights, step)


def prox_l2(weights: Tensor, step: Tensor | float, strength: float = 1.0) -> Tensor:
    """Return weights / (1 + step · strength), of Ω(w) = ½ step · strength Σ w_i²; as `prox_l1`.

    >>> prox_l2(torch.tensor([3.0, -1.0]), 1.0)
    tensor([ 1.5000, -0.5000])
    """
    return L2(strength).prox(weights, step)


def prox_elastic_net(
    weights: Tensor, step: Tensor | float, lambda1: float, lambda2: float
) -> Tensor:
    """Return the prox of step · (lambda1 Σ |w_i| + ½ lambda2 Σ w_i²); as `prox_l1`.

    >>> prox_elastic_net(torch.tensor([3.0, -0.5]), 1.0, lambda1=1.0, lambda2=1.0)
    tensor([1., -0.])
    """
    return ElasticNet(lambda1, lambda2).prox(weights, step)


def prox_group(weights: Tensor, step: Tensor | float, strength: float = 1.0) -> Tensor:
    """Return rows that are shorter by step · strength, or 0, of step · strength Σ_r ‖w_r‖₂.

    >>> prox_group(torch.tensor([[3.0, 4.0], [0.3, 0.4]]), 1.0)
    tensor([[2.4000, 3.2000],
            [0.0000, 0.0000]])

    weights (float tensor [..., n]): rows are along the last dimension; a vector is one group.
    step (float, or float tensor that is a scalar or [..., 1])
    """
    return group_prox(weights, step, strength)


def prox_oscar(
    weights: Tensor,
    step: float,
    lambda1: float,
    lambda2: float,
    dimension: int | None = None,
) -> Tensor:
    """Return the prox of step · (lambda1 Σ |w_i| + lambda2 Σ_{i<j} max(|w_i|, |w_j|)).

    >>> prox_oscar(torch.tensor([3.0, -2.9, 0.5]), 1.0, lambda1=0.1, lambda2=0.2)
    tensor([ 2.5500, -2.5500,  0.4000])

    Liu et al. (2013), Algorithm 3. Its gradient (of the weights alone) is the mean over weights
    that have become equal, signs apart.

    weights (float tensor [n])
    dimension: d, by default n: zeros need not be given.
    """
    return Oscar(lambda1, lambda2, dimension).prox(weights, step)

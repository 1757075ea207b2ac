"""The proximal operator of OSCAR in torch ops: sort, then pool in parallel."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from torchtune_smt.regularizers.oscar_serial import dimension_error, not_finite_error
from torchtune_smt.regularizers.pool_parallel import pool_parallel


def prox_parallel(
    weights: Tensor, lambda1: float, lambda2: float, dimension: int, blocks: bool
) -> tuple[Tensor, Tensor]:
    """Return the proximal point and the blocks; see `torchtune_smt.regularizers.ops.prox_oscar`.

    Everything stays on the device of the weights. Only the number of weights that are not 0, the
    largest of them, and in pooling the number of corners come to the host.
    """
    magnitude = weights.abs()
    active, largest = 0, 0.0
    if weights.numel():
        # One wait for both. A NaN is the maximum of anything.
        facts = torch.stack([magnitude.count_nonzero().double(), magnitude.max().double()])
        count, largest = facts.tolist()
        active = int(count)
    if not math.isfinite(largest):
        where = int((~weights.isfinite()).nonzero()[0])
        raise not_finite_error(where, float(weights[where]))
    if dimension < active:
        raise dimension_error(dimension, active)
    result = torch.zeros_like(weights)
    block = torch.full((weights.numel() if blocks else 0,), -1, device=weights.device)
    if active == 0:
        return result, block
    places = None
    if active < weights.numel():
        # Many zeros would cost more to sort than to leave out.
        places = magnitude.nonzero().squeeze(1)
        magnitude = magnitude[places]
    magnitude, order = magnitude.sort(descending=True)
    if places is not None:
        order = places[order]
    begin, value = pool_parallel(magnitude.double(), lambda1, lambda2, dimension)
    number = torch.zeros_like(order)
    number = number.index_fill_(0, begin[1:-1], 1).cumsum(0)
    result[order] = value.clamp_min(0.0)[number].to(weights.dtype)
    if blocks:
        block[order] = torch.where(value[number] > 0, number, -1)
    # No zero has a sign.
    return result.copysign(weights).add_(0.0), block

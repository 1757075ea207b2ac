"""The proximal operator of OSCAR: sort, then pool adjacent violators."""

from __future__ import annotations

import math
from types import ModuleType

import numpy as np
import torch
from torch import Tensor

from torchtune_smt.core.arrays import Float64, Int64
from torchtune_smt.core.errors import InputError
from torchtune_smt.regularizers import oscar_kernels as kernels
from torchtune_smt.regularizers.base import check_weights
from torchtune_smt.regularizers.pool_parallel import pool_parallel, pool_rest
from torchtune_smt.regularizers.sort_kernels import sort_by_size


def prox_serial(
    weights: Float64, lambda1: float, lambda2: float, dimension: int, blocks: bool
) -> tuple[Float64, Int64]:
    """Return the proximal point and the blocks, on the CPU; see `ops.prox_oscar`.

    O(n) but for made-up numbers: a radix sort, and pooling.
    """
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


def prox_parallel(
    weights: Tensor,
    lambda1: float,
    lambda2: float,
    dimension: int,
    blocks: bool,
    tiles: ModuleType | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the proximal point and the blocks, in torch ops; see `ops.prox_oscar`.

    Everything stays on the device of the weights. Only how many weights are not 0, the largest one
    and in pooling the number of corners come to the host.

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


def given_dimension_error(dimension: int, of: str, count: int) -> InputError:
    """Return the error for a d that is given, and smaller than the features that it must count."""
    return InputError(
        f"regularizer.dimension={dimension} is smaller than the number of {of}, {count}: their "
        "penalties would be negative; give at least as much, or null"
    )


def dimension_error(dimension: int, active: int) -> InputError:
    """Return the error for more weights that are not 0 than there are dimensions."""
    return InputError(
        f"OSCAR's dimension is {dimension}, and {active} weights are not 0: penalties would be "
        "negative; set regularizer.dimension to the number of features that may ever be met"
    )

"""The proximal operator of OSCAR on the CPU: sort, then pool adjacent violators."""

from __future__ import annotations

import numpy as np

from torchtune_smt.core.arrays import Float64, Int64
from torchtune_smt.core.errors import InputError
from torchtune_smt.regularizers import oscar_kernels as kernels


def prox(
    weights: Float64, lambda1: float, lambda2: float, dimension: int, blocks: bool
) -> tuple[Float64, Int64]:
    """Return the proximal point and the blocks; see `torchtune_smt.regularizers.ops.prox_oscar`.

    O(n + u log u) for u weights that are not 0.
    """
    magnitude = np.abs(weights)
    places = np.arange(0)
    if not magnitude.all():
        # Many zeros would cost more to sort than to leave out.
        places = np.flatnonzero(magnitude)
        magnitude = magnitude[places]
    order = np.argsort(magnitude)
    if order.size and not np.isfinite(magnitude[order[-1]]):
        where = int(places[order[-1]] if places.size else order[-1])
        raise not_finite_error(where, weights[where])
    if dimension < order.size:
        raise dimension_error(dimension, order.size)
    if places.size:
        order = places[order]
    result = weights.copy()
    block = np.full(weights.size if blocks else 0, -1, np.int64)
    # numpy gives large arrays large pages, which is worth a third of the time of the loops.
    begin = np.empty(order.size + 1, np.int64)
    total, value = np.empty(order.size), np.empty(order.size)
    if order.size:
        n = kernels.pool(weights, order, lambda1, lambda2, dimension, begin, total, value)
        kernels.write(order, begin[: n + 1], value, result, block)
    return result, block


def not_finite_error(where: int, weight: float) -> ValueError:
    """Return the error for a weight that is NaN or infinite."""
    return ValueError(f"weight {where} of the prox is {weight}, not finite")


def dimension_error(dimension: int, active: int) -> InputError:
    """Return the error for more weights that are not 0 than there are dimensions."""
    return InputError(
        f"OSCAR's dimension is {dimension}, and {active} weights are not 0: penalties would be "
        "negative; set regularizer.dimension to the number of features that may ever be met"
    )

"""Steps of lazy OSCAR: along a gradient, and row by row in a loop."""

from __future__ import annotations

import math

from torchtune_smt.core.arrays import Float64, Int64, Integers
from torchtune_smt.core.compiled import inner, kernel
from torchtune_smt.losses.slope_kernels import slope
from torchtune_smt.optim.oscar_groups_kernels import advance, move, read
from torchtune_smt.optim.oscar_tree_kernels import ACTIVE, GROUP, LEFT, Tree, as_int64
from torchtune_smt.optim.row_kernels import RowSteps

# Why a kernel stopped: nothing is wrong, the tree is to be built anew, a margin or a weight is not
# finite, more weights than `dimension` would not be 0.
DONE, BUILD, MARGIN, WEIGHT, DIMENSION = range(5)


@inner
def allowed(
    tree: Tree,
    weight: Float64,
    feature: Integers,
    value: Float64,
    factor: float,
    unregularized: int,
    dimension: int,
) -> int:
    """Return `DONE`, or why a gradient step must not be taken."""
    active = tree.counts[ACTIVE]
    finite = True
    for p in range(feature.size):
        j = as_int64(feature[p])
        new = weight[j] + factor * value[p]
        finite &= math.isfinite(new)
        if j >= unregularized:
            active += int(new != 0.0) - as_int64(tree.member[j, GROUP] >= 0)
    if not finite:
        return WEIGHT
    return DONE if active <= dimension else DIMENSION


@inner
def descend(
    tree: Tree,
    weight: Float64,
    feature: Integers,
    value: Float64,
    factor: float,
    unregularized: int,
) -> None:
    """Take a gradient step on coordinates that are up to date."""
    for p in range(feature.size):
        j = as_int64(feature[p])
        new = weight[j] + factor * value[p]
        if j < unregularized:
            weight[j] = new
        else:
            move(tree, weight, j, new)


@kernel
def catch_up(tree: Tree, weight: Float64, indices: Int64, unregularized: int) -> None:
    """Bring some weights up to date."""
    for j in indices:
        if j >= unregularized:
            read(tree, weight, j)


@kernel
def step(
    tree: Tree,
    weight: Float64,
    indices: Int64,
    gradient: Float64,
    rate: float,
    size: float,
    unregularized: int,
    dimension: int,
) -> int:
    """Take a gradient step of the length `rate` and a proximal one of the length `size`."""
    catch_up(tree, weight, indices, unregularized)
    why = allowed(tree, weight, indices, gradient, -rate, unregularized, dimension)
    if why == DONE:
        descend(tree, weight, indices, gradient, -rate, unregularized)
        advance(tree, weight, size, dimension)
    return why


@kernel
def rows(
    tree: Tree,
    weight: Float64,
    step: int,
    steps: RowSteps,
    rates: tuple[float, float],
    unregularized: int,
    dimension: int,
    begin: int,
) -> tuple[int, int]:
    """Take a step after each row, as `torchtune_smt.optim.row_kernels` do.

    `step` counts steps; `rates` are lr and the power of the schedule. Returns (step stopped before,
    why).
    """
    row_begin, feature, value, order, kind, margins = steps
    lr, power = rates
    for taken in range(begin, margins.size):
        first, end = row_begin[order[taken]], row_begin[order[taken] + 1]
        if tree.counts[LEFT] < end - first:
            return taken, BUILD
        z = 0.0
        for p in range(first, end):
            j = as_int64(feature[p])
            z += (weight[j] if j < unregularized else read(tree, weight, j)) * value[p]
        margins[taken] = z
        if not math.isfinite(z):
            return taken, MARGIN
        factor = slope(kind, z) * (lr / (step + 1) ** power)
        if factor != 0.0:
            some, values = feature[first:end], value[first:end]
            why = allowed(tree, weight, some, values, factor, unregularized, dimension)
            if why != DONE:
                return taken, why
            descend(tree, weight, some, values, factor, unregularized)
        step += 1
        advance(tree, weight, lr / (step + 1) ** power, dimension)
    return margins.size, DONE

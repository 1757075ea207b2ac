"""The optimum of the dense weights where all others stay, whether there is one, and λ_max."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import numpy as np

from torchtune_smt.core.arrays import Bool, Float64
from torchtune_smt.minimizer.dense_basis import inverse
from torchtune_smt.minimizer.losses import MarginLoss
from torchtune_smt.minimizer.penalty import Penalty
from torchtune_smt.minimizer.stored_pairs import StoredPairs

STEPS = 60
# Of the mean gradient of a feature, in parts of its mean |value|: rounding is less than this.
EXACT = 1e-15
# How well it is known where dense weights go, in parts of the weight that does most.
NOISE = 1e-9
# Pairs with less than this part of the largest pull are on their way to none, and directions in
# which others have less than this part of their largest squares are those in which they stay.
LEFT, STAYS = 1e-5, 1e-10
# λ_max is known to rounding, and nothing is to survive there.
ROUNDED_UP = 1.0 + 1e-12
# Pulls of pairs that cancel leave a part of them that is less than the first, and dense weights at
# their optimum one of pulls of 1 that is less than the second.
CANCELLED, FOLLOWED = 1e-12, 1e-14
# A step of 1 is taken if it gains this part of what the slope promises.
ENOUGH = 0.1
# Differences of values below this part of them are rounding.
ROUNDING = 1e-13
HALVINGS = 40


def follow_dense(
    pairs: StoredPairs,
    loss: MarginLoss,
    margins: Float64,
    in_time: Callable[[], bool] = lambda: True,
) -> tuple[Float64, Float64]:
    """Minimise the mean loss over the dense weights alone, by Newton's method, from some margins.

    in_time: whether there is time for another step; where there is not, it stays where it is.

    Returns the change of the dense weights, float64 [k], and the margins there.
    """
    x = pairs.dense
    change = np.zeros(x.shape[1])
    goal = EXACT * np.abs(x).mean(axis=0)
    for _ in range(STEPS if x.shape[1] else 0):
        pull = x.T @ loss.pulls(margins) / len(pairs)
        if (np.abs(pull) <= goal).all() or not in_time():
            break
        curvatures = loss.curvatures(margins) / len(pairs)
        direction = inverse((x.T * curvatures) @ x) @ pull
        moved = x @ direction
        step = line_minimum(
            partial(loss.along, margins, moved), loss.mean(margins), -float(pull @ direction)
        )
        if step == 0.0:
            break
        change += step * direction
        margins = margins + step * moved
    return change, margins


def separating(
    pairs: StoredPairs, pulls: Float64, weights: Float64, direction: Float64
) -> tuple[str, int] | None:
    """Say which dense features tell a pair's better side without error, if one is found.

    Where they do, a loss that falls for ever has no minimum: their weights grow and grow. Each
    feature is tried, where the weights have gone and were going, and the part in which they grow.

    Returns (str, int) or None: what does, and how many pairs it tells; no pair is told wrongly.
    """
    if pairs.one_sided:
        number, told = max(pairs.one_sided, key=lambda some: some[1])
        return f"dense feature {number}", told

    for way in (weights, direction, growing(pairs, pulls, weights)):
        if (told := int(np.count_nonzero(told_by(pairs, way)))) > 0:
            return "a weighting of the dense features", told
    return None


def told_by(pairs: StoredPairs, direction: Float64) -> Bool:
    """Return which pairs a direction of dense weights tells; none where it tells some wrongly."""
    x = pairs.dense
    size = np.abs(x).mean(axis=0)
    margins = x @ direction
    # A pair's own: beside one of far larger values, all others would be noise.
    known = NOISE * float((size * np.abs(direction)).max(initial=0.0))
    noise = np.abs(x) @ np.divide(known, size, out=np.zeros_like(size), where=size > 0.0)
    told: Bool = margins > noise
    return told if (margins >= -noise).all() else np.zeros_like(told)


def growing(pairs: StoredPairs, pulls: Float64, weights: Float64) -> Float64:
    """Return the part of dense weights in which pairs that still have a pull do not move.

    Where a weighting tells some pairs and none wrongly, the loss sends the weights that way, and
    there alone without end. What the others have for an optimum is beside it.
    """
    x = pairs.dense
    size = np.sqrt((x * x).mean(axis=0))
    size[size == 0.0] = 1.0
    left = x[pulls > LEFT * pulls.max(initial=0.0)] / size
    value, vector = np.linalg.eigh(left.T @ left)
    stays = vector[:, value <= STAYS * value.max(initial=0.0)]
    found: Float64 = stays @ (stays.T @ (weights * size)) / size
    return found


def lambda_max(
    pairs: StoredPairs, loss: MarginLoss, penalty: Penalty, dense: Float64, margins: Float64
) -> float:
    """Return λ_max as a multiple of a penalty; 0 where all that is left of pulls is rounding.

    It is 0 as well where all pairs are told apart. Dense weights and margins are those at the
    minimum without sparse features.
    """
    if (margins > 0.0).all():
        return 0.0
    pulls = loss.pulls(margins)
    # Of what dense weights tell on their way to infinity nothing is left in the end.
    pulls[told_by(pairs, growing(pairs, pulls, dense))] = 0.0
    largest = penalty.dual_norm(pairs.means(pulls)[1])
    rounding = pairs.means_of(np.abs(pairs.sparse.value), CANCELLED * pulls + FOLLOWED)
    return largest * ROUNDED_UP if largest > penalty.dual_norm(rounding) else 0.0


def line_minimum(
    function: Callable[[float], tuple[float, float]], value: float, slope: float
) -> float:
    """Return 1 if it is good enough, otherwise almost the minimum before it; 0 if none is lower.

    function: gives the value at a step, and the derivative.
    value, slope: those at 0, the slope below 0.
    """
    if slope >= 0.0:
        return 0.0
    high_value, high_slope = function(1.0)
    if high_value <= value + ENOUGH * slope:
        return 1.0
    if high_value <= value + ROUNDING * abs(value) and abs(high_slope) <= 0.5 * abs(slope):
        return 1.0
    low, high = 0.0, 1.0
    for _ in range(HALVINGS):
        middle = 0.5 * (low + high)
        if function(middle)[1] > 0.0:
            high = middle
        else:
            low = middle
        if low > 0.0 and high - low < 0.02 * high:
            break
    return low if low > 0.0 else _short_step(function, value, high)


def _short_step(
    function: Callable[[float], tuple[float, float]], value: float, high: float
) -> float:
    """Return a step of the order of the minimum's, far below `high`; 0 if none is lower.

    Where pairs have next to no curvature, that of the logistic loss for one, Newton's step may be
    too long by any number of orders of magnitude.
    """
    low = high
    while low > 0.0 and function(low)[1] > 0.0:
        high, low = low, low * low
    if low == 0.0:
        return 0.0
    while high > 2.0 * low:
        middle = math.sqrt(low) * math.sqrt(high)
        if function(middle)[1] > 0.0:
            high = middle
        else:
            low = middle
    # Or it is one that rounding makes.
    return low if function(low)[0] < value - ROUNDING * abs(value) else 0.0

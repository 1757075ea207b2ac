"""How far to go along a direction in which a convex function falls."""

from __future__ import annotations

import math
from collections.abc import Callable

# A step of 1 is taken if it gains this part of what the slope promises.
ENOUGH = 0.1
# Differences of values below this part of them are rounding.
ROUNDING = 1e-13
HALVINGS = 40


def line_minimum(
    function: Callable[[float], tuple[float, float]], value: float, slope: float
) -> float:
    """Return 1 if it is good enough, otherwise almost the minimum before it; 0 if none is lower.

    Parameters
    ----------
    function : callable
        Gives the value at a step, and the derivative.
    value, slope : float
        Those at 0, the slope below 0.
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

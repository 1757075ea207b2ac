"""The optimum of the dense weights where all others stay, and whether there is one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from torchtune_smt.core.arrays import Float64
from torchtune_smt.minimizer.curvature import inverse
from torchtune_smt.minimizer.line_search import line_minimum
from torchtune_smt.minimizer.losses import MarginLoss
from torchtune_smt.minimizer.stored_pairs import StoredPairs

STEPS = 60
# Of the mean gradient of a feature, in parts of its mean |value|: rounding is less than this.
EXACT = 1e-15
# How well it is known where dense weights go, in parts of the weight that does most.
NOISE = 1e-9


@dataclass(frozen=True)
class Followed:
    """Dense weights at their optimum.

    Attributes
    ----------
    change : float64 [k]
    margins : float64 [N]
    """

    change: Float64
    margins: Float64


def follow_dense(
    pairs: StoredPairs,
    loss: MarginLoss,
    margins: Float64,
    in_time: Callable[[], bool] = lambda: True,
) -> Followed:
    """Minimise the mean loss over the dense weights alone, by Newton's method.

    Parameters
    ----------
    margins : float64 [N]
        Where it begins.
    in_time : callable
        Whether there is time for another step; where there is not, it stays where it is.
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
    return Followed(change, margins)


def separating(pairs: StoredPairs, directions: list[Float64]) -> tuple[str, int] | None:
    """Say which dense features tell a pair's better side without error, if one is found.

    Where they do, a loss that falls for ever has no minimum: their weights grow and grow. Each
    feature is tried, and some directions.

    Parameters
    ----------
    directions : list of float64 [k]
        Where the weights have gone, or were going.

    Returns
    -------
    (str, int) or None
        What does, and how many pairs it tells; no pair is told wrongly.
    """
    if pairs.one_sided:
        number, told = pairs.one_sided[0]
        return f"dense feature {number}", told
    x = pairs.dense
    size = np.abs(x).mean(axis=0)
    for direction in directions:
        margins = x @ direction
        # A pair's own: beside one of far larger values, all others would be noise.
        known = NOISE * float((size * np.abs(direction)).max(initial=0.0))
        noise = np.abs(x) @ np.divide(known, size, out=np.zeros_like(size), where=size > 0.0)
        told = int(np.count_nonzero(margins > noise))
        if told and (margins >= -noise).all():
            return "a weighting of the dense features", told
    return None

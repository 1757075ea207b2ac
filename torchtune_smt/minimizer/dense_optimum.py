"""The optimum of the dense weights where all others stay, and whether there is one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np

from torchtune_smt.core.arrays import Bool, Float64
from torchtune_smt.minimizer.curvature import inverse
from torchtune_smt.minimizer.line_search import line_minimum
from torchtune_smt.minimizer.losses import MarginLoss
from torchtune_smt.minimizer.stored_pairs import StoredPairs

STEPS = 60
# Of the mean gradient of a feature, in parts of its mean |value|: rounding is less than this.
EXACT = 1e-15
# How well it is known where dense weights go, in parts of the weight that does most.
NOISE = 1e-9
# Pairs with less than this part of the largest pull are on their way to none, and directions in
# which others have less than this part of their largest squares are those in which they stay.
LEFT, STAYS = 1e-5, 1e-10


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


def separating(
    pairs: StoredPairs, pulls: Float64, weights: Float64, direction: Float64
) -> tuple[str, int] | None:
    """Say which dense features tell a pair's better side without error, if one is found.

    Where they do, a loss that falls for ever has no minimum: their weights grow and grow. Each
    feature is tried, where the weights have gone and were going, and the part in which they grow.

    Parameters
    ----------
    pulls : float64 [N]
    weights, direction : float64 [k]

    Returns
    -------
    (str, int) or None
        What does, and how many pairs it tells; no pair is told wrongly.
    """
    if pairs.one_sided:
        number, told = max(pairs.one_sided, key=lambda some: some[1])
        return f"dense feature {number}", told

    def ways() -> Iterator[Float64]:
        yield from (weights, direction)
        yield growing(pairs, pulls, weights)

    for way in ways():
        if (told := int(np.count_nonzero(told_by(pairs, way)))) > 0:
            return "a weighting of the dense features", told
    return None


def told_by(pairs: StoredPairs, direction: Float64) -> Bool:
    """Return which pairs a direction of the dense weights tells; none where it tells some wrongly.

    Parameters
    ----------
    direction : float64 [k]

    Returns
    -------
    bool [N]
    """
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

    Parameters
    ----------
    pulls : float64 [N]
    weights : float64 [k]

    Returns
    -------
    float64 [k]
    """
    x = pairs.dense
    size = np.sqrt((x * x).mean(axis=0))
    size[size == 0.0] = 1.0
    left = x[pulls > LEFT * pulls.max(initial=0.0)] / size
    value, vector = np.linalg.eigh(left.T @ left)
    stays = vector[:, value <= STAYS * value.max(initial=0.0)]
    found: Float64 = stays @ (stays.T @ (weights * size)) / size
    return found

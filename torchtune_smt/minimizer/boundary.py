"""Features of which the accuracy leaves open whether they have a weight, or in which group."""

from __future__ import annotations

import numpy as np

from torchtune_smt.core.arrays import Bool, Float64
from torchtune_smt.minimizer.penalty import Penalty


def at_boundary(
    penalty: Penalty, weights: Float64, pull: Float64, curvature: Float64, tolerance: float
) -> Bool:
    """Return which features might be 0, or not, or be in another group, at the minimum itself.

    Where pulls are known to the tolerance alone: zeros that pull so hard, together with those that
    pull harder, that they are almost torn away; blocks of equal |w| that almost come apart; and
    blocks so near to each other, or to 0, that a change of their pulls by the tolerance could
    bring them together. The last takes each feature as if it were alone, with its own second
    derivative: it is a rule, not a proof.

    Parameters
    ----------
    weights, pull : float64 [u]
        Of the sparse features: weights, and the negative mean gradient.
    curvature : float64 [u]
        Second derivatives of the mean loss.
    tolerance : float
        In the unit of a gradient.

    Returns
    -------
    bool [u]
    """
    if weights.size == 0:
        return np.zeros(0, np.bool_)
    size = np.abs(weights)
    away = np.where(weights == 0.0, np.abs(pull), pull * np.sign(weights))
    order = np.lexsort((-away, -size))
    levels, first = np.unique(-size[order], return_index=True)
    last = np.append(first[1:], order.size)
    slack = penalty.by_rank(order.size) - away[order]
    found = np.zeros(order.size, np.bool_)
    bend = np.array([curvature[order[a:b]].sum() for a, b in zip(first, last, strict=True)])
    # How far a block may move.
    reach = np.divide(tolerance, bend, out=np.full(bend.size, np.inf), where=bend > 0.0)
    reach[levels == 0.0] = 0.0
    for b in range(levels.size):
        inside = order[first[b] : last[b]]
        left = np.cumsum(slack[first[b] : last[b]])
        if levels[b] == 0.0:
            tight = np.flatnonzero(left <= tolerance)
            if tight.size:
                # And those that pull as hard as the last of them.
                found[inside[away[inside] >= away[inside[tight[-1]]] - tolerance]] = True
        elif (left[:-1] <= tolerance).any():
            found[inside] = True
        if b + 1 < levels.size and levels[b + 1] - levels[b] <= reach[b] + reach[b + 1]:
            found[inside] = True
            if levels[b + 1] < 0.0:
                found[order[first[b + 1] : last[b + 1]]] = True
    # The smallest weights may be 0 where nothing else is.
    if levels[-1] < 0.0 and -levels[-1] <= reach[-1]:
        found[order[first[-1] : last[-1]]] = True
    return found

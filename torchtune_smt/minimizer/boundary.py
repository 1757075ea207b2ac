"""Features of which the accuracy leaves open whether they have a weight, or in which group."""

from __future__ import annotations

import numpy as np

from torchtune_smt.core.arrays import Bool, Float64, Int64
from torchtune_smt.minimizer import sorted_kernels as kernels
from torchtune_smt.minimizer.penalty import Penalty


def at_boundary(
    penalty: Penalty,
    weights: Float64,
    pull: Float64,
    strongest: Int64,
    curvature: Float64,
    tolerance: float,
) -> Bool:
    """Return which features might be 0, or not, or be in another group, at the minimum itself.

    Where pulls are known to the tolerance alone: zeros that pull so hard, together with those that
    pull harder, that they are almost torn away; blocks of equal |w| that almost come apart; and
    blocks so near to each other, or to 0, that a change of their pulls by the tolerance could
    bring them together. The last takes each block as if it were alone, with its own second
    derivatives, and where blocks move together they move further: it is a rule, not a proof. What
    `Descent` returns is therefore polished to a part of the tolerance.

    Parameters
    ----------
    weights, pull : float64 [u]
        Of the sparse features: weights, and the negative mean gradient.
    strongest : int64 [u]
        `by_size` of the pulls.
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
    away = np.where(weights == 0.0, np.abs(pull), pull * np.sign(weights))
    alive = np.flatnonzero(weights)
    alive = alive[np.lexsort((-away[alive], -np.abs(weights[alive])))]
    order = np.concatenate([alive, strongest[weights[strongest] == 0.0]])
    # Descending; the zeros are the last one, if there are any.
    level = np.abs(weights[order])
    first = np.flatnonzero(np.diff(level, prepend=np.inf))
    bend = np.add.reduceat(curvature[order], first)
    level = level[first]
    # How far a block may move.
    reach = np.divide(tolerance, bend, out=np.full(bend.size, np.inf), where=bend > 0.0)
    reach[level == 0.0] = 0.0
    slack = penalty.by_rank(order.size) - away[order]
    found = np.zeros(order.size, np.bool_)
    found[order] = kernels.left_open(
        np.append(first, order.size), level, reach, slack, away[order], tolerance
    )
    return found

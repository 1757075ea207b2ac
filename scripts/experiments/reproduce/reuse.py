"""How much of a tuned model is used again: active features that fire on other sentences."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from torchtune_smt.core.arrays import Float64, Int64
from torchtune_smt.kbest.lists import KBest


class Reuse(NamedTuple):
    """Counts of features, or of groups of features.

    Attributes
    ----------
    active : int
        Those whose weight is not 0.
    reused : int
        Of these, those that fire.
    """

    active: int
    reused: int


def firing_features(kbests: Iterable[KBest]) -> Int64:
    """Return the ids (ascending) of the features that some hypothesis has, not as 0.

    The lists are taken one after the other, so they may be decoded on the way.
    """
    fired: set[int] = set()
    for kbest in kbests:
        fired.update(kbest.rows.feature[kbest.rows.value != 0].tolist())
    return np.array(sorted(fired), np.int64)


def count_reuse(weights: Float64, fired: Int64, group: Int64 | None = None) -> Reuse:
    """Count the active features and those of them that fire (Liu et al. 2013, Table 1).

    Parameters
    ----------
    weights : float64 [D]
    fired : int64 [number]
        Ids of the features that fire; those of features without a weight may be among them.
    group : int64 [D], optional
        The group of each feature: groups are counted instead of features. A group is active if a
        weight of it is not 0, and fires if an active feature of it does. Features with a number
        below 0 are groups of their own.

    Raises
    ------
    ValueError
        There are not as many groups as weights.
    """
    active = weights != 0
    fires = np.zeros(weights.size, np.bool_)
    fires[fired[fired < weights.size]] = True
    reused = active & fires
    if group is None:
        return Reuse(int(active.sum()), int(reused.sum()))
    if group.size != weights.size:
        raise ValueError(f"group has {group.size} entries, and there are {weights.size} weights")
    alone = -1 - np.arange(weights.size)
    number = np.where(group < 0, alone, group)
    return Reuse(np.unique(number[active]).size, np.unique(number[reused]).size)

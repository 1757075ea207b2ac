"""Tuning on k-best lists that are there, without a decoder."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from torchtune_smt.core.snapshot import FrozenWeights, Snapshot
from torchtune_smt.kbest.lists import KBestLists
from torchtune_smt.tuners.batch import Solver


def tune(
    lists: KBestLists, solver: Solver, start: Snapshot | None = None, seed: Sequence[int] = (0,)
) -> FrozenWeights:
    """Return weights for k-best lists.

    Parameters
    ----------
    lists : KBestLists
        With names of features, and whatever the solver needs: gains, statistics of BLEU (see
        `torchtune_smt.metrics.measure.measured`).
    solver : Solver
        `Stochastic` takes any loss, sampler and optimizer; others are `Pro`, `KBestMira`, `Mert`.
    start : Snapshot, optional
        The weights so far; by default all are 0.
    seed : sequence of int
        Equal seeds give equal weights.

    Raises
    ------
    ValueError
        The lists have no names of features.
    InputError
        The lists are none that the solver can work on.
    """
    if lists.features is None:
        raise ValueError("these lists have no names of features")
    dimension = len(lists.features)
    first = np.zeros(dimension)
    if start is not None:
        first = start.read(lists.features, np.arange(dimension))
    return FrozenWeights(lists.features, solver.solve(lists, first, seed).weights)

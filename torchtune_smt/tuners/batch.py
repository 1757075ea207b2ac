"""Batch tuning: decode all sentences, add to the k-best lists, find weights on all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torchtune_smt.accumulation.flat_lists import FlatLists
from torchtune_smt.kernel_types import Reals


@dataclass(frozen=True)
class Fit:
    """Weights that were found on k-best lists.

    Attributes
    ----------
    weights : float64 [D]
    report : dict of str to float
        What the log is to have, by name: a loss, a number of pairs.
    """

    weights: Reals
    report: dict[str, float]


class Fitter(Protocol):
    """Finds weights on k-best lists."""

    def fit(self, lists: FlatLists, start: Reals, seed: Sequence[int]) -> Fit:
        """Return weights for the lists.

        Parameters
        ----------
        lists : FlatLists
        start : float64 [D]
            The weights so far.
        seed : sequence of int
            Names the random streams: equal seeds give equal weights.

        Raises
        ------
        InputError
            The lists are none that this fitter can work on.
        """
        ...

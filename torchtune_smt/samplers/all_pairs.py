"""Every pair of hypotheses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from torchtune_smt.core.arrays import Int64
from torchtune_smt.kbest.lists import KBest
from torchtune_smt.samplers.base import check_threshold, ranked_pairs


@dataclass(frozen=True)
class AllPairs:
    """Every pair of hypotheses with different gains.

    Pairs are in descending order of the better hypothesis's gain, then of the worse one's;
    ties keep their order in the list. Nothing is random. k hypotheses make up to k (k - 1) / 2
    pairs.

    Parameters
    ----------
    threshold : float
        Gains that differ by less make no pair either; in units of the gain.

    Raises
    ------
    ValueError
        `threshold` is out of range.
    """

    threshold: float = 0.0

    def __post_init__(self) -> None:
        check_threshold(self.threshold)

    def sample(self, kbest: KBest, seed: Sequence[int]) -> Int64:
        """Return the pairs; see `PairSampler.sample`. The seed makes no difference.

        Raises
        ------
        ValueError
            The list has no gains, or one of them is not finite.
        """
        partners = np.arange(1, len(kbest) + 1)
        return ranked_pairs(kbest, partners, self.threshold)

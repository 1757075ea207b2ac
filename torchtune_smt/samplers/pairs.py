"""Pairs of hypotheses: all, those of different levels, and PRO's sample."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from torchtune_smt.core.accepts import Checked, accepting, integer, least
from torchtune_smt.core.arrays import Int64
from torchtune_smt.core.checks import stream_seed
from torchtune_smt.kbest.lists import KBest
from torchtune_smt.samplers import kernels
from torchtune_smt.samplers.base import ranked_pairs, string_numbers


@dataclass(frozen=True)
class AllPairs(Checked):
    """Every pair of hypotheses with different gains.

    Pairs are in descending order of the better hypothesis's gain, then of the worse one's;
    ties keep their order in the list. Nothing is random. k hypotheses make up to k (k - 1) / 2
    pairs.

    threshold: gains that differ by less make no pair either; in units of the gain.
    """

    accepts = accepting(threshold=least(0, infinite=True))

    threshold: float = 0.0

    def sample(self, kbest: KBest, seed: Sequence[int]) -> Int64:
        """Return the pairs; see `PairSampler.sample`. The seed makes no difference."""
        partners = np.arange(1, len(kbest) + 1)
        return ranked_pairs(kbest, partners, self.threshold)


@dataclass(frozen=True)
class Multipartite(Checked):
    """Pairs of hypotheses of different levels: the best, the worst, and those between.

    Sorted by gain (ties keep their order in the list), the best ⌈n · percent / 100⌉ of n
    hypotheses are the level HI, as many of the worst are LOW, the rest is MID. Pairs are
    HI-MID, HI-LOW and MID-LOW, never inside a level, in the order of `AllPairs`. Fewer than
    three hypotheses make no pairs. Simianer et al. (2012), with 100-best lists.

    percent: the share of HI and of LOW, 1..50; each has at most half of the list.
    threshold: gains that differ by less make no pair, nor do equal ones; in units of the gain.
    """

    accepts = accepting(percent=integer(1, 50), threshold=least(0, infinite=True))

    percent: int = 10
    threshold: float = 0.0

    def sample(self, kbest: KBest, seed: Sequence[int]) -> Int64:
        """Return the pairs; see `PairSampler.sample`. The seed makes no difference."""
        n = len(kbest)
        # In integers: 0.1 · 30 is more than 3 in floating point.
        level = min(-(-n * int(self.percent) // 100), n // 2)
        partners = np.full(n, n)
        if n >= 3:
            partners[:level] = level
            partners[level : n - level] = n - level
        return ranked_pairs(kbest, partners, self.threshold)


@dataclass(frozen=True)
class ProSampler(Checked):
    """PRO's sampler (Hopkins and May, 2011).

    Draws `candidates` index pairs uniformly, keeps those whose gains differ by `threshold` or
    more, and of these the `pairs` with the largest difference (of equal ones those drawn
    first), in descending order of difference.

    candidates: Γ.
    threshold: α, in units of the gain.
    pairs: Ξ: 50 in Hopkins and May, 15 in Green et al. (2013).
    distinct: draw different unordered pairs. Otherwise they are drawn with replacement, as
        published, which on short lists keeps copies of one pair.
    """

    accepts = accepting(candidates=integer(1), pairs=integer(1), threshold=least(0, infinite=True))

    candidates: int = 5000
    threshold: float = 0.05
    pairs: int = 15
    distinct: bool = False

    def sample(self, kbest: KBest, seed: Sequence[int]) -> Int64:
        """Return the sampled pairs; see `PairSampler.sample`."""
        gain = kbest.finite_gains()
        return kernels.pro_pairs(
            gain,
            string_numbers(kbest),
            stream_seed(seed),
            self.candidates,
            self.threshold,
            self.pairs,
            self.distinct,
        )

"""Samplers of pairs of hypotheses to be ranked, within one sentence's k-best list."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from torchtune_smt.core.arrays import Int64
from torchtune_smt.core.rows import Rows
from torchtune_smt.kbest.lists import KBest
from torchtune_smt.samplers import pairs_kernels as kernels


class PairSampler(Protocol):
    """A way to choose pairs of hypotheses from one k-best list."""

    def sample(self, kbest: KBest, seed: Sequence[int]) -> Int64:
        """Return pairs of hypotheses, the one of larger gain first.

        Parameters
        ----------
        kbest : KBest
            With gains.
        seed : sequence of int
            Names the random stream, for example (seed, epoch, sentence): equal seeds give
            equal pairs, wherever and in whatever order sentences are worked on.

        Returns
        -------
        int64 [p, 2]
            Numbers of hypotheses (better, worse). No pair has equal gains or equal strings.
        """
        ...


@dataclass(frozen=True)
class ProSampler:
    """PRO's sampler (Hopkins and May, 2011).

    Draws `candidates` index pairs uniformly, keeps those whose gains differ by `threshold` or
    more, and of these the `pairs` with the largest difference (of equal ones those drawn
    first), in descending order of difference.

    Parameters
    ----------
    candidates : int
        Γ.
    threshold : float
        α, in units of the gain.
    pairs : int
        Ξ: 50 in Hopkins and May, 15 in Green et al. (2013).
    distinct : bool
        Draw different unordered pairs. Otherwise they are drawn with replacement, as
        published, which on short lists keeps copies of one pair.

    Raises
    ------
    ValueError
        An argument is out of range.
    """

    candidates: int = 5000
    threshold: float = 0.05
    pairs: int = 15
    distinct: bool = False

    def __post_init__(self) -> None:
        if self.candidates < 1:
            raise ValueError(f"candidates must be at least 1, not {self.candidates}")
        if self.pairs < 1:
            raise ValueError(f"pairs must be at least 1, not {self.pairs}")
        _check_threshold(self.threshold)

    def sample(self, kbest: KBest, seed: Sequence[int]) -> Int64:
        """Return the sampled pairs; see `PairSampler.sample`.

        Raises
        ------
        ValueError
            The list has no gains, or one of them is not finite.
        """
        gain = kbest.finite_gains()
        result: Int64 = kernels.pro_pairs(
            gain,
            _strings(kbest),
            np.array(seed, np.int64),
            self.candidates,
            self.threshold,
            self.pairs,
            self.distinct,
        )
        return result


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
        _check_threshold(self.threshold)

    def sample(self, kbest: KBest, seed: Sequence[int]) -> Int64:
        """Return the pairs; see `PairSampler.sample`. The seed makes no difference.

        Raises
        ------
        ValueError
            The list has no gains, or one of them is not finite.
        """
        partners = np.arange(1, len(kbest) + 1)
        return _ranked_pairs(kbest, partners, self.threshold)


@dataclass(frozen=True)
class Multipartite:
    """Pairs of hypotheses of different levels: the best, the worst, and those between.

    Sorted by gain (ties keep their order in the list), the best ⌈n · percent / 100⌉ of n
    hypotheses are the level HI, as many of the worst are LOW, the rest is MID. Pairs are
    HI-MID, HI-LOW and MID-LOW, never inside a level, in the order of `AllPairs`. Fewer than
    three hypotheses make no pairs. Simianer et al. (2012), with 100-best lists.

    Parameters
    ----------
    percent : int
        The share of HI and of LOW, 1..50; each has at most half of the list.
    threshold : float
        Gains that differ by less make no pair, nor do equal ones; in units of the gain.

    Raises
    ------
    ValueError
        An argument is out of range.
    """

    percent: int = 10
    threshold: float = 0.0

    def __post_init__(self) -> None:
        if self.percent != int(self.percent) or not 1 <= self.percent <= 50:
            raise ValueError(f"percent must be a whole number of 1..50, not {self.percent}")
        _check_threshold(self.threshold)

    def sample(self, kbest: KBest, seed: Sequence[int]) -> Int64:
        """Return the pairs; see `PairSampler.sample`. The seed makes no difference.

        Raises
        ------
        ValueError
            The list has no gains, or one of them is not finite.
        """
        n = len(kbest)
        # In integers: 0.1 · 30 is more than 3 in floating point.
        level = min(-(-n * int(self.percent) // 100), n // 2)
        partners = np.full(n, n)
        if n >= 3:
            partners[:level] = level
            partners[level : n - level] = n - level
        return _ranked_pairs(kbest, partners, self.threshold)


def _ranked_pairs(kbest: KBest, partners: Int64, threshold: float) -> Int64:
    """Return pairs by the places of their hypotheses; see `kernels.ranked_pairs`."""
    gain = kbest.finite_gains()
    result: Int64 = kernels.ranked_pairs(
        gain,
        _strings(kbest),
        np.argsort(-gain, kind="stable"),
        partners,
        float(threshold),
    )
    return result


def _check_threshold(threshold: float) -> None:
    if not threshold >= 0:
        raise ValueError(f"threshold must be 0 or more, not {threshold}")


def pair_rows(kbests: Iterable[KBest], sampler: PairSampler, seed: Sequence[int]) -> Rows:
    """Return x = H(better) - H(worse) for pairs of some k-best lists, list after list.

    Parameters
    ----------
    kbests : iterable of KBest
        With gains.
    sampler : PairSampler
    seed : sequence of int
        The pairs of a list are drawn with ``(*seed, kbest.index)``.
    """
    return Rows.joined(
        [kbest.rows.differences(sampler.sample(kbest, (*seed, kbest.index))) for kbest in kbests]
    )


def _strings(kbest: KBest) -> Int64:
    """Return a number for each hypothesis (int64 [k]), the same for the same words."""
    if kbest.tokens is None or kbest.token_begin is None:
        return np.arange(len(kbest))
    numbers: Int64 = kernels.number_strings(kbest.token_begin, kbest.tokens)
    return numbers

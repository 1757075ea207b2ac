"""Samplers of pairs of hypotheses: all, those of different levels, and PRO's sample."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from torchtune_smt.core.accepts import Checked, accepting, integer, least
from torchtune_smt.core.arrays import Int64
from torchtune_smt.core.checks import described, stream_seed
from torchtune_smt.core.errors import InputError
from torchtune_smt.core.rows import Rows
from torchtune_smt.core.sequences_kernels import number_equal
from torchtune_smt.kbest.lists import KBest, KBestLists
from torchtune_smt.samplers import kernels


class PairSampler(Protocol):
    """A way to choose pairs of hypotheses from one k-best list."""

    def sample(self, kbest: KBest, seed: Sequence[int]) -> Int64:
        """Return pairs of hypotheses, the one of larger gain first.

        seed: names the random stream, for example (seed, epoch, sentence): equal seeds give equal
            pairs, wherever and in whatever order sentences are worked on.

        Returns int64 [p, 2]: numbers of hypotheses (better, worse). No pair has equal gains or
            equal strings; without words, all hypotheses are different ones.

        Raises ValueError: the list has no gains, or one of them is not finite; or a part of the
        seed is 2^63 or more.
        """


def pair_rows(kbests: Iterable[KBest], sampler: PairSampler, seed: Sequence[int]) -> Rows:
    """Return x = H(better) - H(worse) for pairs of some k-best lists, list after list.

    seed: the pairs of a list are drawn with ``(*seed, kbest.index)``.

    Raises InputError: there is no room for them.
    """
    done = 0

    def parts() -> Iterator[Rows]:
        nonlocal done
        for kbest in kbests:
            yield kbest.rows.differences(sampled_pairs(sampler, kbest, seed))
            done += 1

    try:
        return Rows.gathered(parts())
    except MemoryError:
        raise InputError(
            f"there is no room for all pairs (there was for those of {done:,} k-best lists): lower "
            "sampler.pairs or tuner.sentences"
        ) from None


def list_pairs(lists: KBestLists, sampler: PairSampler, seed: Sequence[int]) -> Int64:
    """Return `pair_rows`'s pairs (int64 [p, 2]), whose hypotheses are numbered throughout."""
    begins = lists.begin.tolist()
    pairs = [sampled_pairs(sampler, lists[s], seed) + begins[s] for s in range(len(lists))]
    return np.concatenate([np.empty((0, 2), np.int64), *pairs])


def sampled_pairs(sampler: PairSampler, kbest: KBest, seed: Sequence[int]) -> Int64:
    """Return the pairs (int64 [p, 2]) that a sampler, perhaps of a user's class, draws from a list.

    Raises InputError: they are not pairs of numbers of hypotheses, the better one first.
    """
    pairs = sampler.sample(kbest, (*seed, kbest.index))
    name = type(sampler).__name__
    if not isinstance(pairs, np.ndarray) or pairs.dtype.kind != "i" or pairs.shape[1:] != (2,):
        raise InputError(
            f"the sampler {name} must return an int64 array of shape (pairs, 2), and returned "
            f"{described(pairs)} for sentence {kbest.index}"
        )
    pairs = pairs.astype(np.int64, copy=False)
    # As they are no numbers of another list's, nor of nothing; a negative one is very large here.
    if pairs.size and int(pairs.view(np.uint64).max()) >= len(kbest):
        wrong = pairs.min() if pairs.min() < 0 else pairs.max()
        raise InputError(
            f"the sampler {name} returned hypothesis {wrong} for sentence {kbest.index}, whose "
            f"list has {len(kbest)}: they are numbered from 0"
        )
    better, worse = pairs.T
    if kbest.gain is not None and (kbest.gain[better] <= kbest.gain[worse]).any():
        raise InputError(
            f"the sampler {name} returned a pair for sentence {kbest.index} whose first hypothesis "
            "has no larger gain than the second: the better one comes first"
        )
    return pairs


def shuffled_gains(kbest: KBest, seed: Sequence[int], n_dense: int = 0) -> KBest:
    """Return a list with its gains dealt out anew, so that no sparse feature says anything of them.

    Dense features go where the gains go: what they say of them, they still do. Hypotheses of equal
    words have one gain, as before, and the dense features of one hypothesis.

    seed: they are dealt out with ``(*seed, kbest.index)``.
    n_dense: ids below it are dense features.
    """
    gain = kbest.finite_gains()
    first, string = np.unique(string_numbers(kbest), return_inverse=True)
    dealt = np.random.default_rng((*seed, kbest.index)).permutation(first)[string]
    rows, given = kbest.rows, kbest.rows.chosen(dealt)
    dense, sparse = given.where(given.feature < n_dense), rows.where(rows.feature >= n_dense)
    order = np.argsort(np.concatenate([dense.owner, sparse.owner]), kind="stable")
    rows = Rows(
        dense.begin + sparse.begin,
        np.concatenate([dense.feature, sparse.feature])[order],
        np.concatenate([dense.value, sparse.value])[order],
    )
    return replace(kbest, rows=rows, gain=gain[dealt])


def string_numbers(kbest: KBest) -> Int64:
    """Return for each hypothesis the first one of the same words (int64 [k])."""
    if kbest.tokens is None or kbest.token_begin is None:
        return np.arange(len(kbest))
    return number_equal(kbest.token_begin, kbest.tokens)


def ranked_pairs(kbest: KBest, partners: Int64, threshold: float) -> Int64:
    """Return pairs by the places of their hypotheses; see `kernels.ranked_pairs`."""
    gain, string = kbest.finite_gains(), string_numbers(kbest)
    order = np.argsort(-gain, kind="stable")
    return kernels.ranked_pairs(gain, string, order, partners, float(threshold))


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
        """Return the pairs; see `PairSampler`. The seed makes no difference."""
        return ranked_pairs(kbest, np.arange(1, len(kbest) + 1), self.threshold)


@dataclass(frozen=True)
class Multipartite(Checked):
    """Pairs of hypotheses of different levels: the best, the worst, and those between.

    Sorted by gain (ties keep their order in the list), the best ⌈n · percent / 100⌉ of n
    hypotheses are the level HI, as many of the worst are LOW, the rest is MID. Pairs are
    HI-MID, HI-LOW and MID-LOW, never inside a level, in the order of `AllPairs`. Fewer than
    three hypotheses make no pairs. Simianer et al. (2012), with 100-best lists.

    percent: the share of HI and of LOW; each has at most half of the list.
    threshold: as for `AllPairs`.
    """

    accepts = accepting(percent=integer(1, 50), threshold=least(0, infinite=True))

    percent: int = 10
    threshold: float = 0.0

    def sample(self, kbest: KBest, seed: Sequence[int]) -> Int64:
        """Return the pairs; see `PairSampler`. The seed makes no difference."""
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

    candidates, threshold, pairs: Γ; α, in units of the gain; Ξ: 50 in Hopkins and May, 15 in Green
        et al. (2013).
    distinct: draw different unordered pairs. Otherwise they are drawn with replacement, as
        published, which on short lists keeps copies of one pair.
    """

    accepts = accepting(candidates=integer(1), pairs=integer(1), threshold=least(0, infinite=True))

    candidates: int = 5000
    threshold: float = 0.05
    pairs: int = 15
    distinct: bool = False

    def sample(self, kbest: KBest, seed: Sequence[int]) -> Int64:
        """Return the sampled pairs; see `PairSampler`."""
        options = self.candidates, self.threshold, self.pairs, self.distinct
        gain, string = kbest.finite_gains(), string_numbers(kbest)
        return kernels.pro_pairs(gain, string, stream_seed(seed), *options)

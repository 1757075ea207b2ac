"""Samplers of pairs of hypotheses to be ranked, within one sentence's k-best list."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from torchtune_smt import pairs_kernels as kernels
from torchtune_smt.kbest import KBest
from torchtune_smt.kernel_types import Offsets, Reals


class PairSampler(Protocol):
    """A way to choose pairs of hypotheses from one k-best list."""

    def sample(self, kbest: KBest, seed: Sequence[int]) -> Offsets:
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
        if not self.threshold >= 0:
            raise ValueError(f"threshold must be 0 or more, not {self.threshold}")

    def sample(self, kbest: KBest, seed: Sequence[int]) -> Offsets:
        """Return the sampled pairs; see `PairSampler.sample`.

        Raises
        ------
        ValueError
            The list has no gains, or one of them is not finite.
        """
        gain = finite_gains(kbest)
        result: Offsets = kernels.pro_pairs(
            gain,
            kbest.token_begin,
            kbest.tokens,
            np.array(seed, np.int64),
            self.candidates,
            self.threshold,
            self.pairs,
            self.distinct,
        )
        return result


def finite_gains(kbest: KBest) -> Reals:
    """Return the gains of a k-best list.

    Raises
    ------
    ValueError
        The list has no gains, or one of them is not finite.
    """
    gain = kbest.gain
    if gain is None or gain.size != len(kbest):
        raise ValueError(
            f"sentence {kbest.index}: {len(kbest)} hypotheses have "
            f"{0 if gain is None else gain.size} gains; let a metric set `gain` first"
        )
    if not np.isfinite(gain).all():
        bad = int(np.flatnonzero(~np.isfinite(gain))[0])
        raise ValueError(
            f"sentence {kbest.index}: the gain of hypothesis {bad} is {gain[bad]}, not finite"
        )
    return gain

"""PRO's sampler of pairs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torchtune_smt.core.accepts import Checked, accepting, integer, least
from torchtune_smt.core.arrays import Int64
from torchtune_smt.core.checks import stream_seed
from torchtune_smt.kbest.lists import KBest
from torchtune_smt.samplers import kernels
from torchtune_smt.samplers.base import string_numbers


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

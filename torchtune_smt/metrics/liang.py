"""Sentence-level BLEU as Liang et al. smooth it."""

from __future__ import annotations

from dataclasses import dataclass

from torchtune_smt.core.arrays import Float64
from torchtune_smt.metrics import bleu_kernels as kernels
from torchtune_smt.metrics.bleu import Counts, SentenceBleu


@dataclass(frozen=True)
class LiangBleu(SentenceBleu):
    """BP · Σ_i BLEU_i / 2^(4 - i + 1), where BLEU_i is the geometric mean of p_1..p_i.

    Nothing is added to the counts. Gains are in 0..15/16. Liang et al. (2006), "An end-to-end
    discriminative approach to machine translation"; dtrain's ``smooth_bleu``.
    """

    def score(self, statistics: Counts) -> Float64:
        """Return the gain (float64 [k], 0..15/16) of each row of statistics."""
        gains: Float64 = kernels.liang_bleu(statistics)
        return gains

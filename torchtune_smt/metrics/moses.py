"""Sentence-level BLEU as Moses's PRO computes it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torchtune_smt.core.arrays import Float64
from torchtune_smt.metrics import bleu_kernels as kernels
from torchtune_smt.metrics.bleu import Counts, SentenceBleu


@dataclass(frozen=True)
class MosesBleu(SentenceBleu):
    """BLEU with s added to matches and counts of all orders, single words included.

    Moses's ``smoothedSentenceBleu``. Gains are in 0..1, and not 0 without a match.

    Parameters
    ----------
    smoothing : float
        s, more than 0.
    smooth_brevity : bool
        Add s to the reference's length in the brevity penalty.

    Raises
    ------
    ValueError
        `smoothing` is out of range.
    """

    smoothing: float = 1.0
    smooth_brevity: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.smoothing < math.inf:
            raise ValueError(f"smoothing must be a number above 0, not {self.smoothing}")

    def score(self, statistics: Counts) -> Float64:
        """Return the gain (float64 [k], 0..1) of each row of statistics."""
        s = float(self.smoothing)
        gains: Float64 = kernels.smoothed_bleu(
            statistics, s, s, s if self.smooth_brevity else 0.0, False, False
        )
        return gains

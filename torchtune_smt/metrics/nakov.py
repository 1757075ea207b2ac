"""BLEU+1 with the corrections of Nakov et al."""

from __future__ import annotations

from dataclasses import dataclass

from torchtune_smt.core.arrays import Float64
from torchtune_smt.metrics import bleu_kernels as kernels
from torchtune_smt.metrics.bleu import Counts, SentenceBleu


@dataclass(frozen=True)
class NakovBleu(SentenceBleu):
    """BLEU+1 whose brevity penalty is smoothed like its precisions: min(1, exp(1 - (r + 1)/c)).

    BLEU+1 raises the precisions of short hypotheses and not their penalty, so that tuning makes
    translations too short. Gains are in 0..1; a hypothesis as long as its reference has a
    penalty. Nakov, Guzmán and Vogel (2012), "Optimizing for sentence-level BLEU+1 yields short
    translations"; as it stands dtrain's ``fixed_stupid_bleu``, but for short references.

    Parameters
    ----------
    smooth_unigrams : bool
        Add one to matches and counts of words too, as Phrasal's ``bleu-nakov-unscaled`` does.
    grounding : bool
        Subtract from the precision (the geometric mean) that of as long a hypothesis without
        any match, Π (1 / (l_n + 1))^(1/4), so that no match gives 0 again. Only with
        `smooth_unigrams`: otherwise it is 0 already.
    short_references : bool
        Count only the orders up to r where r < 4, as dtrain does.

    Raises
    ------
    ValueError
        `grounding` without `smooth_unigrams`.
    """

    smooth_unigrams: bool = False
    grounding: bool = False
    short_references: bool = False

    def __post_init__(self) -> None:
        if self.grounding and not self.smooth_unigrams:
            raise ValueError(
                "grounding does nothing without smooth_unigrams, since a hypothesis that matches "
                "no word has gain 0 already: set smooth_unigrams=true too"
            )

    def score(self, statistics: Counts) -> Float64:
        """Return the gain (float64 [k], 0..1) of each row of statistics."""
        gains: Float64 = kernels.smoothed_bleu(
            statistics,
            1.0 if self.smooth_unigrams else 0.0,
            1.0,
            1.0,
            self.short_references,
            self.grounding,
        )
        return gains

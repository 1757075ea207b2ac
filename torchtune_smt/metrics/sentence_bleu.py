"""sacrebleu's sentence-level BLEU, from integer ids."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from torchtune_smt.core.arrays import Float64
from torchtune_smt.metrics import bleu_kernels as kernels
from torchtune_smt.metrics.bleu import Counts, SentenceBleu


@dataclass(frozen=True)
class SacreBleu(SentenceBleu):
    """sacrebleu's ``sentence_bleu`` (divided by 100), with ``tokenize="none"``.

    Hypotheses and references are compared as they were tokenised. Gains are in 0..1.

    Parameters
    ----------
    smooth_method : str
        "exp": the k-th order without a match counts 1 / (2^k l_n); "floor": such orders count
        `smooth_value` / l_n; "add-k": `smooth_value` is added to matches and counts of orders 2
        to 4; "none". Chen and Cherry (2014) compare them.
    smooth_value : float, optional
        More than 0; 0.1 for floor and 1 for add-k unless given. The other methods take none.
    effective_order : bool
        Leave orders out that are longer than the hypothesis, as sacrebleu does for sentences.
        Otherwise such hypotheses have gain 0 (with add-k: precision 1).

    Raises
    ------
    ValueError
        The method is unknown, or the value out of range.
    """

    smooth_method: str = "exp"
    smooth_value: float | None = None
    effective_order: bool = True

    METHODS: ClassVar[dict[str, int]] = {
        "none": kernels.NONE,
        "floor": kernels.FLOOR,
        "add-k": kernels.ADD_K,
        "exp": kernels.EXP,
    }
    DEFAULTS: ClassVar[dict[str, float]] = {"floor": 0.1, "add-k": 1.0}

    def __post_init__(self) -> None:
        if self.smooth_method not in self.METHODS:
            raise ValueError(
                f"smooth_method must be one of {', '.join(self.METHODS)}, not {self.smooth_method}"
            )
        if self.smooth_value is None:
            return
        if self.smooth_method not in self.DEFAULTS:
            raise ValueError(
                f"smooth_method={self.smooth_method} takes no smooth_value: leave it out, or "
                f"choose {' or '.join(self.DEFAULTS)}"
            )
        if not 0 < self.smooth_value < math.inf:
            raise ValueError(f"smooth_value must be a number above 0, not {self.smooth_value}")

    def score(self, statistics: Counts) -> Float64:
        """Return sacrebleu's score / 100 (float64 [k]) of each row of statistics."""
        value = self.smooth_value
        if value is None:
            value = self.DEFAULTS.get(self.smooth_method, 0.0)
        gains: Float64 = kernels.sacrebleu_bleu(
            statistics, self.METHODS[self.smooth_method], float(value), self.effective_order
        )
        return gains

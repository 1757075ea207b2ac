"""sacrebleu's sentence statistics, and corpus scores of many sums of them at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from sacrebleu.metrics.chrf import CHRF

from torchtune_smt.core.arrays import Float64
from torchtune_smt.metrics.corpus import CorpusScore, sacrebleu_metric


@dataclass(frozen=True)
class CorpusStatistics:
    """What a metric says of a system's translations.

    Attributes
    ----------
    rows : float64 [n, statistics]
        Of the sentences, as sacrebleu has them. The corpus score is a function of their sums.
    score : CorpusScore
        By sacrebleu.
    """

    rows: Float64
    score: CorpusScore


class StatisticsExtractor:
    """Extracts the statistics of a metric, with references that are prepared once.

    Parameters
    ----------
    metric, tokenize, lowercase
        As for `torchtune_smt.metrics.corpus.corpus_scores`.
    references : sequence of sequence of str
        ``references[i]``: those of sentence i.

    Attributes
    ----------
    score_sums : callable
        Takes sums of statistics [..., statistics] and returns corpus scores [...], float64.

    Raises
    ------
    ValueError
        The metric or tokenizer is unknown.
    """

    def __init__(
        self,
        metric: str,
        references: Sequence[Sequence[str]],
        *,
        tokenize: str = "none",
        lowercase: bool = False,
    ) -> None:
        self._metric = sacrebleu_metric(metric, tokenize, lowercase, references)
        self.score_sums: Callable[[Float64], Float64] = _SCORES[metric]

    def extract(self, hypotheses: Sequence[str]) -> CorpusStatistics:
        """Return the statistics of a system."""
        rows: list[list[Any]] = self._metric._extract_corpus_statistics(hypotheses, None)
        score = self._metric._aggregate_and_compute(rows)
        signature = str(self._metric.get_signature())
        return CorpusStatistics(
            np.array(rows, np.float64), CorpusScore(score.name, score.score, signature)
        )


def bleu_scores(sums: Float64) -> Float64:
    """Return corpus BLEU, smoothed as sacrebleu does by default (``exp``).

    Parameters
    ----------
    sums : float64 [..., 10]
        Lengths of hypotheses and references, n-grams that match, n-grams; n = 1..4.

    Returns
    -------
    float64 [...]
    """
    length, reference = sums[..., 0], sums[..., 1]
    correct, total = sums[..., 2:6], sums[..., 6:]
    none = correct == 0
    # Each order without a match counts half a match less than the one before.
    smoothed = np.where(none, 0.5 ** np.cumsum(none, axis=-1), correct)
    defined = ~none.all(axis=-1) & (total > 0).all(axis=-1)
    precision = 100 * smoothed / np.maximum(total, 1)
    penalty = np.exp(np.minimum(0, 1 - reference / np.maximum(length, 1)))
    scores: Float64 = penalty * np.exp(np.log(precision).mean(axis=-1))
    return np.where(defined, scores, 0)


def chrf_scores(sums: Float64) -> Float64:
    """Return corpus chrF2.

    Parameters
    ----------
    sums : float64 [..., 3 * orders]
        n-grams of the hypotheses, of the references, and those that match, for each order.

    Returns
    -------
    float64 [...]
    """
    hypothesis, reference, match = sums[..., 0::3], sums[..., 1::3], sums[..., 2::3]
    counts = (hypothesis > 0) & (reference > 0)
    orders = np.maximum(counts.sum(axis=-1), 1)
    precision = np.where(counts, match / np.maximum(hypothesis, 1), 0).sum(axis=-1) / orders
    recall = np.where(counts, match / np.maximum(reference, 1), 0).sum(axis=-1) / orders
    factor = CHRF.BETA**2
    weighted = factor * precision + recall
    some = weighted > 0
    return np.where(some, 100 * (1 + factor) * precision * recall / np.where(some, weighted, 1), 0)


def ter_scores(sums: Float64) -> Float64:
    """Return corpus TER.

    Parameters
    ----------
    sums : float64 [..., 2]
        Edits, and mean lengths of the references.

    Returns
    -------
    float64 [...]
    """
    edits, length = sums[..., 0], sums[..., 1]
    rate = edits / np.where(length > 0, length, 1)
    return 100 * np.where(length > 0, rate, np.minimum(edits, 1))


_SCORES: Final = {"bleu": bleu_scores, "chrf": chrf_scores, "ter": ter_scores}

"""Corpus scores by sacrebleu, and of many sums of its sentence statistics at once."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self, cast

import numpy as np
from numpy.typing import NDArray
from sacrebleu.metrics.base import Metric as SacrebleuMetric
from sacrebleu.metrics.base import Score
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.metrics.ter import TER

from torchtune_smt.core.arrays import Float64
from torchtune_smt.core.errors import InputError

METRICS = ("bleu", "chrf", "ter")


@dataclass(frozen=True)
class CorpusScore:
    """A corpus score of 0..100 (TER may be more, and less of it is better).

    The name is as sacrebleu writes it, and the signature what it takes to compute the score again.
    Of BLEU there are the brevity penalty, and precisions in percent of n-grams with n = 1..4.
    """

    name: str
    score: float
    signature: str
    brevity_penalty: float | None = None
    precisions: tuple[float, ...] = ()

    @classmethod
    def of(cls, score: Score, signature: str) -> Self:
        """Return what sacrebleu found."""
        penalty, precisions = getattr(score, "bp", None), getattr(score, "precisions", ())
        return cls(score.name, score.score, signature, penalty, tuple(precisions))

    def __str__(self) -> str:
        return f"{self.name} {self.score:.2f} ({self.signature})"


@dataclass(frozen=True)
class CorpusStatistics:
    """What a metric says of a system's translations, by sacrebleu.

    The corpus score is a function of the sums of the sentences' rows [n, statistics].
    """

    rows: Float64
    score: CorpusScore


class StatisticsExtractor:
    """Extracts a metric's statistics and score, with references that are prepared once.

    Parameters
    ----------
    metric : str
        Of `METRICS`.
    references : sequence of sequence of str
        ``references[i]``: those of sentence i; their number may differ.
    tokenize : str
        sacrebleu's tokenizer for BLEU. "none" takes text that is tokenised already as it is.
    lowercase : bool
        Ignore case.

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
        return CorpusStatistics(np.array(rows, np.float64), CorpusScore.of(score, signature))


def corpus_bleu(
    hypotheses: Sequence[str],
    references: Sequence[Sequence[str]],
    *,
    tokenize: str = "none",
    lowercase: bool = False,
) -> CorpusScore:
    """Return corpus BLEU by sacrebleu; see `StatisticsExtractor`.

    Raises
    ------
    InputError
        There are no hypotheses, not as many as sentences with references, or a sentence has
        no reference.
    ValueError
        The tokenizer is unknown.
    """
    check_lengths({"the system": hypotheses}, references)
    extractor = StatisticsExtractor("bleu", references, tokenize=tokenize, lowercase=lowercase)
    return extractor.extract(hypotheses).score


def bleu_of_statistics(totals: NDArray[np.int64]) -> float:
    """Return corpus BLEU (0..100) of `BleuReferences.statistics` [10] summed over a corpus."""
    counts = totals.tolist()
    # As `corpus_bleu` has it; it is not this method's own default.
    bleu = BLEU.compute_bleu(counts[:4], counts[4:8], counts[8], counts[9], smooth_method="exp")
    return float(bleu.score)


def sacrebleu_metric(
    name: str,
    tokenize: str = "none",
    lowercase: bool = False,
    references: Sequence[Sequence[str]] | None = None,
) -> SacrebleuMetric:
    """Return sacrebleu's metric of that name; see `StatisticsExtractor`.

    With references it keeps what it needs of them, and takes none later.
    """
    streams = None if references is None else reference_streams(references)
    if name == "bleu":
        if tokenize not in BLEU.TOKENIZERS:
            raise ValueError(
                f"unknown tokenizer {tokenize!r}: choose one of {', '.join(BLEU.TOKENIZERS)}"
            )
        # `force`: no warning that text looks tokenised, which is what "none" is for.
        force = tokenize == "none"
        try:
            return BLEU(lowercase=lowercase, tokenize=tokenize, force=force, references=streams)
        except (ImportError, RuntimeError) as error:
            # Those of some languages bring programs of their own, as MeCab.
            packages = re.search(r"pip install (\S+)", str(error))
            cure = f"; install it with: {packages[0]}" if packages else f" ({error})"
            raise InputError(
                f"tokenize={tokenize} needs a package that is not installed{cure}"
            ) from None
    if name == "chrf":
        return CHRF(lowercase=lowercase, references=streams)
    if name == "ter":
        return TER(case_sensitive=not lowercase, references=streams)
    raise ValueError(f"unknown metric {name!r}: choose of {', '.join(METRICS)}")


def bleu_words(tokenize: str = "none", lowercase: bool = False) -> Callable[[str], list[str]]:
    """Return what splits a line into the words that BLEU counts; see `StatisticsExtractor`."""
    metric = sacrebleu_metric("bleu", tokenize, lowercase)
    return lambda line: metric._preprocess_segment(line).split()


def reference_streams(references: Sequence[Sequence[str]]) -> list[list[str]]:
    """Return references as sacrebleu takes them: stream j holds each sentence's j-th, or None."""
    width = max(map(len, references), default=0)
    streams = [[r[j] if j < len(r) else None for r in references] for j in range(width)]
    # sacrebleu leaves None out, though its annotations do not say so.
    return cast(list[list[str]], streams)


def check_lengths(
    systems: Mapping[str, Sequence[str]], references: Sequence[Sequence[str]]
) -> None:
    """Raise InputError unless each system has one hypothesis for each sentence's references.

    sacrebleu would silently score the sentences that both have.
    """
    for name, hypotheses in systems.items():
        if len(hypotheses) != len(references):
            raise InputError(
                f"{name} has {len(hypotheses)} hypotheses, and there are references of "
                f"{len(references)} sentences; both must have one line a sentence"
            )
        if not hypotheses:
            raise InputError(f"{name} has no hypotheses; there is nothing to score")
    for index, alternatives in enumerate(references):
        if not alternatives:
            raise InputError(f"sentence {index} (counted from 0) has no reference")


def bleu_scores(sums: Float64) -> Float64:
    """Return corpus BLEU [...] of sums [..., 10], smoothed as sacrebleu does by default (``exp``).

    These are lengths of hypotheses and references, n-grams that match, and n-grams; n = 1..4.
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
    """Return corpus chrF2 [...] of sums [..., 3 * orders].

    These are n-grams of the hypotheses, of the references, and those that match, for each order.
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
    """Return corpus TER [...] of sums [..., 2] of edits, and of mean lengths of the references."""
    edits, length = sums[..., 0], sums[..., 1]
    rate = edits / np.where(length > 0, length, 1)
    return 100 * np.where(length > 0, rate, np.minimum(edits, 1))


_SCORES: Final = {"bleu": bleu_scores, "chrf": chrf_scores, "ter": ter_scores}

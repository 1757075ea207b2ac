"""Corpus scores by sacrebleu, and of many sums of its sentence statistics at once."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from sacrebleu.metrics.base import Metric as SacrebleuMetric
from sacrebleu.metrics.bleu import BLEU as SACREBLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.metrics.ter import TER

from torchtune_smt.core.arrays import Float64
from torchtune_smt.core.errors import InputError
from torchtune_smt.core.text import split_words
from torchtune_smt.core.vocabulary import Vocabulary
from torchtune_smt.kbest.lists import KBestLists
from torchtune_smt.kbest.measure import BLEU
from torchtune_smt.metrics.mix import KINDS, MetricMix

METRICS = tuple(KINDS)


@dataclass(frozen=True)
class CorpusScore:
    """A corpus score of 0..100 (error rates may be more, and less of them is better).

    The name is as sacrebleu writes it, and the signature what it takes to compute the score again.
    Of BLEU there are the brevity penalty, and precisions in percent of n-grams with n = 1..4.
    """

    name: str
    score: float
    signature: str
    brevity_penalty: float | None = None
    precisions: tuple[float, ...] = ()

    def __str__(self) -> str:
        return f"{self.name} {self.score:.2f} ({self.signature})"


@dataclass(frozen=True)
class CorpusStatistics:
    """What a metric says of a system's translations.

    The corpus score is a function of the sums of the sentences' rows [n, statistics].
    """

    rows: Float64
    score: CorpusScore


class StatisticsExtractor:
    """Extracts a metric's statistics and score, with references that are prepared once.

    BLEU is counted by sacrebleu, chrF and TER as it does; words of WER are between blanks.

    metric: of `METRICS`; or a weighted sum of some, as for `MetricMix`.
    references: ``references[i]``: those of sentence i; their number may differ.
    tokenize: sacrebleu's tokenizer for BLEU. "none" takes text that is tokenised already as it is.
    lowercase: ignore case.

    As attribute: measure, what the metric is of a corpus. Raises ValueError: the metric or
    tokenizer is unknown.
    """

    def __init__(
        self,
        metric: str | Mapping[str, float],
        references: Sequence[Sequence[str]],
        *,
        tokenize: str = "none",
        lowercase: bool = False,
    ) -> None:
        self._parts: list[StatisticsExtractor] = []
        if not isinstance(metric, str):
            self.measure = MetricMix(metric).measure
            self._parts = [
                StatisticsExtractor(name, references, tokenize=tokenize, lowercase=lowercase)
                for name in metric
            ]
            return
        self._peer, self._lowercase, self._words = None, lowercase, Vocabulary()
        if metric not in ("wer", "cer"):
            streams = None if metric != "bleu" else reference_streams(references)
            self._peer = sacrebleu_metric(metric, tokenize, lowercase, streams)
        self.measure = KINDS[metric]().measure
        if self.measure != BLEU:
            rows = [[self._split(line) for line in row] for row in references]
            self._bound = KINDS[metric]().bind(rows, self._words)
        numbers = {len(row) for row in references}
        self._n_references = numbers.pop() if len(numbers) == 1 else -1

    def score_sums(self, sums: Float64) -> Float64:
        """Return corpus scores [...] of sums of statistics [..., statistics], as people read."""
        return self.measure.of_people(self.measure.scores(sums))

    def extract(self, hypotheses: Sequence[str]) -> CorpusStatistics:
        """Return the statistics of a system."""
        if self._parts:
            found = [part.extract(hypotheses) for part in self._parts]
            rows = np.concatenate([one.rows for one in found], axis=1)
            signature = "; ".join(f"{one.score.name} {one.score.signature}" for one in found)
            of_sums = float(self.score_sums(rows.sum(axis=0)))
            return CorpusStatistics(rows, CorpusScore(self.measure.name, of_sums, signature))
        rows = self._count(hypotheses)
        sums = rows.sum(axis=0)
        if self._peer is None:
            unit = "words" if self.measure.name == "WER" else "characters"
            many = "var" if self._n_references < 0 else self._n_references
            case = "lc" if self._lowercase else "mixed"
            signature = f"nrefs:{many}|case:{case}|unit:{unit}"
            signature += f"|version:rapidfuzz-{version('rapidfuzz')}"
            score = CorpusScore(self.measure.name, float(self.score_sums(sums)), signature)
            return CorpusStatistics(rows, score)
        self._peer.num_refs = self._n_references
        given = sums[[8, 9, *range(8)]] if self.measure == BLEU else sums
        of_peer = self._peer._compute_score_from_stats(given.tolist())
        more = getattr(of_peer, "bp", None), tuple(getattr(of_peer, "precisions", ()))
        signature = str(self._peer.get_signature())
        return CorpusStatistics(rows, CorpusScore(of_peer.name, of_peer.score, signature, *more))

    def _split(self, line: str) -> list[str]:
        if self._peer is not None:
            # Its words are between blanks of all kinds.
            return self._peer._preprocess_segment(line).split()
        return split_words(line.lower() if self._lowercase else line)

    def _count(self, lines: Sequence[str]) -> Float64:
        """Return the statistics of hypotheses, one a sentence."""
        if self.measure == BLEU:
            assert self._peer is not None
            rows = np.array(self._peer._extract_corpus_statistics(lines, None), np.float64)
            # As `BleuReferences.statistics` has them.
            return rows[:, [*range(2, 10), 0, 1]]
        texts = [[" ".join(self._split(line))] for line in lines]
        lists = KBestLists.of_strings(texts, words=self._words)
        return np.concatenate([self._bound.statistics(kbest) for kbest in lists]).astype(np.float64)


def corpus_bleu(
    hypotheses: Sequence[str],
    references: Sequence[Sequence[str]],
    *,
    tokenize: str = "none",
    lowercase: bool = False,
) -> CorpusScore:
    """Return sacrebleu's corpus BLEU; see `StatisticsExtractor`; for errors `check_lengths`."""
    check_lengths({"the system": hypotheses}, references)
    extractor = StatisticsExtractor("bleu", references, tokenize=tokenize, lowercase=lowercase)
    return extractor.extract(hypotheses).score


def sacrebleu_metric(
    name: str,
    tokenize: str = "none",
    lowercase: bool = False,
    streams: list[list[str]] | None = None,
) -> SacrebleuMetric:
    """Return sacrebleu's metric of that name, which keeps what it needs of references, if given."""
    if name == "bleu":
        if tokenize not in SACREBLEU.TOKENIZERS:
            raise ValueError(
                f"unknown tokenizer {tokenize!r}: choose one of {', '.join(SACREBLEU.TOKENIZERS)}"
            )
        # `force`: no warning that text looks tokenised, which is what "none" is for.
        force = tokenize == "none"
        try:
            return SACREBLEU(
                lowercase=lowercase, tokenize=tokenize, force=force, references=streams
            )
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


def bleu_scores(sums: NDArray[Any]) -> Float64:
    """Return corpus BLEU [...] of sums [..., 10], smoothed as sacrebleu does by default."""
    return 100 * BLEU.scores(sums)

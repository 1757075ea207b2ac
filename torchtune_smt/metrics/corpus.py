"""Corpus scores, always computed by sacrebleu."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
from numpy.typing import NDArray
from sacrebleu.metrics.base import Metric as SacrebleuMetric
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.metrics.ter import TER

from torchtune_smt.core.errors import InputError

METRICS = ("bleu", "chrf", "ter")


@dataclass(frozen=True)
class CorpusScore:
    """A corpus score.

    Attributes
    ----------
    name : str
        As sacrebleu writes it: BLEU, chrF2, TER.
    score : float
        0..100 (TER may be more); of TER less is better.
    signature : str
        What it takes to compute the same score again.
    """

    name: str
    score: float
    signature: str

    def __str__(self) -> str:
        return f"{self.name} {self.score:.2f} ({self.signature})"


def corpus_scores(
    hypotheses: Sequence[str],
    references: Sequence[Sequence[str]],
    metrics: Sequence[str] = METRICS,
    *,
    tokenize: str = "none",
    lowercase: bool = False,
) -> dict[str, CorpusScore]:
    """Return corpus scores by sacrebleu.

    Parameters
    ----------
    hypotheses : sequence of str
    references : sequence of sequence of str
        ``references[i]``: those of sentence i; their number may differ.
    metrics : sequence of str
        Of "bleu", "chrf" and "ter".
    tokenize : str
        sacrebleu's tokenizer for BLEU. "none" takes text that is tokenised already as it is.
    lowercase : bool
        Ignore case.

    Returns
    -------
    dict
        The scores by the names in `metrics`.

    Raises
    ------
    InputError
        There are no hypotheses, not as many as sentences with references, or a sentence has
        no reference.
    ValueError
        A metric or tokenizer is unknown.
    """
    check_lengths({"the system": hypotheses}, references)
    streams = reference_streams(references)
    scores = {}
    for name in metrics:
        metric = sacrebleu_metric(name, tokenize, lowercase)
        score = metric.corpus_score(hypotheses, streams)
        scores[name] = CorpusScore(score.name, score.score, str(metric.get_signature()))
    return scores


def corpus_bleu(
    hypotheses: Sequence[str],
    references: Sequence[Sequence[str]],
    *,
    tokenize: str = "none",
    lowercase: bool = False,
) -> CorpusScore:
    """Return corpus BLEU by sacrebleu; see `corpus_scores`."""
    scores = corpus_scores(
        hypotheses, references, ("bleu",), tokenize=tokenize, lowercase=lowercase
    )
    return scores["bleu"]


def bleu_of_statistics(totals: NDArray[np.int64]) -> float:
    """Return corpus BLEU (0..100) of BLEU's statistics summed over a corpus.

    Parameters
    ----------
    totals : int64 [10]
        m_1..m_4, l_1..l_4, c, r; see `BleuReferences.statistics`.
    """
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
    """Return sacrebleu's metric of that name; see `corpus_scores`.

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
        return BLEU(lowercase=lowercase, tokenize=tokenize, force=force, references=streams)
    if name == "chrf":
        return CHRF(lowercase=lowercase, references=streams)
    if name == "ter":
        return TER(case_sensitive=not lowercase, references=streams)
    raise ValueError(f"unknown metric {name!r}: choose of {', '.join(METRICS)}")


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

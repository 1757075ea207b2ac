"""Is one system better than another: paired significance tests, computed by sacrebleu."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

from sacrebleu.significance import PairedTest, Result

from torchtune_smt.metrics.corpus import check_lengths, reference_streams, sacrebleu_metric

Test = Literal["bootstrap", "randomization"]
_ABBREVIATIONS = {"bootstrap": "bs", "randomization": "ar"}


@dataclass(frozen=True)
class Comparison:
    """One system compared with the baseline by one metric.

    Attributes
    ----------
    system, baseline : str
    metric : str
        As sacrebleu writes it: BLEU, chrF2, TER.
    score, baseline_score : float
        Corpus scores.
    p_value : float
        Of a difference at least this large if the systems were equally good.
    signature : str
        sacrebleu's, with test, samples and seed.
    """

    system: str
    baseline: str
    metric: str
    score: float
    baseline_score: float
    p_value: float
    signature: str

    def __str__(self) -> str:
        return (
            f"{self.system} against {self.baseline}: {self.metric} {self.score:.2f} against "
            f"{self.baseline_score:.2f}, p = {self.p_value:.4f} ({self.signature})"
        )


def compare(
    systems: Mapping[str, Sequence[str]],
    references: Sequence[Sequence[str]],
    *,
    test: Test = "bootstrap",
    metrics: Sequence[str] = ("bleu",),
    samples: int = 0,
    seed: int = 12345,
    tokenize: str = "none",
    lowercase: bool = False,
) -> list[Comparison]:
    """Compare systems with the first one.

    Parameters
    ----------
    systems : mapping of str to sequence of str
        Hypotheses by name, one a sentence; the first system is the baseline.
    references : sequence of sequence of str
        ``references[i]``: those of sentence i.
    test : "bootstrap" or "randomization"
        Paired bootstrap (Koehn, 2004) or approximate randomisation (Noreen, 1989).
    metrics, tokenize, lowercase
        As for `torchtune_smt.metrics.corpus.corpus_scores`.
    samples : int
        Resamples or trials; 0: 1,000 for the bootstrap, 10,000 for randomisation.
    seed : int
        Above 0.

    Returns
    -------
    list of Comparison
        One a metric and a system other than the baseline.

    Raises
    ------
    InputError
        The numbers of hypotheses and references differ.
    ValueError
        An argument is out of range, or fewer than two systems are given.
    """
    if test not in _ABBREVIATIONS:
        raise ValueError(f'test must be "bootstrap" or "randomization", not {test!r}')
    if len(systems) < 2:
        raise ValueError(f"a comparison takes two systems or more, not {len(systems)}")
    if seed < 1:
        raise ValueError(f"seed must be above 0, not {seed}")
    if samples < 0:
        raise ValueError(f"samples must be 0 or more, not {samples}")
    systems = {name: list(hypotheses) for name, hypotheses in systems.items()}
    check_lengths(systems, references)
    with _sacrebleu_seed(seed):
        paired_test = PairedTest(
            list(systems.items()),
            {name: sacrebleu_metric(name, tokenize, lowercase) for name in metrics},
            reference_streams(references),
            test_type=_ABBREVIATIONS[test],
            n_samples=samples,
        )
    signatures, scores = paired_test()
    baseline, *others = systems
    comparisons = []
    for metric, signature in signatures.items():
        first, *rest = (entry for entry in scores[metric] if isinstance(entry, Result))
        for system, result in zip(others, rest, strict=True):
            assert result.p_value is not None
            comparisons.append(
                Comparison(
                    system,
                    baseline,
                    metric,
                    result.score,
                    first.score,
                    result.p_value,
                    str(signature),
                )
            )
    return comparisons


@contextmanager
def _sacrebleu_seed(seed: int) -> Iterator[None]:
    """Set sacrebleu's seed, which it takes from the environment only."""
    before = os.environ.get("SACREBLEU_SEED")
    os.environ["SACREBLEU_SEED"] = str(seed)
    try:
        yield
    finally:
        if before is None:
            del os.environ["SACREBLEU_SEED"]
        else:
            os.environ["SACREBLEU_SEED"] = before

"""Corpus scores of systems, how sure they are, and comparisons with a baseline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from torchtune_smt.core.arguments import check_whole
from torchtune_smt.core.arrays import Float64
from torchtune_smt.evaluation import significance
from torchtune_smt.evaluation.significance import PValue
from torchtune_smt.metrics.corpus import CorpusScore, StatisticsExtractor, check_lengths

Test = Literal["bootstrap", "randomization"]
SAMPLES: Final = 10_000
SEED: Final = 12345
_TESTS: Final = {
    "bootstrap": significance.bootstrap_test,
    "randomization": significance.randomization_test,
}
_TRIALS: Final = {"bootstrap": "samples", "randomization": "trials"}
# In percent; between them lie 95%.
_INTERVAL: Final = (2.5, 97.5)


def said_p(p: float) -> str:
    """Return a p-value with four digits behind the point, or with what it takes not to be 0."""
    said = f"{p:.4f}"
    return said if float(said) else f"{p:.1g}"


@dataclass(frozen=True)
class SystemScore:
    """The score of a system by one metric.

    Attributes
    ----------
    score : CorpusScore
        Means over the runs.
    runs : tuple of float
        The scores of the runs.
    low, high : float
        95% of the means over the runs lie between them on sentences that are drawn anew
        (percentiles of the bootstrap; Koehn 2004).
    s_sel : float
        Standard deviation of a run's score over sentences that are drawn anew, mean of the runs
        (Clark et al. 2011).
    s_opt : float
        Standard deviation over the runs (the same); 0 for one run.
    """

    score: CorpusScore
    runs: tuple[float, ...]
    low: float
    high: float
    s_sel: float
    s_opt: float

    def __str__(self) -> str:
        text = f"{self.score}, 95%: {self.low:.2f} to {self.high:.2f}"
        if self.score.precisions:
            precisions = "/".join(f"{precision:.1f}" for precision in self.score.precisions)
            text += f"; BP {self.score.brevity_penalty:.3f}, precisions {precisions}"
        if len(self.runs) > 1:
            text += (
                f"; mean of {len(self.runs)} runs, s_sel {self.s_sel:.2f}, s_opt {self.s_opt:.2f}"
            )
        return text


@dataclass(frozen=True)
class Comparison:
    """One system compared with the baseline by one metric.

    Attributes
    ----------
    system, baseline : str
    metric : str
        As sacrebleu writes it: BLEU, chrF2, TER.
    score, baseline_score : float
        Corpus scores; means over the runs.
    p_value : float
        Of a difference at least this large if the systems were equally good, for these runs.
    test : str
        What was done for `p_value`, in words.
    p_runs : PValue, optional
        Of a difference at least this large if the two ways of tuning were equally good, where a
        system has several runs; see `torchtune_smt.evaluation.significance.runs_test`.
    """

    system: str
    baseline: str
    metric: str
    score: float
    baseline_score: float
    p_value: float
    test: str
    p_runs: PValue | None = None

    def __str__(self) -> str:
        text = (
            f"{self.system} against {self.baseline}: {self.metric} {self.score:.2f} against "
            f"{self.baseline_score:.2f}"
        )
        of_sentences = f"p = {said_p(self.p_value)} ({self.test})"
        if self.p_runs is None:
            return f"{text}, {of_sentences}"
        of_runs = f"p = {said_p(self.p_runs.value)} ({_describe('divisions', self.p_runs)})"
        return f"{text}, over runs {of_runs}; over sentences {of_sentences}"


class Evaluation:
    """Systems that translated the same sentences.

    Parameters
    ----------
    systems : mapping of str to sequence of sequence of str
        The runs of each system by its name, and each run's hypotheses, one a sentence. Runs are
        those of one way to tune with different seeds; a system of which there is no more than one
        output has one.
    references : sequence of sequence of str
        ``references[i]``: those of sentence i.
    metrics, tokenize, lowercase
        As for `torchtune_smt.metrics.corpus.StatisticsExtractor`.

    Raises
    ------
    InputError
        The numbers of hypotheses and references differ.
    ValueError
        A metric or tokenizer is unknown, or a system has no runs.
    TypeError
        A system is a list of hypotheses, not of runs.
    """

    def __init__(
        self,
        systems: Mapping[str, Sequence[Sequence[str]]],
        references: Sequence[Sequence[str]],
        metrics: Sequence[str] = ("bleu",),
        *,
        tokenize: str = "none",
        lowercase: bool = False,
    ) -> None:
        for name, runs in systems.items():
            if not runs:
                raise ValueError(f"{name} has no runs")
            for run in runs:
                if isinstance(run, str):
                    raise TypeError(f"{name} must be a list of runs, each a list of hypotheses")
                check_lengths({name: run}, references)
        self._measured = [
            _Metric(
                systems, StatisticsExtractor(m, references, tokenize=tokenize, lowercase=lowercase)
            )
            for m in metrics
        ]
        self._systems = list(systems)

    def scores(self, *, samples: int = SAMPLES, seed: int = SEED) -> dict[str, list[SystemScore]]:
        """Return the scores of each system, one a metric.

        Parameters
        ----------
        samples : int
            Of the bootstrap; 1 or more.
        seed : int
            Of the bootstrap; 0 or more.

        Raises
        ------
        ValueError
            An argument is out of range.
        """
        _check_sampling(samples, seed)
        return {
            system: [measured.describe(system, samples, seed) for measured in self._measured]
            for system in self._systems
        }

    def median_run(self, system: str) -> int:
        """Return the number (from 0) of a system's median run by the first metric.

        Of an even number of runs it is the lower of the two in the middle; of runs with equal
        scores the first.
        """
        order = np.argsort(self._measured[0].run_scores(system), kind="stable")
        return int(order[(order.size - 1) // 2])

    def compare(
        self,
        *,
        baseline: str | None = None,
        test: Test = "randomization",
        samples: int = SAMPLES,
        seed: int = SEED,
    ) -> list[Comparison]:
        """Compare each system with a baseline.

        Parameters
        ----------
        baseline : str, optional
            The name of a system; by default the first.
        test : "bootstrap" or "randomization"
            Paired bootstrap (Koehn 2004) or approximate randomisation (Noreen 1989); see
            `torchtune_smt.evaluation.significance`.
        samples : int
            Samples or trials; 1 or more.
        seed : int
            0 or more.

        Returns
        -------
        list of Comparison
            Metric by metric. A p-value depends on the two systems and the seed alone.

        Raises
        ------
        ValueError
            An argument is out of range, or there is no such baseline, or no second system.
        """
        if test not in _TESTS:
            raise ValueError(f'test must be "bootstrap" or "randomization", not {test!r}')
        if len(self._systems) < 2:
            raise ValueError(f"a comparison takes two systems or more, not {len(self._systems)}")
        if baseline is None:
            baseline = self._systems[0]
        if baseline not in self._systems:
            raise ValueError(
                f"there is no system {baseline}; the baseline may be {', '.join(self._systems)}"
            )
        _check_sampling(samples, seed)
        return [
            measured.compare(baseline, system, test, samples, seed)
            for measured in self._measured
            for system in self._systems
            if system != baseline
        ]


class _Metric:
    """The systems as one metric sees them."""

    def __init__(
        self, systems: Mapping[str, Sequence[Sequence[str]]], extractor: StatisticsExtractor
    ) -> None:
        self._score_sums = extractor.score_sums
        # [n, runs, statistics]
        self._rows: dict[str, Float64] = {}
        self._scores: dict[str, list[CorpusScore]] = {}
        for name, runs in systems.items():
            found = [extractor.extract(run) for run in runs]
            self._rows[name] = np.stack([f.rows for f in found], axis=1)
            self._scores[name] = [f.score for f in found]

    def describe(self, system: str, samples: int, seed: int) -> SystemScore:
        drawn = significance.bootstrap_scores(self._rows[system], self._score_sums, samples, seed)
        low, high = np.percentile(drawn.mean(axis=1), _INTERVAL)
        every, runs = self._scores[system], self.run_scores(system)
        first, penalty = every[0], None
        if first.brevity_penalty is not None:
            penalty = float(np.mean([score.brevity_penalty for score in every]))
        precisions = np.mean([score.precisions for score in every], axis=0).tolist()
        return SystemScore(
            CorpusScore(
                first.name, float(runs.mean()), first.signature, penalty, tuple(precisions)
            ),
            tuple(runs.tolist()),
            float(low),
            float(high),
            float(drawn.std(axis=0).mean()),
            float(runs.std(ddof=1)) if runs.size > 1 else 0.0,
        )

    def compare(
        self, baseline: str, system: str, test: Test, samples: int, seed: int
    ) -> Comparison:
        p = _TESTS[test](self._rows[baseline], self._rows[system], self._score_sums, samples, seed)
        runs = self.run_scores(baseline), self.run_scores(system)
        several = runs[0].size + runs[1].size > 2
        return Comparison(
            system,
            baseline,
            self._scores[system][0].name,
            float(runs[1].mean()),
            float(runs[0].mean()),
            p.value,
            f"{test}, {_describe(_TRIALS[test] if not p.exact else 'arrangements', p)}"
            + ("" if p.exact else f", seed {seed}"),
            significance.runs_test(*runs, samples, seed) if several else None,
        )

    def run_scores(self, system: str) -> Float64:
        """Return the score of each run."""
        return np.array([score.score for score in self._scores[system]])


def _check_sampling(samples: int, seed: int) -> None:
    check_whole("samples", samples, 1)
    check_whole("seed", seed, 0)


def _describe(what: str, p: PValue) -> str:
    return f"all {p.trials:,} {what}" if p.exact else f"{p.trials:,} {what}"

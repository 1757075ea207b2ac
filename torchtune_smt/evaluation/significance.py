"""Corpus scores of systems, how sure they are, and the significance of a difference.

A corpus score is a function of statistics that are summed over the sentences. So the score of
another corpus, made of the same sentences, costs no more than the sums. The statistic of all tests
is the difference of two systems' scores, and where a system was tuned several times, of the means
over its runs (Clark et al. 2011). All p-values are two-sided, and 1 for systems that are the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations, permutations
from typing import Any, Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from torchtune_smt.core.accepts import integer, one_of
from torchtune_smt.core.arrays import Float64, Int64
from torchtune_smt.core.checks import stream_seed
from torchtune_smt.evaluation import significance_kernels as kernels
from torchtune_smt.metrics.corpus import CorpusScore, StatisticsExtractor, check_lengths

Test = Literal["bootstrap", "randomization"]
SAMPLES: Final = 10_000
SEED: Final = 12345
# Differences that are equal in theory differ by rounding.
TOLERANCE: Final = 1e-9
# In percent; between them lie 95%.
INTERVAL: Final = (2.5, 97.5)

Score = Callable[[Float64], Float64]
"""Takes sums of statistics [..., statistics] and returns scores [...]."""


class PValue(NamedTuple):
    """The probability of a difference at least this large if there were none.

    trials: random ones, or, if it is `exact`, all arrangements that there are.
    """

    value: float
    trials: int
    exact: bool

    def of(self, trials: str, arrangements: str) -> str:
        """Return what was counted, in words."""
        return f"all {self.trials:,} {arrangements}" if self.exact else f"{self.trials:,} {trials}"


def bootstrap_test(
    baseline: Float64, system: Float64, score: Score, samples: int, seed: int
) -> PValue:
    """Return p of the paired bootstrap: would other sentences show a difference, too?

    Sentences are drawn with replacement, the same ones for all runs. The differences Δ* that come
    out scatter around the observed one, Δ, as Δ does around the true one. So p is the share of
    samples in which Δ* is at least as far from Δ as Δ is from 0. The observed corpus counts as one
    of them, (c + 1) / (samples + 1), which keeps p above 0 (Koehn 2004; centred as in Efron and
    Tibshirani 1993, chapter 16).

    baseline, system (float64 [n, runs, statistics]): of n sentences; runs may be of any number.
    """
    rows = np.concatenate([baseline, system], axis=1)
    runs = baseline.shape[1]
    observed = _difference(score(rows.sum(axis=0)), runs)
    drawn = _difference(bootstrap_scores(rows, score, samples, seed), runs)
    return _p_value(drawn - observed, observed)


def randomization_test(
    baseline: Float64, system: Float64, score: Score, trials: int, seed: int
) -> PValue:
    """Return p of approximate randomisation: does it matter which system wrote a sentence?

    Under the null hypothesis it does not, and the translations of each sentence can be shuffled
    among all runs of both systems: with a run each, they are swapped or not (Noreen 1989). With
    several, this is the stratified test of Clark et al. (2011). p is the share of arrangements
    whose difference is as large as the observed one. If there are no more of them than `trials`,
    as where few sentences differ, they are all counted; otherwise that many are drawn, and the
    observed one is counted with them: (c + 1) / (trials + 1).

    The parameters are those of `bootstrap_test`.
    """
    rows = np.concatenate([baseline, system], axis=1)
    runs = baseline.shape[1]
    observed = _difference(score(rows.sum(axis=0)), runs)
    differs = (rows != rows[:, :1]).any(axis=(1, 2))
    same = rows[~differs].sum(axis=0)
    rows = rows[differs]
    exact = math.factorial(rows.shape[1]) ** len(rows) <= trials
    shuffled = kernels.shuffled_sums(rows, trials, stream_seed([seed])) if not exact else None
    sums = _arranged_sums(rows) if shuffled is None else shuffled
    return _p_value(_difference(score(same + sums), runs), observed, exact)


def runs_test(baseline: Float64, system: Float64, trials: int, seed: int) -> PValue:
    """Return p of a permutation test of whole runs: would other runs show a difference, too?

    It asks whether the two sets of scores (float64 [runs], the numbers may differ) are
    exchangeable, and knows nothing of sentences. All divisions of the runs among the systems are
    counted, if there are no more than `trials`; otherwise that many are drawn, as in
    `randomization_test`.
    """
    scores = np.concatenate([baseline, system])
    observed = _difference(scores, baseline.size)
    if math.comb(scores.size, baseline.size) <= trials:
        chosen = np.array(list(combinations(range(scores.size), baseline.size)))
        first = scores[chosen].sum(axis=1)
        means = first / baseline.size, (scores.sum() - first) / system.size
        return _p_value(means[1] - means[0], observed, exact=True)
    shuffled = np.tile(scores, (trials, 1))
    np.random.default_rng(seed).permuted(shuffled, axis=1, out=shuffled)
    return _p_value(_difference(shuffled, baseline.size), observed)


def bootstrap_scores(rows: Float64, score: Score, samples: int, seed: int) -> Float64:
    """Return the scores (float64 [samples, runs]) of corpora drawn with replacement.

    The corpora of equal seeds have the same sentences; `rows` are float64 [n, runs, statistics].
    """
    return score(kernels.resampled_sums(rows, samples, stream_seed([seed])))


def _difference(scores: Float64, runs: int) -> Float64:
    difference: Float64 = scores[..., runs:].mean(axis=-1) - scores[..., :runs].mean(axis=-1)
    return difference


def _p_value(differences: Float64, observed: Float64, exact: bool = False) -> PValue:
    """Return the share of differences that are as large; where not all are, with the observed."""
    found = np.abs(differences) >= np.abs(observed) - TOLERANCE
    value = float(found.mean()) if exact else (int(found.sum()) + 1) / (found.size + 1)
    return PValue(value, found.size, exact)


def _arranged_sums(rows: Float64) -> Float64:
    """Return the sums [(runs!)^n, runs, statistics] after each permutation within each sentence."""
    n, runs, _ = rows.shape
    orders: Int64 = np.array(list(permutations(range(runs))))
    # The arrangement's number, written with a digit for each sentence.
    number: NDArray[np.int64] = np.arange(len(orders) ** n)
    sums = np.zeros((number.size, *rows.shape[1:]))
    for sentence in rows:
        sums += sentence[orders[number % len(orders)]]
        number //= len(orders)
    return sums


_TESTS: Final = {
    "bootstrap": (bootstrap_test, "samples"),
    "randomization": (randomization_test, "trials"),
}


def said_p(p: float) -> str:
    """Return a p-value with four digits behind the point, or with what it takes not to be 0."""
    said = f"{p:.4f}"
    return said if float(said) else f"{p:.1g}"


class SystemScore(NamedTuple):
    """The score of a system by one metric.

    score: means over the runs.
    runs: the scores of the runs.
    low, high: 95% of the means over the runs lie between them on sentences that are drawn anew
        (percentiles of the bootstrap; Koehn 2004).
    s_sel: standard deviation of a run's score over sentences that are drawn anew, mean of the runs
        (Clark et al. 2011).
    s_opt: standard deviation over the runs (the same); 0 for one run.
    """

    score: CorpusScore
    runs: tuple[float, ...]
    low: float
    high: float
    s_sel: float
    s_opt: float

    def __str__(self) -> str:
        found = [f"{self.score}, 95%: {self.low:.2f} to {self.high:.2f}"]
        if self.score.precisions:
            precisions = "/".join(f"{precision:.1f}" for precision in self.score.precisions)
            found.append(f"BP {self.score.brevity_penalty:.3f}, precisions {precisions}")
        if len(self.runs) > 1:
            spread = f"s_sel {self.s_sel:.2f}, s_opt {self.s_opt:.2f}"
            found.append(f"mean of {len(self.runs)} runs, {spread}")
        return "; ".join(found)


class Comparison(NamedTuple):
    """One system compared with the baseline by one metric, as sacrebleu writes it: BLEU, chrF2.

    score, baseline_score: corpus scores; means over the runs.
    p_value: of a difference at least this large if the systems were equally good, for these runs.
    test: what was done for `p_value`, in words.
    p_runs: of a difference at least this large if the two ways of tuning were equally good, where a
        system has several runs; see `runs_test`.
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
        of_runs = f"p = {said_p(self.p_runs.value)} ({self.p_runs.of('divisions', 'divisions')})"
        return f"{text}, over runs {of_runs}; over sentences {of_sentences}"


class Evaluation:
    """Systems that translated the same sentences.

    systems: the runs of each system by its name, and each run's hypotheses, one a sentence. Runs
        are those of one way to tune with different seeds; a system of which there is no more than
        one output has one.
    references: ``references[i]``: those of sentence i.
    metrics, tokenize, lowercase: as for `torchtune_smt.metrics.corpus.StatisticsExtractor`.

    Raises InputError: the numbers of hypotheses and references differ.
    Raises ValueError: a metric or tokenizer is unknown.
    """

    def __init__(
        self,
        systems: Mapping[str, Sequence[Sequence[str]]],
        references: Sequence[Sequence[str]],
        metrics: Sequence[str | Mapping[str, float]] = ("bleu",),
        *,
        tokenize: str = "none",
        lowercase: bool = False,
    ) -> None:
        for name, runs in systems.items():
            for run in runs:
                check_lengths({name: run}, references)
        text: dict[str, Any] = {"tokenize": tokenize, "lowercase": lowercase}
        self._measured = [
            _Metric(systems, StatisticsExtractor(m, references, **text)) for m in metrics
        ]
        self._systems = list(systems)

    def scores(self, *, samples: int = SAMPLES, seed: int = SEED) -> dict[str, list[SystemScore]]:
        """Return the scores of each system, one a metric; ValueError: see `compare`."""
        _check_sampling(samples, seed)
        return {
            system: [measured.describe(system, samples, seed) for measured in self._measured]
            for system in self._systems
        }

    def median_run(self, system: str) -> int:
        """Return the number (from 0) of a system's median run by the first metric.

        Of two in the middle it is the lower one, of runs with equal scores the first.
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

        baseline: the name of a system; by default the first.
        test: `bootstrap_test` or `randomization_test`.
        samples: samples or trials; 1 or more.
        seed: 0 or more. A p-value depends on the two systems and the seed alone.

        Returns list of Comparison: metric by metric.

        Raises ValueError: an argument is out of range.
        """
        one_of(*_TESTS).check("test", test)
        _check_sampling(samples, seed)
        baseline = baseline or self._systems[0]
        others = [system for system in self._systems if system != baseline]
        return [
            measured.compare(baseline, system, test, samples, seed)
            for measured in self._measured
            for system in others
        ]


class _Metric:
    def __init__(
        self, systems: Mapping[str, Sequence[Sequence[str]]], extractor: StatisticsExtractor
    ) -> None:
        self._score_sums = extractor.score_sums
        found = {name: [extractor.extract(run) for run in runs] for name, runs in systems.items()}
        # [n, runs, statistics]
        self._rows = {n: np.stack([one.rows for one in some], axis=1) for n, some in found.items()}
        self._scores = {name: [one.score for one in some] for name, some in found.items()}

    def describe(self, system: str, samples: int, seed: int) -> SystemScore:
        drawn = bootstrap_scores(self._rows[system], self._score_sums, samples, seed)
        low, high = np.percentile(drawn.mean(axis=1), INTERVAL)
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
        function, trials = _TESTS[test]
        p = function(self._rows[baseline], self._rows[system], self._score_sums, samples, seed)
        runs = self.run_scores(baseline), self.run_scores(system)
        several = runs[0].size + runs[1].size > 2
        return Comparison(
            system,
            baseline,
            self._scores[system][0].name,
            *(float(runs[1].mean()), float(runs[0].mean()), p.value),
            f"{test}, {p.of(trials, 'arrangements')}" + ("" if p.exact else f", seed {seed}"),
            runs_test(*runs, samples, seed) if several else None,
        )

    def run_scores(self, system: str) -> Float64:
        return np.array([score.score for score in self._scores[system]])


def _check_sampling(samples: int, seed: int) -> None:
    integer(1).check("samples", samples)
    integer(0).check("seed", seed)

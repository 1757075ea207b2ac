"""Significance tests against enumeration of texts, plain Python, scipy, and simulated systems."""

import math
import sys
from itertools import permutations, product
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from torchtune_smt.core.errors import InputError
from torchtune_smt.evaluation import Evaluation
from torchtune_smt.evaluation.significance import (
    bootstrap_scores,
    bootstrap_test,
    randomization_test,
    runs_test,
    said_p,
)
from torchtune_smt.evaluation.significance_kernels import resampled_sums, shuffled_sums
from torchtune_smt.metrics.corpus import (
    METRICS,
    CorpusScore,
    StatisticsExtractor,
    reference_streams,
    sacrebleu_metric,
)

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "scripts" / "experiments" / "bench"))
import significance as simulation
from short_example import WHOLE

# A population of few sentences has too few outputs of equal score.
simulation.example_folder = lambda: WHOLE

WORDS = [f"w{i}" for i in range(12)]
Texts = list[list[str]]


def make_texts(seed, sentences, runs):
    generator = np.random.default_rng(seed)
    references = [" ".join(generator.choice(WORDS, 7)) for _ in range(sentences)]
    rates = [0.3] * sentences
    outputs = [simulation.noisy(references, rates, generator) for _ in range(runs)]
    return outputs, [[reference] for reference in references]


def make_rows(metric, outputs, references):
    extractor = StatisticsExtractor(metric, references)
    return np.stack([extractor.extract(o).rows for o in outputs], axis=1), extractor.score_sums


def corpus_score(metric, hypotheses, references):
    if metric in METRICS[3:]:
        return StatisticsExtractor(metric, references).extract(hypotheses).score
    peer = sacrebleu_metric(metric)
    found = peer.corpus_score(hypotheses, reference_streams(references))
    return CorpusScore(found.name, found.score, str(peer.get_signature()))


def difference(metric, outputs, references, first):
    """Return the difference of the mean scores of the other runs and the first ones, of texts."""
    scores = [corpus_score(metric, o, references).score for o in outputs]
    return float(np.mean(scores[first:]) - np.mean(scores[:first]))


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize(("sentences", "runs", "first"), [(4, 2, 1), (2, 3, 1), (2, 3, 2)])
def test_randomization_equals_enumeration_of_texts(metric, sentences, runs, first):
    outputs, references = make_texts(1, sentences, runs)
    rows, score = make_rows(metric, outputs, references)
    assert (rows != rows[:, :1]).any(axis=(1, 2)).all()
    observed = difference(metric, outputs, references, first)
    as_large = []
    for orders in product(permutations(range(runs)), repeat=sentences):
        shuffled = [[outputs[o[run]][i] for i, o in enumerate(orders)] for run in range(runs)]
        found = difference(metric, shuffled, references, first)
        as_large.append(abs(found) >= abs(observed) - 1e-9)
    p = randomization_test(rows[:, :first], rows[:, first:], score, 10_000, 0)
    assert p == (np.mean(as_large), len(as_large), True)


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("runs", [2, 5])
def test_random_trials_equal_those_of_texts(metric, runs):
    """Where lines go is told by sums of a statistic for each line of each run."""
    sentences, trials, first = 20, 30, runs // 2
    outputs, references = make_texts(2, sentences, runs)
    rows, score = make_rows(metric, outputs, references)
    observed = difference(metric, outputs, references, first)
    differing = np.flatnonzero((rows != rows[:, :1]).any(axis=(1, 2)))
    marks = np.eye(differing.size * runs).reshape(differing.size, runs, -1)
    count = 1
    for to in shuffled_sums(marks, trials, np.array([7])):
        shuffled = [list(output) for output in outputs]
        for run in range(runs):
            (lines,) = np.nonzero(to[run])
            assert (lines // runs == np.arange(differing.size)).all()
            for i, line in zip(differing, lines, strict=True):
                shuffled[run][i] = outputs[line % runs][i]
        count += abs(difference(metric, shuffled, references, first)) >= abs(observed) - 1e-9
    p = randomization_test(rows[:, :first], rows[:, first:], score, trials, 7)
    assert p == (count / (trials + 1), trials, False)
    assert 1 < count < trials
    # And drawn with replacement.
    outputs, references = make_texts(3, sentences, runs)
    rows, score = make_rows(metric, outputs, references)
    observed = difference(metric, outputs, references, first)
    times = resampled_sums(np.eye(sentences)[:, None], trials, np.array([3]))[:, 0]
    count, drawn = 1, []
    for numbers in times.astype(int):
        chosen = np.repeat(np.arange(sentences), numbers)
        texts = [[output[i] for i in chosen] for output in outputs]
        their_references = [references[i] for i in chosen]
        found = difference(metric, texts, their_references, first)
        count += abs(found - observed) >= abs(observed) - 1e-9
        drawn.append(corpus_score(metric, texts[0], their_references).score)
    p = bootstrap_test(rows[:, :first], rows[:, first:], score, trials, 3)
    assert p == (count / (trials + 1), trials, False)
    assert 1 < count < trials
    assert bootstrap_scores(rows[:, :1], score, trials, 3)[:, 0] == pytest.approx(drawn)


@pytest.mark.parametrize(("first", "second"), [(2, 3), (3, 3), (4, 2)])
def test_divisions_of_runs_equal_scipy(first, second):
    scores = np.random.default_rng(first).normal(40, 1, first + second)
    expected = stats.permutation_test(
        (scores[:first], scores[first:]),
        lambda a, b, axis: np.abs(a.mean(axis) - b.mean(axis)),
        alternative="greater",
        n_resamples=np.inf,
    )
    found = runs_test(scores[:first], scores[first:], 10_000, 0)
    assert found == (expected.pvalue, math.comb(first + second, first), True)


def test_random_divisions_of_runs():
    scores = np.random.default_rng(0).normal(40, 1, 10)
    exact = runs_test(scores[:5], scores[5:], 252, 0)
    drawn = runs_test(scores[:5], scores[5:], 251, 0)
    assert (exact.exact, drawn.exact) == (True, False)
    assert drawn.value == pytest.approx(exact.value, abs=3 * math.sqrt(0.25 / 251))
    # Apart as far as can be: one division and its mirror image of 20.
    assert runs_test(np.arange(3.0), np.arange(3.0) + 9, 20, 0).value == 0.1


def test_orders_and_draws_are_fair_and_independent():
    sums = shuffled_sums(np.eye(3)[None], 6000, np.array([5]))
    codes = (sums.argmax(axis=2) * [9, 3, 1]).sum(axis=1)
    _, counts = np.unique(codes, return_counts=True)
    assert counts.size == 6
    sums = shuffled_sums(np.eye(4).reshape(2, 2, 4), 4000, np.array([5]))
    together = np.bincount((sums[:, 0, 0] * 2 + sums[:, 0, 2]).astype(int), minlength=4)
    n, samples = 10, 4000
    times = resampled_sums(np.eye(n)[:, None], samples, np.array([5]))[:, 0]
    assert (times.sum(axis=1) == n).all()
    for seen in (counts, together, times.sum(axis=0)):
        assert stats.chisquare(seen).pvalue > 0.001
    # Of a multinomial distribution.
    expected = np.eye(n) - 1 / n
    assert np.abs(np.cov(times.T) - expected).max() < 6 * math.sqrt(3 / samples)
    # So that s_sel is the standard error of a mean.
    values = np.random.default_rng(0).normal(40, 5, 400)
    drawn = bootstrap_scores(values[:, None, None], lambda sums: sums[..., 0] / 400, 10_000, 0)
    assert drawn.std() == pytest.approx(values.std() / 20, rel=0.03)
    assert drawn.mean() == pytest.approx(values.mean(), abs=0.01)


@pytest.mark.parametrize("test", ["bootstrap", "randomization"])
def test_equal_systems_do_not_differ(test):
    outputs, references = make_texts(5, 30, 2)
    same = Evaluation({"a": outputs[:1], "b": outputs[:1]}, references, METRICS)
    runs = Evaluation({"a": outputs, "b": outputs[::-1]}, references, METRICS)
    # One sentence proves nothing.
    other = [references[0][0], *outputs[0][1:]]
    one = Evaluation({"a": outputs[:1], "b": [other]}, references, METRICS)
    assert other != outputs[0]
    for systems in (same, runs, one) if test == "randomization" else (same, runs):
        found = systems.compare(test=test, samples=100)
        assert [c.p_value for c in found] == [1] * len(METRICS)
        assert [c.p_runs.value for c in found if c.p_runs] == [1] * len(METRICS) * (systems is runs)
    assert {c.test for c in one.compare()} == {"randomization, all 2 arrangements"}


@pytest.fixture(scope="module")
def systems():
    generator = np.random.default_rng(1)
    pool = [f"w{i}" for i in range(20)]
    references = [" ".join(generator.choice(pool, 12)) for _ in range(150)]
    rates = {"base": 0.30, "better": 0.15, "alike": 0.29}
    outputs = {
        name: [simulation.noisy(references, [rate] * 150, generator) for _ in range(2)]
        for name, rate in rates.items()
    }
    return outputs, [[reference] for reference in references]


@pytest.mark.parametrize("test", ["bootstrap", "randomization"])
def test_comparisons(systems, test):
    outputs, references = systems
    given = {name: runs[:1] for name, runs in outputs.items()}
    one = Evaluation(given, references, METRICS)
    found = one.compare(test=test, samples=500, seed=3)
    assert [(c.metric, c.system, c.baseline) for c in found] == [
        (metric, system, "base")
        for metric in ("BLEU", "chrF2", "TER", "WER", "CER")
        for system in list(given)[1:]
    ]
    for better, alike in zip(found[::2], found[1::2], strict=True):
        assert better.p_value < 0.01 < 0.05 < alike.p_value
        assert better.p_runs is None
    number = "500 samples" if test == "bootstrap" else "500 trials"
    assert found[0].test == f"{test}, {number}, seed 3"
    assert str(found[0]).startswith("better against base: BLEU ")
    assert str(found[0]).endswith(f", p = {found[0].p_value:.4f} ({found[0].test})")
    # Neither other systems nor other metrics change a p-value.
    alone = Evaluation({n: given[n] for n in ("base", "alike")}, references, ["ter"])
    assert alone.compare(test=test, samples=500, seed=3) == [found[5]]
    # Runs are averaged.
    for systems_, some in ((given, found), (outputs, None)):
        some = some or Evaluation(outputs, references).compare(test=test, samples=500)
        scores = {
            name: np.array([corpus_score("bleu", run, references).score for run in runs])
            for name, runs in systems_.items()
        }
        for comparison in some[:2]:
            mine, base = scores[comparison.system], scores["base"]
            assert (comparison.score, comparison.baseline_score) == (mine.mean(), base.mean())
        assert some[0].p_value < 0.01 < 0.05 < some[1].p_value
    for comparison in some:
        expected = runs_test(scores["base"], scores[comparison.system], 500, 12345)
        assert comparison.p_runs == expected
        over_runs = f", over runs p = {expected.value:.4f} (all 6 divisions); over sentences p = "
        assert over_runs in str(comparison)


def test_scores_and_their_deviations(systems):
    outputs, references = systems
    found = Evaluation(outputs, references, ["bleu", "ter"]).scores(samples=400, seed=9)
    assert list(found) == list(outputs)
    for name, runs in outputs.items():
        for metric, described in zip(("bleu", "ter"), found[name], strict=True):
            scores = [corpus_score(metric, run, references) for run in runs]
            values = [score.score for score in scores]
            assert described.runs == tuple(values)
            assert described.score.score == np.mean(values)
            assert described.score.signature == scores[0].signature
            assert described.s_opt == pytest.approx(np.std(values, ddof=1))
            drawn = bootstrap_scores(*make_rows(metric, runs, references), 400, 9)
            assert described.s_sel == pytest.approx(np.mean([drawn[:, r].std() for r in (0, 1)]))
            inside = (drawn.mean(axis=1) >= described.low) & (drawn.mean(axis=1) <= described.high)
            assert inside.mean() == pytest.approx(0.95, abs=0.005)
            assert "; mean of 2 runs, s_sel " in str(described)
    one = Evaluation({"base": outputs["base"][:1]}, references).scores(samples=400)["base"][0]
    assert one.s_opt == 0 and str(one).startswith(f"{one.score}, 95%: {one.low:.2f} to ")


def test_what_is_given_is_checked(systems):
    outputs, references = systems
    both = Evaluation(*systems)
    for call in (both.compare, both.scores):
        for wrong in ({"seed": -1}, {"samples": 0}):
            with pytest.raises(ValueError, match=min(wrong)):
                call(**wrong)
    base = outputs["base"]
    with pytest.raises(InputError, match="other has 149 hypotheses"):
        Evaluation({"other": [base[0], base[1][:-1]]}, references)


NULLS, SAMPLES, SENTENCES = 1000, 300, 150
# Uniform p-values are further away in 1% of cases.
FAR = 1.63 / math.sqrt(NULLS)


@pytest.fixture(scope="module")
def population():
    """Six outputs for a sentence: the fifth is better, the last as good as the first."""
    generator = np.random.default_rng(1)
    sentences = simulation.references()
    outputs = [
        simulation.noisy(sentences, [rate] * len(sentences), generator)
        for rate in (0.30, 0.36, 0.32, 0.34, 0.20, 0.15, 0.50)
    ]
    found = simulation.measure("bleu", outputs, sentences)
    rows, score = found.rows, found.score
    unlike = simulation.unlike_but_equal(rows[:, 0], rows[:, 5], rows[:, 6], score)
    return simulation.Population(np.concatenate([rows[:, :5], unlike[:, None]], axis=1), score)


@pytest.mark.parametrize("test", [bootstrap_test, randomization_test])
@pytest.mark.parametrize("case", ["swapped", "two runs", "unlike", "planted"])
def test_nulls_are_rejected_as_often_as_allowed(population, test, case):
    """Nulls: translations that are swapped at random between the systems, within each sentence.

    Or systems of equal BLEU in a population of sentences, one of them much more uneven. What is
    planted is a difference, and is found.
    """
    columns = {"two runs": [0, 1, 2, 3], "unlike": [0, 5], "planted": [0, 4]}.get(case, [0, 1])
    totals = population.score(population.rows[:, columns].sum(axis=0))
    assert case != "unlike" or totals[0] == pytest.approx(totals[1], abs=0.05)

    def pair(g):
        found = population.sentences(SENTENCES, g)[:, columns]
        return found if case in ("unlike", "planted") else simulation.swap(found, g)

    own = simulation.own(test, population.score, len(columns) // 2)
    p = simulation.p_values(own, pair, 200 if case == "planted" else NULLS, SAMPLES)
    if case == "planted":
        assert simulation.rejections(p, 0.05) > 0.95
        return
    # The bootstrap is approximate: of 150 sentences it rejects 0.0136, 0.0565 and 0.107 of 12,000
    # nulls of two runs (0.0123, 0.0533 and 0.101 of unlike ones).
    slack = 1.36 if test is bootstrap_test else 1
    for level in simulation.LEVELS:
        assert simulation.rejections(p, level) <= simulation.bound(slack * level, NULLS)
    assert simulation.distance_from_uniform(p) < FAR


@pytest.mark.parametrize(
    ("p", "said"), [(1.0, "1.0000"), (0.04996, "0.0500"), (1e-4, "0.0001"), (1.9e-5, "2e-05")]
)
def test_no_p_is_said_to_be_0(p, said):
    assert said_p(p) == said

"""MERT against dense grids, brute force, sacrebleu, and Moses's figure on Moses's lists."""

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from minimizer_reference import rows_of
from sacrebleu.metrics.bleu import BLEU as Sacrebleu
from sacrebleu.metrics.chrf import CHRF as SacrebleuChrf

from torchtune_smt.core.errors import InputError
from torchtune_smt.decoders.kbest_files import KBestFiles
from torchtune_smt.kbest import measure_kernels as kernels_of
from torchtune_smt.kbest.lists import KBestLists
from torchtune_smt.kbest.measure import BLEU, Measure, Part, error_rate, mean
from torchtune_smt.tuners import mert
from torchtune_smt.tuners import mert_kernels as kernels
from torchtune_smt.tuners.mert import NARROW, Mert
from torchtune_smt.tuners.mira import KBestMira

seeds = st.integers(0, 10**6)
FAR = 1e6
CHRF_SCORE = SacrebleuChrf()


def random_statistics(generator, n, matches=1):
    c = generator.integers(5, 12, n)
    length = np.maximum(c[:, None] - np.arange(4), 0)
    m = np.sort(generator.integers(matches, 5, (n, 4)))[:, ::-1]
    r = c + generator.integers(-2, 4, n)
    return np.column_stack([np.minimum(m, length), length, c, r]).astype(np.int32)


CHRF = Measure("chrF", (Part(kernels_of.CHRF, 18, 1.0, 2.0),))
MIX = Measure("mix", (*BLEU.parts, Part(kernels_of.RATIO, 2, -0.5), *CHRF.parts))
MEASURES = {m.name: m for m in (BLEU, error_rate("WER"), mean("column"), CHRF, MIX)}


def made_up(generator, n, measure):
    parts = []
    for part in measure.parts:
        if part.kind == kernels_of.BLEU:
            parts.append(random_statistics(generator, n, 0))
        elif part.kind == kernels_of.CHRF:
            counts = generator.integers(0, 9, (n, 6, 2))
            both = generator.integers(0, counts.min(axis=-1) + 1)
            parts.append(np.concatenate([counts, both[..., None]], -1).reshape(n, 18))
        elif part.weight < 0:
            # Errors, and the length of the reference.
            parts.append(np.column_stack([generator.integers(0, 9, n), np.full(n, 7.5)]))
        else:
            parts.append(np.column_stack([generator.normal(size=n), np.ones(n)]))
    return np.column_stack(parts).astype(np.int32 if measure in (BLEU, CHRF) else float)


def make_lists(generator, sizes, features, whole=False, statistics=None, measure=BLEU):
    """Return lists with normal or, in part, whole-numbered values (many ties)."""
    n = int(np.sum(sizes))
    values = generator.normal(size=(n, features)).round(3) + 0.0005
    if whole:
        values = generator.integers(-2, 3, (n, features)).astype(float)
    return KBestLists(
        index=np.arange(len(sizes)),
        begin=np.cumsum([0, *sizes]),
        rows=rows_of(values),
        statistics=random_statistics(generator, n) if statistics is None else statistics,
        measure=measure,
    )


def score_of(lists, chosen):
    """Return the corpus score of any measure (larger is better), plainly, or by sacrebleu."""
    total, at, sums = 0, 0, lists.statistics[chosen].sum(axis=0).tolist()
    for part in lists.measure.parts:
        own = sums[at : at + part.width]
        at += part.width
        if part.kind == kernels_of.BLEU:
            m, length, rest = np.split(np.array(own).astype(int), [4, 8])
            given = (m.tolist(), length.tolist(), *rest.tolist())
            score = Sacrebleu.compute_bleu(*given, smooth_method="none").score / 100
        elif part.kind == kernels_of.CHRF:
            score = CHRF_SCORE._compute_f_score(own) / 100
        else:
            score = own[0] / own[1]
        total += part.weight * score
    return total


def line_search(lists, offset, slope, near=(), far=np.inf):
    """Return what the kernels find: BLEU, γ; and thresholds and changes, sorted."""
    n, near = lists.n_hypotheses, np.array(near, np.int64)
    first, gamma = np.empty(len(lists), np.int64), np.empty(n)
    change = np.empty((n, 2), np.int32)
    count = kernels.envelopes(lists.begin, offset, slope, near, far, first, gamma, change)
    order = np.argsort(gamma[:count])
    code = lists.measure.code
    found = kernels.sweep(first, gamma, change, order, lists.statistics, code, NARROW, FAR)
    return *found, gamma[:count], change[:count], first


@given(
    seed=seeds,
    whole=st.booleans(),
    sizes=st.lists(st.integers(1, 30), min_size=1, max_size=3),
    far=st.sampled_from([0.3, 1.0, 5.0, np.inf]),
)
def test_envelopes_against_brute_force(seed, whole, sizes, far):
    """Between its thresholds, the line said to be best is above all others, wherever it starts."""
    generator = np.random.default_rng(seed)
    lists = make_lists(generator, sizes, 2, whole)
    lines = lists.rows.dense(2).T.copy()

    def first_equal(h, begin, end):
        return begin + int((lines[:, begin:end] == lines[:, h : h + 1]).all(0).argmax())

    near = [first_equal(generator.integers(*span), *span) for span in pairwise(lists.begin)]
    *_, gamma, change, first = line_search(lists, *lines, near if far < np.inf else [], far)
    assert (np.abs(gamma) <= far * 1.000001).all()
    for s, (begin, end) in enumerate(pairwise(lists.begin)):
        own = (change[:, 0] >= begin) & (change[:, 0] < end)
        assert (np.diff(gamma[own]) >= -1e-12).all()
        bests = [int(first[s]), *change[own, 1].tolist()]
        assert change[own, 0].tolist() == bests[:-1] and len(set(bests)) == len(bests)
        ends = [-min(far, 1e9), *gamma[own], min(far, 1e9)]
        for line, left, right in zip(bests, ends, ends[1:], strict=False):
            assert line == first_equal(line, begin, end)
            for x in (left, (left + right) / 2, right):
                scores = lines[0, begin:end] + x * lines[1, begin:end]
                rounding = 1e-12 * (1 + abs(x)) if far == np.inf else 1e-5
                assert scores[line - begin] >= scores.max() - rounding


@pytest.mark.parametrize("measure", MEASURES)
@given(seed=seeds)
def test_sweep_against_every_interval(measure, seed):
    """The best of all intervals, each computed anew; of equal ones the nearest."""
    generator, measure = np.random.default_rng(seed), MEASURES[measure]
    statistics = made_up(generator, 12, measure)
    lists = make_lists(generator, [5, 1, 6], 2, False, statistics, measure)
    offset, slope = lists.rows.dense(2).T.copy()
    bleu, gamma, thresholds, *_ = line_search(lists, offset, slope)
    ends = np.sort([-FAR, *thresholds, FAR])
    middles = (ends[1:] + ends[:-1]) / 2
    values = [
        score_of(
            lists, [b + np.argmax((offset + x * slope)[b:e]) for b, e in pairwise(lists.begin)]
        )
        for x in middles
    ]
    assert bleu == pytest.approx(max(values))
    holds = int(np.searchsorted(ends, gamma)) - 1
    assert values[holds] == pytest.approx(bleu)
    away = np.maximum(np.maximum(ends[:-1], -ends[1:]), 0)
    best = [a for a, v in zip(away, values, strict=True) if v > max(values) - 1e-12]
    assert away[holds] == min(best)
    if ends[holds] < 0 < ends[holds + 1]:
        assert gamma == 0
    elif ends[holds] > -FAR and ends[holds + 1] < FAR:
        assert gamma == pytest.approx(middles[holds])


def test_intervals_by_hand():
    """Four-grams that match: 1 or 2 of 7; the better intervals are chosen, and a point in them."""

    def found(gammas, better):
        rows = np.array([[4, 3, 2, 1 + b, 10, 9, 8, 7, 10, 10] for b in better], np.int32)
        change = np.array([*pairwise(range(len(better)))], np.int32)
        lines = np.zeros(1, np.int64), np.array(gammas, float), change, np.arange(len(gammas))
        return kernels.sweep(*lines, rows, BLEU.code, NARROW, FAR)[1]

    assert found([-1, 2], [0, 0, 0]) == 0  # all equal: stay
    assert found([-6, -4, 1, 9], [0, 1, 0, 1, 0]) == 5  # the nearer one, though its middle is not
    assert found([1, 1 + 1e-9, 5, 6], [0, 1, 0, 1, 0]) == 5.5  # too narrow
    assert found([1, 1, 1], [0, 1, 1, 0]) == 0  # of no width
    assert found([2, 3, 4], [0, 0, 0, 1]) == pytest.approx(4 + 2 / 3)  # unbounded: the mean width
    assert found([-4, -2], [1, 0, 0]) == -5
    assert found([10 * FAR], [0, 1]) == found([-10 * FAR], [0, 1]) == 0  # out of reach
    # No match of some order, no n-gram of some order, nothing at all.
    for row in ([3, 2, 1, 0, 5, 4, 3, 2, 5, 5], [2, 1, 0, 0, 2, 1, 0, 0, 2, 2], [0] * 9 + [3]):
        assert kernels.chosen_score(np.array([row], np.int32), np.array([0]), BLEU.code) == 0


@pytest.mark.parametrize("measure", MEASURES)
def test_on_any_metric_as_good_as_a_dense_grid(measure):
    """Of two features, all directions of the weights are looked at."""
    generator, measure = np.random.default_rng(8), MEASURES[measure]
    statistics = made_up(generator, 60, measure)
    lists = make_lists(generator, [6] * 10, 2, False, statistics, measure)
    angles = np.linspace(0, 2 * np.pi, 2000)
    points = [score_of(lists, lists.best(np.array([np.cos(a), np.sin(a)]))) for a in angles]
    found = Mert(restarts=3).solve(lists, np.ones(2), [0])
    score = score_of(lists, lists.best(found.weights))
    assert score >= max(points) - 1e-12
    assert found.report["bleu" if measure is BLEU else "score"] == pytest.approx(score)
    mira = KBestMira(C=0.1, passes=3).solve(lists, np.zeros(2), [0])
    assert score >= score_of(lists, lists.best(mira.weights)) - 1e-12


@given(seed=seeds, whole=st.booleans())
def test_never_worse_than_the_start(seed, whole):
    generator = np.random.default_rng(seed)
    lists = make_lists(generator, generator.integers(1, 9, 5), 4, whole)
    start = generator.normal(size=4)
    found = Mert(restarts=2, random_directions=3).solve(lists, start, [seed])
    assert found.report["start_bleu"] == pytest.approx(score_of(lists, lists.best(start)))
    assert found.report["bleu"] == pytest.approx(score_of(lists, lists.best(found.weights)))
    assert found.report["bleu"] >= found.report["start_bleu"]
    assert np.abs(found.weights).sum() == pytest.approx(np.abs(start).sum())


def test_more_search_is_no_worse_and_each_option_counts():
    generator = np.random.default_rng(4)
    lists = make_lists(generator, [15] * 30, 6)
    start = np.ones(6)
    options = [Mert(0, 0), Mert(0, 20), Mert(8, 0), Mert(8, 0, spread=1.0), Mert()]
    found = [solver.solve(lists, start, [7]) for solver in options]
    reports = [one.report for one in found]
    assert len({report["line_searches"] for report in reports}) == len(reports)
    assert reports[0]["bleu"] <= reports[2]["bleu"]
    assert reports[1]["bleu"] <= reports[4]["bleu"]
    assert [report["restarts"] for report in reports] == [0, 0, 8, 8, 20]
    same, other = (Mert().solve(lists, start, seed).weights for seed in ([7], [7, 2]))
    assert np.array_equal(found[4].weights, same) and not np.array_equal(same, other)


def test_restarts_that_are_far_behind_are_given_up(monkeypatch):
    lists = make_lists(np.random.default_rng(4), [15] * 30, 6)
    counts = []
    for share in (0.0, mert.BEHIND, math.inf):
        monkeypatch.setattr(mert, "BEHIND", share)
        counts.append(Mert().solve(lists, np.ones(6), [7]).report["line_searches"])
    assert counts == sorted(set(counts))


@pytest.mark.parametrize("restarts", [0, 3])
def test_zeros_are_left_even_where_the_order_of_the_lists_is_better(restarts):
    """The first of each list is the best one, and its features say nothing of that."""
    generator = np.random.default_rng(11)
    statistics = np.tile(np.array([5, 3, 2, 1, 10, 9, 8, 7, 10, 10], np.int32), (100, 1))
    statistics[::10] = [10, 9, 8, 7, 10, 9, 8, 7, 10, 10]
    lists = make_lists(generator, [10] * 10, 2, statistics=statistics)
    found = Mert(restarts=restarts).solve(lists, np.zeros(2), [1])
    assert found.report["start_bleu"] == 1 > found.report["bleu"] > 0
    assert found.report["bleu"] == pytest.approx(score_of(lists, lists.best(found.weights)))
    assert np.abs(found.weights).sum() == pytest.approx(1)
    # Weights that are worse than others that are not 0 are no result.
    axes = [score_of(lists, lists.best(s * np.eye(2)[j])) for j in (0, 1) for s in (-1, 1)]
    assert restarts == 0 or found.report["bleu"] >= max(axes)


@pytest.mark.parametrize("sizes", [[1, 1, 1], [4, 4], [5] * 4])
def test_nothing_to_choose_from(sizes):
    """Lists of one hypothesis, of equal ones, or of equally good ones: the start is the result."""
    lists = make_lists(np.random.default_rng(7), sizes, 3)
    if sizes == [5] * 4:
        lists.statistics[:] = lists.statistics[0]
    else:
        lists.rows.value[:] = 0.1
    start = np.array([0.3, 0.1, -0.2])
    assert Mert(restarts=2).solve(lists, start, [0]).weights.tolist() == start.tolist()


def test_features_that_make_no_difference_keep_their_weights():
    """One is the same throughout each list, another never occurs."""
    generator = np.random.default_rng(9)
    lists = make_lists(generator, [10] * 20, 4)
    lists.rows.value[lists.rows.feature == 1] = np.repeat(generator.normal(size=20), 10)
    lists = replace(lists, rows=lists.rows.renamed(np.array([0, 1, 2, 4])))
    found = Mert(restarts=1).solve(lists, np.ones(5), [0])
    assert found.report["bleu"] > found.report["start_bleu"]
    assert found.weights[[1, 3]].tolist() == [1, 1] and found.weights[0] != 1
    assert np.abs(found.weights).sum() == pytest.approx(5)


@pytest.mark.parametrize("solver", [Mert(), KBestMira()])
def test_refused_input(solver):
    lists = make_lists(np.random.default_rng(10), [3, 4], 3)
    with pytest.raises(InputError, match="statistics"):
        solver.solve(replace(lists, statistics=None), np.ones(3), [0])
    with pytest.raises(ValueError, match="3 start weights or more, not 2"):
        solver.solve(lists, np.ones(2), [0])
    if isinstance(solver, Mert):
        with pytest.raises(InputError, match=r"3 features, and MERT takes up to 2 .*=dense"):
            Mert(max_features=2).solve(lists, np.ones(3), [0])
        lists.rows.value[4] = np.inf
        with pytest.raises(InputError, match="value of the lists is not finite"):
            solver.solve(lists, np.ones(3), [0])


@pytest.mark.slow
def test_at_least_as_good_as_moses(shared):
    """Moses's mert, on the same lists and from the same start, also with 20 restarts: 0.41055."""
    folder = shared / "oracles" / "moses" / "mert"
    stored = KBestFiles().read(
        "dev",
        [folder / f"run{i}.features.dat.gz" for i in range(1, 5)],
        [folder / f"run{i}.scores.dat.gz" for i in range(1, 5)],
    )
    start = np.array((folder / "run4.init.opt").read_text().splitlines()[0].split(), float)
    found = Mert(restarts=4).solve(stored.lists, start, [0])
    assert found.report["start_bleu"] == pytest.approx(0.40466, abs=1e-5)
    assert found.report["bleu"] >= 0.41055

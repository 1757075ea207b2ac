"""k-best MIRA against a plain reference, closed forms, and Moses's kbmira."""

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from sacrebleu.metrics.bleu import BLEU as Sacrebleu
from scipy.optimize import LinearConstraint, minimize
from test_metrics import statistics

from torchtune_smt.core.offsets import offsets
from torchtune_smt.core.rows import Rows
from torchtune_smt.decoders.kbest_files import KBestFiles
from torchtune_smt.kbest.lists import KBestLists
from torchtune_smt.kbest.measure import BLEU
from torchtune_smt.tuners import mira_kernels as kernels
from torchtune_smt.tuners.mira import KBestMira, score_on

MOSES = Path(__file__).resolve().parents[2] / "shared" / "oracles" / "moses" / "mira"


def flat(lists):
    """Lists of hypotheses (row as a dict, statistics) one behind the other."""
    hypotheses = [hypothesis for one in lists for hypothesis in one]
    rows = [sorted(row.items()) for row, _ in hypotheses]
    return KBestLists(
        index=np.arange(len(lists)),
        begin=offsets([len(one) for one in lists]),
        rows=Rows(
            offsets([len(row) for row in rows]),
            np.array([f for row in rows for f, _ in row], np.int32),
            np.array([v for row in rows for _, v in row], np.float64),
        ),
        statistics=np.array([counts for _, counts in hypotheses], np.int32).reshape(-1, 10),
    )


@st.composite
def kbest_lists(draw):
    """Lists, dense or sparse, and start weights."""
    dimension = draw(st.integers(1, 6))
    value = st.sampled_from([-2.0, -1.0, 0.5, 1.0, 3.0])
    if draw(st.booleans()):
        row = st.fixed_dictionaries(dict.fromkeys(range(dimension), value))
    else:
        row = st.dictionaries(st.integers(0, dimension - 1), value)
    one = st.lists(st.tuples(row, statistics()), min_size=1, max_size=5)
    lists = draw(st.lists(one, max_size=4))
    weight = st.floats(-3, 3, allow_subnormal=False)
    start = draw(st.lists(weight, min_size=dimension, max_size=dimension))
    return lists, np.array(start)


def dot(w, row):
    return sum((v * w[f] for f, v in sorted(row.items())), 0.0)


def background_bleu(statistics, background, scale):
    m1, m2, m3, m4, l1, l2, l3, l4, c, r = (
        a + b for a, b in zip(statistics, background, strict=True)
    )
    bleu = math.sqrt(math.sqrt(m1 * m2 * m3 * m4 / (l1 * l2 * l3 * l4)))
    bleu *= math.exp(min(0.0, 1 - r / c))
    return bleu * r if scale == "reference" else bleu


def corpus_bleu(lists, w):
    """BLEU of the best of each list; whether different ones are too close to tell."""
    totals, close = [0] * 10, False
    for one in lists:
        scores = [dot(w, row) for row, _ in one]
        best = scores.index(max(scores))
        close |= any(
            score > scores[best] - 1e-9 and row != one[best][0]
            for score, (row, _) in zip(scores, one, strict=True)
        )
        totals = [a + b for a, b in zip(totals, one[best][1], strict=True)]
    given = (totals[:4], totals[4:8], totals[8], totals[9])
    score = Sacrebleu.compute_bleu(*given, smooth_method="exp")
    return score.score / 100, close


def reference(lists, start, seed, C=0.01, passes=60, decay=0.999, scale="reference"):
    """After each pass the average weights, violations, and the sum of losses."""
    generator = np.random.default_rng(seed)
    usable = [s for s, one in enumerate(lists) if len(one) > 1]
    w, background, history, result = list(start), [1.0] * 10, [], []
    for _ in range(passes):
        violations, losses = 0, 0.0
        for s in generator.permutation(np.array(usable, np.int64)).tolist():
            scores = [dot(w, row) for row, _ in lists[s]]
            gains = [background_bleu(counts, background, scale) for _, counts in lists[s]]
            likes = [score + gain for score, gain in zip(scores, gains, strict=True)]
            fears = [score - gain for score, gain in zip(scores, gains, strict=True)]
            hope, fear = likes.index(max(likes)), fears.index(max(fears))
            if gains[hope] > gains[fear]:
                loss = gains[hope] - gains[fear] - (scores[hope] - scores[fear])
                if loss > 0:
                    violations += 1
                    losses += loss
                    plus, minus = lists[s][hope][0], lists[s][fear][0]
                    x = {f: plus.get(f, 0.0) - minus.get(f, 0.0) for f in plus | minus}
                    square = sum(x[f] ** 2 for f in sorted(x))
                    for f in x:
                        w[f] += min(C, loss / square) * x[f] if square else 0.0
                chosen = lists[s][hope][1]
                background = [decay * b + n for b, n in zip(background, chosen, strict=True)]
            history.append(list(w))
        average = np.mean(history, axis=0) if history else np.array(start)
        result.append((average, violations, losses))
    return result


@settings(deadline=None)
@given(
    kbest_lists(),
    st.integers(0, 9),
    st.sampled_from([0.001, 0.01, 0.3]),
    st.sampled_from([0.9, 0.999, 1.0]),
    st.sampled_from(["reference", "none"]),
)
def test_equals_the_reference(case, seed, C, decay, scale):
    lists, start = case
    options = {"C": C, "passes": 4, "decay": decay, "scale": scale}
    found = KBestMira(**options).solve(flat(lists), start, (3, seed))
    passes = reference(lists, start, (3, seed), **options)
    weights, violations, losses = passes[found.report["pass"] - 1]
    assert found.weights == pytest.approx(weights, abs=1e-9)
    assert found.report["violations"] == violations
    assert found.report["loss"] == pytest.approx(losses / max(violations, 1), abs=1e-9)
    scores = [corpus_bleu(lists, weights) for weights, _, _ in passes]
    assume(not any(close for _, close in scores))
    bleus = [bleu for bleu, _ in scores]
    assert found.report["bleu"] == pytest.approx(max(bleus), abs=1e-12)
    assert found.report["bleu"] == pytest.approx(bleus[found.report["pass"] - 1], abs=1e-12)


@pytest.mark.parametrize("C", [0.001, 0.01, 0.1, 1.0])
@pytest.mark.parametrize("seed", range(3))
def test_a_step_solves_its_quadratic_program(seed, C):
    generator, one = np.random.default_rng(seed), []
    for _ in range(10):
        features = generator.choice(12, 8, replace=False).tolist()
        c = int(generator.integers(5, 12))
        lengths = [c - n for n in range(4)]
        matches = np.sort(generator.integers(0, lengths[-1], 4))[::-1].tolist()
        values = generator.normal(size=8).tolist()
        one.append((dict(zip(features, values, strict=True)), [*matches, *lengths, c, 9]))
    lists, start = flat([one]), 0.1 * generator.normal(size=12)
    hope, fear, gap, margin = kernels.hope_and_fear(
        0, len(one), lists.rows.begin, lists.rows.feature, lists.rows.value, lists.statistics,
        BLEU.code, np.ones(10), np.ones(10), True, start,
    )  # fmt: skip
    x = lists.rows.dense(12)[hope] - lists.rows.dense(12)[fear]
    weights = KBestMira(C=C, passes=1).solve(lists, start, (0,)).weights
    assert gap > 0
    assert x @ start == pytest.approx(margin)
    # min ½‖w - start‖² + C ξ, so that w·x ≥ gap - ξ and ξ ≥ 0; the last variable is ξ.
    best = minimize(
        lambda t: 0.5 * np.sum((t[:-1] - start) ** 2) + C * t[-1],
        [*start, 2 * gap],
        jac=lambda t: np.append(t[:-1] - start, C),
        hess=lambda t: np.diag([1.0] * 12 + [0.0]),
        method="trust-constr",
        constraints=[LinearConstraint(np.array([[*x, 1.0], [*np.zeros(12), 1.0]]), [gap, 0.0])],
        options={"gtol": 1e-9, "barrier_tol": 1e-9, "xtol": 1e-12},
    )
    assert best.success
    assert weights == pytest.approx(best.x[:-1], abs=2e-4)


def test_the_background_of_short_hypotheses_does_not_vanish():
    one = [({0: 1.0, 1: 1.0}, [1, 0, 0, 0, 1, 0, 0, 0, 1, 1])]
    one += [({0: -1.0, 2: 1.0}, [0, 0, 0, 0, 1, 0, 0, 0, 1, 1])]
    with np.errstate(all="raise"):
        found = KBestMira(decay=0.01).solve(flat([one] * 30), np.zeros(3), (0,))
    assert np.isfinite(found.weights).all() and found.weights[0] > 0


@pytest.mark.skipif(not MOSES.exists(), reason="needs ../shared")
def test_at_least_as_good_as_kbmira():
    runs = range(1, 10)
    stored = KBestFiles().read(
        "dev",
        [MOSES / f"run{run}.features.dat.gz" for run in runs],
        [MOSES / f"run{run}.scores.dat.gz" for run in runs],
        for_tuning=True,
    )
    lists = stored.lists
    start = np.zeros(len(lists.features))
    names = []
    for line in (MOSES / "run9.dense").read_text().splitlines():
        label, value = line.split("= ")
        names.append(label)
        start[lists.features.id(f"{label}_{names.count(label) - 1}")] = float(value)
    assert score_on(lists, start) == pytest.approx(0.406683, abs=1e-6)  # as in its log
    found = KBestMira().solve(lists, start, (0,))
    assert found.report["bleu"] >= 0.4063
    assert found.report["bleu"] == score_on(lists, found.weights)

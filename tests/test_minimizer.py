"""The minimiser of OSCAR over stored pairs against linear programs, plain FISTA, and duality."""

import itertools
import re

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from minimizer_reference import (
    EXACT,
    LOSSES,
    boundary,
    fista,
    hinge_minimum,
    most_bent,
    objective,
    penalties,
    problem,
    rare,
    residual,
    rows_of,
    scaled,
)

from torchtune_smt.core.errors import DivergenceError, InputError
from torchtune_smt.core.scoring import csr_matrices
from torchtune_smt.minimizer import (
    Accuracy,
    Logistic,
    Minimizer,
    Penalty,
    SmoothedHinge,
    SquaredHinge,
    descent,
    path_scales,
    stored_pairs,
)
from torchtune_smt.minimizer.model import Curvature
from torchtune_smt.minimizer.penalty import at_boundary
from torchtune_smt.minimizer.sorted_kernels import by_size
from torchtune_smt.minimizer.stored_pairs import product
from torchtune_smt.regularizers import Oscar
from torchtune_smt.tuners.grouping.base import Problem
from torchtune_smt.tuners.grouping.minimum import BatchLearning

vectors = st.lists(
    st.one_of(st.sampled_from([0.0, 0.5, -0.5, 1.0]), st.floats(-3, 3)), min_size=1, max_size=10
).map(np.array)
strengths = st.sampled_from([0.01, 0.1, 0.4])


@pytest.mark.parametrize("loss", [*LOSSES, SmoothedHinge()])
def test_losses_have_the_derivatives_and_conjugates_they_say(loss):
    z = np.concatenate([np.linspace(-3, 4, 401), [1.0, 0.999, -50.0, 50.0]])
    each = np.array([loss.mean(z[i : i + 1]) for i in range(z.size)])
    a, c = loss.pulls(z), loss.curvatures(z)
    assert (a >= 0).all() and (a <= loss.highest).all()
    assert (c <= most_bent(loss) * (1 + 1e-12)).all()
    step = 1e-6
    slopes = np.array([loss.along(z[i : i + 1], np.ones(1), 0.0)[1] for i in range(z.size)])
    assert np.allclose(slopes, -a)
    up, down = loss.pulls(z + step), loss.pulls(z - step)
    kink = isinstance(loss, SquaredHinge) & (np.abs(z - 1) < 2 * step)
    assert np.allclose(((down - up) / (2 * step))[~kink], c[~kink], rtol=1e-3, atol=1e-4)
    # Fenchel and Young: equal at the slope, and never below.
    dual = np.array([loss.mean_conjugate(a[i : i + 1]) for i in range(a.size)])
    assert np.allclose(each + dual, -a * z, atol=1e-12)
    for other in (0.0, 0.3, 1.0):
        assert (each + loss.mean_conjugate(np.array([other])) >= -other * z - 1e-12).all()
    if isinstance(loss, SmoothedHinge):
        below = np.maximum(1 - z, 0) - each
        assert (below >= -1e-15).all() and (below <= loss.mu / 2 + 1e-15).all()
    # Where the dual point belongs to the margins; elsewhere never below 0.
    assert np.allclose(loss.primal_dual_curvatures(z, a), c, rtol=1e-9, atol=1e-15)
    for other in (0.0, 1e-9, 0.3, 1.0):
        found, expected = loss.primal_dual_curvatures(z, np.full(z.size, other)), c
        if isinstance(loss, SmoothedHinge):
            root = np.hypot(1 - z, loss.mu)
            expected = 0.5 * (1 - (2 * other - 1) * (1 - z) / root) / root
        assert (found >= 0).all() and np.allclose(found, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("n_dense", [0, 3])
def test_pairs_with_next_to_no_curvature_are_bounded(n_dense):
    x = problem(n_dense=3)[:, 3 - n_dense :]
    pairs = Minimizer(rows_of(x), n_dense, SquaredHinge()).pairs
    chosen = np.arange(1, pairs.n_sparse)
    dense = pairs.dense
    sparse = np.zeros((len(pairs), pairs.n_sparse))
    for i, row in enumerate(sparse):
        places = slice(*pairs.sparse.begin[i : i + 2])
        row[pairs.sparse.feature[places]] = pairs.sparse.value[places]
    both = np.hstack([dense, sparse[:, chosen]])

    def exact(curvatures):
        """The curvature of chosen features once dense ones have followed, by definition."""
        h = (both.T * curvatures) @ both / len(pairs)
        k = dense.shape[1]
        return h[k:, k:] - h[k:, :k] @ np.linalg.pinv(h[:k, :k]) @ h[:k, k:]

    def matrix(curvatures):
        found = Curvature(pairs, curvatures, chosen)
        return np.array([found.apply(unit) for unit in np.eye(chosen.size)])

    draw = np.random.default_rng(0)
    alike = draw.uniform(0.5, 1.0, len(pairs))
    assert np.allclose(matrix(alike), exact(alike), rtol=1e-5, atol=1e-6)
    # Nearly all pairs have little curvature, and one feature has no others.
    little = np.where((draw.random(len(pairs)) < 0.05) & (sparse[:, 5] == 0.0), alike, 1e-8 * alike)
    kept = Curvature(pairs, little, chosen).by_column[3].size
    assert np.count_nonzero(sparse[:, 5]) < kept < len(pairs)
    rest = matrix(little) - exact(little)
    assert np.linalg.eigvalsh(rest).min() >= -1e-12
    assert np.abs(rest).max() <= 1e-6


@given(w=vectors, pull=vectors, lambda1=strengths, lambda2=strengths, more=st.integers(0, 3))
def test_the_residual_equals_its_definition(w, pull, lambda1, lambda2, more):
    w, pull = np.resize(w, pull.size), pull
    penalty = Penalty(lambda1, lambda2, w.size + more)
    assert penalty.residual(w, pull) == pytest.approx(residual(w, pull, penalty), abs=1e-12)


@given(
    seed=st.integers(0, 1000),
    size=st.integers(1, 12),
    lambda1=strengths,
    lambda2=strengths,
    tolerance=st.sampled_from([1e-9, 0.1, 1.0]),
)
def test_what_is_left_open_equals_its_definition(seed, size, lambda1, lambda2, tolerance):
    draw = np.random.default_rng(seed)
    w = np.sort(draw.integers(-3, 4, size) * draw.choice([1.0, 0.3], size))
    pull = draw.normal(size=size) * draw.choice([0.1, 1.0, 3.0])
    curvature = draw.choice([0.0, 0.2, 2.0], size)
    penalty = Penalty(lambda1, lambda2, size)
    found = at_boundary(penalty, w, pull, by_size(pull), curvature, tolerance)
    expected = boundary(penalty, w, pull, curvature, tolerance)
    assert np.flatnonzero(found).tolist() == sorted(expected)


@given(pull=vectors, lambda1=strengths, lambda2=strengths, more=st.integers(0, 3))
def test_the_dual_norm_is_the_largest_ratio(pull, lambda1, lambda2, more):
    """The extreme points of the unit ball of a sorted l1 norm have k equal sizes, others 0."""
    penalty = Penalty(lambda1, lambda2, pull.size + more)
    best = max(
        np.abs(pull[list(chosen)]).sum() / penalties(penalty, k).sum()
        for k in range(1, pull.size + 1)
        for chosen in itertools.combinations(range(pull.size), k)
    )
    assert penalty.dual_norm(pull) == pytest.approx(best)


@given(w=vectors, d=vectors, lambda1=strengths, lambda2=strengths)
def test_the_norm_along_a_line(w, d, lambda1, lambda2):
    d = np.resize(d, w.size)
    penalty = Penalty(lambda1, lambda2, w.size + 1)
    value, slope = penalty.along(w, d, 0.3)
    assert value == pytest.approx(penalty.value(w + 0.3 * d), abs=1e-12)
    # A slope of a convex function supports it.
    for step in (0.0, 0.2, 0.5, 1.0):
        assert penalty.value(w + step * d) >= value + (step - 0.3) * slope - 1e-9


@settings(max_examples=10)
@given(seed=st.integers(0, 1000), fraction=st.sampled_from([0.05, 0.3, 0.8]))
def test_the_minimum_of_the_hinge_is_that_of_a_linear_program(seed, fraction):
    x = problem(seed, n=40, n_dense=2, d=5)
    minimizer = Minimizer(rows_of(x), 2, SmoothedHinge(1e-4))
    penalty = minimizer.penalty(0.01, 0.01, 8)
    largest = minimizer.largest_scale(penalty)
    # Or dense features tell all pairs that they can: what is left is rounding.
    assume(largest > 1e-3)
    penalty = penalty.times(fraction * largest)
    found = minimizer.minimize(penalty, accuracy=Accuracy(residual=1e-6, gap=1e-6))
    least = hinge_minimum(x, 2, penalty)
    certificate = found.certificate
    hinge = np.maximum(1 - x @ found.weights, 0).mean() + penalty.value(found.weights[2:])
    assert found.reached
    assert certificate.bound <= least + 1e-9
    assert least <= hinge + 1e-12 and hinge - least <= certificate.gap * certificate.objective


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("fraction", [0.03, 0.3])
def test_the_minimum_is_that_of_fista_without_tricks(loss, fraction):
    x = problem()
    x[:, 1:3] /= [10.0, 100.0]  # or plain FISTA takes for ever
    minimizer, penalty = scaled(x, 3, loss, fraction, (0.01, 0.01, 20))
    found = equals_fista(x, 3, minimizer, penalty)
    # Features that fire together have one weight.
    assert found.groups[3] == found.groups[4] and found.groups[0] == -1


def equals_fista(x, n_dense, minimizer, penalty):
    loss = minimizer.loss
    found = minimizer.minimize(penalty, accuracy=EXACT)
    slow = fista(x, n_dense, loss, penalty, 20_000)
    assert found.reached and found.certificate.residual.largest <= EXACT.residual
    for weights in (slow, found.weights):
        own = objective(x, n_dense, loss, penalty, weights)
        assert found.certificate.objective == pytest.approx(own, rel=1e-8)
    assert np.allclose(found.weights, slow, atol=1e-5)
    assert ((found.weights != 0) == (np.abs(slow) > 1e-7))[n_dense:].all()
    return found


@pytest.mark.parametrize("loss", LOSSES)
def test_screening_changes_nothing(loss, monkeypatch):
    draw = np.random.default_rng(3)
    x = (draw.random((400, 600)) < 0.02) * draw.choice([-1.0, 1.0], (400, 600))
    x[np.arange(400), draw.integers(20, size=400)] = 1.0
    minimizer, penalty = scaled(x, 0, loss, 0.2)
    monkeypatch.setattr(descent, "FEW", 5)
    screened = minimizer.minimize(penalty, accuracy=EXACT)
    monkeypatch.setattr(descent, "FEW", 10**9)
    monkeypatch.setattr(descent, "SLACK", 0.0)
    full = minimizer.minimize(penalty, accuracy=EXACT)
    assert 0 < full.survivors < 300
    assert np.array_equal(screened.groups, full.groups)
    assert np.allclose(screened.weights, full.weights, atol=1e-7)


@pytest.mark.parametrize("loss", LOSSES)
def test_the_minimum_where_all_features_survive(loss, monkeypatch):
    """The last features have next to no penalty, and are torn away from 0 together alone."""
    x, _ = rare(1, 150, 60, 4)
    monkeypatch.setattr(descent, "FEW", 3)
    found = equals_fista(x, 0, *scaled(x, 0, loss, 0.1, (1.0 / 300, 1.0)))
    assert 1 < found.n_groups < found.survivors > 50


@given(pull=vectors, rank=st.integers(0, 3), lambda1=strengths, lambda2=strengths)
def test_what_is_torn_away_has_the_largest_excess(pull, rank, lambda1, lambda2):
    penalty = Penalty(lambda1, lambda2, pull.size + rank)
    pull, weights = np.append(pull, np.full(rank, 7.0)), np.append(0.0 * pull, np.ones(rank))
    torn = penalty.torn(weights, pull, by_size(pull))
    pull = pull[: pull.size - rank]
    p = penalties(penalty, pull.size + rank)[rank:]
    excess = np.cumsum(np.sort(np.abs(pull))[::-1] - p)
    most = max(excess.max(), 0.0)
    assert np.unique(torn).size == torn.size
    assert np.abs(pull[torn]).sum() - p[: torn.size].sum() == pytest.approx(most, abs=1e-12)


@pytest.mark.parametrize("loss", LOSSES)
def test_the_certificate_holds_at_any_point(loss):
    x = problem(5)
    minimizer = Minimizer(rows_of(x), 3, loss)
    penalty = minimizer.penalty(0.001, 0.001)
    least = minimizer.minimize(penalty, accuracy=EXACT).certificate.objective
    for steps in (1, 2, 3, 5):
        early = minimizer.minimize(penalty, accuracy=Accuracy(steps=steps, residual=1e-12))
        certificate = early.certificate
        assert certificate.bound <= least + 1e-12 and least <= certificate.objective + 1e-12
        assert certificate.gap >= 1 - least / certificate.objective - 1e-9


@pytest.mark.parametrize("loss", LOSSES)
def test_a_path_from_where_nothing_survives(loss):
    x = problem(2, d=30)
    minimizer = Minimizer(rows_of(x), 3, loss)
    penalty = minimizer.penalty(0.1, 0.1, 50)
    largest = minimizer.largest_scale(penalty)
    scales = path_scales(largest, 0.02 * largest, 6)
    assert scales[0] == pytest.approx(largest) and scales[-1] == pytest.approx(0.02 * largest)
    assert np.allclose(np.diff(np.log(scales)), np.log(0.02) / 5)
    scales[:1] = [1.0001 * largest, 0.98 * largest]
    minima = list(minimizer.path(penalty, scales, None, EXACT))
    assert all(minimum.reached for minimum in minima)
    assert minima[0].survivors == 0 < minima[1].survivors <= 3 < minima[-1].survivors
    assert "no sparse feature survives" in minima[0].messages[0]
    assert f"{largest * 0.1:.4g}" in minima[0].messages[0]
    alone = minimizer.minimize(minima[-1].penalty, accuracy=EXACT)
    assert np.array_equal(alone.groups, minima[-1].groups)
    # Begun at the solution, there is nothing to do for a loss that needs no smoother ones.
    again = minimizer.minimize(alone.penalty, alone.weights, EXACT)
    assert np.array_equal(again.groups, alone.groups)
    assert again.steps == 0 or loss.stages()


@pytest.mark.parametrize("loss", LOSSES)
def test_at_lambda_max_itself_nothing_survives(loss):
    """Also where rougher losses on the way, whose λ_max is larger, would let something live."""
    for seed in range(20):
        x = problem(seed, n=40, d=12)
        minimizer = Minimizer(rows_of(x), 2, loss)
        penalty = minimizer.penalty(0.001, 0.05)
        largest = minimizer.largest_scale(penalty)
        found = minimizer.minimize(penalty.times(largest))
        first = next(minimizer.path(penalty, path_scales(largest, 0.5 * largest, 2)))
        for minimum in (found, first):
            assert minimum.survivors == 0 and minimum.reached
            assert "no sparse feature survives" in minimum.messages[0]


def test_the_example_of_the_page(repository, capsys):
    page = (repository / "docs" / "groups.md").read_text(encoding="utf-8")
    code, noise = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    names = {}
    exec(compile(code, "docs/groups.md", "exec"), names)
    found = names["found"]
    assert found.reached and found.messages == ()
    assert np.flatnonzero(found.groups >= 0).tolist() == [2, 3, 4, 5]
    assert found.weights[5] < 0 < found.weights[2:5].min()
    printed = capsys.readouterr().out.splitlines()
    assert re.match(r"objective .* of it above the minimum; KKT residual ", printed[0])
    assert printed[1].startswith("4 features in ")
    counts = [int(line.split()[1]) for line in printed[-5:]]
    assert counts[0] <= 1 and counts == sorted(counts) and counts[-1] > 4
    assert all(line.endswith("True") for line in printed[-5:])
    exec(compile(noise, "docs/groups.md", "exec"), names)
    assert np.flatnonzero(names["found"].groups >= 0).tolist() == list(range(2, 10))


def test_rounding_ends_it_where_next_to_nothing_is_left_to_sparse_features():
    x = problem(224, n=40, n_dense=2, d=5)
    minimizer = Minimizer(rows_of(x), 2, SmoothedHinge(1e-4))
    penalty = minimizer.penalty(0.01, 0.01, 8)
    largest = minimizer.largest_scale(penalty)
    assert 0 < largest < 1e-6
    found = minimizer.minimize(penalty.times(0.05 * largest), accuracy=EXACT)
    assert found.steps < 100 and not found.reached
    assert "rounding allows no better" in found.messages[0]


@pytest.mark.parametrize("loss", LOSSES)
def test_pairs_that_never_differ(loss):
    minimizer = Minimizer(rows_of(np.zeros((4, 3))), 1, loss, 3)
    alone = minimizer.minimize(minimizer.penalty(0.1, 0.1), np.array([5.0, 1.0, 1.0]))
    assert alone.reached and alone.weights.tolist() == [5.0, 0.0, 0.0]
    assert alone.certificate.objective == pytest.approx(loss.mean(np.zeros(1)))
    assert minimizer.largest_scale(alone.penalty) == 0.0


def test_values_out_of_range():
    with pytest.raises(InputError, match="no pairs"):
        Minimizer(rows_of(np.zeros((0, 3))), 1, SquaredHinge())
    with pytest.raises(InputError, match="feature 1 differs by"):
        Minimizer(rows_of(np.array([[1.0, -1e160]])), 0, Logistic())
    minimizer = Minimizer(rows_of(problem()), 3, Logistic())
    for strengths in ((-1.0, 1.0), (1.0, float("nan")), (0.0, 0.0)):
        with pytest.raises(ValueError):
            minimizer.penalty(*strengths)
    with pytest.raises(InputError, match="dimension=11 is smaller .* 12"):
        minimizer.penalty(1.0, 1.0, 11)
    with pytest.raises(DivergenceError):
        minimizer.minimize(minimizer.penalty(1.0, 1.0), np.full(15, 1e308))
    with pytest.raises(ValueError):
        Penalty(1.0, 1.0, 5).times(0.0)
    for work in (minimizer.minimize, lambda small: minimizer.certificate(small, np.zeros(15))):
        with pytest.raises(ValueError, match="of 11 features"):
            work(Penalty(0.0, 0.01, 11))


def test_a_dense_weight_that_tells_some_pairs_does_not_grow_for_ever():
    """Along a path it would, by half a step, and make a noise of all margins."""
    x = problem(2, n=200)
    x[:, 0] = 0.0
    x[:4, 0] = 1.0
    minimizer = Minimizer(rows_of(x), 3, SmoothedHinge())
    penalty = minimizer.penalty(0.0, 1.0)
    largest = minimizer.largest_scale(penalty)
    minima = list(minimizer.path(penalty, path_scales(largest, 0.05 * largest, 15)))
    assert all(minimum.reached for minimum in minima)
    assert np.abs(minima[-1].weights).max() < 1e9
    smoothed, separated = minima[-1].messages
    assert "tuner.minimizer.mu" in smoothed and "dense feature 0 tells 4 of 200 pairs" in separated


@pytest.mark.parametrize("loss", [SmoothedHinge(0.01), SquaredHinge()])
def test_the_minimum_is_that_of_the_cpu(monkeypatch, loss):
    """Passes of torch in the place of those that are compiled, on the CPU: all they are asked."""
    exact, asked = Accuracy(residual=1e-9, gap=1e-6), []
    pairs = rows_of(problem(1, n=2000, n_dense=2, d=60))
    here, there = (Minimizer(pairs, 2, loss) for _ in range(2))
    stored = there.pairs

    def watched(matrix, vector):
        asked.append(matrix)
        return product(matrix, vector)

    monkeypatch.setattr(stored_pairs, "product", watched)
    stored.on_device = csr_matrices(stored.sparse, stored.n_sparse, "cpu")
    penalty = here.penalty(0.0, 1e-3)
    largest = here.largest_scale(penalty)
    assert there.largest_scale(penalty) == pytest.approx(largest, rel=1e-9)
    a, b = (m.minimize(penalty.times(0.2 * largest), accuracy=exact) for m in (here, there))
    assert a.reached and b.reached and a.survivors > 2
    np.testing.assert_allclose(a.weights, b.weights, atol=1e-7)
    np.testing.assert_array_equal(a.groups, b.groups)
    assert {*map(id, asked)} == {*map(id, stored.on_device)}


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
def test_groups_on_cuda():
    pairs, oscar = rows_of(problem(1, n=2000, n_dense=2, d=60)), Oscar(0.0, 1.0)
    here, there = (
        BatchLearning(oscar, SquaredHinge(), 0.2, Accuracy(1e-8, 1e-6), device).learn(
            Problem(pairs, np.zeros(62), 2)
        )
        for device in ("cpu", "cuda")
    )
    np.testing.assert_array_equal(here.blocks, there.blocks)

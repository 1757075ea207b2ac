"""PRO's regression against scikit-learn's, and what it does with odd input."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from minimizer_reference import rows_of
from sklearn.linear_model import LogisticRegression
from test_mert import make_lists

from torchtune_smt.core.errors import DivergenceError, InputError
from torchtune_smt.kbest.lists import KBest, KBestLists
from torchtune_smt.losses import Logistic
from torchtune_smt.optim import AdaGrad
from torchtune_smt.regularizers import L1
from torchtune_smt.samplers import AllPairs, ProSampler
from torchtune_smt.tuners.grouping.tuner import scale_solver
from torchtune_smt.tuners.mert import Mert
from torchtune_smt.tuners.pro import Pro
from torchtune_smt.tuners.solver import wants_pairs
from torchtune_smt.tuners.stochastic import Stochastic


def sklearn_weights(matrix, sigma):
    both = np.concatenate([matrix, -matrix])
    labels = np.repeat([1, 0], len(matrix))
    model = LogisticRegression(
        C=sigma**2, fit_intercept=False, tol=1e-10, max_iter=10_000, solver="newton-cg"
    )
    return model.fit(both, labels).coef_[0]


def objective(matrix, w, sigma):
    return 2 * np.logaddexp(0, -matrix @ w).sum() + w @ w / (2 * sigma**2)


@settings(max_examples=30)
@given(st.integers(0, 10**6), st.integers(1, 40), st.sampled_from([0.1, 1.0, 10.0]))
def test_regression(seed, n, sigma):
    rng = np.random.default_rng(seed)
    matrix = rng.integers(-2, 3, (n, 6)) * rng.integers(0, 2, (n, 6)) + 0.0
    matrix[:, :2] += rng.normal(size=(n, 2))
    solver = Pro(AllPairs(), sigma=sigma, tolerance=1e-9)
    found = solver.solve_pairs(rows_of(matrix), rng.normal(size=6), ())
    expected = sklearn_weights(matrix, sigma)
    np.testing.assert_allclose(found.weights, expected, rtol=1e-4, atol=1e-5)
    least = objective(matrix, expected, sigma)
    assert objective(matrix, found.weights, sigma) <= least * (1 + 1e-9) + 1e-9
    assert found.report["pairs"] == n
    assert found.report["loss"] == pytest.approx(np.logaddexp(0, -matrix @ found.weights).mean())
    assert found.report["derivative"] <= 1e-6


def test_values_of_any_size_take_few_steps():
    rng = np.random.default_rng(3)
    matrix = rng.normal(size=(500, 40)) @ rng.normal(size=(40, 40)) * np.logspace(-2, 2, 40)
    matrix[:, 20:] *= rng.random((500, 20)) < 0.1
    found = Pro(AllPairs(), tolerance=1e-6).solve_pairs(rows_of(matrix), np.zeros(40), ())
    assert found.report["derivative"] <= 1e-6
    assert found.report["steps"] <= 100
    least = objective(matrix, sklearn_weights(matrix, 1.0), 1.0)
    assert objective(matrix, found.weights, 1.0) <= least * (1 + 1e-9)


def test_lists():
    def lists_of(*gains):
        kbest = KBest(index=4, rows=rows_of(np.eye(len(gains))), gain=np.array(gains))
        return KBestLists.of([kbest])

    found = Pro(AllPairs(threshold=0.1)).solve(lists_of(0.1, 0.5, 0.3), np.zeros(3), (1, 2))
    assert found.weights.argsort().tolist() == [0, 2, 1]
    with pytest.raises(InputError, match="no list has a pair .* sampler.threshold"):
        Pro(ProSampler()).solve(lists_of(0.5, 0.51), np.zeros(2), (1,))
    # Two strings of one feature vector: nothing to learn, and nothing to fall over.
    found = Pro(AllPairs()).solve_pairs(rows_of(np.zeros((2, 3))), np.ones(3), ())
    assert found.weights.tolist() == [0, 0, 0]
    assert found.report["loss"] == pytest.approx(np.log(2))


def test_devices():
    def solvers(device):
        steps = partial(AdaGrad, lr=0.1, regularizer=L1(0.05), unregularized=2)
        yield Pro(AllPairs(), device=device, tolerance=1e-9)
        yield Stochastic(AllPairs(), Logistic(), steps, 3, device=device)

    if not torch.cuda.is_available():
        with pytest.raises(ValueError, match="torch finds no CUDA device; set device=cpu"):
            list(solvers("cuda"))
        return
    pairs = rows_of(np.random.default_rng(0).normal(size=(500, 20)))
    for here, there in zip(solvers("cpu"), solvers("cuda"), strict=True):
        weights = [s.solve_pairs(pairs, np.zeros(20), (1,)).weights for s in (here, there)]
        np.testing.assert_allclose(*weights, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("others", [0, 20])
@pytest.mark.parametrize("value", [1e155, float("inf"), float("nan")])
def test_values_too_large_to_be_squared_are_refused(value, others):
    """Of a feature that is in most pairs, and of one in few; none is returned as NaN."""
    matrix = np.array([[value, 0.0], *[[0.0, 1.0]] * (1 + others)])
    with pytest.raises(DivergenceError, match="check the feature values"):
        Pro(AllPairs()).solve_pairs(rows_of(matrix), np.zeros(2), ())
    matrix[0, 0] = 1e150
    found = Pro(AllPairs()).solve_pairs(rows_of(matrix), np.zeros(2), ())
    assert np.isfinite(found.weights).all()


DENSE = 2  # Beside which all sparse weights are one factor.


@settings(max_examples=30)
@given(st.integers(0, 10**6), st.integers(2, 40), st.booleans())
def test_all_sparse_weights_are_one_feature(seed, n, dense_alone):
    rng = np.random.default_rng(seed)
    matrix = rng.integers(-2, 3, (n, 7)) * rng.integers(0, 2, (n, 7)) + rng.normal(size=(n, 1))
    start = rng.normal(size=7)
    # Features without a weight have none afterwards.
    start[DENSE if dense_alone else 5 :] = 0.0
    solver = scale_solver(Pro(AllPairs(), tolerance=1e-9), DENSE)
    assert wants_pairs(solver)
    found = solver.solve_pairs(rows_of(matrix), start, ()).weights
    sparse = matrix[:, DENSE:] @ start[DENSE:]
    expected = sklearn_weights(np.column_stack([matrix[:, :DENSE], sparse]), 1.0)
    np.testing.assert_allclose(found[:DENSE], expected[:DENSE], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found[DENSE:], expected[-1] * start[DENSE:], rtol=1e-4, atol=1e-5)


def test_mert_tunes_the_factor_of_any_number_of_weights():
    generator = np.random.default_rng(7)
    lists = make_lists(generator, [6] * 15, 62)
    start = np.concatenate([[1.0, 1.0], generator.normal(size=60)])
    with pytest.raises(InputError, match="62 features"):
        Mert(max_features=50).solve(lists, start, (1,))
    found = scale_solver(Mert(max_features=3), DENSE).solve(lists, start, (1,))
    factor = found.weights[DENSE:] / start[DENSE:]
    np.testing.assert_allclose(factor, factor[0], rtol=1e-12)
    # The same three features, made by hand.
    matrix = np.array([lists.rows.dot(column) for column in np.eye(62)]).T
    three = np.column_stack([matrix[:, :DENSE], matrix[:, DENSE:] @ start[DENSE:]])
    expected = Mert().solve(replace(lists, rows=rows_of(three)), np.ones(3), (1,))
    assert found.report == pytest.approx(expected.report, abs=1e-9)
    np.testing.assert_allclose(
        [*found.weights[:DENSE], factor[0]], expected.weights, rtol=1e-6, atol=1e-9
    )

"""One factor of all sparse weights, beside the dense ones."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from minimizer_reference import rows_of
from test_mert import make_lists
from test_pro import sklearn_weights

from torchtune_smt.core.errors import InputError
from torchtune_smt.samplers import AllPairs
from torchtune_smt.tuners.grouping.tuner import scale_solver
from torchtune_smt.tuners.mert import Mert
from torchtune_smt.tuners.pro import Pro
from torchtune_smt.tuners.solver import wants_pairs

DENSE = 2


@settings(max_examples=30)
@given(st.integers(0, 10**6), st.integers(2, 40))
def test_all_sparse_weights_are_one_feature(seed, n):
    rng = np.random.default_rng(seed)
    matrix = rng.integers(-2, 3, (n, 7)) * rng.integers(0, 2, (n, 7)) + rng.normal(size=(n, 1))
    start = rng.normal(size=7)
    # Features without a weight have none afterwards.
    start[5] = 0.0
    solver = scale_solver(Pro(AllPairs(), tolerance=1e-9), DENSE)
    assert wants_pairs(solver)
    found = solver.solve_pairs(rows_of(matrix), start, ()).weights
    sparse = matrix[:, DENSE:] @ start[DENSE:]
    expected = sklearn_weights(np.column_stack([matrix[:, :DENSE], sparse]), 1.0)
    np.testing.assert_allclose(found[:DENSE], expected[:DENSE], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found[DENSE:], expected[-1] * start[DENSE:], rtol=1e-4, atol=1e-5)


def test_weights_of_the_wrong_size_get_the_right_one():
    """Weights that are five times too large, and have the wrong sign."""
    rng = np.random.default_rng(5)
    true = np.concatenate([[0.5, -0.3], rng.normal(size=30)])
    matrix = rng.normal(size=(20_000, true.size))
    matrix *= np.where(rng.random(20_000) < 1 / (1 + np.exp(-matrix @ true)), 1, -1)[:, None]
    start = np.concatenate([[0.0, 0.0], -5 * true[DENSE:]])
    solver = scale_solver(Pro(AllPairs(), sigma=100.0), DENSE)
    found = solver.solve_pairs(rows_of(matrix), start, ()).weights
    np.testing.assert_allclose(found, true, rtol=0.1, atol=0.05)


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


def test_without_sparse_weights_dense_ones_are_tuned():
    matrix = np.random.default_rng(8).normal(size=(30, 5))
    start = np.concatenate([np.ones(DENSE), np.zeros(3)])
    found = scale_solver(Pro(AllPairs()), DENSE).solve_pairs(rows_of(matrix), start, ())
    expected = sklearn_weights(matrix[:, :DENSE], 1.0)
    np.testing.assert_allclose(found.weights, [*expected, 0, 0, 0], rtol=1e-4, atol=1e-5)

"""The minimiser where sparse features are of very different sizes."""

import re

import numpy as np
import pytest
from minimizer_reference import residual, rows_of
from test_minimizer import problem

from torchtune_smt.core.errors import InputError
from torchtune_smt.core.rows import Rows
from torchtune_smt.minimizer import Logistic, Minimizer, SmoothedHinge, SquaredHinge


@pytest.mark.parametrize("loss", [SmoothedHinge(), SquaredHinge(), Logistic()])
@pytest.mark.parametrize("scale", [1e-5, 1e3, 1e5, 1e6])
def test_some_features_are_far_larger_than_others(loss, scale):
    draw = np.random.default_rng(5)
    x = draw.normal(size=(300, 12))
    x[:, 2:] = np.round(x[:, 2:])
    x[:, 2:6] *= scale
    w = np.concatenate([[1.0, 1.0], np.full(4, 1.0 / scale), np.ones(6)])
    x[x @ w + draw.normal(size=300) < 0] *= -1
    minimizer = Minimizer(rows_of(x), 2, loss)
    penalty = minimizer.penalty(0.0, 1.0)
    # Small features have a weight, too.
    penalty = penalty.times(0.1 * min(scale, 1.0 / scale) * minimizer.largest_scale(penalty))
    found = minimizer.minimize(penalty)
    assert found.reached and found.survivors == 10
    # By definition, of all pairs.
    pulls = x.T @ loss.pulls(x @ found.weights) / 300
    assert np.abs(pulls[:2]).max() <= 1.1e-4 * penalty.largest
    assert residual(found.weights[2:], pulls[2:], penalty) <= 1.1e-4 * penalty.largest


@pytest.mark.parametrize("loss", [SmoothedHinge(0.05), SquaredHinge(), Logistic()])
@pytest.mark.parametrize("scale", [1e-30, 1e-12, 1e6, 1e30])
def test_the_unit_of_features_is_of_no_account(loss, scale):
    """All features are so many times as large: weights are so many times smaller."""
    x = problem(3, d=20)
    plain, other = (Minimizer(rows_of(x * size), 3, loss) for size in (1.0, scale))
    penalty = plain.penalty(0.0, 1.0)
    penalty = penalty.times(0.05 * plain.largest_scale(penalty))
    one, two = plain.minimize(penalty), other.minimize(penalty.times(scale))
    assert one.reached and two.reached and two.survivors == one.survivors > 0
    assert np.array_equal(two.groups, one.groups)
    assert two.certificate.objective == pytest.approx(one.certificate.objective, rel=1e-3)
    # With λ_max times as large.
    assert other.largest_scale(penalty) == pytest.approx(scale * plain.largest_scale(penalty))


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_values_whose_squares_overflow(sign):
    x = problem(3)
    x[5, 7] = sign * 1e160
    said = (
        f"feature 7 differs by {x[5, 7]:g} in a pair, and the minimiser takes no more than 1e+100"
    )
    with pytest.raises(InputError, match=f"^{re.escape(said)}: give it in a larger unit$"):
        Minimizer(rows_of(x), 3, Logistic())


def test_values_that_are_0_are_no_features():
    """Rows may have entries that are 0: no pair differs there."""
    x = problem(3)
    begin = np.arange(len(x) + 1) * x.shape[1]
    feature = np.tile(np.arange(x.shape[1], dtype=np.int32), len(x))
    full = Rows(begin, feature, np.where(feature % 5 == 0, 0.0, x.ravel()))
    few = full.where(full.value != 0.0)
    assert full.value.size == x.size > few.value.size
    found = [Minimizer(pairs, 3, Logistic(), x.shape[1]) for pairs in (full, few)]
    for ids in ("dense_id", "sparse_id", "one_sided"):
        assert list(getattr(found[0].pairs, ids)) == list(getattr(found[1].pairs, ids))
    assert found[0].penalty(0.0, 1.0) == found[1].penalty(0.0, 1.0)


def test_sizes_of_features():
    x = np.array([[1.0, 0.0, 1e-8, 0.0], [3.0, 5.0, -3e-8, 0.0], [0.0, -4.0, 0.0, 0.0]])
    pairs = Minimizer(rows_of(x), 1, Logistic()).pairs
    assert np.allclose(pairs.size, [4.5, 2e-8], rtol=1e-12)

"""Parts of the minimiser: the basis of dense features, the line search, sweeps over blocks."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csc_array

from torchtune_smt.minimizer import Logistic, Penalty, SquaredHinge
from torchtune_smt.minimizer import dense_basis as module
from torchtune_smt.minimizer.dense_basis import dense_basis
from torchtune_smt.minimizer.dense_optimum import line_minimum
from torchtune_smt.minimizer.model_kernels import sweep


def features(n=500, seed=0):
    """Six features of all sizes, none of which depends on others."""
    draw = np.random.default_rng(seed)
    return draw.normal(size=(n, 6)) * 10.0 ** np.arange(-3, 3)


def test_features_that_are_not_nearly_one_stay_as_they_are():
    x = features()
    z, basis = dense_basis(x.copy())
    assert np.array_equal(z, x) and np.array_equal(basis.matrix, np.eye(6))
    w = np.arange(6.0)
    assert np.array_equal(basis.weights(w, 7.0 * w), w)


@pytest.mark.parametrize("eps", [1e-4, 1e-7, 1e-10])
@pytest.mark.parametrize("chunk", [1 << 16, 64])
def test_features_that_are_nearly_one(eps, chunk, monkeypatch):
    monkeypatch.setattr(module, "CHUNK", chunk)
    x = features()
    t = np.random.default_rng(1).normal(size=(500, 2))
    x = np.column_stack([x, x[:, 5] + 100.0 * eps * t[:, 0], x[:, 0] + 1e-3 * eps * t[:, 1]])
    x[:9] = 0.0
    z, basis = dense_basis(x.copy())
    assert z.shape == x.shape and not z[:9].any()
    size = np.linalg.norm(x, axis=0)
    assert (np.linalg.norm(z @ basis.matrix - x, axis=0) <= 1e-13 * size).all()
    # All are of size 1, and none is another one; what was hidden is in them.
    assert np.allclose(z.T @ z / 500, np.eye(8), atol=1e-14 / eps)
    t[:9] = 0.0
    left = t - z @ np.linalg.lstsq(z, t, rcond=None)[0]
    assert np.linalg.norm(left) < 0.01 * np.linalg.norm(t)
    # Margins and gradients are the same.
    v = np.random.default_rng(2).normal(size=8)
    w = basis.weights(v, np.zeros(8))
    assert np.allclose(x @ w, z @ v, atol=1e-12 / eps)
    assert np.allclose(basis.matrix @ w, v, atol=1e-12 / eps)
    a = np.random.default_rng(3).random(500)
    assert (np.abs((z.T @ a) @ basis.matrix - x.T @ a) <= 1e-12 * size).all()


@pytest.mark.parametrize("n", [500, 3])
def test_features_that_say_nothing_of_their_own(n):
    """Two that are one, and one that is the sum of others; or fewer pairs than features."""
    x = features(n)
    x = np.column_stack([x[:, 5], x, x[:, 1] + x[:, 2]])
    z, basis = dense_basis(x.copy())
    assert z.shape == (n, min(n, 6))
    size = np.linalg.norm(x, axis=0)
    assert (np.linalg.norm(z @ basis.matrix - x, axis=0) <= 1e-12 * size).all()
    start = np.random.default_rng(1).normal(size=8)
    # Where nothing moves, all weights stay; what moves is shared by features that are one.
    assert np.allclose(basis.weights(basis.matrix @ start, start), start)
    v = np.random.default_rng(2).normal(size=z.shape[1])
    moved = basis.weights(basis.matrix @ start + v, start) - start
    assert np.allclose(x @ moved, z @ v) and moved[0] == pytest.approx(moved[6])
    # The least change, in what features do, of all that have these margins.
    least = np.linalg.pinv(x / size, rcond=1e-10) @ (x @ moved)
    assert np.allclose(size * moved, least)


def searched(loss, margins, direction):
    """Return the step, and how often the loss was looked at."""
    margins, direction = np.array(margins), np.array(direction)
    steps = []

    def along(step):
        steps.append(step)
        return loss.along(margins, direction, step)

    return line_minimum(along, *loss.along(margins, direction, 0.0)), len(steps)


@pytest.mark.parametrize("power", [0, 3, 10, 13, 25, 100])
def test_a_step_that_is_too_long_by_any_order_of_magnitude(power):
    size = 10.0**power
    step, looks = searched(Logistic(), [-1000.0, 3000.0], [size, -size])
    # From 1000 to 3000 both are told right, and next to nothing is left.
    assert 990.0 <= step * size <= 3010.0 or (power == 0 and step == 1.0)
    assert looks < 100


def test_a_good_step_is_taken_whole_and_none_where_nothing_falls():
    assert searched(SquaredHinge(), [0.0], [1.0])[0] == 1.0
    # At the minimum, and uphill.
    assert searched(Logistic(), [0.0, 0.0], [1.0, -1.0])[0] == 0.0
    assert searched(Logistic(), [0.0], [-1.0]) == (0.0, 0)


def test_what_rounding_promises_is_no_step():
    """The slope says that it falls, and no value does."""
    assert line_minimum(lambda step: (1.0 + step, 1.0), 1.0, -1e-3) == 0.0
    assert line_minimum(lambda step: (1.0, math.copysign(1.0, step - 1e-80)), 1.0, -1e-3) == 0.0


class Model:
    """A quadratic with OSCAR, with two features that are not regularised taken out."""

    def __init__(self, seed, lambda1, lambda2):
        draw = np.random.default_rng(seed)
        m = int(draw.integers(1, 8))
        x = (draw.random((12, m)) < 0.6) * draw.integers(-2, 3, (12, m)).astype(float)
        scale, dense = draw.random(12), draw.normal(size=(12, 2))
        cross = x.T @ (scale[:, None] * dense)
        solved = cross @ np.linalg.inv(dense.T @ (scale[:, None] * dense))
        ridge = 1e-6 + draw.integers(0, 2, m) * draw.random(m)
        self.s = x.T @ (scale[:, None] * x) - solved @ cross.T + np.diag(ridge)
        self.linear = draw.normal(size=m)
        self.start = draw.choice([0.0, 0.5, -0.5, 1.0, 0.3, -2.0], m)
        self.penalty = Penalty(lambda1, lambda2, m + 1)
        turned = csc_array(x)
        begin, row = turned.indptr.astype(np.int64), turned.indices.astype(np.int32)
        self.columns = (begin, row, turned.data, scale, cross, solved, ridge)

    def value(self, v):
        return 0.5 * v @ self.s @ v + self.linear @ v + self.penalty.value(v)

    def swept(self, v, sweeps):
        v = v.copy()
        sweep(self.columns, self.linear, v, self.penalty.strengths, sweeps)
        return v


models = st.builds(
    Model, st.integers(0, 10**6), st.sampled_from([0.0, 0.1]), st.sampled_from([0.01, 0.1, 0.4])
)


@given(models)
def test_no_sweep_makes_it_worse_and_none_takes_blocks_apart(model):
    v = model.start
    for _ in range(4):
        new = model.swept(v, 1)
        assert model.value(new) <= model.value(v) + 1e-9
        for size in set(np.abs(v)):
            assert np.unique(np.abs(new[np.abs(v) == size])).size == 1
        v = new


@settings(max_examples=50)
@given(models)
def test_in_the_end_no_block_would_rather_be_elsewhere(model):
    v = model.swept(model.start, 2000)
    least = model.value(v)
    for size in set(np.abs(v)) - {0.0}:
        block = np.abs(v) == size
        near = size * np.linspace(0.9, 1.1, 41)
        for level in np.concatenate([near, -near, np.abs(v), [0.0], np.linspace(-4, 4, 81)]):
            moved = np.where(block, level * np.sign(v), v)
            assert model.value(moved) >= least - 1e-7

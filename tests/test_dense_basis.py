"""Dense features in whose place the minimiser takes others."""

import numpy as np
import pytest

from torchtune_smt.minimizer import dense_basis as module
from torchtune_smt.minimizer.dense_basis import dense_basis


def features(n=500, seed=0):
    """Six features of all sizes, none of which depends on others."""
    draw = np.random.default_rng(seed)
    return draw.normal(size=(n, 6)) * 10.0 ** np.arange(-3, 3)


def test_features_that_are_not_nearly_one_stay_as_they_are():
    x = features()
    z, basis = dense_basis(x.copy())
    assert np.array_equal(z, x) and np.array_equal(basis.matrix, np.eye(6))
    w = np.arange(6.0)
    assert np.array_equal(basis.inside(w), w) and np.array_equal(basis.gradient(w), w)
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
    assert z.shape == x.shape and np.array_equal(z[:, :6], x[:, :6]) and not z[:9].any()
    size = np.linalg.norm(x, axis=0)
    assert (np.linalg.norm(z @ basis.matrix - x, axis=0) <= 1e-13 * size).all()
    # What is new is what was hidden, all of which there is, and of size 1.
    length = np.linalg.norm(z, axis=0)
    assert np.linalg.cond(z / length) < 2 and np.allclose(length[6:], np.sqrt(500), rtol=1e-3)
    t[:9] = 0.0
    angle = np.abs((z[:, 6:] * t).sum(axis=0)) / length[6:] / np.linalg.norm(t, axis=0)
    assert (angle > 0.98).all()
    # Margins and gradients are the same.
    v = np.random.default_rng(2).normal(size=8) / length
    w = basis.weights(v, np.zeros(8))
    assert np.allclose(x @ w, z @ v, atol=1e-14 / eps)
    assert np.allclose(basis.inside(w), v, atol=1e-14 / eps)
    a = np.random.default_rng(3).random(500)
    assert (np.abs(basis.gradient(z.T @ a) - x.T @ a) <= 1e-12 * size).all()


def test_features_that_say_nothing_of_their_own():
    x = features()
    x = np.column_stack([x[:, 5], x, x[:, 1] + x[:, 2]])
    z, basis = dense_basis(x.copy())
    assert basis.kept.tolist() == [0, 1, 2, 3, 4, 5] and np.array_equal(z, x[:, :6])
    start = np.random.default_rng(1).normal(size=8)
    # Where nothing moves, all weights stay; what moves is shared by features that are one.
    assert np.allclose(basis.weights(basis.inside(start), start), start)
    moved = basis.weights(basis.inside(start) + np.eye(6)[0], start) - start
    assert np.allclose(moved, [0.5, 0, 0, 0, 0, 0, 0.5, 0])
    # The least change, in what features do, of all that have these margins.
    change = np.linalg.norm(x, axis=0) * moved
    least = np.linalg.pinv(x / np.linalg.norm(x, axis=0), rcond=1e-10) @ (x @ moved)
    assert np.allclose(change, least)
    assert np.allclose(basis.gradient(z.T @ np.ones(500)), x.T @ np.ones(500))


def test_fewer_pairs_than_features():
    x = features(3)
    z, basis = dense_basis(x.copy())
    assert z.shape == (3, 3)
    assert np.allclose(z @ basis.matrix, x, rtol=1e-10, atol=1e-13)
    target = np.random.default_rng(0).normal(size=3)
    w = basis.weights(np.linalg.solve(z, target), np.zeros(6))
    assert np.allclose(x @ w, target)


def test_no_features():
    z, basis = dense_basis(np.zeros((4, 0)))
    assert z.shape == (4, 0) and basis.weights(np.zeros(0), np.zeros(0)).shape == (0,)

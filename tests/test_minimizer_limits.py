"""The minimiser where time or steps are up before the minimum."""

import itertools

import numpy as np
import pytest
from minimizer_reference import rows_of
from test_minimizer import problem

from torchtune_smt.minimizer import Accuracy, Logistic, Minimizer, SmoothedHinge, SquaredHinge
from torchtune_smt.minimizer import descent as descent_module
from torchtune_smt.minimizer import minimizer as minimizer_module
from torchtune_smt.minimizer.dense_optimum import follow_dense

LOSSES = [SmoothedHinge(0.05), SquaredHinge(), Logistic()]


def scaled(loss, seed=5):
    """Return a minimiser, and a tenth of lambda_max."""
    minimizer = Minimizer(rows_of(problem(seed)), 3, loss)
    penalty = minimizer.penalty(0.0, 1.0)
    return minimizer, penalty.times(0.1 * minimizer.largest_scale(penalty))


@pytest.mark.parametrize("loss", LOSSES)
def test_dense_weights_stay_where_they_are_when_time_is_up(loss, monkeypatch):
    """By a clock that ticks once each time someone looks at it."""
    minimizer, penalty = scaled(loss)
    moved = []

    def follow(*given):
        followed = follow_dense(*given)
        moved.append(float(np.abs(followed.change).max()))
        return followed

    monkeypatch.setattr(minimizer_module, "follow_dense", follow)
    ticks = itertools.count()
    monkeypatch.setattr(descent_module.time, "monotonic", lambda: float(next(ticks)))
    counts = []
    for seconds in (1.0, 4.0, 1e9):
        moved.clear()
        found = minimizer.minimize(penalty, accuracy=Accuracy(seconds=seconds))
        assert found.reached == (seconds > 4.0)
        counts.append(np.count_nonzero(moved))
    assert counts[0] == 0 < counts[1] <= counts[2] and counts[1] <= 3
    # A path as well.
    moved.clear()
    next(minimizer.path(penalty, [1.0], accuracy=Accuracy(seconds=1.0)))
    assert not any(moved)


def test_the_better_start_is_what_is_left_when_there_is_no_time():
    minimizer, penalty = scaled(Logistic())
    best = minimizer.minimize(penalty)
    found = minimizer.minimize(penalty, best.weights, Accuracy(seconds=1e-9))
    assert np.array_equal(found.weights, best.weights)
    # Sparse weights that do harm.
    bad = best.weights.copy()
    bad[3:] = 100.0
    assert minimizer.minimize(penalty, bad, Accuracy(seconds=1e-9)).survivors == 0


@pytest.mark.parametrize("loss", LOSSES)
def test_a_minimum_that_was_not_reached_has_the_better_bound(loss):
    """That of the weights themselves, or that of dense features alone."""
    for seed, steps in itertools.product(range(4), (1, 2)):
        minimizer, penalty = scaled(loss, seed)
        start = 3.0 * np.random.default_rng(seed).normal(size=minimizer.dimension)
        accuracy = Accuracy(1e-12, 1e-12, steps=steps)
        found = minimizer.minimize(penalty, start, accuracy)
        assert not found.reached
        again = minimizer.certificate(penalty, found.weights)
        assert found.certificate.bound == pytest.approx(again.bound, rel=1e-6)

"""The certificate says no more than is true, however badly the data is scaled."""

import numpy as np
import pytest
from minimizer_reference import fista, objective, rows_of

from torchtune_smt.minimizer import Logistic, Minimizer, SmoothedHinge, SquaredHinge

LOSSES = [SmoothedHinge(0.05), SquaredHinge(), Logistic()]


def nearly_one(eps):
    """Two dense features that differ by eps times a third one; and with that one instead."""
    draw = np.random.default_rng(0)
    t, f = draw.normal(size=400), 10.0 * draw.normal(size=400)
    sign = np.where(t + 0.5 * draw.normal(size=400) > 0, 1.0, -1.0)
    sparse = draw.choice([-1.0, 0.0, 1.0], (400, 6))
    x = np.column_stack([f * sign, (f + eps * t) * sign, sparse])
    return x, np.column_stack([f / 10.0 * sign, t * sign, sparse])


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("eps", [1e-4, 1e-5, 1e-6, 1e-8, 1e-10])
def test_dense_features_that_are_nearly_one(loss, eps):
    x, same = nearly_one(eps)
    minimizer = Minimizer(rows_of(x), 2, loss)
    penalty = minimizer.penalty(0.0, 0.002)
    found = minimizer.minimize(penalty)
    slow = objective(same, 2, loss, penalty, fista(same, 2, loss, penalty, 20_000))
    certificate = found.certificate
    assert certificate.bound <= slow + 1e-6 * slow
    assert certificate.bound <= certificate.objective * (1 + 1e-9)
    assert certificate.objective == pytest.approx(slow, rel=2e-4)
    # Where weights are so large that rounding makes more than the gap, that is said.
    assert found.reached or (eps == 1e-10 and any("rounding" in said for said in found.messages))
    # The weights of the features that were given, in which they are large: to rounding of margins.
    own = objective(x, 2, loss, penalty, found.weights)
    assert own == pytest.approx(certificate.objective, rel=1e-7 + 1e-14 / eps)
    pulls = x.T @ loss.pulls(x @ found.weights) / len(x)
    assert np.abs(pulls[:2]).max() <= (1.1e-4 + 1e-10 / eps) * penalty.largest


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("size", [1e4, 1e8, 1e12])
def test_a_pair_whose_dense_features_are_far_larger_than_all_others(loss, size):
    draw = np.random.default_rng(0)
    x = draw.normal(size=(200, 8))
    x[:, 2:] = np.round(x[:, 2:])
    x[0, :2] = size
    minimizer = Minimizer(rows_of(x), 2, loss)
    penalty = minimizer.penalty(0.0, 0.005)
    found = minimizer.minimize(penalty)
    # What it comes to where the pair has a margin of a few, and the others only t.
    same = x.copy()
    same[:, 0], same[:, 1] = x[:, 0] - x[:, 1], x[:, 0] / size
    slow = objective(same, 2, loss, penalty, fista(same, 2, loss, penalty, 2_000))
    certificate = found.certificate
    assert certificate.bound <= slow + 1e-6 * slow
    assert certificate.bound <= certificate.objective * (1 + 1e-9)
    assert found.reached or certificate.gap > 1e-3
    if size < 1e9:
        assert found.reached and certificate.objective == pytest.approx(slow, rel=1e-3)


@pytest.mark.parametrize("loss", [SmoothedHinge(), *LOSSES])
@pytest.mark.parametrize("seed", [0, 5])
@pytest.mark.parametrize("far", [1.0, 100.0, 1e3, 1e5, 1e8])
def test_weights_far_away(loss, seed, far):
    draw = np.random.default_rng(seed)
    x = np.zeros((1000, 70))
    x[:, :10] = draw.normal(size=(1000, 10)) * np.exp(draw.normal(size=10))
    for row in x:
        row[10 + draw.choice(60, 4, replace=False)] = draw.choice([-1.0, 1.0], 4)
    w = np.append(draw.normal(size=10), 0.1 * draw.normal(size=60))
    x[x @ w + 4.0 * draw.normal(size=1000) < 0] *= -1
    minimizer = Minimizer(rows_of(x), 10, loss)
    penalty = minimizer.penalty(0.0, 1e-3)
    least = minimizer.minimize(penalty)
    assert least.reached
    weights = draw.normal(size=70) * far
    largest = minimizer.largest_scale(penalty)
    assert minimizer.largest_scale(penalty, weights) == pytest.approx(largest, rel=1e-9)
    # It comes back from there.
    found = minimizer.minimize(penalty, weights)
    assert found.reached
    objectives = found.certificate.objective, least.certificate.objective
    assert objectives[0] == pytest.approx(objectives[1], rel=1e-3)
    certificate = minimizer.certificate(penalty, weights)
    assert certificate.bound <= least.certificate.objective * (1 + 1e-9)
    own = objective(x, 10, loss, penalty, weights)
    assert certificate.objective == pytest.approx(own)

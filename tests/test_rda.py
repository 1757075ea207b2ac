"""What regularised dual averaging leaves; its steps are in test_optimizers.py."""

import numpy as np
import pytest
import torch
from minimizer_reference import objective, problem, rows_of
from optim_reference import parameter_of, set_gradient

from torchtune_smt.minimizer import Accuracy, Logistic, Minimizer
from torchtune_smt.optim import FOBOS, RDA
from torchtune_smt.regularizers import L1, Oscar


def steps(optimizer, parameter, x, loss, batches):
    """Take a step along the mean gradient of each batch of pairs."""
    for batch in batches:
        some = x[batch]
        optimizer.catch_up(torch.arange(x.shape[1]))
        pulls = loss.pulls(some @ parameter.detach().numpy())
        gradient = -(some.T @ pulls) / len(batch)
        set_gradient(parameter, [(j, gradient[j]) for j in np.flatnonzero(gradient)])
        optimizer.step()
    optimizer.flush()
    return parameter.detach().numpy()


def test_it_comes_to_the_minimum():
    """Dense weights from where they began, groups and zeros those of the minimiser."""
    x, loss = problem(2, n_dense=1, noise=0.3), Logistic()
    minimizer = Minimizer(rows_of(x), 1, loss)
    penalty = minimizer.penalty(0.0, 1.0)
    penalty = penalty.times(0.3 * minimizer.largest_scale(penalty))
    minimum = minimizer.minimize(penalty, accuracy=Accuracy(1e-9, 1e-9))
    parameter = parameter_of(np.append(0.3, np.full(12, 5.0)))
    regularizer = Oscar(penalty.lambda1, penalty.lambda2, penalty.dimension)
    optimizer = RDA([parameter], 2.0, regularizer, unregularized=1)
    w = steps(optimizer, parameter, x, loss, [np.arange(len(x))] * 1500)
    assert np.array_equal(w != 0, minimum.weights != 0)
    least = minimum.certificate.objective
    assert objective(x, 1, loss, penalty, w) == pytest.approx(least, rel=2e-3)


def test_in_noise_it_leaves_little_where_the_last_gradients_leave_what_they_had():
    """Of pairs that mean nothing, with a penalty above that from which on nothing survives."""
    draw, n, d = np.random.default_rng(0), 2000, 300
    x = (draw.random((n, d)) < 0.02) * draw.choice([-1.0, 1.0], (n, d))
    loss, strength = Logistic(), 0.006
    minimizer = Minimizer(rows_of(x), 0, loss)
    assert minimizer.largest_scale(minimizer.penalty(strength, 0.0)) < 1
    left = {}
    for kind, options in ((RDA, {}), (FOBOS, {"schedule": "constant"})):
        parameter = parameter_of(np.zeros(d))
        optimizer = kind([parameter], 0.5, L1(strength), **options)
        order = np.random.default_rng(1).integers(n, size=(4000, 1))
        left[kind] = np.count_nonzero(steps(optimizer, parameter, x, loss, order))
    assert left[RDA] < 0.2 * left[FOBOS]


def test_exempt_weights_move_from_where_they_begin():
    """After t steps by w = w¹ - √t ḡ; the others forget."""
    parameter = parameter_of([5.0, 5.0])
    optimizer = RDA([parameter], 1.0, L1(0.1), unregularized=1)
    for t in range(1, 4):
        set_gradient(parameter, [(0, 1.0), (1, 1.0)])
        optimizer.step()
        optimizer.flush()
        expected = [5.0 - t**0.5, -(t**0.5) * (1 - 0.1)]
        np.testing.assert_allclose(parameter.detach(), expected, rtol=1e-12)


@pytest.mark.parametrize("touch", [True, False])
def test_a_weight_comes_back_when_the_step_size_is_no_longer_0(touch):
    """As schedules begin at 0; the weight is that of the mean gradient, whenever it is asked."""
    parameter = parameter_of([0.0, 0.0])
    optimizer = RDA([parameter], 1.0, L1(0.01))
    for t in range(1, 7):
        optimizer.param_groups[0]["lr"] = (t - 1) / 3
        set_gradient(parameter, [(0 if t == 1 else 1, -1.0)])
        optimizer.step()
        if touch:
            optimizer.catch_up(torch.arange(2))
    optimizer.flush()
    size = 5 / 3 * 6**0.5
    expected = size * (np.array([1, 5]) / 6 - 0.01)
    np.testing.assert_allclose(parameter.detach(), expected, rtol=1e-12)

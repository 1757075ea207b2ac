"""The minimiser where pairs have no curvature, or features of the working set none."""

import numpy as np
import pytest
from minimizer_reference import fista, objective, rows_of

from torchtune_smt.minimizer import Accuracy, Logistic, Minimizer, SquaredHinge
from torchtune_smt.regularizers import Oscar
from torchtune_smt.tuners.grouping.minimum import BatchLearning

EXACT = Accuracy(residual=1e-9, gap=1e-9)


def few(seed=51):
    """A few pairs that the weights soon tell, all of them, by more than 1."""
    draw = np.random.default_rng(seed)
    n, u = int(draw.choice([3, 5, 10, 30])), int(draw.choice([5, 10, 20]))
    x = draw.choice([-1.0, 0.0, 0.0, 1.0], (n, u + 2))
    x[:, :2] = draw.normal(size=(n, 2))
    return x


@pytest.mark.parametrize("n_dense", [0, 2])
@pytest.mark.parametrize("write_down", [False, True])
def test_pairs_without_curvature_give_none(n_dense, write_down):
    pairs = Minimizer(rows_of(few()), n_dense, SquaredHinge()).pairs
    curvature = pairs.curvature(np.zeros(len(pairs)), np.arange(pairs.n_sparse))
    if write_down:
        curvature.write_down()
    for unit in np.eye(pairs.n_sparse):
        assert np.abs(curvature.apply(unit)).max() <= 1e-200


def test_a_start_past_the_kink_of_all_pairs():
    minimizer = Minimizer(rows_of(np.eye(2)), 0, SquaredHinge())
    found = minimizer.minimize(minimizer.penalty(0.01, 0.0), np.full(2, 3.0), EXACT)
    # Where ½ (1 - w) = 0.01.
    assert found.reached and np.allclose(found.weights, 0.98, atol=1e-8)


def test_few_pairs_with_next_to_no_penalty():
    x = few()
    minimizer = Minimizer(rows_of(x), 2, SquaredHinge())
    penalty = minimizer.penalty(0.0, 1.0, 100 * minimizer.pairs.n_sparse)
    penalty = penalty.times(0.001 * minimizer.largest_scale(penalty))
    found = minimizer.minimize(penalty, accuracy=EXACT)
    slow = objective(x, 2, minimizer.loss, penalty, fista(x, 2, minimizer.loss, penalty, 100_000))
    assert found.reached and found.certificate.objective == pytest.approx(slow, rel=1e-6)


def test_groups_of_few_pairs_with_next_to_no_penalty():
    x = few()
    oscar = Oscar(0.0, 3e-8, dimension=100 * (x.shape[1] - 2))
    learning = BatchLearning(oscar, SquaredHinge(), 0.0003)
    learnt = learning.learn(rows_of(x), np.zeros(x.shape[1]), 2, (0,), lambda *progress: None)
    assert learnt.numbers["minimum/reached"] == 1.0


def test_a_start_where_no_pair_has_curvature_with_the_logistic_loss():
    x = np.random.default_rng(0).normal(size=(50, 6))
    x[:, 2:] = np.abs(x[:, 2:]) + 2.0
    minimizer = Minimizer(rows_of(x), 2, Logistic())
    penalty = minimizer.penalty(0.0, 0.01)
    start = np.append([0.0, 0.0], np.full(4, 1e4))
    assert not Logistic().curvatures(x @ start).any()
    found = minimizer.minimize(penalty, start, EXACT)
    slow = fista(x, 2, Logistic(), penalty, 20_000)
    assert found.reached and np.allclose(found.weights, slow, atol=1e-5)

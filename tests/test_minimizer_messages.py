"""What the minimiser tells the user is true."""

import re

import numpy as np
import pytest
from minimizer_reference import LOSSES, hinge_minimum, problem, rows_of, scaled

from torchtune_smt.core.errors import InputError
from torchtune_smt.minimizer import (
    Accuracy,
    Certificate,
    Logistic,
    Minimizer,
    Penalty,
    Residual,
    SmoothedHinge,
    SquaredHinge,
)
from torchtune_smt.minimizer.dense_optimum import separating
from torchtune_smt.regularizers import Oscar
from torchtune_smt.tuners.grouping.base import Problem
from torchtune_smt.tuners.grouping.minimum import BatchLearning
from torchtune_smt.tuners.grouping.steps import GroupLearning


@pytest.mark.parametrize("loss", LOSSES)
def test_nothing_is_said_of_what_survives_where_the_minimum_was_not_reached(loss):
    minimizer, penalty = scaled(problem(5), 3, loss, 0.1)
    for accuracy in (Accuracy(seconds=1e-9), Accuracy(steps=1, residual=1e-12)):
        found = minimizer.minimize(penalty, accuracy=accuracy)
        assert not found.reached and not any("survives" in said for said in found.messages)
    # Where it was, lambda_max is that of the pairs.
    found = minimizer.minimize(penalty.times(20.0), accuracy=Accuracy(1e-9, 1e-9))
    numbers = re.search("survives.* lambda2=(.*) here", found.messages[0])
    assert float(numbers[1]) == pytest.approx(penalty.lambda2 / 0.1, rel=1e-3)


@pytest.mark.parametrize("size", [1e3, 1e10])
def test_a_pair_of_large_values_hides_no_other_that_is_told_wrongly(size):
    draw = np.random.default_rng(0)
    x = np.hstack([draw.normal(size=(100, 2)), draw.choice([-1.0, 0.0, 1.0], (100, 3))])
    x[0, 0] = size
    minimizer, penalty = scaled(x, 2, Logistic(), 0.5)
    ways = np.ones(2), np.array([1.0, 0.0])
    assert separating(minimizer.pairs, np.ones(len(x)), *ways) is None
    assert not any("none wrongly" in said for said in minimizer.minimize(penalty).messages)


@pytest.mark.parametrize("size", [1.0, 1e10])
def test_a_weighting_that_tells_pairs_beside_features_that_do_not(size):
    """Two features of 40 pairs do together; a third one says nothing of them."""
    draw = np.random.default_rng(0)
    x = problem(1, noise=3.0)
    x[:, :3] = 0.0
    x[:40, 0] = np.where(np.arange(40) % 2, 2.0, -1.0)
    x[:40, 1] = 1.0 - x[:40, 0]
    x[:40, 2] = 0.1 * draw.normal(size=40)
    x[0, 2] = size
    minimizer, penalty = scaled(x, 3, Logistic(), 0.1)
    found = minimizer.minimize(penalty)
    assert any("tells 40 of 300 pairs, and none wrongly" in said for said in found.messages)


def test_dense_features_that_separate_some_pairs_together():
    """No one feature does, and their sum does."""
    x = problem(1, noise=3.0)
    x[:, :3] = 0.0
    x[:40, 0] = np.where(np.arange(40) % 2, 2.0, -1.0)
    x[:40, 1] = 1.0 - x[:40, 0]
    found = Minimizer(rows_of(x), 3, Logistic()).minimize(Penalty(1e-3, 1e-3, 20))
    (said,) = found.messages
    assert "a weighting of the dense features tells 40 of 300 pairs" in said
    found = Minimizer(rows_of(x), 3, SquaredHinge()).minimize(Penalty(1e-3, 1e-3, 20))
    assert found.messages == ()
    found = Minimizer(rows_of(x), 3, SmoothedHinge(0.05)).minimize(Penalty(1e-3, 1e-3, 20))
    smoothed, separated = found.messages
    assert "tuner.minimizer.mu" in smoothed
    assert "tells 40 of 300 pairs, and none wrongly: the hinge asks" in separated


def told(seed, n=200, wrong=0):
    """Two dense features, of which a weighting tells 30 pairs, or all but some; 10 sparse ones."""
    draw = np.random.default_rng(seed)
    x = np.zeros((n, 12))
    x[:, 0] = draw.normal(size=n)
    x[:, 1] = 2 * x[:, 0]
    tells = np.zeros(n)
    tells[:30] = np.abs(draw.normal(size=30)) + 0.1
    x[:, 2:] = draw.integers(-1, 2, (n, 10))
    # Where nothing is told, and beside the weighting, they have an optimum like any other.
    better = x[:, 2:6].sum(1) + 0.2 * x[:, 0] + 2 * draw.normal(size=n) >= 0
    x[30:] *= np.where(better[30:], 1.0, -1.0)[:, None]
    x[:, 0] += 2 * tells
    x[:, 1] -= tells
    x[:wrong, :2] *= -1
    return x


@pytest.mark.parametrize("loss", [SmoothedHinge(), SmoothedHinge(0.05), Logistic()])
@pytest.mark.parametrize("seed", range(5))
def test_a_weighting_that_tells_pairs_beside_an_optimum_of_its_features(loss, seed):
    minimizer, penalty = scaled(told(seed), 2, loss, 0.2)
    found = minimizer.minimize(penalty)
    assert found.reached and found.survivors
    assert any(
        "a weighting of the dense features tells 30 of 200 pairs, and none wrongly" in said
        for said in found.messages
    )
    # One pair that is told wrongly, and there is a minimum.
    minimizer, penalty = scaled(told(seed, wrong=1), 2, loss, 0.2)
    assert not any("none wrongly" in said for said in minimizer.minimize(penalty).messages)


@pytest.mark.parametrize("loss", [SmoothedHinge(), *LOSSES])
def test_lambda_max_where_all_pairs_of_sparse_features_are_told(loss):
    """Those with none keep the dense features from growing in any other direction."""
    for seed in range(20):
        x = told(seed, 60)
        x[30:, 2:] = 0.0
        x[45:, :2] *= -1
        minimizer = Minimizer(rows_of(x), 2, loss)
        assert minimizer.largest_scale(minimizer.penalty(0.0, 1.0)) == 0.0


@pytest.mark.parametrize("mu", [0.05, 5e-4])
@pytest.mark.parametrize("part", [1.0, 0.5, 0.01])
def test_the_smoothing_that_is_advised_is_of_the_hinge(mu, part):
    """Whose objective is well above 0 where that with the smoothing is next to 0, or below."""
    draw = np.random.default_rng(0)
    x = draw.normal(size=(100, 22))
    w = np.concatenate([[0.3, -0.2], np.repeat([1.0, -1.0, 0.5, 0.0], 5)])
    x *= np.where(x @ w < 0, -1.0, 1.0)[:, None]
    x = x[np.abs(x @ w) > 0.7]
    minimizer = Minimizer(rows_of(x), 2, SmoothedHinge(mu))
    # A part of that of which the objective is 0.
    penalty = minimizer.penalty(0.0, 1.0).times(part * (5e-4 if mu == 0.05 else 5e-6))
    found = minimizer.minimize(penalty, accuracy=Accuracy(1e-4, 1e-3))
    hinge = np.maximum(1.0 - x @ found.weights, 0.0).mean() + penalty.value(found.weights[2:])
    assert found.reached and found.certificate.objective < 0.7 * hinge
    (said,) = found.messages
    advised = float(re.search("tuner.minimizer.mu=([^ ]*) ", said)[1])
    assert advised == float(f"{1e-3 * hinge:.1g}")


@pytest.mark.parametrize("weight", [600.0, 700.0, 720.0, 730.0, 744.0, 800.0])
def test_a_start_where_no_pair_has_a_curvature_that_is_a_number(weight):
    x = np.array([[1.0, 0, 1], [-1.0, 0, 1], [0, 1, -1], [0, -1, 1], [1.0, 1, 1]])
    minimizer = Minimizer(rows_of(x), 1, Logistic())
    penalty = minimizer.penalty(1e-3, 1e-3)
    start = np.array([weight, 0.0, 0.0])
    assert np.isfinite(minimizer.certificate(penalty, start).objective)
    found, plain = minimizer.minimize(penalty, start), minimizer.minimize(penalty)
    assert found.reached
    assert found.certificate.objective == pytest.approx(plain.certificate.objective, rel=1e-3)


@pytest.mark.parametrize("features", [2, 3])
def test_lambda2_alone_and_fewer_than_two_sparse_features(features):
    pairs = rows_of(np.random.default_rng(0).normal(size=(30, features)))
    minimizer = Minimizer(pairs, 2, Logistic())
    with pytest.raises(InputError, match="lambda2 pulls at nothing: set regularizer.lambda1"):
        minimizer.penalty(0.0, 3e-8)
    # Two that d counts are enough, and so is lambda1.
    for penalty in (minimizer.penalty(0.0, 0.01, 2), minimizer.penalty(0.01, 0.0)):
        found = minimizer.minimize(penalty, accuracy=Accuracy(1e-9, 1e-9))
        assert found.reached and found.certificate.residual.largest <= 1e-9

    def learn(learning):
        return learning.learn(Problem(pairs, np.zeros(features), 2))

    with pytest.raises(InputError, match="set regularizer.lambda1"):
        learn(BatchLearning(Oscar(0.0, 3e-8)))
    # Steps need no minimum: there is no certificate of theirs, and all else.
    for dimension in (None, 1):
        learnt = learn(GroupLearning(Oscar(0.0, 3e-8, dimension=dimension)))
        assert not any("above the minimum" in said for said in learnt.remarks)
    learnt = learn(GroupLearning(Oscar(1e-8, 3e-8)))
    assert any("above the minimum" in said for said in learnt.remarks)


def test_a_smoothing_that_hides_more_than_was_asked_for():
    """The gap of the hinge has mu/2 in it; a message says with which mu it is small enough."""
    x = problem(5)
    penalty, gap = Penalty(1e-3, 1e-3, 20), 1e-3
    found = Minimizer(rows_of(x), 3, SmoothedHinge(0.05)).minimize(penalty, None, Accuracy(gap=gap))
    assert found.reached and found.certificate.gap > 0.05 / 2 / found.certificate.objective > gap
    (said,) = found.messages
    assert "the hinge may be mu/2 above its smoothing" in said and "0.001 was asked for" in said
    mu = float(re.search("tuner.minimizer.mu=([^ ]*) ", said)[1])
    finer = Minimizer(rows_of(x), 3, SmoothedHinge(mu)).minimize(penalty, None, Accuracy(gap=gap))
    assert finer.reached and finer.messages == () and finer.certificate.gap <= gap
    # Of the hinge itself.
    least = hinge_minimum(x[:60], 3, penalty)
    some = Minimizer(rows_of(x[:60]), 3, SmoothedHinge(mu)).minimize(penalty)
    hinge = np.maximum(1.0 - x[:60] @ some.weights, 0.0).mean() + penalty.value(some.weights[3:])
    assert hinge - least <= some.certificate.distance


@pytest.mark.parametrize("part", [0.5, 0.8, 0.95])
def test_the_gap_that_was_asked_for_has_the_smoothing_in_it(part):
    """Of which the smoothing is this part; of 0.95 of it, the rest is next to none."""
    x, penalty = problem(5), Penalty(1e-3, 1e-3, 20)
    loss = SmoothedHinge(1e-3)
    near = Minimizer(rows_of(x), 3, loss).minimize(penalty).certificate.objective
    gap = loss.mu / 2 / part / near
    found = Minimizer(rows_of(x), 3, loss).minimize(penalty, None, Accuracy(1.0, gap))
    assert found.reached
    assert (found.certificate.gap <= gap) == (found.messages == ())
    assert part > 0.9 or found.messages == ()


def test_the_gap_where_the_objective_is_not_above_0():
    certificate = Certificate(Residual(0.0, 0.0), -1e-4, -2e-4, 2.5e-4)
    assert "at most 0.00035 above the minimum" in str(certificate) and certificate.gap == 1.0
    x = problem(1)
    x[:, 0] = np.abs(x[:, 0]) + 1.0
    found = Minimizer(rows_of(x), 3, SmoothedHinge()).minimize(Penalty(1e-2, 1e-2, 20))
    assert found.certificate.objective <= 0.0
    assert re.search("at most 0.000[0-9]* above the minimum", str(found.certificate))
    assert not any("tuner.minimizer.mu" in said for said in found.messages)


@pytest.mark.parametrize("loss", [SmoothedHinge(), *LOSSES])
def test_all_that_is_said_where_dense_features_tell_all_pairs(loss):
    """Whatever is said of lambda_max is that it is 0; what pulls are left there is rounding."""
    x = problem(1)
    x[:, 0] = np.abs(x[:, 0]) + 0.01
    learning = BatchLearning(Oscar(1e-9, 3e-8), loss)
    learnt = learning.learn(Problem(rows_of(x), np.zeros(x.shape[1]), 3))
    assert "(lambda_max is 0)" in learnt.text
    nothing, separated = learnt.remarks
    assert nothing == "no sparse feature survives, nor would with any lambda: lambda_max is 0"
    wanted = "300 of 300 pairs, .* has no minimum" if loss.has_tail else "all pairs, and nothing"
    assert re.search("^dense feature 0 tells " + wanted, separated)
    assert "minimum/fraction" not in learnt.numbers
    # Nor by the minimiser itself; and of pairs that contradict each other.
    minimizer = Minimizer(rows_of(np.vstack([x[:, 3:], -x[:, 3:]])), 0, loss)
    penalty = minimizer.penalty(1e-9, 3e-8)
    assert minimizer.largest_scale(penalty) == 0.0
    assert minimizer.minimize(penalty).messages[0] == nothing

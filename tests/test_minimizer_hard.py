"""The minimiser where data is badly scaled or flat, near the limits, and what it says of it."""

import itertools
import re

import numpy as np
import pytest
from minimizer_reference import (
    EXACT,
    LOSSES,
    fista,
    objective,
    problem,
    rare,
    residual,
    rows_of,
    scaled,
)

from torchtune_smt.core.errors import InputError
from torchtune_smt.core.rows import Rows
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
from torchtune_smt.minimizer.model import Curvature
from torchtune_smt.regularizers import Oscar
from torchtune_smt.tuners.grouping.base import Problem
from torchtune_smt.tuners.grouping.minimum import BatchLearning
from torchtune_smt.tuners.grouping.steps import GroupLearning


@pytest.mark.parametrize("loss", [SmoothedHinge(), SquaredHinge(), Logistic()])
@pytest.mark.parametrize("scale", [1e-5, 1e3, 1e5, 1e6])
def test_some_features_are_far_larger_than_others(loss, scale):
    draw = np.random.default_rng(5)
    x = draw.normal(size=(300, 12))
    x[:, 2:] = np.round(x[:, 2:])
    x[:, 2:6] *= scale
    w = np.concatenate([[1.0, 1.0], np.full(4, 1.0 / scale), np.ones(6)])
    x[x @ w + draw.normal(size=300) < 0] *= -1
    # Small features have a weight, too.
    minimizer, penalty = scaled(x, 2, loss, 0.1 * min(scale, 1.0 / scale))
    found = minimizer.minimize(penalty)
    assert found.reached and found.survivors == 10
    # By definition, of all pairs.
    pulls = x.T @ loss.pulls(x @ found.weights) / 300
    assert np.abs(pulls[:2]).max() <= 1.1e-4 * penalty.largest
    assert residual(found.weights[2:], pulls[2:], penalty) <= 1.1e-4 * penalty.largest


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("scale", [1e-30, 1e-12, 1e6, 1e30])
def test_the_unit_of_features_is_of_no_account(loss, scale):
    """All features are so many times as large: weights are so many times smaller."""
    x = problem(3, d=20)
    plain, penalty = scaled(x, 3, loss, 0.05)
    other = Minimizer(rows_of(x * scale), 3, loss)
    one, two = plain.minimize(penalty), other.minimize(penalty.times(scale))
    assert one.reached and two.reached and two.survivors == one.survivors > 0
    assert np.array_equal(two.groups, one.groups)
    assert two.certificate.objective == pytest.approx(one.certificate.objective, rel=1e-3)
    # With λ_max times as large.
    assert other.largest_scale(penalty) == pytest.approx(scale * plain.largest_scale(penalty))


def test_values_that_are_0_are_no_features():
    x = problem(3)
    begin, columns = np.arange(len(x) + 1) * x.shape[1], np.arange(x.shape[1], dtype=np.int32)
    feature = np.tile(columns, len(x))
    full = Rows(begin, feature, np.where(feature % 5 == 0, 0.0, x.ravel()))
    stored = Minimizer(full, 3, Logistic()).pairs
    assert stored.dense_id.tolist() == [1, 2]
    assert stored.sparse_id.tolist() == [j for j in range(3, x.shape[1]) if j % 5]


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
    curvature = Curvature(pairs, np.zeros(len(pairs)), np.arange(pairs.n_sparse))
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
    minimizer, penalty = scaled(x, 2, SquaredHinge(), 0.001, (0.0, 1.0, 100 * (x.shape[1] - 2)))
    found = minimizer.minimize(penalty, accuracy=EXACT)
    slow = objective(x, 2, minimizer.loss, penalty, fista(x, 2, minimizer.loss, penalty, 30_000))
    assert found.reached and found.certificate.objective == pytest.approx(slow, rel=1e-6)


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
    penalty, weights = minimizer.penalty(0.0, 1e-3), draw.normal(size=70) * far
    largest = minimizer.largest_scale(penalty)
    assert minimizer.largest_scale(penalty, weights) == pytest.approx(largest, rel=1e-9)
    # It comes back from there.
    least, found = minimizer.minimize(penalty), minimizer.minimize(penalty, weights)
    assert least.reached and found.reached
    least = least.certificate.objective
    assert found.certificate.objective == pytest.approx(least, rel=1e-3)
    certificate = minimizer.certificate(penalty, weights)
    assert certificate.bound <= least * (1 + 1e-9)
    assert certificate.objective == pytest.approx(objective(x, 10, loss, penalty, weights))


def test_the_better_start_is_what_is_left_when_there_is_no_time():
    minimizer, penalty = scaled(problem(5), 3, Logistic(), 0.1)
    best = minimizer.minimize(penalty)
    found = minimizer.minimize(penalty, best.weights, Accuracy(seconds=1e-9))
    assert np.array_equal(found.weights, best.weights)
    # Sparse weights that do harm.
    bad = best.weights.copy()
    bad[3:] = 100.0
    found = minimizer.minimize(penalty, bad, Accuracy(seconds=1e-9))
    assert found.survivors == 0 and np.array_equal(found.weights[:3], best.weights[:3])


@pytest.mark.parametrize("loss", LOSSES)
def test_a_minimum_that_was_not_reached_has_the_better_bound(loss):
    """That of the weights themselves, or that of dense features alone."""
    for seed, steps in itertools.product(range(4), (1, 2)):
        minimizer, penalty = scaled(problem(seed), 3, loss, 0.1)
        start = 3.0 * np.random.default_rng(seed).normal(size=minimizer.dimension)
        accuracy = Accuracy(1e-12, 1e-12, steps=steps)
        found = minimizer.minimize(penalty, start, accuracy)
        assert not found.reached
        again = minimizer.certificate(penalty, found.weights)
        assert found.certificate.bound == pytest.approx(again.bound, rel=1e-6)


@pytest.mark.parametrize("fraction", [0.01, 0.03])
def test_the_order_alone_moves_nothing_that_is_not_listed(fraction):
    """16 problems in which blocks move together: one alone has far more curvature."""
    shares = []
    for seed in range(8):
        # Of rare features as many have a weight as there are pairs at the kink.
        x, draw = rare(seed, 300, 200, 5, noise=2.0)
        x, order = np.hstack([draw.normal(size=(300, 2)), x]), draw.permutation(300)
        given = 2, SmoothedHinge(), fraction, (1.0 / 300, 1.0, 1000)
        both = (scaled(rows, *given) for rows in (x, x[order]))
        found, other = (minimizer.minimize(penalty) for minimizer, penalty in both)
        assert found.reached and other.reached
        mine, theirs = (
            (one.groups[:, None] == one.groups) & (one.groups >= 0) for one in (found, other)
        )
        changed = set(np.flatnonzero((mine != theirs).any(axis=0)).tolist())
        assert changed <= {*found.boundary.tolist(), *other.boundary.tolist()}
        shares.append(found.boundary.size / found.survivors)
    assert np.mean(shares) <= 0.05


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
    begin = "a weighting of the dense features tells 30 of 200 pairs, and none wrongly"
    (said,) = (said for said in found.messages if said.startswith(begin))
    assert ("the hinge asks" in said) != loss.has_tail
    # One pair that is told wrongly, and there is a minimum, as there is without a tail or a kink.
    for wrong, other in ((1, loss), (0, SquaredHinge())):
        minimizer, penalty = scaled(told(seed, wrong=wrong), 2, other, 0.2)
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
    given = Problem(pairs, np.zeros(features), 2)
    with pytest.raises(InputError, match="set regularizer.lambda1"):
        BatchLearning(Oscar(0.0, 3e-8)).learn(given)
    # Steps need no minimum: there is no certificate of theirs, and all else.
    for oscar, known in ((Oscar(0.0, 3e-8), False), (Oscar(1e-8, 3e-8), True)):
        learnt = GroupLearning(oscar).learn(given)
        assert any("above the minimum" in said for said in learnt.remarks) == known


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

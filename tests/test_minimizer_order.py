"""What the minimiser finds depends neither on the order of the pairs nor on threads."""

import numpy as np
import pytest
from minimizer_reference import rows_of
from test_minimizer import members

from torchtune_smt.minimizer import Accuracy, Logistic, Minimizer, SmoothedHinge, SquaredHinge
from torchtune_smt.minimizer.descent import POLISHED


def flat_problem(seed):
    """Pairs of rare features, of which as many have a weight as there are pairs at the kink."""
    draw = np.random.default_rng(seed)
    n, d = 300, 200
    often = 1.0 / (np.arange(d) + 3.0)
    x = np.zeros((n, d))
    for row in x:
        row[draw.choice(d, 5, replace=False, p=often / often.sum())] = draw.choice([-1.0, 1.0], 5)
    margins = x @ draw.normal(size=d) + 2.0 * draw.normal(size=n)
    x *= np.where(margins < 0, -1.0, 1.0)[:, None]
    return np.hstack([draw.normal(size=(n, 2)), x]), draw.permutation(n)


def changed(found, other):
    """Features that are in other company in one of two minima."""
    return {
        j for j, (a, b) in enumerate(zip(members(found), members(other), strict=True)) if a != b
    }


def both_orders(seed, fraction):
    """Return the minima of the hinge as it is by default, of pairs in two orders."""
    x, order = flat_problem(seed)
    found = []
    for rows in (x, x[order]):
        minimizer = Minimizer(rows_of(rows), 2, SmoothedHinge(), x.shape[1])
        penalty = minimizer.penalty(1.0 / 300, 1.0, 1000)
        penalty = penalty.times(fraction * minimizer.largest_scale(penalty))
        found.append(minimizer.minimize(penalty))
    return found


@pytest.mark.parametrize("fraction", [0.01, 0.03])
def test_the_order_alone_moves_nothing_that_is_not_listed(fraction):
    """60 problems in which blocks move together: one alone has far more curvature."""
    unlisted, shares = {}, []
    for seed in range(30):
        found, other = both_orders(seed, fraction)
        assert found.reached and other.reached
        rest = changed(found, other) - set(np.union1d(found.boundary, other.boundary).tolist())
        if rest:
            unlisted[seed] = rest
        shares.append(found.boundary.size / found.survivors)
    assert unlisted == {}
    assert np.mean(shares) <= 0.05


def test_what_is_said_of_a_polished_minimum_is_so():
    x, _ = flat_problem(0)
    minimizer = Minimizer(rows_of(x), 2, SmoothedHinge(), x.shape[1])
    penalty = minimizer.penalty(1.0 / 300, 1.0, 1000)
    penalty = penalty.times(0.01 * minimizer.largest_scale(penalty))
    rough = Accuracy(residual=1e-3, gap=0.1)
    found = minimizer.minimize(penalty, accuracy=rough)
    assert found.reached and found.certificate.residual.largest <= POLISHED * rough.residual
    again = minimizer.certificate(penalty, found.weights)
    assert again.objective == pytest.approx(found.certificate.objective, rel=1e-12)
    assert again.residual.largest == pytest.approx(found.certificate.residual.largest, rel=1e-3)


def many_pairs(n=50_000, n_dense=10, d=20):
    """Pairs of a few features: enough of them for OpenBLAS to share sums out among threads."""
    draw = np.random.default_rng(0)
    sparse = (draw.random((n, d)) < 0.2) * draw.choice([-1.0, 1.0], (n, d))
    x = np.hstack([draw.normal(size=(n, n_dense)), sparse])
    margins = x @ np.append(np.full(n_dense, 0.3), np.round(draw.normal(size=d), 1))
    margins += draw.normal(size=n)
    return rows_of(x * np.where(margins < 0, -1.0, 1.0)[:, None])


@pytest.mark.parametrize("loss", [SmoothedHinge(), SquaredHinge(), Logistic()])
def test_threads_alone_move_nothing_that_is_not_listed(loss):
    threads = pytest.importorskip("threadpoolctl")
    pairs = many_pairs()
    minima, gradients = [], []
    for count in (1, 2):
        with threads.threadpool_limits(count):
            minimizer = Minimizer(pairs, 10, loss)
            penalty = minimizer.penalty(1.0 / 300, 1.0)
            penalty = penalty.times(0.1 * minimizer.largest_scale(penalty))
            minima.append(minimizer.minimize(penalty))
            pulls = loss.pulls(minimizer.pairs.margins(np.full(10, 0.3), np.zeros(20)))
            dense = minimizer.pairs.dense
            gradients.append((minimizer.pairs.means(pulls)[0], (dense.T * pulls) @ dense))
    # Sums of one thread are not those of two to the last bit, or nothing is tried here.
    same = [np.array_equal(*both) for both in zip(*gradients, strict=True)]
    if all(same):
        pytest.skip("two threads of this machine's linear algebra round as one does")
    assert all(found.reached and found.survivors > 10 for found in minima)
    assert changed(*minima) <= set(np.union1d(*(found.boundary for found in minima)).tolist())

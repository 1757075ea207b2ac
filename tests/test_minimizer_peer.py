"""The minimiser beside sortedl1 (Larsson et al.), where that is installed."""

import numpy as np
import pytest
from minimizer_reference import objective, penalties, rows_of
from test_minimizer import problem

from torchtune_smt.minimizer import Accuracy, Logistic, Minimizer
from torchtune_smt.minimizer.minimum import groups_of

sortedl1 = pytest.importorskip("sortedl1")


@pytest.mark.parametrize("fraction", [0.1, 0.02])
@pytest.mark.parametrize("seed", [1, 2])
def test_the_same_objective_support_and_groups(seed, fraction):
    """Each pair is a row of both classes, which gives the same mean loss."""
    x = problem(seed, n=600, n_dense=0, d=40)
    x[:, 1] = np.roll(x[:, 0], 1)
    minimizer = Minimizer(rows_of(x), 0, Logistic())
    penalty = minimizer.penalty(0.1, 1.0)
    penalty = penalty.times(fraction * minimizer.largest_scale(penalty))
    found = minimizer.minimize(penalty, accuracy=Accuracy(1e-8, 1e-8))
    peer = sortedl1.Slope(
        lam=penalties(penalty, 40), loss="logistic", fit_intercept=False, tol=1e-9
    )
    peer.fit(np.vstack([x, -x]), np.repeat([1, 0], len(x)))
    theirs = np.asarray(peer.coef_, np.float64).ravel()
    least = objective(x, 0, Logistic(), penalty, theirs)
    assert found.certificate.objective == pytest.approx(least, rel=1e-6)
    assert np.array_equal(theirs != 0, found.weights != 0)
    assert np.array_equal(groups_of(np.round(theirs, 7)), groups_of(np.round(found.weights, 7)))
    assert fraction < 0.1 or found.n_groups < found.survivors

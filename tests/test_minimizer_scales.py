"""The minimiser where sparse features are of very different sizes."""

import numpy as np
import pytest
from minimizer_reference import residual, rows_of

from torchtune_smt.minimizer import Logistic, Minimizer, SmoothedHinge, SquaredHinge


@pytest.mark.parametrize("loss", [SmoothedHinge(), SquaredHinge(), Logistic()])
@pytest.mark.parametrize("scale", [1e-5, 1e3, 1e5, 1e6])
def test_some_features_are_far_larger_than_others(loss, scale):
    draw = np.random.default_rng(5)
    x = draw.normal(size=(300, 12))
    x[:, 2:] = np.round(x[:, 2:])
    x[:, 2:6] *= scale
    w = np.concatenate([[1.0, 1.0], np.full(4, 1.0 / scale), np.ones(6)])
    x[x @ w + draw.normal(size=300) < 0] *= -1
    minimizer = Minimizer(rows_of(x), 2, loss)
    penalty = minimizer.penalty(0.0, 1.0)
    # Small features have a weight, too.
    penalty = penalty.times(0.1 * min(scale, 1.0 / scale) * minimizer.largest_scale(penalty))
    found = minimizer.minimize(penalty)
    assert found.reached and found.survivors == 10
    # By definition, of all pairs.
    pulls = x.T @ loss.pulls(x @ found.weights) / 300
    assert np.abs(pulls[:2]).max() <= 1.1e-4 * penalty.largest
    assert residual(found.weights[2:], pulls[2:], penalty) <= 1.1e-4 * penalty.largest


def test_sizes_of_features():
    x = np.array([[1.0, 0.0, 1e-8, 0.0], [3.0, 5.0, -3e-8, 0.0], [0.0, -4.0, 0.0, 0.0]])
    pairs = Minimizer(rows_of(x), 1, Logistic()).pairs
    assert np.allclose(pairs.size, [4.5, 2e-8], rtol=1e-12)

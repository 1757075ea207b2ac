"""Sweeps over blocks of equal weights, by what they must do to the objective."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from minimizer_reference import rows_of

from torchtune_smt.minimizer import Penalty
from torchtune_smt.minimizer.cluster_kernels import sweep
from torchtune_smt.minimizer.passes_kernels import by_column


class Model:
    """A quadratic with OSCAR, with two features that are not regularised taken out."""

    def __init__(self, seed, lambda1, lambda2):
        draw = np.random.default_rng(seed)
        m = int(draw.integers(1, 8))
        x = (draw.random((12, m)) < 0.6) * draw.integers(-2, 3, (12, m)).astype(float)
        scale, dense = draw.random(12), draw.normal(size=(12, 2))
        cross = x.T @ (scale[:, None] * dense)
        solved = cross @ np.linalg.inv(dense.T @ (scale[:, None] * dense))
        ridge = 1e-6 + draw.integers(0, 2, m) * draw.random(m)
        self.s = x.T @ (scale[:, None] * x) - solved @ cross.T + np.diag(ridge)
        self.linear = draw.normal(size=m)
        self.start = draw.choice([0.0, 0.5, -0.5, 1.0, 0.3, -2.0], m)
        self.penalty = Penalty(lambda1, lambda2, m + 1)
        rows = rows_of(x)
        columns = by_column(rows.begin, rows.feature, rows.value, m)
        self.operator = (*columns, scale, cross, solved, ridge, self.linear)

    def value(self, v):
        return 0.5 * v @ self.s @ v + self.linear @ v + self.penalty.value(v)

    def swept(self, v, sweeps):
        v = v.copy()
        norm = (self.penalty.lambda1, self.penalty.lambda2, self.penalty.dimension)
        sweep(*self.operator, v, *norm, sweeps)
        return v


models = st.builds(
    Model, st.integers(0, 10**6), st.sampled_from([0.0, 0.1]), st.sampled_from([0.01, 0.1, 0.4])
)


@given(models)
def test_no_sweep_makes_it_worse_and_none_takes_blocks_apart(model):
    v = model.start
    for _ in range(4):
        new = model.swept(v, 1)
        assert model.value(new) <= model.value(v) + 1e-9
        for size in set(np.abs(v)):
            assert np.unique(np.abs(new[np.abs(v) == size])).size == 1
        v = new


@settings(max_examples=50)
@given(models)
def test_in_the_end_no_block_would_rather_be_elsewhere(model):
    v = model.swept(model.start, 2000)
    least = model.value(v)
    for size in set(np.abs(v)) - {0.0}:
        block = np.abs(v) == size
        near = size * np.linspace(0.9, 1.1, 41)
        for level in np.concatenate([near, -near, np.abs(v), [0.0], np.linspace(-4, 4, 81)]):
            moved = np.where(block, level * np.sign(v), v)
            assert model.value(moved) >= least - 1e-7


@given(models)
def test_several_sweeps_are_one_after_the_other(model):
    one = model.start
    for _ in range(3):
        one = model.swept(one, 1)
    assert np.allclose(one, model.swept(model.start, 3), atol=1e-9)

"""The mean of the weights that FOBOS has gone through; test_optimizers.py has more of its steps."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from minimizer_reference import objective, rows_of
from optim_reference import EagerFobos, parameter_of, set_gradient
from test_minimizer import problem
from test_rda import steps

from torchtune_smt.core.rows import Rows
from torchtune_smt.losses.slope_kernels import HINGE
from torchtune_smt.minimizer import Logistic, Minimizer
from torchtune_smt.optim import FOBOS, FobosOscar
from torchtune_smt.optim.fobos import StepSums
from torchtune_smt.regularizers import L1, L2, ElasticNet, Oscar

strengths = st.sampled_from([0.0, 1e-3, 0.3, 40.0])


@settings(max_examples=60)
@given(
    both=st.tuples(strengths, strengths).filter(any),
    count=st.integers(0, 1200),
    at_once=st.booleans(),
    seed=st.integers(0, 99),
)
def test_sums_over_missed_steps(both, count, at_once, seed):
    """Against taking them, from any step on; weights die in steps and blocks of all lengths."""
    draw = np.random.default_rng(seed)
    sizes = draw.uniform(0.5, 1.0, count) * draw.choice([1e-4, 1e-2, 1.0])
    found = StepSums(both, 7, sizes if at_once else None)
    for size in sizes if not at_once else ():
        found.append(size)
    assert np.array_equal(found.sizes, sizes)
    last = draw.integers(0, count + 1, 5)
    weights = draw.normal(size=5) * draw.choice([0.0, 0.1, 10.0], 5)
    for w, first, total in zip(weights, last, found.of(weights, last + 7), strict=True):
        expected = 0.0
        for size in sizes[first:]:
            w = np.sign(w) * max(abs(w) - size * both[0], 0.0) / (1.0 + size * both[1])
            expected += w
        assert total == pytest.approx(expected, rel=1e-11, abs=1e-300)


@pytest.mark.parametrize("regularizer", [L1(0.02), L2(3.0), ElasticNet(1e-3, 400.0)])
def test_features_that_hardly_ever_fire(regularizer):
    """Over many blocks of steps, also where the scale of weights put off is made anew."""
    draw = np.random.default_rng(1)
    options = {"schedule": "constant", "average": "step"}
    parameter, twin = (
        parameter_of(np.zeros(4)),
        EagerFobos(np.zeros(4), 0.1, regularizer, **options),
    )
    lazy = FOBOS([parameter], 0.1, regularizer, **options)
    feature = np.where(draw.random(2500) < 0.99, 0, draw.integers(1, 4, 2500)).astype(np.int32)
    value = draw.normal(size=2500)
    for begin in range(0, 2500, 500):
        rows = Rows(
            np.arange(501), feature[begin : begin + 500].copy(), value[begin : begin + 500].copy()
        )
        lazy.step_rows(rows, HINGE)
        if begin == 1000:
            lazy.flush()
        for j, x in zip(rows.feature, rows.value, strict=True):
            twin.step([(j, -x * float(twin.w[j] * x < 1.0))])
    assert np.allclose(lazy.averaged(), twin.averaged(), rtol=0, atol=1e-13)


def test_an_average_by_hand():
    for kind, regularizer in ((FOBOS, L1(0.5)), (FobosOscar, Oscar(0.5, 0.0))):
        parameter = parameter_of([0.0, 4.0])
        optimizer = kind([parameter], 1.0, regularizer, schedule="constant", average="epoch")
        assert optimizer.averaged().tolist() == [0, 4]
        for entries in ([(0, -3.0)], [], [(1, 1.0)]):
            set_gradient(parameter, entries)
            optimizer.step()
            optimizer.end_epoch()
        # (2.5, 3.5), (2, 3), (1.5, 1.5)
        assert optimizer.averaged().tolist() == pytest.approx([2.0, 8 / 3])
    with pytest.raises(ValueError, match="nothing was averaged: build FOBOS with average=epoch"):
        FOBOS([parameter_of([0.0])]).averaged()


def test_what_is_averaged_cannot_change():
    parameter = parameter_of([0.0])
    optimizer = FOBOS([parameter], regularizer=L1(0.1), average="step")
    set_gradient(parameter, [(0, 1.0)])
    optimizer.step()
    optimizer.param_groups[0]["average"] = "none"
    with pytest.raises(ValueError, match="average cannot change between steps"):
        optimizer.step()


def test_damaged_sums_are_refused():
    parameter = parameter_of([0.5, 0.5])

    def build():
        return FOBOS([parameter], regularizer=L1(0.1), average="step")

    optimizer = build()
    for _ in range(3):
        set_gradient(parameter, [(0, 1.0)])
        optimizer.step()
    for sums in (torch.ones(2), -torch.ones(3).double(), torch.ones(1).double(), None):
        state = optimizer.state_dict()
        entry = state["state"][0]
        assert entry["sums"].numel() == 3
        entry["sums"] = sums
        if sums is None:
            del entry["sums"]
        with pytest.raises(ValueError, match="the saved state is damaged"):
            build().load_state_dict(state)
    build().load_state_dict(optimizer.state_dict())


def test_the_mean_is_nearer_to_the_minimum_than_the_last_weights():
    """Steps of constant size after single pairs do not settle; what they circle about does."""
    x, loss = problem(2, n_dense=1, noise=0.3), Logistic()
    minimizer = Minimizer(rows_of(x), 1, loss)
    penalty = minimizer.penalty(1.0, 0.0)
    penalty = penalty.times(0.3 * minimizer.largest_scale(penalty))
    least = minimizer.minimize(penalty).certificate.objective
    order = np.random.default_rng(1).integers(len(x), size=(4000, 1))
    # OSCAR without λ2 is l1, and takes its steps at once.
    for regularizer in (L1(penalty.lambda1), Oscar(penalty.lambda1, 0.0)):
        parameter = parameter_of(np.zeros(x.shape[1]))
        options = {"schedule": "constant", "unregularized": 1, "average": "step"}
        optimizer = FOBOS([parameter], 0.3, regularizer, **options)
        last = steps(optimizer, parameter, x, loss, order)
        mean = optimizer.averaged().numpy()
        above = [objective(x, 1, loss, penalty, w) - least for w in (last, mean)]
        assert 0.0 < above[1] < 0.2 * above[0]

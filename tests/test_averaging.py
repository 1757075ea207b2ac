"""What optimizers add up: means of weights, clocks of updates; test_optimizers.py has steps."""

import warnings
from copy import deepcopy
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from minimizer_reference import objective, problem, rows_of
from optim_reference import EagerFobos, parameter_of, set_gradient
from test_rda import steps

from torchtune_smt.core.rows import Rows
from torchtune_smt.core.scoring import sparse_vector
from torchtune_smt.losses.slope_kernels import HINGE
from torchtune_smt.minimizer import Logistic, Minimizer
from torchtune_smt.optim import FOBOS, SGD, CumulativeL1
from torchtune_smt.optim.fobos import StepSums
from torchtune_smt.regularizers import L1, L2, ElasticNet, Oscar

pytestmark = pytest.mark.usefixtures("replayed_gradients")
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


@dataclass(frozen=True)
class Lazy:
    """An l1 norm that does not say of which form it is."""

    separable: ClassVar[bool] = True
    lazy: ClassVar[bool] = True

    def value(self, weights):
        """Return the penalty."""
        return weights.abs().sum()

    def prox(self, weights, step):
        """Return the soft threshold."""
        return L1(1.0).prox(weights, step)


@pytest.mark.parametrize(
    "build",
    [
        lambda p: FOBOS(p, 1.0, L1(1.0), schedule="constant", average="step"),
        lambda p: FOBOS(p, 1.0, ElasticNet(1.0, 0.01), schedule="constant", average="epoch"),
        lambda p: FOBOS(p, 1.0, Lazy(), schedule="constant"),
        lambda p: CumulativeL1(p, 1.0, L1(1.0)),
        lambda p: SGD(p, 1.0, average="step"),
    ],
    ids=["L1", "ElasticNet", "Lazy", "CumulativeL1", "SGD"],
)
def test_small_steps_after_a_large_one(build):
    found = []
    for dtype in (torch.float32, torch.float64):
        weight = torch.nn.Parameter(torch.zeros(2, dtype=dtype))
        optimizer = build([weight])

        def step(place, gradient, rate, weight=weight, optimizer=optimizer):
            optimizer.param_groups[0]["lr"] = rate
            values = torch.tensor([gradient], dtype=weight.dtype)
            weight.grad = sparse_vector(torch.tensor([place]), values, 2)
            optimizer.step()

        step(1, -1.0, 3e3)
        step(0, -1e5, 1e-5)
        for _ in range(300):
            step(0, 0.0, 1e-5)
        optimizer.end_epoch()
        optimizer.flush()
        averages = optimizer.param_groups[0].get("average")
        mean = optimizer.averaged() if averages not in (None, "none") else weight.detach()
        assert weight.dtype == mean.dtype == dtype
        found.append(torch.stack([weight.detach(), mean]).double())
    torch.testing.assert_close(found[0], found[1], rtol=1e-4, atol=1e-4)


def test_who_takes_a_state_while_updates_are_put_off_is_told():
    weight = torch.nn.Parameter(torch.ones(3, dtype=torch.float64))
    optimizer = FOBOS([weight], 0.1, L1(0.1))
    weight.grad = sparse_vector(torch.tensor([0]), torch.tensor([1.0]).double(), 3)
    optimizer.step()
    for take, what in ((optimizer.state_dict, "saved"), (lambda: deepcopy(optimizer), "copied")):
        with pytest.warns(UserWarning, match=f"FOBOS is {what} while .* call flush"):
            take()
    with pytest.warns(UserWarning, match="is shown while"):
        repr(optimizer)
    optimizer.flush()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert deepcopy(optimizer).state_dict()["state"]
        assert "lr" in repr(optimizer)
        # Nothing is put off without a regularizer.
        other = SGD([weight], 0.1)
        other.step()
        other.state_dict()

"""Optimizers at the limits: of numbers, of settings that change, and with torch's own hooks."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from torchtune_smt.core.errors import DivergenceError
from torchtune_smt.core.rows import Rows
from torchtune_smt.core.scoring import sparse_vector
from torchtune_smt.kbest.lists import KBestLists
from torchtune_smt.losses import Hinge
from torchtune_smt.losses.slope_kernels import HINGE
from torchtune_smt.optim import FOBOS, RDA, SGD, AdaGrad, CumulativeL1, FobosOscar
from torchtune_smt.optim.adapter import learning_rate
from torchtune_smt.regularizers import L1, L2, ElasticNet, Oscar
from torchtune_smt.samplers import AllPairs
from torchtune_smt.tuners.solver import Solution, tune
from torchtune_smt.tuners.stochastic import Stochastic

pytestmark = pytest.mark.usefixtures("replayed_gradients")
KINDS = {
    "FOBOS": partial(FOBOS, regularizer=L1(0.1)),
    "FobosOscar": partial(FobosOscar, regularizer=Oscar(0.01, 0.01)),
    "AdaGrad": partial(AdaGrad, regularizer=L1(0.1)),
    "CumulativeL1": partial(CumulativeL1, regularizer=L1(0.1)),
    "SGD": SGD,
}


def parameter(length: int = 4, dtype: torch.dtype = torch.float64) -> torch.nn.Parameter:
    return torch.nn.Parameter(torch.zeros(length, dtype=dtype))


def step(optimizer: torch.optim.Optimizer, values: list[float]) -> None:
    for p in optimizer.param_groups[0]["params"]:
        value = torch.tensor(values, dtype=p.dtype)
        p.grad = sparse_vector(torch.arange(len(values)), value, p.numel())
    optimizer.step()


@pytest.mark.parametrize("name", KINDS)
def test_a_state_that_is_looked_up_before_the_first_step(name: str) -> None:
    optimizer = KINDS[name]([parameter()])
    assert learning_rate(optimizer) == optimizer.param_groups[0]["lr"]
    assert optimizer.state_dict()["state"] == {}
    # A defaultdict.
    assert not optimizer.state[optimizer.param_groups[0]["params"][0]]
    assert optimizer.state_dict()["state"] == {}


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("feature", [-1, 5])
def test_rows_have_no_feature_without_a_weight(name: str, feature: int) -> None:
    # The rest is another's.
    memory = torch.full((100,), 7.0, dtype=torch.float64)
    memory[:5] = 0
    optimizer = KINDS[name]([torch.nn.Parameter(memory[:5])])
    ids = np.array(sorted([0, feature]), np.int32)
    rows = Rows(np.array([0, 2]), ids, np.ones(2))
    with pytest.raises(ValueError, match=r"rows have features -?\d+ to \d+, and there are 5 weig"):
        optimizer.step_rows(rows, HINGE)
    assert memory[:5].eq(0).all() and memory[5:].eq(7).all()


@pytest.mark.parametrize("regularizer", [L2(0.5), ElasticNet(0.01, 0.5)], ids=repr)
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 0.1), (torch.float16, 0.05)]
)
def test_scales_fit_the_type(regularizer: Any, dtype: torch.dtype, tolerance: float) -> None:
    found = []
    for kind in (dtype, torch.float64):
        p = parameter(5, kind)
        optimizer = FOBOS([p], lr=0.1, regularizer=regularizer, schedule="constant")
        for number in range(3000):
            # The last one is left alone for long.
            size = 5 if number % 1000 == 0 else 4
            step(optimizer, [-0.1 * (i + 1) for i in range(size)])
        optimizer.flush()
        found.append(p.detach().double())
    assert found[0].isfinite().all()
    torch.testing.assert_close(found[0], found[1], rtol=tolerance, atol=tolerance / 10)


@pytest.mark.parametrize(
    ("build", "name", "value", "message"),
    [
        (KINDS["AdaGrad"], "regularizer", Oscar(), "not separable"),
        (KINDS["CumulativeL1"], "regularizer", L2(0.1), "L1"),
        (KINDS["FobosOscar"], "regularizer", L1(0.1), "Oscar"),
        (KINDS["AdaGrad"], "regularize_each", "epoch", "regularize_each cannot change"),
        (RDA, "regularizer", L1(0.2), "cannot change between steps of RDA"),
        (RDA, "unregularized", 1, "cannot change between steps of RDA"),
        (partial(FOBOS, regularizer=L1(0.1), average="step"), "average", "none", "average cannot"),
        (partial(SGD, average="step"), "average", "epoch", "average cannot change"),
    ],
)
def test_settings_that_cannot_change(build: Any, name: str, value: Any, message: str) -> None:
    p = parameter()
    optimizer = build([p])
    step(optimizer, [1.0, -1.0])
    before = p.detach().clone()
    optimizer.param_groups[0][name] = value
    with pytest.raises(ValueError, match=message):
        optimizer.end_epoch() if name == "regularize_each" else step(optimizer, [1.0, 1.0])
    # What was put off has been taken, of the rows, or before it was seen that nothing is averaged.
    assert name == "average" or isinstance(optimizer, FobosOscar) or p.equal(before)


@pytest.mark.parametrize("build", [SGD, partial(FOBOS, average="none")])
def test_what_averages_nothing_says_so(build: Any) -> None:
    optimizer = build([parameter()])
    if isinstance(optimizer, SGD):
        assert optimizer.averaged().eq(0).all()
        optimizer = SGD([parameter()], average="none")
    with pytest.raises(ValueError, match="average=epoch"):
        optimizer.averaged()


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("lr", [float("nan"), float("inf"), -1.0])
def test_a_rate_that_is_none(name: str, lr: float) -> None:
    p = parameter()
    optimizer = KINDS[name]([p])
    optimizer.param_groups[0]["lr"] = lr
    with pytest.raises(ValueError, match="lr must be finite, 0 or more"):
        step(optimizer, [1.0])
    with pytest.raises(ValueError, match="lr must be finite, 0 or more"):
        optimizer.step_rows(Rows(np.array([0, 1]), np.zeros(1, np.int32), np.ones(1)), HINGE)
    assert p.eq(0).all()


def test_a_schedule_that_is_none() -> None:
    optimizer = FOBOS([parameter()])
    optimizer.param_groups[0]["schedule"] = "1/t²"
    with pytest.raises(ValueError, match="schedule must be"):
        step(optimizer, [1.0])
    with pytest.raises(ValueError, match="schedule must be"):
        optimizer.step_rows(Rows(np.array([0, 1]), np.zeros(1, np.int32), np.ones(1)), HINGE)


@pytest.mark.parametrize(
    ("dtype", "value"),
    [(torch.float16, 300.0), (torch.float32, 1e20), (torch.float64, 1e160)],
)
def test_squares_that_overflow(dtype: torch.dtype, value: float) -> None:
    p = parameter(dtype=dtype)
    optimizer = AdaGrad([p], lr=0.5)
    with pytest.raises(DivergenceError, match="squared gradients of feature id 1 is above what"):
        step(optimizer, [1.0, value])
    assert p.eq(0).all()
    step(optimizer, [1.0, 1.0])
    assert p[:2].eq(-0.5).all()


def test_squares_of_rows_that_overflow() -> None:
    optimizer = AdaGrad([parameter()], lr=0.5)
    rows = Rows(np.arange(3), np.array([0, 1], np.int32), np.array([1.0, 1e160]))
    with pytest.raises(DivergenceError, match="squared gradients of a feature of pair 1 is"):
        optimizer.step_rows(rows, HINGE)


class Infinite:
    """A solver."""

    def solve(self, lists: KBestLists, start: Any, seed: Any) -> Solution:
        return Solution(np.full(start.size, np.inf), {})


def some_lists() -> KBestLists:
    return KBestLists.of_strings([["a", "b"]], [[{"a": 10.0}, {"b": 1.0}]], gains=[[1.0, 0.0]])


def test_weights_that_are_not_finite() -> None:
    with pytest.raises(DivergenceError, match="Infinite has found weights that are not finite"):
        tune(some_lists(), Infinite())
    solver = Stochastic(AllPairs(), Hinge(), partial(FOBOS, lr=1e308), passes=1)
    with pytest.raises(DivergenceError, match="Stochastic has found weights that are not finite"):
        tune(some_lists(), solver)


def test_hooks_are_called_at_each_step() -> None:
    optimizer = FOBOS([parameter()])
    assert optimizer.compiled()
    calls = []
    handle = optimizer.register_step_post_hook(lambda *_: calls.append(1))
    assert not optimizer.compiled()
    step(optimizer, [1.0])
    assert calls == [1]
    handle.remove()
    assert optimizer.compiled()


def test_schedules_of_torch_leave_the_loop_compiled() -> None:
    optimizer = FOBOS([parameter()])
    torch.optim.lr_scheduler.ConstantLR(optimizer, 1.0)
    assert "step" in vars(optimizer)
    assert optimizer.compiled()
    other = FOBOS([parameter()])
    other.step = lambda closure=None: None  # type: ignore[method-assign]
    assert not other.compiled()


@pytest.mark.parametrize("name", KINDS)
def test_hooks_of_a_state_that_is_loaded(name: str) -> None:
    p = parameter()
    optimizer = KINDS[name]([p])
    step(optimizer, [1.0, -1.0])
    saved = optimizer.state_dict()
    calls = []
    optimizer.register_state_dict_pre_hook(lambda *_: calls.append("saving"))

    def before(_: Any, state: dict[str, Any]) -> dict[str, Any]:
        calls.append("before")
        return {**state, "optimizer": type(optimizer).__name__}

    optimizer.register_load_state_dict_pre_hook(before)
    optimizer.register_load_state_dict_post_hook(lambda _: calls.append("after"))
    optimizer.load_state_dict({**saved, "optimizer": "another"})
    assert calls == ["before", "after"]


def test_a_weight_alone_keeps_its_type() -> None:
    for dtype in (torch.float16, torch.float32, torch.float64):
        weight = torch.tensor(1.0, dtype=dtype)
        assert L1(0.5).prox(weight, 1.0).equal(torch.tensor(0.5, dtype=dtype))
        op = torch.ops.torchtune_smt.prox_elastic_net.default
        steps = torch.tensor(0.5, dtype=torch.float64)
        torch.library.opcheck(op, (weight, steps, 0.5, 0.1))


@pytest.mark.parametrize("shape", [(), (2, 3)])
def test_oscar_is_of_a_vector(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="OSCAR is of a vector, not of shape"):
        Oscar().prox(torch.ones(shape), 1.0)


@pytest.mark.parametrize("size", [-1.0, float("nan"), float("inf")])
def test_oscar_takes_steps_of_a_size(size: float) -> None:
    with pytest.raises(ValueError, match="step must be finite, 0 or more"):
        Oscar().prox(torch.ones(2), size)


def test_the_value_of_oscar_in_half_precision() -> None:
    weights: Tensor = torch.ones(70_000, dtype=torch.float16)
    value = Oscar(0, 1e-9).value(weights)
    assert value.dtype == torch.float16
    torch.testing.assert_close(
        value.double(), Oscar(0, 1e-9).value(weights.double()), rtol=1e-3, atol=0
    )

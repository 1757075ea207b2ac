"""Optimizers of torch and of users: their steps, their state, and what keeps one from tuning."""

import copy
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from optim_reference import parameter_of, set_gradient
from test_online import random_lists

from torchtune_smt.core.errors import DivergenceError
from torchtune_smt.kbest.lists import KBestLists
from torchtune_smt.losses import Logistic, Softmax
from torchtune_smt.optim import FOBOS, AdaGrad, SparseOptimizer, adapted
from torchtune_smt.optim.adapter import check_optimizer
from torchtune_smt.regularizers import L1, L2, NoRegularizer
from torchtune_smt.samplers import AllPairs
from torchtune_smt.tuners.stochastic import Stochastic

TORCHS = {
    "sgd": partial(torch.optim.SGD, lr=0.1),
    "momentum": partial(torch.optim.SGD, lr=0.1, momentum=0.7, dampening=0.2),
    "nesterov": partial(torch.optim.SGD, lr=0.1, momentum=0.7, nesterov=True),
    "adagrad": partial(torch.optim.Adagrad, lr=0.1, lr_decay=0.1, initial_accumulator_value=0.5),
    "sparse_adam": partial(torch.optim.SparseAdam, lr=0.1, betas=[0.8, 0.9]),
}
GRADIENTS = st.lists(
    st.tuples(st.integers(0, 7), st.sampled_from([-2.0, -0.3, 0.5, 1.0])), max_size=5
)
ACTIONS = st.lists(
    st.one_of(
        GRADIENTS.map(lambda g: ("step", g)),
        GRADIENTS.map(lambda g: ("step", g)),
        st.just(("reload", None)),
        st.integers(1, 3).map(lambda n: ("grow", n)),
        GRADIENTS.map(lambda g: ("catch_up", g)),
        st.just(("flush", None)),
    ),
    min_size=1,
    max_size=30,
)


def grow(parameter, length):
    longer = parameter.new_zeros(length)
    longer[: parameter.numel()] = parameter.detach()
    parameter.data = longer


def follow(actions, build, reference, close):
    """Do the same with a parameter that grows and with one that has its full length at once."""
    full = parameter_of([0.4, -0.2] + [0.0] * 30)
    short = parameter_of([0.4, -0.2])
    expected, optimizer = reference([full]), adapted(build([short]))
    if isinstance(expected, SparseOptimizer):
        expected.delayed = True
    for action, argument in actions:
        if action == "grow":
            grow(short, min(short.numel() + argument, 32))
        elif action == "reload":
            state = copy.deepcopy(optimizer.state_dict())
            optimizer = adapted(build([short]))
            optimizer.load_state_dict(state)
        elif action == "flush":
            optimizer.flush()
            optimizer.end_epoch()
        else:
            entries = [(i % short.numel(), value) for i, value in argument]
            indices = torch.tensor([i for i, _ in entries], dtype=torch.int64)
            optimizer.catch_up(indices)
            if action == "step":
                set_gradient(short, entries)
                set_gradient(full, entries)
                if not isinstance(expected, SparseOptimizer):
                    dense = expected.param_groups[0].get("momentum")
                    full.grad = full.grad.to_dense() if dense else full.grad.coalesce()
                optimizer.step()
                expected.step()
    if isinstance(expected, SparseOptimizer):
        expected.flush()
    optimizer.flush()
    assert close(short, full[: short.numel()])
    assert not full[short.numel() :].any()


@pytest.mark.parametrize("kind", TORCHS)
@settings(max_examples=30)
@given(actions=ACTIONS)
def test_torchs_optimizers_on_a_parameter_that_grows(kind, actions):
    # The reference of momentum are torch's dense steps, which are those to rounding.
    close = partial(torch.allclose, rtol=1e-12, atol=1e-14)
    dense = kind in ("momentum", "nesterov")
    follow(actions, TORCHS[kind], TORCHS[kind], close if dense else torch.equal)


@pytest.fixture(scope="module")
def clipped(repository):
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(repository / "docs" / "examples"))
        from clipped_sgd import ClippedSGD
    return ClippedSGD


@settings(max_examples=60)
@given(actions=ACTIONS, regularizer=st.sampled_from([None, L1(0.3), NoRegularizer()]))
def test_the_optimizer_of_the_documentation(clipped, actions, regularizer):
    """With gradients that are not clipped, it is FOBOS with a constant learning rate."""
    options = {"lr": 0.1, "regularizer": regularizer, "unregularized": 1}
    own, twin = partial(clipped, clip=float("inf")), partial(FOBOS, schedule="constant")
    close = partial(torch.allclose, rtol=0, atol=1e-12)
    follow(actions, partial(own, **options), partial(twin, **options), close)


def test_gradients_are_clipped(clipped):
    parameter = parameter_of([0.0, 0.0, 0.0])
    optimizer = adapted(clipped([parameter], lr=0.5, clip=2.0))
    set_gradient(parameter, [(0, 3.0), (2, -1.0)])
    optimizer.step()
    assert parameter.tolist() == [-1.0, 0.0, 0.5]
    set_gradient(parameter, [(1, float("nan"))])
    with pytest.raises(DivergenceError, match="feature id 1 is nan"):
        optimizer.step()
    with pytest.raises(ValueError, match="L2 is not separable and lazy"):
        clipped([parameter], regularizer=L2())


def test_a_state_of_something_else_is_refused(clipped):
    parameter = parameter_of([0.0])
    state = adapted(clipped([parameter], regularizer=L1(0.1))).state_dict()
    with pytest.raises(ValueError, match="of the optimizer ClippedSGD, and this is SparseAdam"):
        adapted(torch.optim.SparseAdam([parameter])).load_state_dict(state)


# What cannot tune.


class OwnSGD(torch.optim.Optimizer):
    """As simple as can be; subclasses say what steps are multiplied by."""

    def __init__(self, params, lr=0.1):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        (parameter,) = self.param_groups[0]["params"]
        size = self.size(self.state[parameter], parameter)
        parameter.add_(size * parameter.grad, alpha=-self.param_groups[0]["lr"])

    def size(self, state, parameter):
        return 1.0


def own(name, **methods):
    return type(name, (OwnSGD,), methods)


def does_not_grow(self, state, parameter):
    vector = state.setdefault("vector", torch.ones_like(parameter))
    return float(vector[parameter.grad.indices()[0]].sum())


def forgets(self, state, parameter):
    self.steps = getattr(self, "steps", 0) + 1
    return 1 / float(self.steps)


def counts(self, state, parameter):
    state["steps"] = state.get("steps", 0) + 1
    return 1 / float(state["steps"])


def keeps_objects(self, state, parameter):
    state["object"] = L1()
    return 1.0


Counts = own("Counts", size=counts)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (torch.optim.Adam, r"Adam cannot take a step on a sparse gradient \(adam.py:\d+, Runtime"),
        (torch.optim.LBFGS, "closure"),
        (partial(torch.optim.Adagrad, weight_decay=0.1), "sparse gradients"),
        (own("OnlyFlushes", flush=lambda self: None), "OnlyFlushes has no catch_up"),
        (own("DoesNotGrow", size=does_not_grow), r"more weights \(test_own"),
        (own("Forgets", size=forgets), "Forgets goes on in another way when it is resumed"),
        (own("KeepsObjects", size=keeps_objects), "KeepsObjects cannot be saved .* a L1 cannot be"),
        (own("WithoutStep", step=torch.optim.Optimizer.step), "NotImplementedError: not written"),
        (lambda parameters: object(), "no torch.optim.Optimizer"),
    ],
)
def test_what_cannot_tune_is_refused(build, message):
    with pytest.raises((ValueError, TypeError), match=message):
        check_optimizer(build)


def test_what_can_tune_passes(clipped):
    own = partial(clipped, regularizer=L1(0.1))
    for build in (*TORCHS.values(), OwnSGD, Counts, AdaGrad, FOBOS, own):
        check_optimizer(build)


@pytest.mark.parametrize("device", ["cpu", *(["cuda"] if torch.cuda.is_available() else [])])
@pytest.mark.parametrize("loss", [Logistic("sum"), Softmax("mean"), Softmax("sum")], ids=repr)
def test_steps_that_stay_on_a_device(loss, device, monkeypatch):
    drawn = random_lists(5, size=6)
    texts, features, gains = ([[h[i] for h in one] for one in drawn] for i in range(3))
    lists = KBestLists.of_strings(texts, features, gains=gains)
    start = np.linspace(-0.3, 0.3, len(lists.features))
    build = partial(AdaGrad, lr=0.1, regularizer=L1(0.001))
    host = Stochastic(AllPairs(), loss, build, 3, 4).solve(lists, start, (5,))
    monkeypatch.setattr(Stochastic, "_stays", True)
    there = Stochastic(AllPairs(), loss, build, 3, 4, device=device).solve(lists, start, (5,))
    np.testing.assert_allclose(there.weights, host.weights, rtol=1e-9, atol=1e-12)
    assert there.report == pytest.approx(host.report)

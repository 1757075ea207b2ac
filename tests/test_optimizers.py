"""The lazy optimizers against their eager twins on replayed gradient sequences."""

import copy
import io
import pickle
import re
import warnings
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from optim_reference import (
    EagerAdaGrad,
    EagerAROW,
    EagerCumulativeL1,
    EagerFobos,
    EagerRDA,
    EagerSGD,
    parameter_of,
    set_gradient,
)

from torchtune_smt.core.errors import DivergenceError
from torchtune_smt.core.rows import Rows
from torchtune_smt.losses.slope_kernels import HINGE, LOGISTIC, PERCEPTRON
from torchtune_smt.optim import (
    AROW,
    FOBOS,
    FTRL,
    RDA,
    SGD,
    AdaGrad,
    CumulativeL1,
    FobosOscar,
    adapted,
)
from torchtune_smt.optim.adapter import learning_rate
from torchtune_smt.optim.fobos import StepSums
from torchtune_smt.regularizers import L1, L2, ElasticNet, NoRegularizer, Oscar
from torchtune_smt.regularizers.base import elastic_strengths

pytestmark = pytest.mark.usefixtures("replayed_gradients")
DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


class NonNegative:
    """A regulariser of a user's own: weights below 0 become 0. Two steps are as one, or none."""

    separable = lazy = True

    def value(self, weights):
        return torch.where((weights < 0).any(), float("inf"), 0.0)

    def prox(self, weights, step):
        return torch.where(torch.as_tensor(step) > 0, weights.clamp_min(0), weights)


class Cubic:
    """Another one, which nobody knows how to put off: the prox of Σ |w| + |w|³."""

    separable, lazy = True, False

    def value(self, weights):
        return weights.abs().sum() + weights.abs().pow(3).sum()

    def prox(self, weights, step):
        s = torch.as_tensor(step, dtype=torch.float64)
        a = (weights.abs() - s).clamp_min(0)
        return weights.sign() * 2 * a / (1 + (1 + 12 * s * a).sqrt())


OSCAR = Oscar(0.02, 0.05)
ELASTIC = [L1(0.3), L2(0.5), ElasticNet(0.2, 0.7)]
REGULARIZERS = [None, *ELASTIC, OSCAR, Cubic()]
SCHEDULES = [{"schedule": schedule} for schedule in ("1/t", "inv_sqrt", "constant")]
CASES = [
    *((FOBOS, EagerFobos, r, s) for s in SCHEDULES for r in (*REGULARIZERS, NonNegative())),
    *(
        (FobosOscar, EagerFobos, r, s)
        for s in SCHEDULES
        for r in (OSCAR, Oscar(0.1, 0.0), Oscar(0.0, 0.2), Oscar(1e-10, 3e-8), Oscar(0, 0.01, 99))
    ),
    *(
        (FOBOS, EagerFobos, r, {**s, "average": average})
        for average in ("step", "epoch")
        for s in SCHEDULES[::2]
        for r in (*REGULARIZERS, L2(1000.0))
    ),
    (FOBOS, EagerFobos, NonNegative(), {"schedule": "1/t", "average": "epoch"}),
    (FobosOscar, EagerFobos, OSCAR, {"schedule": "1/t", "average": "epoch"}),
    *((RDA, EagerRDA, r, {}) for r in (*REGULARIZERS, NonNegative())),
    *(
        (AdaGrad, EagerAdaGrad, r, {"initial_accumulator": start})
        for start in (0.0, 0.5)
        for r in (None, *ELASTIC, L1(0.0), ElasticNet(0.2, 0.0), NonNegative())
    ),
    *((AdaGrad, EagerAdaGrad, r, {"regularize_each": "epoch"}) for r in (*ELASTIC, NonNegative())),
    *((AROW, EagerAROW, r, {"initial_precision": start}) for start in (0.3, 2.0) for r in ELASTIC),
    *(
        (CumulativeL1, EagerCumulativeL1, L1(strength), s)
        for s in SCHEDULES[::2]
        for strength in (0.0, 0.3)
    ),
    (SGD, EagerSGD, None, {"average": "epoch"}),
    (SGD, EagerSGD, NoRegularizer(), {"average": "step"}),
]
GROUPS = {}
for case in CASES:
    put_off = next((name for name in ("average", "regularize_each") if name in case[3]), "")
    GROUPS.setdefault(f"{case[0].__name__} {put_off}".strip(), []).append(case)
gradients = st.lists(
    st.tuples(st.integers(0, 7), st.sampled_from([-2.0, -1.0, -0.3, 0.0, 1e-200, 0.5, 1.0, 1.7])),
    max_size=6,
)
actions = st.lists(
    st.one_of(
        gradients.map(lambda g: ("step", g)),
        gradients.map(lambda g: ("step", g)),
        st.lists(st.integers(0, 7), max_size=5).map(lambda i: ("catch_up", i)),
        st.just(("flush", None)),
        st.booleans().map(lambda used: ("reload", used)),
        st.just(("end_epoch", None)),
        st.integers(1, 3).map(lambda n: ("grow", n)),
        st.sampled_from([0.0, 0.02, 0.5]).map(lambda lr: ("lr", lr)),
        st.just(("write", None)),
        st.tuples(st.sampled_from([*ELASTIC, OSCAR, NonNegative()]), st.integers(0, 2)).map(
            lambda other: ("regularizer", other)
        ),
    ),
    min_size=8,
    max_size=40,
)


def close(parameter, expected):
    return np.allclose(parameter.detach().cpu().numpy(), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("group", GROUPS)
@settings(max_examples=40)
@given(
    data=st.data(),
    start=st.lists(st.sampled_from([-1.0, 0.0, 0.05, 0.7]), min_size=8, max_size=8),
    actions=actions,
    unregularized=st.sampled_from([0, 2]),
    device=st.sampled_from(DEVICES),
    empty=st.booleans(),
)
def test_lazy_equals_eager(group, data, start, actions, unregularized, device, empty):
    kind, twin, regularizer, options = data.draw(st.sampled_from(GROUPS[group]))
    if empty:
        start, actions = [], [("grow", 8), *actions]
    device = "cpu" if kind is FobosOscar else device
    averages = "average" in options
    eager = twin(start, 0.1, regularizer, unregularized, **options)
    parameter = parameter_of(start, device)

    def build(lr):
        return kind([parameter], lr, regularizer, unregularized=unregularized, **options)

    lazy = build(0.1)
    for action, argument in actions:
        if action == "step":
            set_gradient(parameter, argument)
            lazy.step()
            eager.step(argument)
        elif action == "catch_up":
            indices = torch.tensor(argument, dtype=torch.int64, device=device)
            lazy.catch_up(indices)
            assert close(parameter[argument], eager.w[argument])
            # To read weights twice changes not the last bit of one.
            read = parameter.detach().clone()
            lazy.catch_up(indices)
            assert torch.equal(parameter, read)
        elif action == "flush":
            lazy.flush()
            assert close(parameter, eager.w)
        elif action == "reload":
            state = io.BytesIO()
            torch.save(lazy.state_dict(), state)
            state.seek(0)
            saved = parameter.detach().clone()
            parameter = torch.nn.Parameter(saved.clone())
            lazy = build(0.3)
            if argument:
                # One that has taken steps goes on as a fresh one does.
                set_gradient(parameter, [(0, 1.0), (5, -2.0)])
                lazy.step()
                parameter.data.copy_(saved)
            lazy.load_state_dict(torch.load(state, weights_only=True))
        elif action == "end_epoch":
            lazy.end_epoch()
            eager.end_epoch()
        elif action == "write" and kind is not RDA:
            # What is written owes what was owed there before, from the next step on.
            lazy.flush()
            eager.w[:3] = [0.0, 0.5, -0.5]
            with torch.no_grad():
                parameter[:3] = torch.tensor([0.0, 0.5, -0.5])
        elif action == "grow":
            eager.grow(argument)
            parameter.data = torch.cat([parameter.data, parameter.data.new_zeros(argument)])
        elif action == "regularizer" and group == "FOBOS":
            regularizer, unregularized = argument
            new = {"regularizer": regularizer, "unregularized": unregularized}
            lazy.param_groups[0].update(new)
            vars(eager).update(new)
            # A state is that of the last step.
            set_gradient(parameter, [])
            lazy.step()
            eager.step([])
        elif action == "lr":
            lazy.param_groups[0]["lr"] = argument
            if "regularize_each" in options and argument != eager.lr:
                # What is due is taken with the old rate.
                eager.end_epoch()
                lazy.flush()
            eager.lr = argument
    lazy.flush()
    assert close(parameter, eager.w)
    if averages:
        assert close(lazy.averaged(), eager.averaged())


SLOPES = {
    HINGE: lambda z: float(z < 1),
    PERCEPTRON: lambda z: float(z <= 0),
    LOGISTIC: lambda z: 1 / (1 + np.exp(z)),
}


@settings(max_examples=100)
@given(
    case=st.sampled_from(CASES).filter(
        lambda case: (
            case[0] is FobosOscar
            or (
                (case[0] is not RDA and elastic_strengths(case[2]) is not None)
                and "regularize_each" not in case[3]
            )
        )
    ),
    seed=st.integers(0, 2**32 - 1),
    kind=st.sampled_from([HINGE, LOGISTIC, PERCEPTRON]),
    unregularized=st.sampled_from([0, 3]),
    reordered=st.booleans(),
)
def test_rows_in_a_compiled_loop_equal_eager_steps(case, seed, kind, unregularized, reordered):
    optimizer, twin, regularizer, options = case
    generator = np.random.default_rng(seed)
    averages = "average" in options
    # No sum of steps of 0.03 (L1 at this lr) ends at 0 but for rounding, which would decide
    # whether a perceptron, whose slope jumps there, learns from a row.
    start = generator.choice([-0.3137, 0.0, 0.4271], 8)
    eager = twin(start, 0.1, regularizer, unregularized, **options)
    parameter = parameter_of(start)
    lazy = optimizer([parameter], 0.1, regularizer, unregularized=unregularized, **options)
    for _ in range(3):  # batches of rows, an ordinary step and an epoch's end between them
        rows = [
            (np.sort(generator.choice(8, n, replace=False)), generator.normal(size=n))
            for n in generator.integers(0, 5, 6)
        ]
        begin = np.cumsum([0, *(r[0].size for r in rows)])
        feature = np.concatenate([r[0] for r in rows]).astype(np.int32)
        order = generator.integers(0, len(rows), 9) if reordered else None
        value = np.concatenate([r[1] for r in rows])
        margins = lazy.step_rows(Rows(begin, feature, value), kind, order=order)
        taken = range(len(rows)) if order is None else order
        for row, margin in zip(taken, margins, strict=True):
            features, values = rows[row]
            z = float(eager.w[features] @ values)
            assert abs(z - margin) < 1e-12
            factor = -SLOPES[kind](z)
            eager.step([(int(j), factor * v) for j, v in zip(features, values, strict=True)])
        entries = [(int(generator.integers(8)), 0.9173)]
        set_gradient(parameter, entries)
        lazy.step()
        eager.step(entries)
        lazy.end_epoch()
        eager.end_epoch()
    lazy.flush()
    assert close(parameter, eager.w)
    if averages:
        assert close(lazy.averaged(), eager.averaged())


@pytest.mark.parametrize("longest", [7, 10**6])
def test_scales_do_not_underflow_and_paths_do_not_grow_for_ever(longest, monkeypatch):
    """P falls by a factor of 101 a step: after 155 of them no float64 could hold it."""
    monkeypatch.setattr("torchtune_smt.optim.fobos.LONGEST", longest)
    options = {"schedule": "constant", "unregularized": 1, "average": "step"}
    for regularizer in (L2(1000.0), ElasticNet(0.01, 1000.0), L1(0.03)):
        start = np.array([1.0, -1.0, 0.5, 0.2])
        parameter, twin = parameter_of(start), EagerFobos(start, 0.1, regularizer, **options)
        lazy = FOBOS([parameter], 0.1, regularizer, **options)
        generator = np.random.default_rng(0)
        for _ in range(200):
            entries = [(int(generator.integers(4)), float(generator.normal()))]
            set_gradient(parameter, entries)
            lazy.step()
            twin.step(entries)
        n = 400  # and in a compiled loop
        lazy.step_rows(Rows(np.arange(n + 1), np.full(n, 2, np.int32), np.ones(n)), LOGISTIC)
        for _ in range(n):
            twin.step([(2, -1 / (1 + np.exp(twin.w[2])))])
        assert len(lazy.state[parameter]["path"]) <= longest
        lazy.flush()
        assert close(parameter, twin.w)
        assert close(lazy.averaged(), twin.averaged())


def test_a_regularizer_may_change_and_change_back():
    start = [0.9, -0.8, 0.0, 0.7]
    parameter, twin = parameter_of(start), EagerFobos(start, 0.1, OSCAR)
    lazy = FOBOS([parameter], 0.1, OSCAR, schedule="constant")
    # What is not 0 is looked for anew.
    for regularizer, touched in ((OSCAR, 0), (L1(0.3), 2), (OSCAR, 0), (NonNegative(), 2)):
        lazy.param_groups[0]["regularizer"] = twin.regularizer = regularizer
        for entries in ([(touched, -9.0)], [], [(touched, 0.5)]):
            set_gradient(parameter, entries)
            lazy.step()
            twin.step(entries)
    lazy.flush()
    assert close(parameter, twin.w)


def test_oscar_step_costs_nothing_in_the_number_of_zeros():
    """The weights that are not 0 are found once; afterwards a list of them is kept."""
    parameter = parameter_of(np.zeros(50))
    lazy = FOBOS([parameter], 0.1, Oscar(0.001, 0.0001), schedule="constant")
    generator = np.random.default_rng(3)
    for _ in range(60):
        set_gradient(parameter, [(int(i), generator.normal()) for i in generator.choice(50, 3)])
        lazy.step()
        assert lazy._places[parameter].tolist() == parameter.nonzero()[:, 0].tolist()


def test_weights_that_were_exempt_owe_nothing_of_the_past():
    parameter = parameter_of([5.0, -5.0, 0.0, 5.0])
    optimizer = CumulativeL1([parameter], 1.0, L1(0.1), unregularized=3)
    for _ in range(4):
        set_gradient(parameter, [(3, 0.0)])
        optimizer.step()
    optimizer.param_groups[0]["unregularized"] = 1
    for _ in range(2):
        set_gradient(parameter, [(0, 1.0)])
        optimizer.step()
    optimizer.flush()
    np.testing.assert_allclose(parameter.detach(), [3.0, -4.8, 0.0, 4.4], rtol=1e-12)


def test_the_rate_of_the_last_step():
    for schedule, expected in (("constant", 2), ("inv_sqrt", 2 / 3**0.5), ("1/t", 2 / 3)):
        for kind, options in ((FOBOS, {}), (CumulativeL1, {"regularizer": L1(0.1)})):
            parameter = parameter_of([0.0])
            optimizer = kind([parameter], 2.0, schedule=schedule, **options)
            assert learning_rate(optimizer) == 2
            for _ in range(3):
                set_gradient(parameter, [(0, 1.0)])
                optimizer.step()
            assert learning_rate(optimizer) == pytest.approx(expected)
    assert learning_rate(AdaGrad([parameter], 0.5)) == 0.5
    assert learning_rate(adapted(torch.optim.SparseAdam([parameter], 0.25))) == 0.25


@pytest.mark.parametrize(
    ("kind", "options", "word"),
    [
        (AdaGrad, {"regularizer": Oscar()}, "separable"),
        (AdaGrad, {"regularizer": Cubic()}, "Cubic is not lazy"),
        (SGD, {"regularizer": L1(0.1)}, "no effect"),
        (CumulativeL1, {}, "no regularizer"),
        (FobosOscar, {"regularizer": L1(0.1)}, "got L1"),
        (FOBOS, {"regularizer": NonNegative(), "average": "step"}, "average=epoch"),
        (FobosOscar, {"regularizer": Oscar(), "average": "step"}, "average=epoch"),
    ],
)
def test_what_does_not_go_together_is_refused(kind, options, word):
    with pytest.raises(ValueError, match=word):
        kind([parameter_of([0.0])], **options)
    with pytest.raises(ValueError):
        SGD([parameter_of([0.0])]).add_param_group({"params": [parameter_of([0.0])], "lr": -1.0})


def test_a_class_of_regularizers_and_what_names_no_rows():
    parameter = parameter_of([0.0, 0.0])
    for kind in (FOBOS, RDA, AdaGrad, FTRL, FobosOscar):
        with pytest.raises(
            TypeError, match=re.escape("is the class L1: give an object, such as L1()")
        ):
            kind([parameter], regularizer=L1)
    for rows in (torch.tensor([True, False]), torch.tensor([0.0])):
        with pytest.raises(TypeError, match="named by integers"):
            FOBOS([parameter]).catch_up(rows)


@pytest.mark.parametrize("kind", [FOBOS, RDA, FobosOscar, SGD, AdaGrad, AROW, CumulativeL1, FTRL])
def test_states_of_others_are_refused(kind):
    regularizers = {SGD: [None, None], FobosOscar: [Oscar(0.1), Oscar(0.2)]}

    def build(values, number=0, cls=kind):
        regularizer = regularizers.get(cls, [L1(0.1), L1(0.2)])[number]
        return cls([parameter_of(values)], regularizer=regularizer)

    optimizer = build([0.5, 0.0])
    (parameter,) = optimizer.param_groups[0]["params"]
    # Looked up before the first step, it is a defaultdict's.
    assert not optimizer.state[parameter] and optimizer.state_dict()["state"] == {}
    set_gradient(parameter, [(0, 1.0)])
    optimizer.step()
    state = optimizer.state_dict()
    other = build([0.5, 0.0], cls=AdaGrad if kind is not AdaGrad else SGD)
    with pytest.raises(ValueError, match=f"of the optimizer {kind.__name__}, and this is"):
        other.load_state_dict(state)
    with pytest.raises(ValueError, match="of the optimizer None, and this is"):
        build([0.5, 0.0]).load_state_dict(torch.optim.Adam([parameter]).state_dict())
    if kind is not SGD:
        saved = state["state"][0]["pending"]["regularizer"]
        with pytest.raises(ValueError, match=re.escape(f"regularizer {saved}")):
            build([0.5, 0.0], 1).load_state_dict(state)
    if any(map(torch.is_tensor, state["state"][0].values())):
        with pytest.raises(ValueError, match="2 coordinates and the parameter 1"):
            build([0.0]).load_state_dict(state)
    two = build([0.5, 0.0])
    two.add_param_group({"params": [parameter_of([0.0])]})
    with pytest.raises(ValueError, match="other groups"):
        two.load_state_dict(state)
    entry = state["state"][0]
    for name in entry.keys() - {"structure", "weights"}:
        for bad in ({k: v for k, v in entry.items() if k != name}, {**entry, name: None}):
            with pytest.raises(ValueError):
                build([0.5, 0.0]).load_state_dict({**state, "state": {0: bad}})


BUILDS = [
    lambda p, lr: FOBOS([p], lr, ElasticNet(0.05, 0.1), schedule="constant", average="step"),
    lambda p, lr: FOBOS([p], lr, Oscar(0.01, 0.002), average="epoch"),
    lambda p, lr: FobosOscar([p], lr, Oscar(0.01, 0.002), schedule="constant"),
    lambda p, lr: RDA([p], lr, Oscar(0.01, 0.002)),
    lambda p, lr: AdaGrad([p], lr, L1(0.05)),
    lambda p, lr: AROW([p], lr, L2(0.05)),
    lambda p, lr: CumulativeL1([p], lr, L1(0.02)),
    lambda p, lr: SGD([p], lr, average="step"),
]


@pytest.mark.parametrize("lr", [0.3, 1, torch.tensor(0.3)], ids=str)
@pytest.mark.parametrize("build", BUILDS)
def test_copies_and_saved_states_take_the_same_steps(build, lr):
    """Under a schedule of torch: copied at a rate of 0, loaded before or after there is one."""

    def begin(parameter):
        return build(parameter, lr.clone() if torch.is_tensor(lr) else lr)

    def schedule(optimizer):
        return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda t: (t % 4) / 4)

    def steps(optimizer, schedule, seed):
        (parameter,) = optimizer.param_groups[0]["params"]
        generator = np.random.default_rng(seed)
        for _ in range(12):
            chosen = generator.choice(8, 3, replace=False)
            set_gradient(parameter, [(int(i), generator.normal()) for i in chosen])
            optimizer.step()
            schedule.step()
        return parameter

    first = begin(parameter_of(np.zeros(8)))
    schedules = [schedule(first)]
    weights = steps(first, schedules[0], 1)
    assert first.param_groups[0]["lr"] == 0
    state = first.state_dict()
    others = [copy.deepcopy(first), pickle.loads(pickle.dumps(first))]
    others += [begin(parameter_of(weights.tolist())) for _ in range(2)]
    others[2].load_state_dict(state)
    for number, other in enumerate(others):
        schedules.append(schedule(other))
        schedules[-1].load_state_dict(schedules[0].state_dict())
        if number == 3:
            other.load_state_dict(state)
        assert type(other.param_groups[0]["lr"]) is type(first.param_groups[0]["lr"])
    found = [steps(made.optimizer, made, 2) for made in schedules]
    for made in schedules:
        made.optimizer.flush()
    assert all(one is not found[0] and torch.equal(found[0], one) for one in found[1:])
    assert np.count_nonzero(found[0].detach()) > 0


@pytest.mark.parametrize("build", [b for b in BUILDS if b(parameter_of([0.0]), 0.1).compiled()])
def test_rows_and_settings_that_are_refused(build):
    parameter = parameter_of(np.zeros(5))
    optimizer = build(parameter, 0.1)

    def rows(*features, last=1.0):
        values = np.append(np.ones(len(features) - 1), last)
        return Rows(np.array([0, len(features)]), np.array(features, np.int32), values)

    for features, order in (((-1, 0), [0]), ((0, 5), [0]), ((0,), [0, 1]), ((0,), [-1, 0])):
        with pytest.raises(ValueError, match="what there is not"):
            optimizer.step_rows(rows(*features), HINGE, order=np.array(order))
    with pytest.raises(DivergenceError, match="pair 0 is nan"):
        optimizer.step_rows(rows(0, 1, last=np.nan), HINGE)
    assert optimizer.step_rows(rows(0), HINGE, order=np.zeros(0, np.int64)).size == 0
    for lr in (float("nan"), float("inf"), -1.0):
        optimizer.param_groups[0]["lr"] = lr
        set_gradient(parameter, [(0, 1.0)])
        for step in (optimizer.step, lambda: optimizer.step_rows(rows(0), HINGE)):
            with pytest.raises(ValueError, match="lr must be"):
                step()
    assert parameter.eq(0).all()


@pytest.mark.parametrize(
    ("dtype", "value"), [(torch.float16, 300.0), (torch.float32, 1e20), (torch.float64, 1e160)]
)
def test_squares_that_overflow(dtype, value):
    parameter = torch.nn.Parameter(torch.zeros(4, dtype=dtype))
    optimizer = AdaGrad([parameter], lr=0.5)
    set_gradient(parameter, [(0, 1.0), (1, value)])
    with pytest.raises(DivergenceError, match="feature id 1"):
        optimizer.step()
    assert parameter.eq(0).all()
    if dtype == torch.float64:
        rows = Rows(np.arange(3), np.array([0, 1], np.int32), np.array([1.0, value]))
        with pytest.raises(DivergenceError, match="pair 1"):
            optimizer.step_rows(rows, HINGE)


@pytest.mark.parametrize(
    ("build", "name", "value", "message"),
    [
        (AdaGrad, "regularizer", Oscar(), "separable"),
        (AdaGrad, "regularize_each", "epoch", "regularize_each cannot change"),
        (RDA, "regularizer", L1(0.1), "cannot change between steps of RDA"),
        (partial(FOBOS, regularizer=L1(0.1), average="step"), "average", "none", "average cannot"),
    ],
)
def test_settings_that_cannot_change(build, name, value, message):
    parameter = parameter_of(np.zeros(4))
    optimizer = build([parameter])
    set_gradient(parameter, [(0, 1.0), (1, -1.0)])
    optimizer.step()
    before = parameter.detach().clone()
    optimizer.param_groups[0][name] = value
    with pytest.raises(ValueError, match=message):
        optimizer.end_epoch() if name == "regularize_each" else optimizer.step()
    assert name == "average" or parameter.equal(before)


def test_hooks_and_schedules_and_what_compiled_loops_cannot_do():
    assert not FOBOS([parameter_of([0.0])], regularizer=Oscar()).compiled()
    assert not FOBOS([torch.nn.Parameter(torch.zeros(1))]).compiled()
    parameter = parameter_of([0.0])
    optimizer = FOBOS([parameter], regularizer=L2())
    # A schedule puts a `step` into the instance.
    torch.optim.lr_scheduler.ConstantLR(optimizer, 1.0)
    assert "step" in vars(optimizer) and optimizer.compiled()
    calls = []
    handle = optimizer.register_step_post_hook(lambda *_: calls.append("step"))
    assert not optimizer.compiled()
    set_gradient(parameter, [(0, 1.0)])
    optimizer.step()
    handle.remove()
    assert optimizer.compiled()
    saved = optimizer.state_dict()
    optimizer.register_load_state_dict_pre_hook(lambda own, state: {**state, "optimizer": "FOBOS"})
    optimizer.register_load_state_dict_post_hook(lambda _: calls.append("after"))
    optimizer.load_state_dict({**saved, "optimizer": "another"})
    assert calls == ["step", "after"]
    optimizer.register_state_dict_post_hook(lambda _, state: state.update(more=1))
    assert optimizer.state_dict()["more"] == 1
    optimizer.step = lambda closure=None: None
    assert not optimizer.compiled()


def test_groups_have_their_own_settings():
    a, b = parameter_of([0.0, 0.0]), parameter_of([0.0, 0.0])
    lazy = AdaGrad([{"params": [a]}, {"params": [b], "lr": 0.5, "regularizer": L1(0.9)}], 0.1)
    twins = [EagerAdaGrad([0, 0], 0.1), EagerAdaGrad([0, 0], 0.5, L1(0.9))]
    for entries in [[(0, 1.0)], [(1, -2.0)], [(1, 1.0), (0, 0.5)], [], None]:
        for parameter, twin in zip((a, b), twins, strict=True):
            parameter.grad = None  # which is no step
            if entries is not None:
                set_gradient(parameter, entries)
                twin.step(entries)
        lazy.step()
    lazy.catch_up(torch.tensor([0, 1]), b)
    assert b.tolist() == pytest.approx(twins[1].w, abs=1e-14)
    lazy.flush()
    assert a.tolist() == pytest.approx(twins[0].w, abs=1e-14)
    for which in (None, parameter_of([1.0])):
        with pytest.raises(ValueError, match="say which parameter"):
            lazy.catch_up(torch.tensor([0]), which)
    # One that was refused is not there, and may be given again.
    c = parameter_of([0.0])
    with pytest.raises(ValueError, match="lr must be"):
        lazy.add_param_group({"params": [c], "lr": -1})
    lazy.add_param_group({"params": [c], "lr": 1.0})
    sums = AROW([{"params": [c], "initial_precision": 3.0}], 1.0)
    set_gradient(c, [(0, 1.0)])
    sums.step()
    assert c.item() == -0.25
    # Of a step that cannot be taken nothing is.
    before = a.tolist(), b.tolist()
    set_gradient(a, [(0, 1.0)])
    set_gradient(b, [(1, float("nan"))])
    with pytest.raises(ValueError, match="feature id 1 is nan"):
        lazy.step()
    assert (a.tolist(), b.tolist()) == before


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
    found = StepSums(both, sizes if at_once else np.empty(0))
    for size in sizes if not at_once else ():
        found.append(size)
    last = draw.integers(0, count + 1, 5).astype(np.int32)
    weights = draw.normal(size=5) * draw.choice([0.0, 0.1, 10.0], 5)
    for w, first, total in zip(weights, last, found.of(weights, last), strict=True):
        expected = 0.0
        for size in sizes[first:]:
            w = np.sign(w) * max(abs(w) - size * both[0], 0.0) / (1.0 + size * both[1])
            expected += w
        assert total == pytest.approx(expected, rel=1e-11, abs=1e-300)


def test_who_takes_a_state_while_updates_are_put_off_is_told():
    weight = torch.nn.Parameter(torch.ones(3, dtype=torch.float64))
    optimizer = FOBOS([weight], 0.1, L1(0.1))
    set_gradient(weight, [(0, 1.0)])
    optimizer.step()
    with pytest.warns(UserWarning, match="FOBOS is saved while .* call flush"):
        optimizer.state_dict()
    with pytest.warns(UserWarning, match="FOBOS is copied while"):
        copy.deepcopy(optimizer)
    optimizer.flush()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert copy.deepcopy(optimizer).state_dict()["state"]


def test_what_averages_nothing_says_so():
    assert SGD([parameter_of([0.5])]).averaged().eq(0.5).all()
    # Before the first epoch is over, weights are those of now.
    weight = parameter_of([1.0, 1.0])
    optimizer = FOBOS([weight], 0.1, L1(1.0), schedule="constant", average="epoch")
    for _ in range(3):
        optimizer.catch_up(torch.tensor([0]))
        set_gradient(weight, [(0, 0.0)])
        optimizer.step()
    assert optimizer.averaged().tolist() == pytest.approx([0.7, 0.7])
    for kind in (SGD, FOBOS):
        with pytest.raises(ValueError, match="average=epoch"):
            kind([parameter_of([0.0])], average="none").averaged()

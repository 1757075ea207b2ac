"""The lazy optimizers against their eager twins on replayed gradient sequences."""

import copy
import io
import pickle
import re

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
from torchtune_smt.optim import AROW, FOBOS, RDA, SGD, AdaGrad, CumulativeL1, FobosOscar, adapted
from torchtune_smt.optim.adapter import learning_rate
from torchtune_smt.regularizers import L1, L2, ElasticNet, NoRegularizer, Oscar
from torchtune_smt.regularizers.base import elastic_strengths

pytestmark = pytest.mark.usefixtures("replayed_gradients")
DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


class NonNegative:
    """A regulariser of a user's own: weights below 0 become 0. Two steps are as one."""

    separable = lazy = True

    def value(self, weights):
        return torch.where((weights < 0).any(), float("inf"), 0.0)

    def prox(self, weights, step):
        return weights.clamp_min(0)


class Cubic:
    """Another one, which nobody knows how to put off: the prox of Σ |w| + |w|³."""

    separable, lazy = True, False

    def value(self, weights):
        return weights.abs().sum() + weights.abs().pow(3).sum()

    def prox(self, weights, step):
        s = torch.as_tensor(step, dtype=torch.float64)
        a = (weights.abs() - s).clamp_min(0)
        return weights.sign() * 2 * a / (1 + (1 + 12 * s * a).sqrt())


CASES = {
    "fobos": [
        (FOBOS, EagerFobos, regularizer, {"schedule": schedule})
        for schedule in ("1/t", "inv_sqrt", "constant")
        for regularizer in (
            None,
            L1(0.3),
            L2(0.5),
            ElasticNet(0.2, 0.7),
            Oscar(0.02, 0.05),
            NonNegative(),
            Cubic(),
        )
    ],
    "fobos_oscar": [
        (FobosOscar, EagerFobos, regularizer, {"schedule": schedule})
        for schedule in ("1/t", "inv_sqrt", "constant")
        for regularizer in (Oscar(0.02, 0.05), Oscar(0.1, 0.0), Oscar(0.0, 0.2))
    ],
    "averaged": [
        (FOBOS, EagerFobos, regularizer, {"schedule": schedule, "average": average})
        for average in ("step", "epoch")
        for schedule in ("1/t", "constant")
        for regularizer in (
            None,
            L1(0.3),
            L2(0.5),
            L2(1000.0),
            ElasticNet(0.2, 0.7),
            Oscar(0.02, 0.05),
            Cubic(),
        )
    ],
    "averaged over epochs": [
        (FOBOS, EagerFobos, NonNegative(), {"schedule": "1/t", "average": "epoch"}),
        (FobosOscar, EagerFobos, Oscar(0.02, 0.05), {"schedule": "1/t", "average": "epoch"}),
    ],
    "rda": [
        (RDA, EagerRDA, regularizer, {})
        for regularizer in (
            None,
            L1(0.3),
            L2(0.5),
            ElasticNet(0.2, 0.7),
            Oscar(0.02, 0.05),
            NonNegative(),
            Cubic(),
        )
    ],
    "adagrad": [
        (AdaGrad, EagerAdaGrad, regularizer, {"initial_accumulator": start})
        for start in (0.0, 0.5)
        for regularizer in (
            L1(0.0),
            L1(0.3),
            L2(0.5),
            ElasticNet(0.2, 0.7),
            ElasticNet(0.2, 0.0),
            NonNegative(),
        )
    ],
    "arow": [
        (AROW, EagerAROW, regularizer, {"initial_precision": start})
        for start in (0.3, 2.0)
        for regularizer in (L1(0.3), L2(0.5), ElasticNet(0.2, 0.7))
    ],
    "cumulative": [
        (CumulativeL1, EagerCumulativeL1, L1(strength), {"schedule": schedule})
        for schedule in ("1/t", "constant")
        for strength in (0.0, 0.3)
    ],
    "sgd": [
        (SGD, EagerSGD, regularizer, {"average": average})
        for regularizer, average in ((None, "epoch"), (NoRegularizer(), "step"))
    ],
}
cases = st.sampled_from([case for group in CASES.values() for case in group])
gradients = st.lists(
    st.tuples(st.integers(0, 7), st.sampled_from([-2.0, -1.0, -0.3, 0.0, 0.5, 1.0, 1.7])),
    max_size=6,
)
actions = st.lists(
    st.one_of(
        gradients.map(lambda g: ("step", g)),
        gradients.map(lambda g: ("step", g)),
        st.lists(st.integers(0, 7), max_size=5).map(lambda i: ("catch_up", i)),
        st.just(("flush", None)),
        st.just(("reload", None)),
        st.just(("end_epoch", None)),
        st.integers(1, 3).map(lambda n: ("grow", n)),
        st.sampled_from([0.02, 0.5]).map(lambda lr: ("lr", lr)),
    ),
    min_size=1,
    max_size=40,
)


def close(parameter, expected):
    return np.allclose(parameter.detach().cpu().numpy(), expected, rtol=0, atol=1e-12)


@settings(max_examples=400)
@given(
    case=cases,
    start=st.lists(st.sampled_from([-1.0, 0.0, 0.05, 0.7]), min_size=8, max_size=8),
    actions=actions,
    unregularized=st.sampled_from([0, 2]),
    device=st.sampled_from(DEVICES),
)
def test_lazy_equals_eager(case, start, actions, unregularized, device):
    kind, twin, regularizer, options = case
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
            lazy.catch_up(torch.tensor(argument, dtype=torch.int64, device=device))
            assert close(parameter[argument], eager.w[argument])
        elif action == "flush":
            lazy.flush()
            assert close(parameter, eager.w)
        elif action == "reload":
            state = io.BytesIO()
            torch.save(lazy.state_dict(), state)
            state.seek(0)
            parameter = torch.nn.Parameter(parameter.detach().clone())
            lazy = build(0.3)
            lazy.load_state_dict(torch.load(state, weights_only=True))
        elif action == "end_epoch":
            lazy.end_epoch()
            if averages:
                eager.end_epoch()
        elif action == "grow":
            eager.grow(argument)
            parameter.data = torch.cat([parameter.data, parameter.data.new_zeros(argument)])
        elif action == "lr":
            lazy.param_groups[0]["lr"] = eager.lr = argument
    lazy.flush()
    assert close(parameter, eager.w)
    if averages:
        assert close(lazy.averaged(), eager.averaged())


SLOPES = {
    HINGE: lambda z: float(z < 1),
    PERCEPTRON: lambda z: float(z <= 0),
    LOGISTIC: lambda z: 1 / (1 + np.exp(z)),
}


@settings(max_examples=150)
@given(
    case=cases.filter(
        lambda case: (
            case[0] is FobosOscar or (case[0] is not RDA and elastic_strengths(case[2]) is not None)
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
        if averages:
            eager.end_epoch()
    lazy.flush()
    assert close(parameter, eager.w)
    if averages:
        assert close(lazy.averaged(), eager.averaged())


def test_the_scale_of_l2_does_not_underflow():
    """P falls by a factor of 101 a step: after 155 of them no float64 could hold it."""
    for regularizer in (L2(1000.0), ElasticNet(0.01, 1000.0)):
        start = np.array([1.0, -1.0, 0.5, 0.2])
        parameter, twin = parameter_of(start), EagerFobos(start, 0.1, regularizer, 1)
        lazy = FOBOS([parameter], 0.1, regularizer, schedule="constant", unregularized=1)
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
        lazy.flush()
        assert close(parameter, twin.w)


@pytest.mark.parametrize("regularizer", [L1(0.01), L2(0.01), ElasticNet(0.01, 0.02)])
def test_to_read_weights_twice_changes_nothing(regularizer):
    """Not the last bit of one: a run that is evaluated more often has the same result."""
    weights = parameter_of(np.random.default_rng(1).normal(size=50))
    optimizer = FOBOS([weights], lr=0.1, regularizer=regularizer)
    everything = torch.arange(50)
    for _ in range(40):
        set_gradient(weights, [(3, 0.01)])
        optimizer.step()
        optimizer.catch_up(everything)
        read = weights.detach().clone()
        optimizer.catch_up(everything)
        assert torch.equal(weights, read)


def test_a_regularizer_may_change_between_steps():
    start = [0.9, -0.8, 0.7]
    parameter, twin = parameter_of(start), EagerFobos(start, 0.1, L1(0.3))
    lazy = FOBOS([parameter], 0.1, L1(0.3), schedule="constant")
    sequence = [L1(0.3), ElasticNet(0.1, 0.4), Oscar(0.01, 0.1), L2(0.2), NonNegative(), L1(0.1)]
    for regularizer in sequence:
        lazy.param_groups[0]["regularizer"] = twin.regularizer = regularizer
        for entries in ([(0, 1.0)], [], [(2, -1.0)]):
            set_gradient(parameter, entries)
            lazy.step()
            twin.step(entries)
    lazy.flush()
    assert close(parameter, twin.w)


def test_oscar_step_costs_nothing_in_the_number_of_zeros():
    """The weights that are not 0 are found once; afterwards a list of them is kept."""
    parameter = parameter_of(np.zeros(50))
    lazy = FOBOS([parameter], 0.1, Oscar(0.001, 0.0001), schedule="constant")
    twin = EagerFobos(np.zeros(50), 0.1, Oscar(0.001, 0.0001))
    generator = np.random.default_rng(3)
    for _ in range(60):
        entries = [(int(i), float(generator.normal())) for i in generator.choice(50, 3)]
        set_gradient(parameter, entries)
        lazy.step()
        twin.step(entries)
        active = lazy._places[parameter]
        assert active.tolist() == sorted(active.tolist())
        assert active.tolist() == parameter.nonzero()[:, 0].tolist()
    assert close(parameter, twin.w)


def test_oscar_takes_the_dimension_from_the_regularised_part():
    start = [1.0, 0.9, 0.8]
    given, found = parameter_of(start), parameter_of(start)
    for parameter, regularizer in ((given, Oscar(0.0, 0.1, 2)), (found, Oscar(0.0, 0.1))):
        lazy = FOBOS([parameter], 1.0, regularizer, schedule="constant", unregularized=1)
        set_gradient(parameter, [])
        lazy.step()
    assert given.tolist() == found.tolist() == pytest.approx([1.0, 0.8, 0.8])
    larger = parameter_of(start)
    lazy = FOBOS([larger], 1.0, Oscar(0.0, 0.1, 4), schedule="constant", unregularized=1)
    set_gradient(larger, [])
    lazy.step()
    # Larger by 2, d shifts lambda1 by 2 lambda2.
    assert larger.tolist() == pytest.approx([1.0, 0.6, 0.6])


def test_weights_may_be_changed_after_a_flush():
    for regularizer in (L1(0.1), L2(0.1), Oscar(0.01, 0.01), NonNegative()):
        parameter = parameter_of([1.0, 0.0, 0.0])
        lazy = FOBOS([parameter], 0.1, regularizer, schedule="constant")
        for _ in range(5):
            set_gradient(parameter, [(0, 0.1)])
            lazy.step()
        lazy.flush()
        with torch.no_grad():
            parameter.copy_(torch.tensor([0.0, 0.5, 0.5]))
        twin = EagerFobos([0, 0.5, 0.5], 0.1, regularizer)
        set_gradient(parameter, [(2, 0.1)])
        lazy.step()
        twin.step([(2, 0.1)])
        lazy.flush()
        assert close(parameter, twin.w)


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
    ("build", "message"),
    [
        (lambda p: AdaGrad(p, regularizer=Oscar()), "not sort and pool.*use FOBOS"),
        (lambda p: AdaGrad(p, regularizer=Cubic()), "Cubic is not lazy.*use FOBOS"),
        (lambda p: AROW(p, regularizer=Oscar()), "AROW has a step of its own.*use FOBOS"),
        (lambda p: SGD(p, regularizer=L1(0.1)), "L1 would have no effect.*use regularizer=none"),
        (lambda p: CumulativeL1(p), "got no regularizer: use regularizer=l1"),
        (lambda p: CumulativeL1(p, regularizer=L2()), "got L2: use regularizer=l1, or FOBOS"),
        (lambda p: CumulativeL1(p, regularizer=Oscar()), "got Oscar: use regularizer=l1, or FOBOS"),
        (lambda p: FobosOscar(p), "got no regularizer: use regularizer=oscar"),
        (lambda p: FobosOscar(p, regularizer=L1(0.1)), "got L1: use regularizer=oscar, or FOBOS"),
        (
            lambda p: FOBOS(p, regularizer=NonNegative(), average="step"),
            "steps of NonNegative are put off.*use average=epoch",
        ),
        (
            lambda p: FobosOscar(p, regularizer=Oscar(), average="step"),
            "FobosOscar does not know what.*use average=epoch, or FOBOS",
        ),
    ],
)
def test_what_does_not_go_together_is_refused(build, message):
    with pytest.raises(ValueError, match=message):
        build([parameter_of([0.0])])


@pytest.mark.parametrize("kind", [LOGISTIC, HINGE])
def test_arow_finds_a_planted_direction(kind):
    """From differences of pairs in the right order, among features that say nothing."""
    generator = np.random.default_rng(3)
    truth = np.concatenate([[1.0, -2.0, 0.5], np.zeros(20)])
    parameter = parameter_of(np.zeros(truth.size))
    optimizer = AROW([parameter], 0.3, L1(0.1))
    for _ in range(1000):
        x = generator.normal(size=truth.size)
        x *= np.sign(x @ truth)
        optimizer.catch_up(torch.arange(truth.size))
        factor = -SLOPES[kind](float(parameter.detach().numpy() @ x))
        set_gradient(parameter, [(j, factor * v) for j, v in enumerate(x)])
        optimizer.step()
    optimizer.flush()
    found = parameter.detach().numpy()
    assert found @ truth / np.linalg.norm(found) / np.linalg.norm(truth) > 0.9


def test_a_class_without_the_needed_method_is_named():
    class Half:
        separable = lazy = True

        def value(self, weights):
            return 0

    with pytest.raises(TypeError, match="Half lacks the method prox"):
        FOBOS([parameter_of([0.0])], regularizer=Half())
    Half.prox = lambda self, weights, step: weights.clone()
    del Half.lazy
    with pytest.raises(TypeError, match="Half lacks the attribute lazy"):
        FOBOS([parameter_of([0.0])], regularizer=Half())


def damaged_entries(entry):
    """Yield what no optimizer has kept of a parameter, one thing of it changed."""
    yield {**entry, "another": 1}
    alone = sum(map(torch.is_tensor, entry.values())) == 1
    for name, value in entry.items():
        if name in ("structure", "weights"):
            # It is made anew where there is none; test_lazy_oscar.py has its damage. And of the
            # weights it is known only when they are seen whether they are others.
            continue
        yield {key: other for key, other in entry.items() if key != name}
        bad = [None, "x", [value]]
        if torch.is_tensor(value):
            # One that is alone may be behind its parameter.
            bad += [value[None], value.repeat(9), value.half(), *([] if alone else [value[:-1]])]
            bad += [value + (100 if value.dtype in (torch.int32, torch.int64) else torch.nan)]
        elif isinstance(value, int):
            bad += [-1, 0.5, True]
        elif isinstance(value, float):
            bad += [float("nan"), float("inf"), True]
        yield from ({**entry, name: other} for other in bad)


@pytest.mark.parametrize("kind", [FOBOS, RDA, FobosOscar, SGD, AdaGrad, AROW, CumulativeL1])
def test_states_of_others_are_refused(kind):

    def build(cls, parameter, number=0):
        return cls([parameter], regularizer=regularizers.get(cls, (L1(0.1), L1(0.2)))[number])

    regularizers = {SGD: (None, None), FobosOscar: (Oscar(0.1), Oscar(0.2))}

    parameter = parameter_of([0.5, 0.0])
    optimizer = build(kind, parameter)
    set_gradient(parameter, [(0, 1.0)])
    optimizer.step()
    state = optimizer.state_dict()
    other = AdaGrad if kind is not AdaGrad else SGD
    with pytest.raises(ValueError, match=f"of the optimizer {kind.__name__}, and this is"):
        build(other, parameter).load_state_dict(state)
    if kind is not SGD:
        saved = state["state"][0]["pending"]["regularizer"]
        with pytest.raises(ValueError, match=re.escape(f"regularizer {saved}")):
            build(kind, parameter, 1).load_state_dict(state)
    if any(map(torch.is_tensor, state["state"][0].values())):
        with pytest.raises(ValueError, match="2 coordinates and the parameter 1"):
            build(kind, parameter_of([0.0])).load_state_dict(state)
    other = build(kind, parameter)
    other.add_param_group({"params": [parameter_of([0.0])]})
    with pytest.raises(ValueError, match="other groups"):
        other.load_state_dict(state)
    # The state that was given is nobody's memory.
    before = copy.deepcopy(state)
    own = parameter_of(parameter.tolist())
    resumed = build(kind, own)
    resumed.load_state_dict(state)
    for one, weights in ((optimizer, parameter), (resumed, own)):
        set_gradient(weights, [(0, 1.0)])
        one.step()
    for name, value in before["state"][0].items():
        assert torch.equal(value, state["state"][0][name]) if torch.is_tensor(value) else True
    for bad in damaged_entries(state["state"][0]):
        fresh = build(kind, parameter)
        with pytest.raises(ValueError):
            fresh.load_state_dict({**state, "state": {0: bad}})
        assert not fresh.state


@pytest.mark.parametrize("kind", [FOBOS, RDA])
def test_a_used_optimizer_goes_on_with_a_state_as_a_fresh_one_does(kind):
    """Which of its weights are not 0 it has to find out anew."""

    def build(parameter):
        return kind([parameter], 0.3, Oscar(0.01, 0.002, dimension=50))

    def steps(optimizer, *entries):
        (parameter,) = optimizer.param_groups[0]["params"]
        for entry in entries:
            set_gradient(parameter, entry)
            optimizer.step()

    saved, used = parameter_of(np.zeros(5)), parameter_of(np.zeros(5))
    optimizer, other = build(saved), build(used)
    steps(optimizer, [(0, -1.0), (1, -1.0)])
    steps(other, [(2, -1.0)])
    used.data.copy_(saved.detach())
    fresh = parameter_of(saved.tolist())
    for parameter, resumed in ((used, other), (fresh, build(fresh))):
        resumed.load_state_dict(optimizer.state_dict())
        steps(resumed, *[[(3, 0.01)]] * 9, [(4, -3.0)])
        resumed.flush()
        assert parameter[4] > 0
    assert torch.equal(used, fresh)


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


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda made: pickle.loads(pickle.dumps(made))])
@pytest.mark.parametrize("build", BUILDS)
def test_copies_and_pickles_take_the_same_steps(build, copied):
    generator = np.random.default_rng(6)
    parameter = parameter_of(np.zeros(8))
    made = [build(parameter, 0.3)]
    for step in range(20):
        if step == 10:
            made.append(copied(made[0]))
            made[0].param_groups[0]["lr"] = made[1].param_groups[0]["lr"] = 0.2
        entries = [(int(i), generator.normal()) for i in generator.choice(8, 3, replace=False)]
        for optimizer in made:
            set_gradient(optimizer.param_groups[0]["params"][0], entries)
            optimizer.step()
    for optimizer in made:
        optimizer.flush()
    twin = made[1].param_groups[0]["params"][0]
    assert twin is not parameter and torch.equal(twin, parameter)
    assert np.count_nonzero(parameter.detach()) > 0


def test_a_rate_that_is_a_tensor_may_change_in_place():
    """What was put off is taken with the old one all the same."""
    rates = 0.1, torch.tensor(0.1, dtype=torch.float64)
    made = [AdaGrad([parameter_of([1.0, 1.0])], rate, L1(0.5)) for rate in rates]
    for step in range(6):
        for optimizer in made:
            set_gradient(optimizer.param_groups[0]["params"][0], [(step // 3, 1.0)])
            optimizer.step()
        if step == 4:
            made[0].param_groups[0]["lr"] = 0.01
            made[1].param_groups[0]["lr"].fill_(0.01)
    for optimizer in made:
        optimizer.flush()
    weights = [optimizer.param_groups[0]["params"][0].tolist() for optimizer in made]
    assert weights[0] == weights[1]


@pytest.mark.parametrize("lr", [0.3, 1, torch.tensor(0.3)], ids=str)
@pytest.mark.parametrize("build", BUILDS)
def test_a_state_saved_under_a_schedule_of_torch(build, lr):
    """Saved where the rate is 0, and loaded before or after there is a schedule again."""

    def begin(parameter):
        rate = lr.clone() if torch.is_tensor(lr) else lr
        return build(parameter, rate)

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
    for early in (True, False):
        other = begin(parameter_of(weights.tolist()))
        if early:
            other.load_state_dict(state)
        schedules.append(schedule(other))
        schedules[-1].load_state_dict(schedules[0].state_dict())
        if not early:
            other.load_state_dict(state)
        assert type(other.param_groups[0]["lr"]) is type(first.param_groups[0]["lr"])
    found = [steps(made.optimizer, made, 2) for made in schedules]
    for made in schedules:
        made.optimizer.flush()
    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])
    assert np.count_nonzero(found[0].detach()) > 0


def test_a_state_of_a_plain_users_class_can_be_resumed():
    parameter = parameter_of([0.5])
    optimizer = FOBOS([parameter], regularizer=NonNegative())
    set_gradient(parameter, [(0, 1.0)])
    optimizer.step()
    FOBOS([parameter], regularizer=NonNegative()).load_state_dict(optimizer.state_dict())


def test_rows_that_are_not_finite_stop():
    for optimizer in (
        FOBOS([parameter_of([0.5, 0.5])], regularizer=L1(0.1)),
        SGD([parameter_of([0.5, 0.5])]),
        AdaGrad([parameter_of([0.5, 0.5])]),
        CumulativeL1([parameter_of([0.5, 0.5])], regularizer=L1(0.1)),
        FobosOscar([parameter_of([0.5, 0.5])], regularizer=Oscar(0.1)),
    ):
        with pytest.raises(DivergenceError, match="margin of pair 1 is nan"):
            optimizer.step_rows(
                Rows(np.arange(3), np.arange(2, dtype=np.int32), np.array([1.0, np.nan])), HINGE
            )


def test_an_order_with_other_rows_is_refused():
    optimizer = SGD([parameter_of([0.5])])
    rows = Rows(np.array([0, 1]), np.zeros(1, np.int32), np.ones(1))
    assert optimizer.step_rows(rows, HINGE, order=np.zeros(0, np.int64)).size == 0
    for order in ([0, 1], [-1, 0]):
        with pytest.raises(ValueError, match="and there are 1 rows"):
            optimizer.step_rows(rows, HINGE, order=np.array(order))


def test_what_compiled_loops_cannot_do_is_known():
    assert FOBOS([parameter_of([0.0])], regularizer=L2()).compiled()
    assert not FOBOS([parameter_of([0.0])], regularizer=Oscar()).compiled()
    assert not FOBOS([torch.nn.Parameter(torch.zeros(1))]).compiled()

"""Lazy OSCAR's groups against those of eager steps, and itself when resumed."""

import io

import numpy as np
import pytest
import torch
from optim_reference import EagerFobos, parameter_of, set_gradient

from torchtune_smt.core.errors import DivergenceError
from torchtune_smt.core.rows import Rows
from torchtune_smt.losses.slope_kernels import HINGE
from torchtune_smt.optim import FobosOscar
from torchtune_smt.optim import oscar_tree_kernels as t
from torchtune_smt.regularizers import Oscar

pytestmark = pytest.mark.usefixtures("replayed_gradients")


def build(parameter, regularizer, lr=0.5, schedule="constant", unregularized=0):
    return FobosOscar([parameter], lr, regularizer, schedule=schedule, unregularized=unregularized)


def step(optimizer, parameter, ids, gradient, eager=None):
    entries = list(zip(map(int, ids), map(float, gradient), strict=True))
    set_gradient(parameter, entries)
    optimizer.step()
    if eager is not None:
        eager.step(entries)


def groups_of(w):
    _, block = np.unique(-np.abs(w), return_inverse=True)
    return np.where(w == 0, -1, 2 * block + (w < 0)).tolist()


def values(parameter):
    return parameter.detach().numpy()


@pytest.mark.parametrize(
    ("active", "lambda1", "lambda2", "lr", "spread"),
    [
        (300, 0.0, 1e-4, 0.1, 1.0),
        (3000, 1e-4, 1e-9, 0.1, 1.0),  # hardly any two meet: four levels
        (3000, 0.0, 3e-6, 0.1, 0.01),  # large groups; most die
        (3000, 0.05, 0.0, 0.1, 1.0),
        (3000, 0.0, 1e-6, 0.01, 1.0),  # steps so short that many keep their neighbours
    ],
)
def test_large_structures_equal_eager_ones(active, lambda1, lambda2, lr, spread):
    generator = np.random.default_rng(active)
    start = np.append(generator.normal(size=active) * spread, np.zeros(active // 3))
    regularizer = Oscar(lambda1, lambda2)
    parameter = parameter_of(start)
    lazy, eager = build(parameter, regularizer, lr), EagerFobos(start, lr, regularizer)
    for number in range(150):
        n = int(generator.integers(0, 60))
        ids = np.sort(generator.choice(start.size, n, replace=False))
        gradient = generator.normal(size=n).round(2 if number % 2 else 15)
        step(lazy, parameter, ids, gradient, eager)
        if number % 30 == 0:
            lazy.catch_up(torch.arange(start.size))
            assert np.allclose(values(parameter), eager.w, rtol=0, atol=1e-11)
    group = lazy.groups().numpy()
    assert np.allclose(values(parameter), eager.w, rtol=0, atol=1e-11)
    if lambda2 > 0:  # or nothing but the rounding of steps makes weights equal
        number, expected = len(set(group)), len(set(groups_of(eager.w)))
        assert number == pytest.approx(expected, rel=0.003)
    assert ((group < 0) == (values(parameter) == 0)).all()


def test_groups_are_those_of_the_eager_prox():
    for seed in range(40):
        generator = np.random.default_rng(seed)
        start = generator.normal(size=30)
        regularizer = Oscar(0.001, 0.01)
        parameter = parameter_of(np.append([5.0], start))
        lazy = build(parameter, regularizer, 0.3, unregularized=1)
        eager = EagerFobos(np.append([5.0], start), 0.3, regularizer, 1)
        for _ in range(10):
            ids = generator.choice(30, 4, replace=False) + 1
            step(lazy, parameter, ids, generator.normal(size=4), eager)
        group = lazy.groups()
        assert group.tolist() == [-1, *groups_of(eager.w[1:])]
        assert int(group.max()) < 2 * 28  # some of the 30 have met
        assert torch.equal(lazy.groups(), group)
        # Equal weights are a group, too, where they come from outside.
        assert torch.equal(build(parameter, regularizer, unregularized=1).groups(), group)


def pairs(generator, features, n, k=6):
    ids = np.sort(np.argsort(generator.random((n, features)), axis=1)[:, :k], axis=1)
    return Rows(np.arange(n + 1) * k, ids.ravel().astype(np.int32), generator.normal(size=n * k))


def test_a_resumed_run_goes_on_with_the_same_bits():
    """Also where the structure is built anew, and grows, between."""
    generator = np.random.default_rng(0)
    rows = pairs(generator, 400, 60)
    order = generator.integers(0, 60, 1200)
    regularizer = Oscar(1e-5, 1e-6)

    def run(stops):
        parameter = parameter_of(np.zeros(300))
        lazy = build(parameter, regularizer, 1.0, "inv_sqrt", 3)
        parameter.data = torch.cat([parameter.data, parameter.data.new_zeros(100)])
        margins = []
        for number, chunk in enumerate(np.split(order, range(50, order.size, 50))):
            margins.append(lazy.step_rows(rows, HINGE, order=chunk))
            step(lazy, parameter, [5, 7], [0.1, -0.2])
            if number == 7:
                lazy.flush()
            if number == 9:
                lazy.catch_up(torch.arange(0, 400, 3))
            if number in stops:
                file = io.BytesIO()
                torch.save((parameter.detach(), lazy.state_dict()), file)
                file.seek(0)
                weights, state = torch.load(file, weights_only=True)
                parameter = torch.nn.Parameter(weights)
                lazy = build(parameter, regularizer, 0.1, "inv_sqrt", 3)
                lazy.load_state_dict(state)
        state = lazy.state_dict()["state"][0]
        group = lazy.groups()
        return parameter, group, np.concatenate(margins), state

    parameter, group, margins, state = run(())
    assert len(set(group.tolist())) > 20
    for stops in ((0, 3, 10), (7,), (22, 23)):
        again = run(stops)
        assert torch.equal(again[0], parameter)
        assert torch.equal(again[1], group)
        assert (again[2] == margins).all()
        assert again[3]["step"] == state["step"] == 1224
        for name, tensor in state["structure"].items():
            used = again[3]["structure"][name]
            # Numbers of groups that are not in use may differ in how many there are.
            assert torch.equal(used[: len(tensor)], tensor[: len(used)])


def test_a_structure_that_has_shrunk_is_resumed():
    generator = np.random.default_rng(1)
    parameter = parameter_of(np.append(generator.normal(size=3000) * 0.1, np.zeros(3000)))
    lazy, again = [
        build(p, Oscar(0.02, 1e-9), 1.0) for p in (parameter, parameter_of([0.0] * 6000))
    ]
    for _ in range(20):
        ids = np.sort(generator.choice(6000, 200, replace=False))
        step(lazy, parameter, ids, generator.normal(size=200) * 0.01)
    tree = lazy.state[parameter]["structure"].tree
    # Numbers of groups that are not in use still say where they were.
    assert tree.group[:, t.LEAF].max() >= tree.counts[t.NODES]
    again.load_state_dict(lazy.state_dict())
    tree_again = again.state[again.param_groups[0]["params"][0]]["structure"].tree
    assert (tree_again.member == tree.member).all()


def test_the_cost_of_a_step_grows_with_the_logarithm():
    """Nodes visited for each touched coordinate, of groups that hardly ever merge."""
    visits = {}
    for active in (1_000, 30_000, 1_000_000):
        generator = np.random.default_rng(1)
        parameter = parameter_of(generator.normal(size=active))
        lazy = build(parameter, Oscar(0.0, 1e-15), 1.0)
        step(lazy, parameter, [], [])
        tree = lazy.state[parameter]["structure"].tree
        before = int(tree.counts[t.WORK])
        n = 500
        ids = generator.integers(0, active, n)
        rows = Rows(np.arange(n + 1), ids.astype(np.int32), generator.normal(size=n))
        lazy.step_rows(rows, HINGE)
        visits[active] = (int(tree.counts[t.WORK]) - before) / n
    assert visits[1_000] < 40
    # log 10^6 is twice log 10^3.
    assert visits[1_000] < visits[30_000] < visits[1_000_000] < 2.2 * visits[1_000]


def test_float32_weights_are_rounded_float64_ones():
    start = torch.linspace(-1, 1, 40, dtype=torch.float32)
    parameters = [torch.nn.Parameter(start.to(kind)) for kind in (torch.float32, torch.float64)]
    lazy, exact = [build(p, Oscar(1e-3, 1e-4), 0.1, "inv_sqrt", 2) for p in parameters]
    assert not lazy.compiled()
    generator = np.random.default_rng(3)
    for number in range(300):
        ids = np.sort(generator.choice(40, 3, replace=False))
        gradient = generator.normal(size=3)
        step(lazy, parameters[0], ids, gradient)
        step(exact, parameters[1], ids, gradient)
        if number % 100 == 50:
            lazy.flush()
    groups = [optimizer.groups() for optimizer in (lazy, exact)]
    assert parameters[0].dtype == torch.float32 and len(set(groups[0].tolist())) > 10
    assert groups[0].equal(groups[1])
    torch.testing.assert_close(parameters[0].double(), parameters[1], rtol=1e-5, atol=1e-6)
    large = torch.nn.Parameter(torch.tensor([3e38, 0.0], dtype=torch.float32))
    lazy = build(large, Oscar(), 1.0)
    with pytest.raises(DivergenceError, match="infinite"):
        step(lazy, large, [0], [-3e38])
    assert large.tolist() == torch.tensor([3e38, 0.0]).tolist()


def test_a_dimension_below_the_active_weights_is_refused():
    parameter = parameter_of([0.0, 0.5, 0.0, 0.0])
    lazy = build(parameter, Oscar(0.0, 0.1, 2), 1.0)
    step(lazy, parameter, [0, 1], [1.0, -0.1])
    before = lazy.state_dict()
    with pytest.raises(ValueError, match="dimension is 2, and after the step more weights"):
        step(lazy, parameter, [1, 2], [0.0, 1.0])
    rows = Rows(np.array([0, 1]), np.array([3], np.int32), np.array([1.0]))
    with pytest.raises(ValueError, match="dimension is 2, and after row 0 more weights"):
        lazy.step_rows(rows, HINGE)
    assert lazy.state_dict()["state"][0]["step"] == before["state"][0]["step"]
    # One goes and another comes.
    lazy.catch_up(torch.tensor([0]))
    weight = float(parameter.detach()[0])
    step(lazy, parameter, [0, 2], [weight, 1.0])
    assert (lazy.groups() >= 0).tolist() == [False, True, True, False]


def test_a_weight_that_would_be_infinite_stops():
    parameter = parameter_of([1e308, 0.0, 0.0])
    lazy = build(parameter, Oscar(), 10.0)
    with pytest.raises(DivergenceError, match="the step would make a weight infinite"):
        step(lazy, parameter, [0], [-1e308])
    rows = Rows(np.arange(3), np.array([1, 2], np.int32), np.array([1.0, 1e308]))
    with pytest.raises(DivergenceError, match="row 1 would make a weight infinite"):
        lazy.step_rows(rows, HINGE)


def test_damaged_states_are_refused():
    parameter = parameter_of(np.linspace(-1, 1, 60))
    lazy = build(parameter, Oscar(0.0, 1e-6))
    step(lazy, parameter, [3], [0.1])

    for change in (
        lambda s: s.pop("link"),
        lambda s: s.update(member=s["member"].double()),
        lambda s: s.update(real=s["real"][:, 1:]),
        lambda s: s["link"][0].fill_(1000),
        lambda s: s["member"][1].fill_(60),
        lambda s: s["counts"][t.LEFT].add_(10**9),
        lambda s: s["counts"][t.GROUPS].sub_(1),
        lambda s: s["group"][3, t.LEAF].add_(9),
        lambda s: s["link"][0, t.AFTER].fill_(0),
    ):
        state = lazy.state_dict()
        change(state["state"][0]["structure"])
        with pytest.raises(ValueError, match="damaged"):
            build(parameter, Oscar(0.0, 1e-6)).load_state_dict(state)
    state = lazy.state_dict()
    with pytest.raises(ValueError, match="damaged"):
        build(parameter_of(np.ones(50)), Oscar(0.0, 1e-6)).load_state_dict(state)

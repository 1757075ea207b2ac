"""AdaGrad alone; test_optimizers.py has its steps against an eager twin."""

import numpy as np
import pytest
import torch
from optim_reference import EagerAdaGrad, parameter_of, prox, set_gradient

from torchtune_smt.optim import AdaGrad
from torchtune_smt.regularizers import L1, L2, ElasticNet, NoRegularizer

pytestmark = pytest.mark.usefixtures("replayed_gradients")


def test_long_sparse_run_equals_eager():
    """Features that fire in 2% of the steps: where the order of shrinking and stepping shows."""
    generator = np.random.default_rng(0)
    parameter = parameter_of(np.zeros(60))
    lazy, eager = AdaGrad([parameter], 0.02, L1(0.1)), EagerAdaGrad(np.zeros(60), 0.02, L1(0.1))
    means = generator.normal(size=60)
    for _ in range(1500):
        fired = np.flatnonzero(generator.random(60) < 0.02)
        entries = [(int(i), means[i] + generator.normal()) for i in fired]
        set_gradient(parameter, entries)
        lazy.step()
        eager.step(entries)
    lazy.flush()
    assert parameter.tolist() == pytest.approx(eager.w, abs=1e-12)
    assert 0 < np.count_nonzero(eager.w) < 60


@pytest.mark.parametrize(
    "regularizer", [L1(0.4), L2(0.4), ElasticNet(0.3, 0.2)], ids=lambda r: type(r).__name__
)
def test_regularized_once_an_epoch(regularizer):
    """Plain steps, and then as many proximal steps as there were, on each weight by itself."""
    generator = np.random.default_rng(4)
    w, squares = generator.normal(size=12), np.zeros(12)
    w[:3] = 0
    parameter = parameter_of(w)
    optimizer = AdaGrad([parameter], 0.1, regularizer, unregularized=2, regularize_each="epoch")
    assert not optimizer.compiled()
    for epoch in range(5):
        steps = (7, 1, 4, 0, 9)[epoch]
        for number in range(steps):
            if number == 3:
                # In the midst of an epoch: nothing is due, and what counts is kept.
                optimizer.flush()
                state = optimizer.state_dict()
                parameter = parameter_of([*parameter.tolist(), 0.0])
                w, squares = np.append(w, 0), np.append(squares, 0)
                made = {"unregularized": 2, "regularize_each": "epoch"}
                optimizer = AdaGrad([parameter], 0.7, regularizer, **made)
                optimizer.load_state_dict(state)
            chosen = np.sort(generator.choice(w.size - 1, 4, replace=False)) + 1
            entries = [(int(i), float(generator.normal())) for i in chosen]
            set_gradient(parameter, entries)
            optimizer.step()
            for i, g in entries:
                squares[i] += g * g
                w[i] -= 0.1 * g / np.sqrt(squares[i])
            optimizer.catch_up(torch.arange(w.size))
            assert parameter.tolist() == pytest.approx(w, abs=1e-12)
        optimizer.end_epoch()
        for i in range(2, w.size):
            for _ in range(steps if squares[i] > 0 else 0):
                w[i] = prox(regularizer, w[i], 0.1 / np.sqrt(squares[i]))
        assert parameter.tolist() == pytest.approx(w, abs=1e-12)
    assert (w[1:] == 0).any() == isinstance(regularizer, L1 | ElasticNet)


def test_regularization_that_waits_is_taken_with_what_was_in_force():
    """Where the rate or the regulariser changes in the midst of an epoch, and at its end."""
    w, squares = np.array([2.0, -1.5, 1.0]), np.zeros(3)
    parameter = parameter_of(w)
    optimizer = AdaGrad([parameter], 0.1, L1(0.4), regularize_each="epoch")
    (group,) = optimizer.param_groups
    for lr, regularizer, steps in ((0.1, L1(0.4), 5), (1e-9, L1(0.4), 1), (0.2, L2(0.3), 2)):
        group["lr"], group["regularizer"] = lr, regularizer
        for _ in range(steps):
            set_gradient(parameter, [(0, 0.5), (2, -1.0)])
            optimizer.step()
            for i, g in ((0, 0.5), (2, -1.0)):
                squares[i] += g * g
                w[i] -= lr * g / np.sqrt(squares[i])
        for i in (0, 2):
            for _ in range(steps):
                w[i] = prox(regularizer, w[i], lr / np.sqrt(squares[i]))
    group["lr"] = 5.0
    optimizer.end_epoch()
    assert parameter.tolist() == pytest.approx(w, abs=1e-12)


def test_without_regularizer_it_is_plain_adagrad():
    generator = np.random.default_rng(1)
    parameters = [parameter_of(np.zeros(10)) for _ in range(3)]
    optimizers = [
        AdaGrad([parameters[0]], 0.1),
        AdaGrad([parameters[1]], 0.1, NoRegularizer()),
        torch.optim.Adagrad([parameters[2]], 0.1, eps=0),
    ]
    for _ in range(20):
        gradient = [(int(i), generator.normal()) for i in generator.permutation(10)]
        for parameter, optimizer in zip(parameters, optimizers, strict=True):
            set_gradient(parameter, gradient)
            if parameter is parameters[2]:
                parameter.grad = parameter.grad.to_dense()
            optimizer.step()
    assert parameters[0].tolist() == parameters[1].tolist()
    assert parameters[0].tolist() == pytest.approx(parameters[2].tolist(), abs=1e-14)


def test_growth_between_backward_and_many_times():
    parameter = parameter_of([])
    lazy, eager = AdaGrad([parameter], 0.1, L1(0.2)), EagerAdaGrad([], 0.1, L1(0.2))
    generator = np.random.default_rng(2)
    for length in range(1, 300):
        eager.grow(1)
        parameter.data = torch.cat([parameter.data, parameter.data.new_zeros(1)])
        entries = [(int(i), 1.0) for i in generator.integers(0, length, 3)]
        set_gradient(parameter, entries)
        eager.step(entries)
        lazy.step()
    lazy.flush()
    assert parameter.tolist() == pytest.approx(eager.w, abs=1e-12)


def test_groups_have_their_own_settings():
    a, b = parameter_of([0.0, 0.0]), parameter_of([0.0, 0.0])
    lazy = AdaGrad([{"params": [a]}, {"params": [b], "lr": 0.5, "regularizer": L1(0.9)}], 0.1)
    twins = [EagerAdaGrad([0, 0], 0.1), EagerAdaGrad([0, 0], 0.5, L1(0.9))]
    for entries in [[(0, 1.0)], [(1, -2.0)], [(1, 1.0), (0, 0.5)], []]:
        for parameter, twin in zip((a, b), twins, strict=True):
            set_gradient(parameter, entries)
            twin.step(entries)
        lazy.step()
    lazy.catch_up(torch.tensor([0, 1]), b)
    assert b.tolist() == pytest.approx(twins[1].w, abs=1e-14)
    lazy.flush()
    assert a.tolist() == pytest.approx(twins[0].w, abs=1e-14)
    with pytest.raises(ValueError, match="which of the 2 parameters"):
        lazy.catch_up(torch.tensor([0]))
    with pytest.raises(ValueError, match="not one of the optimizer's"):
        lazy.catch_up(torch.tensor([0]), parameter_of([1.0]))


def test_a_warm_started_weight_waits_for_its_first_gradient():
    parameter = parameter_of([0.3, 0.3])
    lazy = AdaGrad([parameter], 0.1, L1(10.0))
    set_gradient(parameter, [(0, 1.0)])
    lazy.step()
    lazy.flush()
    assert parameter.tolist() == [0.0, 0.3]


def test_gradients_that_underflow_do_nothing():
    parameter = parameter_of([0.3])
    lazy = AdaGrad([parameter], 0.1, L1(0.1))
    set_gradient(parameter, [(0, 1e-200)])
    lazy.step()
    lazy.flush()
    assert parameter.tolist() == [0.3]


def test_no_gradient_is_no_step_and_an_empty_one_is():
    parameter = parameter_of([1.0])
    lazy = AdaGrad([parameter], 0.1, L1(0.1), initial_accumulator=1.0)
    parameter.grad = None
    lazy.step()
    lazy.flush()
    assert parameter.tolist() == [1.0]
    set_gradient(parameter, [])
    lazy.step()
    lazy.flush()
    assert parameter.tolist() == [0.99]


def test_closure_and_autograd():
    parameter = parameter_of([1.0, 2.0])
    lazy = AdaGrad([parameter], 0.1)

    def closure():
        lazy.zero_grad()
        table = torch.nn.functional.embedding(torch.tensor([1]), matrix, sparse=True)
        loss = (table**2).sum()
        loss.backward()
        parameter.grad = torch.sparse_coo_tensor(
            matrix.grad._indices(), matrix.grad._values()[:, 0], (2,)
        )
        return loss

    matrix = parameter.detach()[:, None].clone().requires_grad_()
    assert lazy.step(closure) == 4
    assert parameter.tolist() == pytest.approx([1.0, 1.9])


def test_a_group_that_is_refused_is_not_kept():
    first, second = parameter_of([0.0]), parameter_of([0.0])
    lazy = AdaGrad([first])
    for bad in ({"params": [second], "lr": -1.0}, {"params": [torch.zeros(2, dtype=torch.int64)]}):
        with pytest.raises(ValueError):
            lazy.add_param_group(bad)
        assert len(lazy.param_groups) == 1
    lazy.add_param_group({"params": [second]})
    assert lazy.param_groups[1]["params"] == [second]


def test_bad_gradients_change_nothing():
    a, b = parameter_of([0.0, 0.0]), parameter_of([0.0, 0.0, 0.0])
    lazy = AdaGrad([a, b], 0.1)
    set_gradient(a, [(0, 1.0)])
    set_gradient(b, [(0, 1.0), (2, float("nan"))])
    with pytest.raises(ValueError, match="gradient of feature id 2 is nan"):
        lazy.step()
    assert a.tolist() == [0, 0] and b.tolist() == [0, 0, 0]


def test_what_is_put_off_keeps_its_rate_through_a_change_and_a_checkpoint():
    parameter = parameter_of([1.0])
    lazy = AdaGrad([parameter], 0.1, L1(0.5), initial_accumulator=1.0)
    set_gradient(parameter, [])
    lazy.step()
    lazy.param_groups[0]["lr"] = 0.01
    other = AdaGrad([parameter], 0.7, L1(0.5), initial_accumulator=1.0)
    other.load_state_dict(lazy.state_dict())
    assert other.param_groups[0]["lr"] == 0.01
    other.step()
    other.flush()
    assert parameter.item() == pytest.approx(1 - 0.1 * 0.5 - 0.01 * 0.5, abs=1e-15)

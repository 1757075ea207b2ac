"""Losses against their definitions, gradients against finite differences, steps by hand."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from small_lists import listed

from torchtune_smt.core.errors import DivergenceError
from torchtune_smt.core.weights import Weights
from torchtune_smt.kbest.lists import KBestLists
from torchtune_smt.losses import (
    ExpectedGain,
    Hinge,
    HopeFear,
    Logistic,
    Perceptron,
    Ramp,
    Softmax,
    reduce,
)
from torchtune_smt.optim import AdaGrad
from torchtune_smt.samplers import ProSampler
from torchtune_smt.tuners.gradient import gradient
from torchtune_smt.tuners.learner import Learner

# Slow, obvious definitions.
PAIRWISE = {
    Hinge: (lambda z: max(0.0, 1 - z), lambda z: -1.0 if z < 1 else 0.0),
    Logistic: (lambda z: np.logaddexp(0, -z), lambda z: -np.exp(-np.logaddexp(0, z))),
    Perceptron: (lambda z: max(0.0, -z), lambda z: -1.0 if z <= 0 else 0.0),
}
LISTWISE = [
    Softmax(),
    ExpectedGain(),
    ExpectedGain(temperature=0.3, entropy=0.2),
    Ramp(1),
    Ramp(2),
    Ramp(3, cost=2.0),
    HopeFear(cost=3.0),
]


def reference(loss, s, g):
    """A listwise loss from its formula, one hypothesis at a time."""
    n = range(len(s))
    if isinstance(loss, Softmax):
        best = [i for i in n if g[i] == max(g)]
        return -math.log(sum(math.exp(s[i]) for i in best) / sum(map(math.exp, s)))
    if isinstance(loss, ExpectedGain):
        e = [math.exp(x / loss.temperature) for x in s]
        p = [x / sum(e) for x in e]
        entropy = -sum(x * math.log(x) for x in p)
        return -sum(p[i] * g[i] for i in n) - loss.entropy * entropy
    if isinstance(loss, Ramp):
        c = [loss.cost * (max(g) - x) for x in g]
        fear, hope = max(s[i] + c[i] for i in n), max(s[i] - c[i] for i in n)
        return {1: fear - max(s), 2: max(s) - hope, 3: fear - hope}[loss.variant]
    hope = max(n, key=lambda i: s[i] + loss.cost * g[i])
    fear = max(n, key=lambda i: s[i] - loss.cost * g[i])
    return max(0.0, loss.cost * (g[hope] - g[fear]) - (s[hope] - s[fear]))


@pytest.mark.parametrize("kind", PAIRWISE)
@given(
    st.lists(
        st.floats(-30, 30) | st.sampled_from([0.0, 1.0, -1.0, 700.0, -1e4]), min_size=1, max_size=9
    )
)
def test_pairwise_losses_and_their_slopes(kind, z):
    value, slope = PAIRWISE[kind]
    margins = torch.tensor(z, dtype=torch.float64, requires_grad=True)
    losses = kind()(margins)
    assert losses.tolist() == pytest.approx([value(x) for x in z], rel=1e-13, abs=1e-300)
    losses.sum().backward()
    assert margins.grad.tolist() == pytest.approx([slope(x) for x in z], rel=1e-13, abs=1e-300)


@pytest.mark.parametrize("loss", LISTWISE, ids=repr)
@given(
    rows=st.lists(
        st.lists(st.tuples(st.floats(-5, 5), st.floats(0, 1)), min_size=3, max_size=3),
        min_size=1,
        max_size=3,
    ),
    shift=st.floats(-50, 50),
)
def test_listwise_losses_equal_their_formulas(loss, rows, shift):
    scores = torch.tensor([[s for s, _ in row] for row in rows], dtype=torch.float64)
    gains = torch.tensor([[g for _, g in row] for row in rows], dtype=torch.float64)
    expected = [reference(loss, s, g) for s, g in zip(scores.tolist(), gains.tolist(), strict=True)]
    assert loss(scores, gains).tolist() == pytest.approx(expected, abs=1e-9)
    # A constant added to all scores of a list changes nothing.
    if not isinstance(loss, HopeFear | Ramp):
        assert loss(scores + shift, gains).tolist() == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("loss", [Softmax(), ExpectedGain(), Ramp(), HopeFear()], ids=repr)
def test_equal_gains_leave_exactly_nothing_to_learn(loss):
    """Rounding noise would do: AdaGrad's first step has its full size, whatever the gradient."""
    generator = torch.Generator().manual_seed(5)
    scores = torch.randn((4, 9), dtype=torch.float64, generator=generator).requires_grad_()
    (gradient,) = torch.autograd.grad(loss(scores, torch.full_like(scores, 0.4)).sum(), scores)
    assert not gradient.any()


def test_reductions():
    losses = torch.tensor([1.0, 2.0, 6.0])
    assert [reduce(losses, kind) for kind in ("sum", "each", "mean")] == [9.0, 9.0, 3.0]
    assert reduce(torch.empty(0), "mean") == 0


def kbest(rows, gains, index=0):
    return listed(index, rows, gains)


LISTS = [
    kbest([{0: 1.0, 2: 1.0}, {0: 2.0, 3: 1.0}, {0: 0.5}], [0.9, 0.1, 0.5]),
    kbest([{0: 1.0, 3: 1.0}, {1: 2.0, 2: 1.0}], [0.2, 0.8], 1),
]


def step(weights, optimizer, loss, lists):
    return Learner(weights, optimizer).step(KBestLists.of(lists), loss, ProSampler())


def dense_gradient(weights, loss, lists):
    """Return the gradient as a dense vector, and the mean loss."""
    found = gradient(KBestLists.of(lists), weights, loss)
    assert (np.diff(found.feature) > 0).all()
    result = np.zeros(len(weights))
    result[found.feature] = found.value
    return result, found.loss


def fresh():
    weights = Weights(["a", "b"])
    weights.set(["x", "y"], [0.1, -0.2])
    return weights


@pytest.mark.parametrize("loss", LISTWISE, ids=repr)
def test_listwise_gradients_are_those_of_the_dense_matrix(loss):
    weights = fresh()
    found, mean = dense_gradient(weights, loss, LISTS)
    dense = weights.parameter.detach().clone().requires_grad_()
    expected = []
    for lists in sorted(LISTS, key=len):
        scores = torch.from_numpy(lists.rows.dense(4)) @ dense
        expected.append(loss(scores[None], torch.from_numpy(lists.gain)[None])[0])
    assert mean == pytest.approx(sum(float(x) for x in expected) / len(LISTS))
    sum(expected).backward()
    assert found.tolist() == pytest.approx(dense.grad.tolist(), abs=1e-12)


@pytest.mark.parametrize("loss", LISTWISE, ids=repr)
def test_rounding_noise_is_not_learnt_from(loss):
    """Feature 3 is the same for hope and fear but for rounding, and differs from the reference."""
    noisy, sum_ = 0.1 + 0.2 + 0.3, 0.3 + 0.2 + 0.1
    assert noisy != sum_
    lists = [
        kbest([{0: 1.0, 3: noisy}, {0: 2.0, 3: sum_}, {0: 3.0, 3: noisy}], [0.3, 0.1, 0.9]),
        kbest([{1: 1.0}, {1: 2.0, 3: noisy}, {1: 3.0, 3: sum_}, {1: 4.0}], [0.5, 0.5, 0.5, 0.5]),
    ]
    weights = fresh()
    optimizer = AdaGrad([weights.parameter], lr=0.1)
    before = weights.parameter[3].item()
    step(weights, optimizer, loss, lists[:1])
    assert weights.parameter[3].item() == before
    if not getattr(loss, "entropy", 0):
        step(weights, optimizer, loss, lists[1:])
        assert weights.parameter[3].item() == before


@pytest.mark.parametrize("loss", [Softmax(), ExpectedGain()], ids=repr)
@pytest.mark.parametrize("gap", [1.0, 10.0, 20.0, 30.0, 40.0, 60.0])
def test_what_a_list_shares_is_not_learnt_from(loss, gap):
    """However sure the model is of the best: 1 - p is then a number of few or no digits."""
    rows = [{0: gap, 1: 0.3, 3: 1.0}, {0: 0.1, 1: 0.3, 3: 1.0}, {0: 0.2, 1: 0.3, 3: 1.0}]
    rows += [{0: 0.01 * i, 1: 0.3, 3: 1.0} for i in range(97)]
    weights = Weights(["a", "b"])
    weights.set(["a", "b", "x", "y"], [1.0, 0.7, 0.1, 5.0])
    found, _ = dense_gradient(weights, loss, [kbest(rows, [0.9, 0.2, *[0.1] * 98])])
    assert found[1] == found[3] == 0
    # The gradient that is left is right to many digits.
    p = np.exp([row[0] - gap for row in rows])
    p /= p.sum()
    if isinstance(loss, Softmax):
        others = p[1:]
    else:
        g = np.array([0.7, *[0.8] * 98])  # the best gain minus that of the others
        others = p[1:] * (g - p[1:] @ g)
    x = np.array([row[0] - gap for row in rows[1:]])
    assert found[0] == pytest.approx(others @ x, rel=1e-9)


def test_numbers_that_are_not_finite_are_refused():
    weights, bad = fresh(), float("nan")
    optimizer = AdaGrad([weights.parameter], lr=0.1)
    before = weights.parameter.detach().clone()
    with pytest.raises(ValueError, match="needs a gain, a finite number"):
        step(weights, optimizer, Softmax(), [kbest([{0: 1.0}, {1: 1.0}], [0.1, bad])])
    broken = [kbest([{0: 1.0, 2: bad}, {1: 1.0}], [0.1, 0.2])]
    for loss, said in ((Softmax(), "gradient of feature id"), (Hinge(), "margin of pair 0 is")):
        with pytest.raises(DivergenceError, match=said):
            step(weights, optimizer, loss, broken)
    assert torch.equal(weights.parameter, before)

"""The proximal operators as torch ops: their gradients, and what they refuse."""

from functools import partial

import numpy as np
import pytest
import torch

from torchtune_smt import prox
from torchtune_smt.core.scoring import sparse_vector
from torchtune_smt.regularizers import L1, L2, ElasticNet, GroupLasso, NoRegularizer, Oscar
from torchtune_smt.regularizers.ops import prox_elastic_net, prox_group, prox_oscar

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
REGULARIZERS = [L1(0.3), L2(0.4), ElasticNet(0.2, 0.7), NoRegularizer()]
OSCARS = [Oscar(0.02, 0.1), Oscar(0.0, 0.03, 99), Oscar(0.2, 0.0), Oscar(0.0, 0.0)]
STRENGTHS = [(0.2, 0.0), (0.0, 0.3), (0.2, 0.3), (0.0, 0.0)]
NOT_FINITE = [float("nan"), float("inf"), -float("inf")]


def weights(seed, device="cpu", dtype=torch.float64):
    """Weights of several sizes: some die, some of OSCAR's are pooled."""
    generator = np.random.default_rng(seed)
    values = generator.normal(size=8) * generator.choice([0.1, 1.0, 3.0], 8)
    return torch.from_numpy(values).to(device, dtype).requires_grad_()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_opcheck_with_gradients(device, dtype):
    w = weights(1, device, dtype)
    for lambda1, lambda2 in STRENGTHS:
        for blocks in (False, True):
            torch.library.opcheck(prox_oscar, (w, lambda1, lambda2 / 9, w.numel(), blocks))
        for step in (torch.tensor(0.3, dtype=torch.float64), weights(2, device, dtype).abs()):
            for own in (step.detach(), step.detach().requires_grad_()):
                torch.library.opcheck(prox_elastic_net, (w, own, lambda1, lambda2))
    # A weight alone keeps its type.
    alone = torch.tensor(1.0, dtype=dtype)
    torch.library.opcheck(prox_elastic_net, (alone, torch.tensor(0.5).double(), 0.5, 0.1))
    assert L1(0.5).prox(alone, 1.0).equal(alone / 2)
    rows = w.detach().view(4, 2).requires_grad_()
    for step in (torch.tensor(0.3, device=device), weights(2, device, dtype)[:4, None].abs()):
        torch.library.opcheck(prox_group, (rows, step.detach().requires_grad_(), 0.7))


@pytest.mark.parametrize("regularizer", [*REGULARIZERS, *OSCARS], ids=repr)
def test_gradients_are_those_of_differences(regularizer):
    check = {"eps": 1e-7, "atol": 1e-6, "check_forward_ad": True}
    for seed in range(9):
        w = weights(seed)
        assert torch.autograd.gradcheck(lambda v: regularizer.prox(v, 0.8), w, **check)
        of = partial(regularizer.prox, step=0.8)
        rev, fwd = (jac(of)(w.detach()) for jac in (torch.func.jacrev, torch.func.jacfwd))
        assert torch.allclose(rev, fwd, rtol=1e-12)
        if regularizer.separable:
            for step in (weights(seed + 20).detach().abs(), torch.tensor(0.8).double()):
                pair = (w, step.requires_grad_())
                assert torch.autograd.gradcheck(regularizer.prox, pair, **check)
                assert torch.autograd.gradgradcheck(regularizer.prox, pair, eps=1e-7, atol=1e-6)
        else:
            assert torch.autograd.gradcheck(lambda v: regularizer.groups(v, 0.8)[0], w, eps=1e-7)


@pytest.mark.parametrize("lambda2", [0.0, 0.1])
def test_equal_weights_and_zeros_without_kinks(lambda2):
    # Equal sizes move apart if no pair pulls at them; a zero whose rank has no penalty moves.
    w = torch.tensor([2.0, -2.0, 1.0, 0.0], dtype=torch.float64, requires_grad=True)
    prox = Oscar(0.0, lambda2).prox
    assert torch.autograd.gradcheck(lambda v: prox(v, 1.0), w, eps=1e-7, atol=1e-6)


@pytest.mark.parametrize("device", DEVICES)
def test_a_sparse_vector_has_gradients_too(device):
    w = weights(3, device)
    places = torch.arange(8, device=device) * 2
    sparse = sparse_vector(places, w, 20)
    oscar = Oscar(0.02, 0.1)
    (found,) = torch.autograd.grad(oscar.prox(sparse, 0.8).to_dense().square().sum(), w)
    dense = torch.zeros(20, device=device, dtype=w.dtype).index_put((places,), w)
    (expected,) = torch.autograd.grad(oscar.prox(dense, 0.8).square().sum(), w)
    assert torch.allclose(found, expected)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("regularizer", [*REGULARIZERS, OSCARS[0], OSCARS[-1]], ids=repr)
def test_what_is_not_finite_or_negative_is_refused(regularizer, device):
    w = torch.tensor([0.5, -2.0, 1.0], device=device)
    for bad in NOT_FINITE:
        worse = torch.tensor([0.5, 0.0, bad], device=device)
        with pytest.raises(ValueError, match=f"weight 2 of the prox is {bad}, not finite"):
            regularizer.prox(worse, 0.5)
    for bad in (*NOT_FINITE, -0.5):
        steps = [bad, torch.tensor(bad, device=device)]
        if regularizer.separable:
            steps.append(torch.tensor([0.5, bad, 0.5], device=device))
        for step in steps:
            with pytest.raises(ValueError, match=f"step must be finite, 0 or more, not {bad}"):
                regularizer.prox(w, step)
    with pytest.raises(ValueError, match="floating-point"):
        regularizer.prox(torch.tensor([1, 2]), 0.5)


def test_strengths_have_no_gradients_but_may_be_of_any_graph():
    with pytest.raises(ValueError, match="strength must be a number"):
        prox.prox_l1(torch.ones(2), 1.0, torch.tensor(0.5, requires_grad=True))
    compiled = torch.compile(
        lambda w, strength: prox.prox_l1(w, 1.0, strength), backend="eager", fullgraph=True
    )
    for strength in (0.1, 0.2, 0.3):
        assert compiled(torch.ones(2), strength).tolist() == pytest.approx([1 - strength] * 2)


def test_oscar_has_no_gradient_of_its_step():
    with pytest.raises(ValueError, match="detach the step"):
        Oscar().prox(torch.ones(2), torch.tensor(0.5, requires_grad=True))
    with pytest.raises(ValueError, match="detach the step"):
        torch.func.jacfwd(partial(Oscar().prox, torch.ones(2)))(torch.tensor(0.5))
    with pytest.raises(ValueError, match="largest penalty"):
        Oscar(1e300).prox(torch.ones(2), 1e300)


FUNCTIONS = {
    "l1": lambda w, step: prox.prox_l1(w, step, 0.7),
    "l2": lambda w, step: prox.prox_l2(w, step, 0.7),
    "elastic": lambda w, step: prox.prox_elastic_net(w, step, 0.3, 0.7),
    "group": lambda w, step: prox.prox_group(w.unflatten(-1, (4, 2)), step, 0.7).flatten(-2),
    "oscar": lambda w, step: prox.prox_oscar(w, 0.8, 0.02, 0.1) + 0 * step,
}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS)
def test_functions_under_vmap_are_those_of_each(function, device):
    batch = torch.stack([weights(seed, device).detach() for seed in range(5)]).requires_grad_()
    steps = torch.linspace(0, 2, 5, dtype=torch.float64, device=device)
    along = torch.linspace(-1, 2, 8, dtype=torch.float64, device=device)
    for step, dim in ((steps, 0), (steps[2], None)):
        each = step if dim == 0 else step.expand(5)
        expected = torch.stack([function(w, s) for w, s in zip(batch, each, strict=True)])
        (slope,) = torch.autograd.grad((expected @ along).sum(), batch)
        for found in (
            torch.vmap(function, (0, dim))(batch, step),
            torch.vmap(function, (1, dim), 1)(batch.T, step).T,
        ):
            torch.testing.assert_close(found, expected)
            assert torch.allclose(torch.autograd.grad((found @ along).sum(), batch)[0], slope)
        gradient = torch.func.grad(lambda w, s: function(w, s) @ along)
        torch.testing.assert_close(torch.vmap(gradient, (0, dim))(batch.detach(), step), slope)
        jacobian = torch.func.jacrev(function)(batch[1].detach(), each[1])
        torch.testing.assert_close(along @ jacobian, slope[1])


def test_group_shortens_rows():
    generator = torch.Generator().manual_seed(4)
    w = torch.randn((6, 3), dtype=torch.float64, generator=generator)
    w[2] = 0
    step = torch.tensor([0.5, 9, 1, 0, 1, 0.1], dtype=torch.float64)[:, None]
    result = prox.prox_group(w, step, 0.8)
    for row, one, less in zip(w, result, 0.8 * step, strict=True):
        length = row.norm()
        expected = row * max(0.0, 1 - less / length) if length else row
        torch.testing.assert_close(one, expected)
    assert not result[1].any() and torch.equal(result[3], w[3])
    smooth = [0, 1, 4, 5]
    pair = (w[smooth].requires_grad_(), step[smooth].requires_grad_())
    shortened = partial(prox.prox_group, strength=0.8)
    assert torch.autograd.gradcheck(shortened, pair, check_forward_ad=True)
    # Neither the smallest nor the largest numbers are lost in squares.
    for size in (1e-200, 1e200):
        torch.testing.assert_close(
            prox.prox_group(w * size, 0.1 * size) / size, prox.prox_group(w, 0.1)
        )


def test_a_step_goes_with_its_weights():
    """It is never stretched to another shape, nor rows taken for columns."""
    with pytest.raises(ValueError, match="shape"):
        prox.prox_group(torch.ones(3, 3), torch.tensor([0.1, 0.2, 0.3]))
    with pytest.raises(ValueError, match="shape"):
        prox.prox_l1(torch.ones(3), torch.ones(4, 1))
    assert prox.prox_l1(torch.ones(4, 3), torch.ones(4, 1)).shape == (4, 3)
    assert GroupLasso(0.1).prox(torch.ones(3, 0), 1.0).shape == (3, 0)

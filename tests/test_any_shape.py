"""Parameters of any shape: rows of them are late, of which elements or rows are regularised."""

from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from optim_reference import EagerAdaGrad, EagerFobos, EagerFTRL, EagerRDA
from test_optimizers import CASES

from torchtune_smt.core.rows import Rows
from torchtune_smt.losses.slope_kernels import PERCEPTRON
from torchtune_smt.optim import AROW, FOBOS, FTRL, RDA, AdaGrad, CumulativeL1, FobosOscar
from torchtune_smt.optim.sparse import SCHEDULES
from torchtune_smt.regularizers import L1, L2, ElasticNet, GroupLasso, Oscar

pytestmark = pytest.mark.usefixtures("replayed_gradients")

SHAPES = [(), (5,), (5, 1), (5, 3), (4, 2, 2)]


FTRLS = [(FTRL, EagerFTRL, r, {"beta": 0.2}) for r in (None, L1(0.3), L2(0.5))]
FTRLS.append((FTRL, EagerFTRL, ElasticNet(0.2, 0.7), {}))
BY_ROWS = {
    "fobos": (FOBOS, EagerFobos, {"schedule": "constant"}),
    "adagrad": (AdaGrad, EagerAdaGrad, {"rowwise": True}),
    "arow": (AROW, partial(EagerAdaGrad, root=abs, initial_accumulator=1.0), {"rowwise": True}),
    "rda": (RDA, EagerRDA, {}),
    "ftrl": (FTRL, EagerFTRL, {"rowwise": True}),
}
ROWS = [(kind, twin, GroupLasso(0.4), options) for kind, twin, options in BY_ROWS.values()]
ELEMENTS = [c for c in CASES if not isinstance(c[2], Oscar)] + FTRLS


def gradients(draw, shape, count):
    """Yield gradients: dense arrays, and as torch has them, sparse or not."""
    n = shape[0] if shape else 1
    for step in range(count):
        if not shape or step % 6 == 5:
            dense = draw.normal(size=shape)
            yield dense, torch.from_numpy(dense)
        else:
            rows = torch.from_numpy(draw.integers(0, n, draw.integers(0, 3)))
            values = torch.from_numpy(draw.normal(size=(len(rows), *shape[1:])))
            sparse = torch.sparse_coo_tensor(rows[None], values, shape, check_invariants=True)
            yield sparse.to_dense().numpy(), sparse


both = st.booleans()


@settings(max_examples=100)
@given(
    case=st.sampled_from(ELEMENTS) | st.sampled_from(ROWS),
    shape=st.sampled_from(SHAPES),
    seed=st.integers(0, 2**32 - 1),
    lazy=both,
    maximize=both,
    exempt=st.sampled_from([0, 1]),
)
def test_elements_and_rows_of_any_shape(case, shape, seed, lazy, maximize, exempt):
    """Elements are as those of a vector, which the twin takes one after another."""
    kind, twin, regularizer, options = case
    rows = isinstance(regularizer, GroupLasso)
    assume(shape or not rows)
    exempt, width = 0 if rows else exempt, int(np.prod(shape[1:], dtype=int))
    draw = np.random.default_rng(seed)
    start = draw.choice([-1.0, 0.0, 0.05, 0.7], shape)
    eager = twin(start if rows else start.reshape(-1), 0.1, regularizer, exempt * width, **options)
    parameter = torch.nn.Parameter(torch.tensor(start, dtype=torch.float64))
    given = {"unregularized": exempt, "lazy": lazy, "maximize": maximize, **options}
    optimizer = kind([parameter], 0.1, regularizer, **given)
    for step, (dense, gradient) in enumerate(gradients(draw, shape, 17)):
        parameter.grad = -gradient if maximize else gradient
        optimizer.step()
        eager.t += 1
        eager.update(dense if rows else dense.reshape(-1))
        expected = eager.w.reshape(shape)
        if step % 4 == 1 or not lazy:
            some = draw.integers(0, len(dense) if shape else 1, 2)
            if lazy:
                optimizer.catch_up(torch.from_numpy(some))
            there = [np.atleast_1d(values)[some] for values in (parameter.detach(), expected)]
            np.testing.assert_allclose(*there, atol=1e-12)
    optimizer.flush()
    np.testing.assert_allclose(parameter.detach(), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", BY_ROWS)
def test_rows_that_say_nothing_become_zero(name):
    """Embeddings of three words in twelve make the difference, and the others are forgotten."""
    torch.manual_seed(0)
    embedding = torch.nn.Embedding(12, 4, sparse=True, dtype=torch.float64)
    truth = torch.zeros(12)
    truth[:3] = torch.tensor([2.0, -2.0, 1.0])
    embedding.weight.data.mul_(0.1)
    # FTRL's penalty is one of all steps together.
    strength = GroupLasso(8.0 if name == "ftrl" else 0.1)
    kind, _, options = BY_ROWS[name]
    optimizer = kind([embedding.weight], 0.05, strength, **options)
    for _ in range(600):
        words = torch.randint(0, 12, (16,))
        optimizer.catch_up(words, embedding.weight)
        loss = (embedding(words).sum(1) - truth[words] - 0.05 * torch.randn(16)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    optimizer.flush()
    alive = embedding.weight.detach().norm(dim=1) > 0
    assert alive[:3].all() and not alive[3:].any()


@pytest.mark.parametrize(
    ("build", "word"),
    [
        (lambda p: AdaGrad([p], regularizer=GroupLasso()), "rowwise=True"),
        (lambda p: FTRL([p[0]], regularizer=Oscar()), "separable"),
        (lambda p: FOBOS([p], regularizer=Oscar()), "vector"),
        (lambda p: FobosOscar([p[0].half()], regularizer=Oscar()), "float16"),
    ],
)
def test_what_is_refused(build, word):
    with pytest.raises(ValueError, match=word):
        build(torch.zeros(3, 2))


def test_gradients_that_do_not_fit():
    parameter = torch.nn.Parameter(torch.ones(4, 2))
    optimizer = AdaGrad([parameter], 0.1, L1(0.1))
    parameter.grad = torch.ones(4, 2).to_sparse(2)
    with pytest.raises(ValueError, match="first dimension"):
        optimizer.step()
    values = torch.tensor([[1.0, 2.0], [float("inf"), 0.0]])
    parameter.grad = torch.sparse_coo_tensor([[0, 3]], values, (4, 2), check_invariants=True)
    with pytest.raises(ValueError, match="id 3 is inf"):
        optimizer.step()
    fobos = FOBOS([parameter], 0.1, L1(0.1))
    for rows in ([1, 4], [-1, 1]):
        parameter.grad = torch.sparse_coo_tensor(
            [rows], torch.ones(2, 2), (4, 2), check_invariants=False
        )
        for one in (optimizer, fobos):
            with pytest.raises(IndexError, match=f"of row {next(r for r in rows if r != 1)} "):
                one.step()
    assert parameter.eq(1).all() and not fobos.state
    parameter.grad = torch.ones(4, 2).to_sparse(1)
    optimizer.step()
    optimizer.flush()
    parameter.data = parameter.data[:3].clone()
    with pytest.raises(ValueError, match="shrunk"):
        optimizer.flush()


RATES = [{"schedule": s} for s in ("constant", "inv_sqrt", "1/t")]
MILLION = [
    *((k, r, {}) for k in (AdaGrad, AROW) for r in (L1(1e-7), ElasticNet(1e-7, 1e-6))),
    *((FOBOS, ElasticNet(1e-7, 1e-6), o) for o in RATES),
    *((k, r(1e-7), RATES[1]) for k, r in ((FOBOS, GroupLasso), (CumulativeL1, L1))),
]


@pytest.mark.parametrize(("kind", "regularizer", "options"), MILLION)
def test_a_million_steps_are_put_off(kind, regularizer, options):
    """Of a weight that nothing touches; by the book, one after another, with more precision."""
    n, rows = 10**6, isinstance(regularizer, GroupLasso)

    def begin(dtype, regularizer=regularizer):
        weights = torch.nn.Parameter(torch.full((2,), 0.7, dtype=dtype))
        optimizer = kind([weights], 0.05, regularizer, **options)
        weights.grad = torch.tensor([0.5, 0.0], dtype=dtype)
        optimizer.step()
        return weights, optimizer, optimizer.state[weights]

    # Rows of one number are shortened as numbers are; sums of steps are those of l1.
    _, taken, steps = begin(torch.float64, L1(1.0) if rows else regularizer)
    taken.step_rows(Rows(np.arange(n + 1), np.ones(n, np.int32), np.zeros(n)), PERCEPTRON)
    t = np.arange(2, n + 2, dtype=np.longdouble) + (kind is FOBOS)
    sizes = 0.05 / t ** SCHEDULES[options.get("schedule", "constant")]
    sizes /= {AdaGrad: 0.5, AROW: 1.25}.get(kind, 1.0)
    lambda1, lambda2 = (1e-7, 0.0) if rows else regularizer.elastic
    # What is left of a weight after each step, of those that all make shorter by so much.
    left = np.cumprod(1 / (1 + sizes * lambda2))
    # FOBOS has a product of all steps, as its eager twin does: each has an error of 1e-16.
    exact = 1e-10 if kind is FOBOS and lambda2 else 1e-12
    for dtype, tolerance in ((torch.float64, exact), (torch.float32, 1e-6)):
        weights, optimizer, state = begin(dtype)
        w = np.longdouble(weights[0].item())
        w = w * left[-1] - (sizes * lambda1 * (left[-1] / np.append(1, left[:-1]))).sum()
        counted = {"step", "S", "P", "path", "penalty"} & steps.keys()
        state |= {name: steps[name] for name in counted}
        optimizer._note(optimizer.param_groups[0], weights)
        optimizer.catch_up(torch.tensor([0]))
        assert weights[0].item() == pytest.approx(float(w), rel=tolerance)


SINGLE = [
    *((FOBOS, r, o) for o in RATES for r in (L1(2e-3), ElasticNet(2e-3, 0.01), GroupLasso(2e-3))),
    *((k, r, {}) for k in (AdaGrad, AROW, RDA, FTRL) for r in (L1(2e-3), L2(0.01))),
    *((k, GroupLasso(2e-3), {"rowwise": True}) for k in (AdaGrad, FTRL)),
    *((CumulativeL1, L1(2e-3), {"schedule": s}) for s in ("constant", "1/t")),
]


@pytest.mark.parametrize(("kind", "regularizer", "options"), SINGLE)
def test_single_precision(kind, regularizer, options):
    """What is put off is taken more exactly than step by step, which rounds each time."""
    draw = torch.Generator().manual_seed(0)
    start = torch.randn(50, 3, generator=draw)
    made = [torch.nn.Parameter(start.to(d, copy=True)) for d in (torch.float32, torch.float64)]
    lazy = kind([made[0]], 0.1, regularizer, **options)
    eager = kind([made[1]], 0.1, regularizer, **options, lazy=False)
    for _ in range(60):
        rows, values = torch.randint(50, (1, 2), generator=draw), torch.randn(2, 3, generator=draw)
        for parameter, optimizer in zip(made, (lazy, eager), strict=True):
            optimizer.catch_up(rows)
            given = values.to(parameter.dtype)
            parameter.grad = torch.sparse_coo_tensor(rows, given, (50, 3), check_invariants=True)
            optimizer.step()
    lazy.flush()
    largest = float(made[1].detach().abs().max())
    torch.testing.assert_close(made[0].double(), made[1], rtol=0, atol=1e-6 * largest)


@pytest.mark.parametrize("start", [0.1, 1.0])
def test_small_gradients_move_weights_of_ftrl(start):
    """Their squares vanish beside the first sum; without Ω, steps are AdaGrad's."""
    weights = [torch.nn.Parameter(torch.ones(1)) for _ in range(2)]
    ours = FTRL([weights[0]], lr=0.1, initial_accumulator=start, beta=0.0)
    theirs = torch.optim.Adagrad([weights[1]], lr=0.1, initial_accumulator_value=start)
    for _ in range(1000):
        for weight in weights:
            weight.grad = torch.full((1,), 5e-5)
        ours.step()
        theirs.step()
    torch.testing.assert_close(*weights, rtol=1e-4, atol=0)
    assert weights[0].item() < 0.999

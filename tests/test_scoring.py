"""Scores and margins of sparse rows."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from torchtune_smt.core.rows import Rows
from torchtune_smt.core.scoring import score_rows
from torchtune_smt.core.weights import Weights
from torchtune_smt.kbest.lists import KBest
from torchtune_smt.losses import Logistic, reduce

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


def random_kbest(generator, k, dimension, density=0.3):
    """A k-best list with random features; dense matrix beside it."""
    dense = generator.integers(-2, 3, (k, dimension)) * (generator.random((k, dimension)) < density)
    dense = dense.astype(np.float64)
    rows, columns = dense.nonzero()
    kbest = KBest(
        index=0,
        rows=Rows(
            np.searchsorted(rows, np.arange(k + 1)).astype(np.int64),
            columns.astype(np.int32),
            dense[rows, columns],
        ),
        token_begin=np.zeros(k + 1, np.int64),
        tokens=np.zeros(0, np.int32),
    )
    return kbest, dense


def weights_of(values):
    weights = Weights()
    weights.set([f"f{i}" for i in range(len(values))], values)
    return weights


@given(st.integers(0, 2**32 - 1))
def test_margins_and_gradient_equal_dense_algebra(seed):
    generator = np.random.default_rng(seed)
    dimension = int(generator.integers(1, 30))
    weights = weights_of(generator.normal(size=dimension))
    kbests, differences, pairs = [], [], []
    for _ in range(generator.integers(0, 4)):
        kbest, dense = random_kbest(generator, 5, dimension)
        chosen = generator.integers(0, 5, (generator.integers(0, 6), 2))
        kbests.append(kbest)
        pairs.append(chosen)
        differences.append(dense[chosen[:, 0]] - dense[chosen[:, 1]])
    x = torch.from_numpy(np.concatenate([np.zeros((0, dimension)), *differences]))
    differences_ = [k.rows.differences(p) for k, p in zip(kbests, pairs, strict=True)]
    margins = score_rows(Rows.joined(differences_), weights.parameter)
    reduce(Logistic()(margins), "sum").backward()

    w = weights.parameter.detach().clone().requires_grad_()
    expected = x @ w
    torch.log1p(torch.exp(-expected)).sum().backward()
    gradient = weights.parameter.grad
    assert torch.allclose(margins, expected, rtol=0, atol=1e-12)
    assert gradient.is_sparse and gradient.shape == w.shape
    assert torch.allclose(gradient.to_dense(), w.grad, rtol=0, atol=1e-12)
    # Only features that differ in some pair are touched, each once, in ascending order.
    assert gradient._indices()[0].tolist() == x.any(0).nonzero()[:, 0].tolist()


@pytest.mark.parametrize("device", DEVICES)
def test_score_rows_equal_csr_product(device):
    generator = np.random.default_rng(1)
    kbest, dense = random_kbest(generator, 8, 20)
    w = torch.from_numpy(generator.normal(size=20)).to(device).requires_grad_()
    scores = score_rows(kbest.rows, w)
    assert torch.allclose(scores.cpu(), torch.from_numpy(dense) @ w.cpu(), rtol=0, atol=1e-12)
    u = torch.from_numpy(generator.normal(size=8))
    scores.backward(u.to(device))
    expected = torch.from_numpy(dense).T @ u
    assert torch.allclose(w.grad.to_dense().cpu(), expected, rtol=0, atol=1e-12)


def test_rows_without_entries_score_zero():
    w = torch.ones(3, dtype=torch.float64, requires_grad=True)
    row_begin = np.array([0, 0, 1, 1])
    scores = score_rows(Rows(row_begin, np.array([2], np.int32), np.array([5.0])), w)
    assert scores.tolist() == [0, 5, 0]
    none = score_rows(Rows(np.zeros(3, np.int64), np.zeros(0, np.int32), np.zeros(0)), w)
    none.sum().backward()
    assert none.tolist() == [0, 0] and w.grad._nnz() == 0


def test_a_float32_weight_takes_the_values_as_float32():
    w = torch.ones(3, dtype=torch.float32, requires_grad=True)
    score_rows(Rows(np.array([0, 1]), np.array([2], np.int32), np.array([0.5])), w).sum().backward()
    assert w.grad.dtype == torch.float32 and w.grad.to_dense().tolist() == [0, 0, 0.5]


def test_rounding_noise_is_no_difference():
    total = 0.1 + 0.2 + 0.3
    other = 0.3 + 0.2 + 0.1
    assert total != other
    kbest = KBest(
        index=0,
        rows=Rows(
            np.array([0, 2, 4]),
            np.asarray(np.array([0, 1, 0, 1]), np.int32),
            np.array([total, 1.0, other, 2.0]),
        ),
        token_begin=np.zeros(3, np.int64),
        tokens=np.zeros(0, np.int32),
    )
    rows = kbest.rows.differences(np.array([[0, 1]]))
    assert rows.feature.tolist() == [1] and rows.value.tolist() == [-1]


@pytest.mark.parametrize("z", [-800.0, -30.0, -1.0, 0.0, 1.0, 30.0, 800.0])
def test_logistic_is_exact_at_any_margin(z):
    margin = torch.tensor([z], dtype=torch.float64, requires_grad=True)
    loss = Logistic()(margin)
    loss.sum().backward()
    assert loss.item() == pytest.approx(np.logaddexp(0, -z), rel=1e-14)
    assert -margin.grad.item() == pytest.approx(np.exp(-np.logaddexp(0, z)), rel=1e-14)

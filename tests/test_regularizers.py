"""Proximal operators against numerical minimisers, definitions and duality, and their facts."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar

from torchtune_smt.regularizers import L1, L2, ElasticNet, GroupLasso, NoRegularizer, Oscar

SEPARABLE = [L1(0.3), L1(0.0), L2(0.4), ElasticNet(0.2, 0.7), ElasticNet(0, 0), NoRegularizer()]
ROWS = GroupLasso(0.3)  # of a vector, each of which is a number
REGULARIZERS = [*SEPARABLE, ROWS, Oscar(0.02, 0.1), Oscar(0.0, 0.3, 9), Oscar(0.2, 0.0)]
number = st.floats(-3, 3)


@pytest.mark.parametrize("regularizer", [*SEPARABLE, ROWS], ids=repr)
@given(weights=st.lists(number, min_size=1, max_size=4), step=st.floats(0, 3))
def test_prox_minimises(regularizer, weights, step):
    result = regularizer.prox(torch.tensor(weights, dtype=torch.float64), step)
    for w, found in zip(weights, result.tolist(), strict=True):

        def objective(v, w=w):
            one = torch.tensor([v], dtype=torch.float64)
            return 0.5 * (v - w) ** 2 + step * regularizer.value(one).item()

        best = minimize_scalar(objective, bounds=(-4, 4), method="bounded").fun
        assert objective(found) <= best + 1e-9


@pytest.mark.parametrize("regularizer", REGULARIZERS, ids=repr)
@given(weights=st.lists(number, max_size=5), a=st.floats(0, 2), b=st.floats(0, 2))
def test_capability_flags_hold(regularizer, weights, a, b):
    w = torch.tensor(weights, dtype=torch.float64)
    if regularizer.lazy:
        twice = regularizer.prox(regularizer.prox(w, a), b)
        assert torch.allclose(twice, regularizer.prox(w, a + b), rtol=0, atol=1e-14)
    if regularizer.separable:
        steps = torch.linspace(0, a, len(weights), dtype=torch.float64)
        together = regularizer.prox(w, steps).tolist()
        alone = [regularizer.prox(v, s).item() for v, s in zip(w, steps, strict=True)]
        assert together == alone


# --- OSCAR ---

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
# Ties, zeros and signs come often.
vectors = st.lists(
    st.one_of(st.sampled_from([0.0, 0.5, -0.5, 1.0, -1.0, 2.0]), st.floats(-3, 3)), max_size=12
).map(np.array)
strengths = st.sampled_from([0.0, 1e-9, 0.01, 0.1, 0.4])


def definition(w, lambda1, lambda2, zeros=0):
    """Return Ω of a vector followed by some zeros, pair by pair."""
    w = np.append(np.abs(w), np.zeros(zeros))
    pairs = sum(max(a, b) for a, b in itertools.combinations(w, 2))
    return lambda1 * w.sum() + lambda2 * pairs


@given(a=vectors, lambda1=strengths, lambda2=strengths, zeros=st.integers(0, 4))
def test_prox_is_optimal(a, lambda1, lambda2, zeros):
    """v is the prox iff a - v is in the dual norm's ball and meets v in full.

    The ball of a sorted l1 norm: the k largest of |y| sum to no more than the k largest weights.
    """
    d = a.size + zeros
    oscar = Oscar(lambda1, lambda2, d or 1)
    v = oscar.prox(torch.from_numpy(a), 1.0).numpy()
    y = a - v
    ranks = lambda1 + lambda2 * (d - 1 - np.arange(a.size))
    assert (np.cumsum(-np.sort(-np.abs(y))) <= np.cumsum(ranks) + 1e-12).all()
    assert y @ v == pytest.approx(definition(v, lambda1, lambda2, zeros), abs=1e-12)


@given(w=vectors, lambda1=strengths, lambda2=strengths, zeros=st.integers(0, 3))
def test_value_equals_the_definition(w, lambda1, lambda2, zeros):
    oscar = Oscar(lambda1, lambda2, w.size + zeros or 1)
    expected = definition(w, lambda1, lambda2, zeros)
    assert oscar.value(torch.from_numpy(w)).item() == pytest.approx(expected, abs=1e-12)


@given(a=vectors, lambda1=strengths, lambda2=strengths)
def test_sparse_vectors_equal_dense_ones(a, lambda1, lambda2):
    oscar, dense = Oscar(lambda1, lambda2), torch.from_numpy(a)
    sparse = dense.to_sparse().coalesce()
    found = oscar.prox(sparse, 0.7)
    assert found.indices().tolist() == sparse.indices().tolist()
    assert torch.equal(found.to_dense(), oscar.prox(dense, 0.7))
    assert oscar.value(sparse).item() == pytest.approx(oscar.value(dense).item(), abs=1e-14)


@given(a=vectors, lambda1=strengths, lambda2=st.sampled_from([1e-18, 1e-9, 0.01, 0.1]))
def test_groups_are_the_equal_weights(a, lambda1, lambda2):
    result, group = Oscar(lambda1, lambda2).groups(torch.from_numpy(a), 1.0)
    assert torch.equal(result, Oscar(lambda1, lambda2).prox(torch.from_numpy(a), 1.0))
    assert (group < 0).tolist() == (result == 0).tolist()
    for i, j in itertools.combinations(range(a.size), 2):
        if group[i] >= 0 and group[i] == group[j]:
            assert result[i] == result[j]
        if a[i] == a[j]:  # whatever rounding does to the penalties
            assert group[i] == group[j]
        if group[i] >= 0 and abs(a[i]) == abs(a[j]):
            assert group[i] // 2 == group[j] // 2
    # Blocks are numbered in descending order, and signs tell groups of one block apart.
    alive = group >= 0
    order = torch.argsort(group[alive])
    assert (result[alive][order].abs().diff() <= 0).all()
    assert ((group[alive] % 2 == 1) == (result[alive] < 0)).all()


@pytest.mark.parametrize(
    ("weights", "lambda1", "lambda2", "dimension"),
    [
        # Penalties so small that means of z are not monotone in floating point.
        ([0.3694044110916809] * 9, 1e-3, 1e-19, 100),
        # z = 10, 9, 10, 11: the last three have a mean of 10, which is no less than the first.
        ([13.0, 11.0, 11.0, 11.0], 0.0, 1.0, 4),
    ],
)
def test_ties_are_one_block(weights, lambda1, lambda2, dimension):
    _, group = Oscar(lambda1, lambda2, dimension).groups(
        torch.tensor(weights, dtype=torch.float64), 1.0
    )
    assert group.tolist() == [0] * len(weights)


def test_the_value_in_half_precision():
    weights = torch.ones(70_000, dtype=torch.float16)
    value = Oscar(0, 1e-9).value(weights)
    assert value.dtype == torch.float16
    expected = Oscar(0, 1e-9).value(weights.double())
    torch.testing.assert_close(value.double(), expected, rtol=1e-3, atol=0)


def test_bad_input():
    for shape in ((), (2, 3)):
        with pytest.raises(ValueError, match="vector"):
            Oscar().prox(torch.ones(shape), 1.0)
    too_small = Oscar(0.1, 0.1, 2)
    too_small.prox(torch.tensor([1.0, 0.0, 2.0]), 1.0)
    for call in (too_small.value, lambda w: too_small.prox(w, 1.0)):
        with pytest.raises(ValueError, match="dimension is 2, and 3 weights are not 0"):
            call(torch.tensor([1.0, 3.0, 2.0]))

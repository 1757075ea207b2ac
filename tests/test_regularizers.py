"""Proximal operators against a numerical minimiser, and the facts that optimizers rely on."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar

from torchtune_smt.regularizers import L1, L2, ElasticNet, NoRegularizer, Oscar

SEPARABLE = [L1(0.3), L1(0.0), L2(0.4), ElasticNet(0.2, 0.7), ElasticNet(0, 0), NoRegularizer()]
REGULARIZERS = [*SEPARABLE, Oscar(0.02, 0.1), Oscar(0.0, 0.3, 9), Oscar(0.2, 0.0)]
number = st.floats(-3, 3)


@pytest.mark.parametrize("regularizer", SEPARABLE, ids=repr)
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


@pytest.mark.parametrize("regularizer", [r for r in SEPARABLE if r.elastic != (0, 0)], ids=repr)
def test_elastic_strengths_say_what_the_value_is(regularizer):
    w = torch.tensor([0.5, -2.0, 0.0])
    lambda1, lambda2 = regularizer.elastic
    expected = lambda1 * w.abs().sum() + lambda2 / 2 * w.square().sum()
    assert regularizer.value(w) == pytest.approx(expected)


def test_l1_by_hand():
    w = torch.tensor([3.0, -0.5, 0.0, -2.0])
    assert L1(2.0).value(w) == 11.0
    assert L1(2.0).prox(w, 0.5).tolist() == [2.0, 0.0, 0.0, -1.0]
    assert L1(1.0).prox(w, torch.tensor([4.0, 0.25, 1.0, 0.0])).tolist() == [0, -0.25, 0, -2]

"""The minimiser with passes over the pairs on a device of torch, against those of the CPU."""

import numpy as np
import pytest
import torch
from minimizer_reference import rows_of

from torchtune_smt.core.scoring import csr_matrices
from torchtune_smt.minimizer import Accuracy, Minimizer, SmoothedHinge, SquaredHinge, stored_pairs
from torchtune_smt.minimizer.stored_pairs import product
from torchtune_smt.regularizers import Oscar
from torchtune_smt.tuners.grouping.base import Problem
from torchtune_smt.tuners.grouping.minimum import BatchLearning

CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")


def planted(seed=1, n=2000, d=60):
    """Pairs in which the first features mean that a translation is better."""
    draw = np.random.default_rng(seed)
    x = np.hstack(
        [
            draw.normal(size=(n, 2)),
            (draw.random((n, d)) < 0.1) * draw.choice([-1.0, 1.0], (n, d)),
        ]
    )
    margins = x[:, 2:8].sum(axis=1) + draw.normal(size=n)
    return rows_of(x * np.where(margins < 0, -1.0, 1.0)[:, None])


@pytest.mark.parametrize("loss", [SmoothedHinge(0.01), SquaredHinge()])
def test_the_minimum_is_that_of_the_cpu(monkeypatch, loss):
    """Passes of torch in the place of those that are compiled, on the CPU: all they are asked."""
    pairs, exact = planted(), Accuracy(residual=1e-9, gap=1e-6)
    here, there = (Minimizer(pairs, 2, loss) for _ in range(2))
    stored = there.pairs
    asked: list[object] = []

    def watched(matrix, vector):
        asked.append(matrix)
        return product(matrix, vector)

    monkeypatch.setattr(stored_pairs, "product", watched)
    stored.on_device = csr_matrices(stored.sparse, stored.n_sparse, "cpu")
    penalty = here.penalty(0.0, 1e-3)
    largest = here.largest_scale(penalty)
    assert there.largest_scale(penalty) == pytest.approx(largest, rel=1e-9)
    a, b = (m.minimize(penalty.times(0.2 * largest), accuracy=exact) for m in (here, there))
    assert a.reached and b.reached and a.survivors > 2
    np.testing.assert_allclose(a.weights, b.weights, atol=1e-7)
    np.testing.assert_array_equal(a.groups, b.groups)
    assert {*map(id, asked)} == {*map(id, stored.on_device)}


@CUDA
def test_groups_on_cuda():
    pairs, oscar = planted(), Oscar(0.0, 1.0)
    here, there = (
        BatchLearning(oscar, SquaredHinge(), 0.2, Accuracy(1e-8, 1e-6), device).learn(
            Problem(pairs, np.zeros(62), 2)
        )
        for device in ("cpu", "cuda")
    )
    np.testing.assert_array_equal(here.blocks, there.blocks)


def test_a_device_that_there_is_not():
    with pytest.raises(ValueError, match="tpu"):
        Minimizer(planted(), 2, SquaredHinge(), device="tpu")
    if not torch.cuda.is_available():
        with pytest.raises(ValueError, match="no CUDA device"):
            Minimizer(planted(), 2, SquaredHinge(), device="cuda")

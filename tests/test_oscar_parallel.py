"""OSCAR's pooling on a GPU against the serial kernel and exact sums, on every device.

Without a GPU Triton interprets the kernels (conftest.py).
"""

import importlib
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from optim_reference import oscar_prox

from torchtune_smt.regularizers import Oscar
from torchtune_smt.regularizers.oscar_prox import prox_serial, prox_tiles

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
# Ties, zeros and signs come often.
vectors = st.lists(
    st.one_of(st.sampled_from([0.0, 0.5, -0.5, 1.0, -1.0, 2.0]), st.floats(-3, 3)), max_size=40
).map(np.array)
strengths = st.sampled_from([0.0, 1e-18, 1e-9, 0.01, 0.1, 0.4])


@pytest.fixture(scope="module")
def tiles():
    """The kernels, with small tiles."""
    pytest.importorskip("triton")
    module = importlib.import_module("torchtune_smt.regularizers.pool_tiles")
    with pytest.MonkeyPatch.context() as patch:
        for name, number in {"TILE": 16, "GROUP": 4, "WARPS": 1, "MERGING": 1}.items():
            patch.setattr(module, name, number)
        yield module


def pooled(tiles, weights, lambda1, lambda2, dimension):
    """Return what the kernels make of weights (float64 or float32 [n])."""
    given = torch.from_numpy(weights).to(DEVICES[-1])
    found = prox_tiles(given, lambda1, lambda2, dimension, True, tiles)
    assert found is not None and found[0].dtype == given.dtype
    return found[0].cpu().numpy(), found[1].cpu().numpy()


@given(a=vectors.filter(len), lambda1=strengths, lambda2=strengths, more=st.integers(0, 3))
@settings(max_examples=10)
def test_prox_equals_isotonic_regression(tiles, a, lambda1, lambda2, more):
    result, block = pooled(tiles, a, lambda1, lambda2, a.size + more)
    expected, blocks = prox_serial(a, lambda1, lambda2, a.size + more, True)
    reference = oscar_prox(np.append(a, np.zeros(more)), lambda1, lambda2)[: a.size]
    for other in (expected, reference):
        assert np.allclose(result, other, rtol=0, atol=1e-14)
    assert not np.signbit(result[result == 0]).any()
    assert block.tolist() == blocks.tolist()


def walks():
    """Return vectors, ascending, that are slow to pool in one way or another."""
    generator = np.random.default_rng(0)
    n = 56
    steps = {
        "near the limit": generator.exponential(size=n),
        # One large block swallows the others, one at a time, upwards, downwards, and both ways.
        "down": np.append(np.linspace(2, 1.001, n - n // 4), np.zeros(n // 4)),
        "up": np.append(np.zeros(n // 4), np.linspace(1.001, 2, n - n // 4)),
        "both": np.concatenate([np.linspace(2, 1.001, n // 3), np.zeros(n // 3)] * 2),
        "many": np.tile(np.append(np.linspace(1.5, 1.001, 20), np.zeros(8)), 3),
        "in turn": np.resize([0.0, 1.9, 0.3, 1.4, 0.0, 2.6], n),
        "growing": np.concatenate([[0.0] * k + [1.2] * k for k in range(1, 8)]),
        "ties": generator.integers(0, 2, n) * 4.0,
    }
    return {name: 1 + np.cumsum(step) / step.sum() for name, step in steps.items()}


@pytest.mark.parametrize("name", walks())
def test_chains(name, tiles):
    """Signs and zeros among them."""
    a = walks()[name]
    a[::7] *= -1
    a = np.insert(a, [0, 30], 0.0)
    for limit, dtype in ((0.9, np.float64), (1.1, np.float32)):
        options = (0.1, limit / a.size, 2 * a.size)
        found, block = pooled(tiles, a.astype(dtype), *options)
        expected, blocks = prox_serial(a.astype(dtype).astype(np.float64), *options, True)
        assert np.allclose(found, expected, rtol=0, atol=1e-14 if dtype == np.float64 else 1e-7)
        assert block.tolist() == blocks.tolist()


def test_what_the_kernels_give_up(tiles, monkeypatch):
    """Joins that give up leave corners, and nothing is returned that would be wrong."""
    monkeypatch.setattr(tiles, "TURNS", 1)
    w = torch.from_numpy(walks()["in turn"]).to(DEVICES[-1])
    assert prox_tiles(w, 0.1, 0.95 / len(w), 2 * len(w), True, tiles) is None
    assert prox_tiles(w[:0], 0.1, 0.1, 3, True, tiles) is None


def exact_prox(a, lambda2):
    """Return the prox of values in ascending order, in fractions."""
    blocks = []
    for rank, value in enumerate(a[::-1]):
        total, count = Fraction(value) + Fraction(lambda2) * (rank + 1 - len(a)), 1
        while blocks and total * blocks[-1][1] >= blocks[-1][0] * count:
            above = blocks.pop()
            total, count = total + above[0], count + above[1]
        blocks.append((total, count))
    return [float(total / count) for total, count in blocks for _ in range(count)][::-1]


@pytest.mark.parametrize("size", [1, 1000])
def test_sums_are_exact(size, tiles):
    """Differences far below the rounding of cumulative sums decide."""
    generator = np.random.default_rng(1)
    a = size + np.cumsum(generator.choice([1e-12, 3e-12], 50) * size)
    for limit in (1.5e-12, 1.9e-12):
        found, block = pooled(tiles, a, 0.0, limit * size, a.size)
        assert np.abs(found - exact_prox(a, limit * size)).max() <= 5e-16 * size
        assert block.max() > 0


@pytest.mark.parametrize("size", [1e-300, 1e-290, 1e-30, 1e30, 1e300])
def test_sizes(size, tiles):
    a = np.array([1.0, -1.0, 0.75, 0.5, 0.5, 0.25]) * size
    found, block = pooled(tiles, a, 0.0, 0.3 * size, a.size)
    expected, blocks = prox_serial(a, 0.0, 0.3 * size, a.size, True)
    assert np.allclose(found / size, expected / size, rtol=0, atol=1e-6 if size < 1e-290 else 1e-15)
    assert block.tolist() == blocks.tolist()


def test_single_weights_keep_all_digits(tiles):
    a = np.array([1e9, 1e-9 / 3, -1e-30 / 3])
    assert pooled(tiles, a, 0.0, 0.0, 3)[0].tolist() == a.tolist()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_devices_and_types(device, dtype):
    generator = np.random.default_rng(2)
    for a in (generator.normal(size=2000), generator.integers(-3, 4, 2000) / 8):
        a = torch.from_numpy(a).to(dtype)
        for lambda2 in (1e-9, 4e-4):
            expected, _ = Oscar(0.0, lambda2).groups(a, 1.0)
            found, _ = Oscar(0.0, lambda2).groups(a.to(device), 1.0)
            assert found.dtype == dtype and found.device.type == device
            assert torch.allclose(found.cpu(), expected, rtol=1e-6, atol=1e-13)


def test_bad_input(tiles):
    for bad, message in (
        (torch.tensor([1.0, 3.0, 2.0]), "dimension is 2, and 3 weights are not 0: penalties"),
        (torch.tensor([1.0, float("nan")]), "weight 1 of the prox is nan"),
        (torch.tensor([1, 2]), "floating-point"),
    ):
        w = bad.to(DEVICES[-1])
        for call in (prox_tiles, torch.ops.torchtune_smt.prox_oscar):
            with pytest.raises(ValueError, match=message):
                call(w, 0.1, 0.1, 2, False, *[tiles][: call is prox_tiles])


def test_no_weights(tiles):
    w = torch.zeros(3, device=DEVICES[-1])
    for n in (0, 3):
        result, block = torch.ops.torchtune_smt.prox_oscar(w[:n], 0.1, 0.1, 3, True)
        assert result.tolist() == [0] * n and block.tolist() == [-1] * n
    result, block = prox_tiles(w, 0.1, 0.1, 3, True, tiles)
    assert not result.any() and block.tolist() == [-1] * 3

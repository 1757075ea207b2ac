"""OSCAR's parallel pooling against the serial kernel and isotonic regression, on every device."""

import importlib
import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from optim_reference import oscar_prox

from torchtune_smt.regularizers import Oscar, pool_parallel
from torchtune_smt.regularizers.ops import prox_serial
from torchtune_smt.regularizers.pool_parallel import prox_parallel

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
# Ties, zeros and signs come often.
vectors = st.lists(
    st.one_of(st.sampled_from([0.0, 0.5, -0.5, 1.0, -1.0, 2.0]), st.floats(-3, 3)), max_size=40
).map(np.array)
strengths = st.sampled_from([0.0, 1e-18, 1e-9, 0.01, 0.1, 0.4])
# Which of the three steps of pooling are taken: all corners merged, drawn out, or bridged.
STEPS = {
    "as they come": {},
    "merging alone": {"merges": 10**6},
    "drawing out alone": {"merges": 0, "tangents": 10**6},
    "bridging alone": {"merges": 0, "tangents": 0},
    "all of them": {"merges": 1, "tangents": 2},
}


@pytest.fixture(params=STEPS.values(), ids=STEPS)
def pool(request, monkeypatch):
    """`pool_parallel` by some of its steps, whatever the number of corners."""
    if request.param:
        monkeypatch.setattr(pool_parallel, "FEW", 0)
    return lambda *arguments: pool_parallel.pool_parallel(*arguments, **request.param)


def pooled(pool, weights, lambda1, lambda2, dimension):
    """Return the proximal point, clipped at 0, of weights all above 0, by `pool`; and blocks."""
    magnitude, order = torch.from_numpy(weights).sort(descending=True)
    begin, value = pool(magnitude, lambda1, lambda2, dimension)
    assert begin[0] == 0 and begin[-1] == weights.size
    assert (begin.diff() > 0).all() and (value.diff() < 0).all()
    block = torch.repeat_interleave(torch.arange(value.numel()), begin.diff())
    result = torch.empty_like(magnitude)
    result[order] = value[block].clamp_min(0)
    return result.numpy(), begin


@given(a=vectors, lambda1=strengths, lambda2=strengths, zeros=st.integers(0, 3))
def test_prox_equals_isotonic_regression(a, lambda1, lambda2, zeros):
    padded = np.append(a, np.zeros(zeros))
    result, block = prox_parallel(torch.from_numpy(a), lambda1, lambda2, a.size + zeros, True)
    expected = oscar_prox(padded, lambda1, lambda2)[: a.size]
    assert np.allclose(result, expected, rtol=0, atol=1e-14)
    serial, _ = prox_serial(a, lambda1, lambda2, a.size + zeros, False)
    assert np.allclose(result, serial, rtol=0, atol=1e-14)
    assert not np.signbit(result.numpy()[result.numpy() == 0]).any()
    # Blocks are those of equal results, in descending order, and without gaps.
    assert (block < 0).tolist() == (result == 0).tolist()
    alive = np.flatnonzero(block >= 0)
    values = sorted({abs(result[i].item()) for i in alive}, reverse=True)
    assert [values[block[i]] for i in alive] == [abs(result[i].item()) for i in alive]
    for i in alive:
        equal = np.abs(a) == abs(a[i])
        assert (block[torch.from_numpy(equal)] == block[i]).all()
    nothing = prox_parallel(torch.from_numpy(a), lambda1, lambda2, a.size + zeros, False)
    assert torch.equal(nothing[0], result) and nothing[1].shape == (0,)


def walks():
    """Return vectors, ascending, that are slow to pool in one way or another."""
    generator = np.random.default_rng(0)
    n = 600
    steps = {
        "even": np.full(n, 1.0),
        "normal": np.diff(np.sort(generator.normal(size=n + 1))),
        "near the limit": generator.exponential(size=n),
        # One large block swallows the others, one at a time, upwards, downwards, and both ways.
        "down": np.append(np.linspace(2, 1.001, n - n // 4), np.zeros(n // 4)),
        "up": np.append(np.zeros(n // 4), np.linspace(1.001, 2, n - n // 4)),
        "both": np.concatenate([np.linspace(2, 1.001, n // 3), np.zeros(n // 3)] * 2),
        "many": np.tile(np.append(np.linspace(1.5, 1.001, 20), np.zeros(8)), n // 28),
        "in turn": np.resize([0.0, 1.9, 0.3, 1.4, 0.0, 2.6], n),
        "growing": np.concatenate([[0.0] * k + [1.2] * k for k in range(1, 24)]),
        "ties": generator.integers(0, 2, n) * 4.0,
    }
    return {name: 1 + np.cumsum(step) / step.sum() for name, step in steps.items()}


@pytest.mark.parametrize("name", walks())
def test_chains(name, pool):
    a = walks()[name]
    for limit in (0.2, 0.9, 1.0, 1.1, 3.0):
        lambda2 = limit / a.size
        found, _ = pooled(pool, a, 0.1, lambda2, 2 * a.size)
        expected, _ = prox_serial(a, 0.1, lambda2, 2 * a.size, False)
        assert np.allclose(found, expected, rtol=0, atol=1e-13)
        assert np.allclose(
            found, oscar_prox(np.append(a, 0 * a), 0.1, lambda2)[: a.size], atol=1e-9
        )


@given(seed=st.integers(0, 10**6), size=st.integers(1, 60), grain=st.sampled_from([4, 64, 10**9]))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_random_walks(pool, seed, size, grain):
    generator = np.random.default_rng(seed)
    a = 1 + np.cumsum(generator.integers(0, 2 * grain, size) / grain)
    found, _ = pooled(pool, a, 0.0, 1.0, size)
    assert np.allclose(found, oscar_prox(a, 0.0, 1.0), rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", walks())
def test_rounds_are_few(name, monkeypatch):
    """Not one for each block that is swallowed."""
    rounds = []
    reduced = pool_parallel._Hull.reduced
    monkeypatch.setattr(
        pool_parallel._Hull, "reduced", lambda self, kept: rounds.append(1) or reduced(self, kept)
    )
    a = torch.from_numpy(walks()[name]).flip(0)
    for options in (STEPS["as they come"], STEPS["bridging alone"]):
        for limit in (0.9, 1.0, 1.1, 3.0):
            rounds.clear()
            pool_parallel.pool_parallel(a, 0.0, limit / a.numel(), a.numel(), **options)
            assert len(rounds) <= math.log2(a.numel()) + 2


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
def test_sums_are_exact(size, pool):
    """Differences far below the rounding of cumulative sums decide."""
    generator = np.random.default_rng(1)
    a = size + np.cumsum(generator.choice([1e-12, 3e-12], 400) * size)
    for limit in (1.5e-12, 1.9e-12):
        found, begin = pooled(pool, a, 0.0, limit * size, a.size)
        assert np.abs(found - exact_prox(a, limit * size)).max() <= 5e-16 * size
        assert begin.numel() > 2


@pytest.mark.parametrize("size", [1e-300, 1e-290, 1e-30, 1e30, 1e300])
def test_sizes(size):
    a = np.array([1.0, -1.0, 0.75, 0.5, 0.5, 0.25]) * size
    found, block = prox_parallel(torch.from_numpy(a), 0.0, 0.3 * size, a.size, True)
    expected, blocks = prox_serial(a, 0.0, 0.3 * size, a.size, True)
    assert np.allclose(found / size, expected / size, rtol=0, atol=1e-6 if size < 1e-290 else 1e-15)
    assert block.tolist() == blocks.tolist()
    # Without any strength single weights keep all their digits.
    a = torch.tensor([1e9, 1e-9 / 3, -1e-30 / 3], dtype=torch.float64)
    assert torch.equal(prox_parallel(a, 0.0, 0.0, 3, False)[0], a)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_devices_and_types(device, dtype):
    generator = np.random.default_rng(2)
    for a in (generator.normal(size=2000), generator.integers(-3, 4, 2000) / 8):
        a = torch.from_numpy(a).to(dtype)
        for lambda2 in (1e-9, 4e-4):
            expected, _ = Oscar(0.0, lambda2).groups(a, 1.0)
            for call in (
                lambda w: Oscar(0.0, lambda2).groups(w, 1.0),  # noqa: B023
                lambda w: prox_parallel(w, 0.0, lambda2, w.numel(), True),  # noqa: B023
            ):
                found, _ = call(a.to(device))
                assert found.dtype == dtype and found.device.type == device
                assert torch.allclose(found.cpu(), expected, rtol=1e-6, atol=1e-13)


@pytest.mark.parametrize("device", DEVICES)
def test_no_weights_and_too_many(device):
    three = torch.tensor([1.0, 3.0, 2.0], device=device)
    for call in (prox_parallel, torch.ops.torchtune_smt.prox_oscar):
        with pytest.raises(ValueError, match="dimension is 2, and 3 weights are not 0: penalties"):
            call(three, 0.1, 0.1, 2, False)
        for n in (0, 3):
            result, block = call(torch.zeros(n, device=device), 0.1, 0.1, 3, True)
            assert result.tolist() == [0] * n and block.tolist() == [-1] * n


@pytest.fixture
def tiles(monkeypatch):
    """The kernels for GPUs, with small tiles; without one, Triton interprets them (conftest.py)."""
    pytest.importorskip("triton")
    module = importlib.import_module("torchtune_smt.regularizers.pool_tiles")
    for name, number in {"TILE": 16, "GROUP": 4, "WARPS": 1, "MERGING": 1}.items():
        monkeypatch.setattr(module, name, number)
    return module


@pytest.mark.parametrize(
    ("name", "limit", "turns", "dtype"),
    [
        ("near the limit", 0.9, 64, torch.float32),
        ("both", 0.9, 64, torch.float64),
        # Joins that give up leave corners to the rounds.
        ("in turn", 0.95, 1, torch.float64),
    ],
)
def test_tiles(name, limit, turns, dtype, tiles, monkeypatch):
    monkeypatch.setattr(tiles, "TURNS", turns)
    a = 1.5 + walks()[name][::8]
    a[::7] *= -1
    w = torch.from_numpy(np.insert(a, [0, 40], 0.0)).to(DEVICES[-1], dtype)
    options = (0.1, limit / a.size, 2 * a.size)
    found, block = prox_parallel(w, *options, True, tiles)
    expected, blocks = prox_serial(w.cpu().double().numpy(), *options, True)
    within = 1e-14 if dtype == torch.float64 else 1e-7
    assert np.allclose(found.cpu(), expected, rtol=0, atol=within)
    assert block.tolist() == blocks.tolist() and 1 < block.max() < a.size - 1
    assert not (torch.signbit(found) & (found == 0)).any() and found.dtype == dtype

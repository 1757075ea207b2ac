"""OSCAR's proximal operator against sorting alone: python scripts/experiments/bench/oscar_prox.py.

Times the registered op on the CPU (one thread, 10^6 weights) or, with --device cuda, there (10^7),
for steps times lambda2 from 1e-9 to 1e-6: normal values, values full of ties, and normal values of
which 5% are not 0, dense and as (indices, values). The peer, in the same run, is numpy.argsort of
the absolute normal values on the CPU, and torch.sort of the same tensor on CUDA. For normal values
on the CPU, scipy's isotonic regression (with the same sorting and restoring in numpy) and the prox
of SLOPE of skglm (where that is installed) follow, in milliseconds and as ratios to ours.
"""

import argparse
from collections.abc import Callable
from time import perf_counter

import numpy as np
import torch
from scipy.optimize import isotonic_regression

from torchtune_smt.core.arrays import Float64
from torchtune_smt.regularizers import Oscar

LIMIT = {"cpu": 2.5, "cuda": 2.0}
SIZE = {"cpu": 1_000_000, "cuda": 10_000_000}


def best_of(function: Callable[[], object], device: str, times: int = 7) -> float:
    """Return the milliseconds of the fastest of several calls, after one that is not counted."""
    function()
    seconds = []
    for _ in range(times):
        if device == "cuda":
            torch.cuda.synchronize()
        start = perf_counter()
        function()
        if device == "cuda":
            torch.cuda.synchronize()
        seconds.append(perf_counter() - start)
    return 1e3 * min(seconds)


def by_scipy(weights: Float64, penalties: Float64) -> Float64:
    """Return the prox by numpy's sort and scipy's isotonic regression."""
    size = np.abs(weights)
    order = np.argsort(size)[::-1]
    result = np.empty_like(weights)
    found = isotonic_regression(size[order] - penalties, increasing=False)
    result[order] = np.maximum(found.x, 0.0)
    return np.copysign(result, weights)


def print_peers(weights: Float64, own: dict[float, float]) -> None:
    """Print the milliseconds of peers, for the strengths of our own ones."""
    try:
        from skglm.penalties import SLOPE
    except ImportError:
        print("skglm is not installed")
        SLOPE = None
    for strength, ms in own.items():
        penalties = strength * np.arange(weights.size - 1.0, -1.0, -1.0)
        peers = {"scipy": best_of(lambda p=penalties: by_scipy(weights, p), "cpu")}
        if SLOPE is not None:
            slope = SLOPE(penalties)
            peers["skglm"] = best_of(lambda s=slope: s.prox_vec(weights, 1.0), "cpu")
        said = ", ".join(f"{name} {t:.1f} ms ({t / ms:.2f})" for name, t in peers.items())
        print(f"normal {strength:.0e}: ours {ms:.1f} ms, {said}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--size", type=int, help="number of weights")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    options = parser.parse_args()
    size = options.size or SIZE[options.device]
    torch.set_num_threads(1)
    generator = np.random.default_rng(0)
    normal = generator.normal(size=size)
    ties = generator.integers(-50, 51, size) / 10.0
    sparse = np.where(generator.random(size) < 0.05, normal, 0.0)
    vectors = {
        name: torch.from_numpy(vector).to(options.device)
        for name, vector in (("normal", normal), ("ties", ties), ("5% not 0", sparse))
    }
    vectors["5%, sparse"] = vectors["5% not 0"].to_sparse()
    peers = {}
    for name, vector in vectors.items():
        values = vector.coalesce().values() if vector.is_sparse else vector
        if options.device == "cpu":
            array = np.abs(values.numpy())
            peers[name] = best_of(lambda array=array: np.argsort(array), "cpu")
        else:
            peers[name] = best_of(lambda v=values: torch.sort(v), options.device)
    peer = peers["normal"]
    sort = "numpy.argsort" if options.device == "cpu" else "torch.sort"
    device = torch.cuda.get_device_name() if options.device == "cuda" else "the CPU"
    print(f"{size:,} weights on {device}; {sort} of the normal ones {peer:.1f} ms")
    print(f"{'vector':<12}{'step·λ2':>9}{'ms':>9}{'/ sort of normal':>18}{'/ its own sort':>16}")
    worst = 0.0
    own = {}
    for name, vector in vectors.items():
        for strength in (1e-9, 1e-8, 1e-7, 1e-6):
            oscar = Oscar(lambda1=0.0, lambda2=strength)
            ms = best_of(lambda o=oscar, v=vector: o.prox(v, 1.0), options.device)
            if name == "normal":
                worst = max(worst, ms / peer)
                own[strength] = ms
            print(
                f"{name:<12}{strength:>9.0e}{ms:>9.1f}{ms / peer:>18.2f}{ms / peers[name]:>16.2f}"
            )
    print(f"normal values: at most {worst:.2f} times the sort; limit {LIMIT[options.device]}")
    if options.device == "cpu":
        print_peers(normal, own)


if __name__ == "__main__":
    main()

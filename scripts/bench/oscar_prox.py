"""OSCAR's proximal operator against sorting alone: python scripts/bench/oscar_prox.py.

Times the registered op on 10^6 weights, for steps times lambda2 from 1e-9 to 1e-6: normal values,
values full of ties, and normal values of which 5% are not 0, dense and as (indices, values). The
peer is numpy.argsort of the same vector of normal values, in the same run. CPU, one thread; with
--device cuda the peer is torch.sort.
"""

import argparse
from collections.abc import Callable
from time import perf_counter

import numpy as np
import torch

from torchtune_smt.regularizers import Oscar

LIMIT = 2.5


def best_of(function: Callable[[], object], device: str, times: int = 7) -> float:
    """Return the milliseconds of the fastest of several calls."""
    seconds = []
    for _ in range(times):
        start = perf_counter()
        function()
        if device == "cuda":
            torch.cuda.synchronize()
        seconds.append(perf_counter() - start)
    return 1e3 * min(seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--size", type=int, default=1_000_000)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    options = parser.parse_args()
    torch.set_num_threads(1)
    generator = np.random.default_rng(0)
    normal = generator.normal(size=options.size)
    ties = generator.integers(-50, 51, options.size) / 10.0
    sparse = np.where(generator.random(options.size) < 0.05, normal, 0.0)
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
            peers[name] = best_of(lambda v=values: torch.sort(v.abs()), options.device)
    peer = peers["normal"]
    sort = "numpy.argsort" if options.device == "cpu" else "torch.sort"
    print(f"{options.size:,} weights on {options.device}; {sort} of the normal ones {peer:.1f} ms")
    print(f"{'vector':<12}{'step·λ2':>9}{'ms':>9}{'/ sort of normal':>18}{'/ its own sort':>16}")
    worst = 0.0
    for name, vector in vectors.items():
        for strength in (1e-9, 1e-8, 1e-7, 1e-6):
            oscar = Oscar(lambda1=0.0, lambda2=strength)
            oscar.prox(vector, 1.0)
            ms = best_of(lambda o=oscar, v=vector: o.prox(v, 1.0), options.device)
            if name == "normal":
                worst = max(worst, ms / peer)
            print(
                f"{name:<12}{strength:>9.0e}{ms:>9.1f}{ms / peer:>18.2f}{ms / peers[name]:>16.2f}"
            )
    print(f"normal values: at most {worst:.2f} times the sort; limit {LIMIT}")


if __name__ == "__main__":
    main()

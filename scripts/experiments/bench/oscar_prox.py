"""OSCAR's proximal operator against sorting alone: python scripts/experiments/bench/oscar_prox.py.

Times the registered op on the CPU (one thread, 10^6 weights) or, with --device cuda, there (10^7),
for steps times lambda2 from 1e-9 to 1e-6: normal values, values full of ties, and normal values of
which 5% are not 0, dense and as (indices, values). The peer, in turn, is numpy.argsort of
the absolute normal values on the CPU, and torch.sort of the same tensor on CUDA. For normal values
on the CPU, scipy's isotonic regression (with the same sorting and restoring in numpy) and the prox
of SLOPE of skglm (where that is installed) follow: milliseconds of CPU, and ratios to ours.
"""

import argparse
from collections.abc import Callable

import numpy as np
import torch
from scipy.optimize import isotonic_regression
from timing import in_turn, peer

from torchtune_smt.core.arrays import Float64
from torchtune_smt.regularizers import Oscar

LIMIT = {"cpu": 2.5, "cuda": 3.0}
SIZE = {"cpu": 1_000_000, "cuda": 10_000_000}


def by_scipy(weights: Float64, penalties: Float64) -> Float64:
    """Return the prox by numpy's sort and scipy's isotonic regression."""
    size = np.abs(weights)
    order = np.argsort(size)[::-1]
    result = np.empty_like(weights)
    found = isotonic_regression(size[order] - penalties, increasing=False)
    result[order] = np.maximum(found.x, 0.0)
    return np.copysign(result, weights)


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
    cuda = options.device == "cuda"
    sort = "torch.sort" if cuda else "numpy.argsort"
    device = torch.cuda.get_device_name() if cuda else "the CPU"
    print(f"{size:,} weights on {device}; ms, and times {sort} of the normal ones in turn")
    slope = None if cuda else peer("skglm.penalties")
    worst = 0.0
    figures: dict[str, list[str]] = {}
    for name, vector in vectors.items():
        for strength in (1e-9, 1e-8, 1e-7, 1e-6):
            oscar = Oscar(lambda1=0.0, lambda2=strength)
            works: dict[str, Callable[[], object]] = {
                sort: lambda: torch.sort(vectors["normal"]) if cuda else np.argsort(np.abs(normal)),
                "prox": lambda o=oscar, v=vector: o.prox(v, 1.0),
            }
            if name == "normal" and not cuda:
                penalties = strength * np.arange(size - 1.0, -1.0, -1.0)
                works["scipy"] = lambda p=penalties: by_scipy(normal, p)
                if slope is not None:
                    made = slope.SLOPE(penalties)
                    works["skglm"] = lambda s=made: s.prox_vec(normal, 1.0)
            found = in_turn(works, 5, options.device)
            own, base = found["prox"].median, found[sort].median
            if name == "normal":
                worst = max(worst, own / base)
            figures.setdefault(name, []).append(
                f"{1e3 * own:.3g} ms ({own / base:.2f})"
                + "".join(f", {x} {found[x].median / own:.1f}" for x in list(works)[2:])
            )
            others = "".join(
                f"; {other} {spread.said()}, {spread.median / own:.2f} times ours"
                for other, spread in found.items()
                if other not in (sort, "prox")
            )
            print(
                f"{name:<12}{strength:>7.0e} {found['prox'].said():>26} "
                f"{own / base:6.2f} times {found[sort].said()}{others}",
                flush=True,
            )
    said = {name: "; ".join(each) for name, each in figures.items()}
    if cuda:
        print(f"figure prox_gpu: {said['normal']} at step·λ2 of 1e-9, 1e-8, 1e-7 and 1e-6")
    else:
        print(f"figure prox: {said.pop('normal')} at step·λ2 of 1e-9, 1e-8, 1e-7 and 1e-6")
        others = "; ".join(f"{name}: {each.partition('; ')[0]}" for name, each in said.items())
        print(f"figure prox_others: {others}")
    limit = 4.0 if cuda and size <= 10**6 else LIMIT[options.device]
    print(f"normal weights: at most {worst:.2f} times the sort; limit {limit}")


if __name__ == "__main__":
    main()

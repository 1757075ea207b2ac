"""Lazy OSCAR against sorting and pooling after each step.

    python scripts/experiments/bench/lazy_oscar.py

Random gradients on 30 coordinates a step, constant learning rate, of vectors of which all weights
are active, normal and all different, which is the hardest for the lazy structure: as many groups
as weights, and coordinates that go far. The penalty takes 0.05 off a weight in all the steps.
Kernel time of both. Iterates are compared for as many steps as the eager ones take in
--eager-seconds.

Then hinge steps of single pairs over a stored pair set, as Algorithm 2 of Liu et al. (2013) takes
them, with their strengths: 10^5 features, 30 non-zeros a pair.
"""

import argparse

import numpy as np
import torch
from numba import njit
from timing import of_thread

from torchtune_smt.core.rows import Rows
from torchtune_smt.losses.slope_kernels import HINGE
from torchtune_smt.optim import FobosOscar, oscar_kernels
from torchtune_smt.optim.oscar_structure import OscarStructure
from torchtune_smt.optim.oscar_tree_kernels import ACTIVE, GROUPS, LEFT, WORK, Tree
from torchtune_smt.regularizers import Oscar
from torchtune_smt.regularizers.ops import prox_serial

TOUCHED = 30
LR = 0.1
TARGETS = {1_000: 1, 100_000: 10, 1_000_000: 100}


@njit
def lazy_steps(
    tree: Tree, weight: np.ndarray, ids: np.ndarray, gradient: np.ndarray, begin: int
) -> int:
    for i in range(begin, ids.shape[0]):
        if tree.counts[LEFT] < ids.shape[1]:
            return i
        oscar_kernels.step(tree, weight, ids[i], gradient[i], LR, LR, 0, weight.size)
    return ids.shape[0]


def draw(generator: np.random.Generator, active: int, steps: int) -> tuple[np.ndarray, np.ndarray]:
    """Return different coordinates for each step, and their gradients."""
    # One of each of as many ranges.
    width = active // TOUCHED
    ids = generator.integers(0, width, (steps, TOUCHED)) + np.arange(TOUCHED) * width
    return ids, generator.normal(size=(steps, TOUCHED))


def compare(active: int, steps: int, eager_seconds: float) -> float:
    """Print a row of the table; return microseconds of a lazy step."""
    generator = np.random.default_rng(0)
    lambda2 = 0.05 / (LR * active * steps)
    weight = generator.normal(size=active)
    ids, gradient = draw(generator, active, steps)

    eager, eager_time, eager_steps, expected = weight.copy(), 0.0, 0, weight
    prox_serial(eager, 0.0, LR * lambda2, active, False)
    while eager_steps < steps and eager_time < eager_seconds:
        eager[ids[eager_steps]] -= LR * gradient[eager_steps]
        start = of_thread()
        eager, _ = prox_serial(eager, 0.0, LR * lambda2, active, False)
        eager_time += of_thread() - start
        eager_steps += 1
    expected = eager

    start = of_thread()
    structure = OscarStructure(weight, 0, 0.0, lambda2)
    built = of_thread() - start
    done, lazy_time, worst = 0, 0.0, 0.0
    for stop in sorted({eager_steps, steps}):
        while done < stop:
            start = of_thread()
            done = lazy_steps(structure.tree, weight, ids[:stop], gradient[:stop], done)
            if done < stop:
                structure.make_room(TOUCHED)
            lazy_time += of_thread() - start
        if stop == eager_steps:
            now = weight.copy()
            structure.write(now)
            worst = float(np.abs(now - expected).max())
    lazy, other = 1e6 * lazy_time / steps, 1e6 * eager_time / eager_steps
    counts = structure.tree.counts
    target = f"{TARGETS[active]}" if active in TARGETS else ""
    print(
        f"{active:>10,}{counts[ACTIVE]:>11,}{counts[GROUPS]:>11,}{lazy:>9.1f}{other:>10.1f}"
        f"{other / lazy:>9.1f}{target:>8}{counts[WORK] / steps / TOUCHED:>9.1f}"
        f"{worst:>11.1e}{eager_steps:>10,}{1e3 * built:>10.1f}",
        flush=True,
    )
    return lazy


def pair_steps(features: int, pairs: int, steps: int) -> None:
    """Print how long single-pair steps take."""
    generator = np.random.default_rng(1)
    # Some features are frequent, most are rare; margins come from weights that exist.
    feature = (features * generator.random((pairs, TOUCHED)) ** 2).astype(np.int32)
    feature.sort(axis=1)
    repeated = np.zeros(feature.shape, bool)
    repeated[:, 1:] = feature[:, 1:] == feature[:, :-1]
    value = generator.integers(1, 3, feature.shape) * generator.choice([-1.0, 1.0], feature.shape)
    truth = generator.normal(size=features)
    value *= np.sign((value * truth[feature] * ~repeated).sum(1, keepdims=True))
    begin = np.append(0, np.cumsum((~repeated).sum(1)))
    feature, value = feature[~repeated], value[~repeated]
    parameter = torch.nn.Parameter(torch.zeros(features, dtype=torch.float64))
    lazy = FobosOscar([parameter], 1.0, Oscar(1e-10, 3e-8, 500_000), schedule="1/t")
    lazy.step_rows(Rows(begin[:2], feature, value), HINGE)
    done, violated, chunk = 0, 0, 1_000_000
    start = of_thread()
    print(f"\n{'steps':>11}{'seconds':>9}{'steps/s':>10}{'z < 1':>8}{'active':>9}{'groups':>9}")
    while done < steps:
        order = generator.integers(0, pairs, min(chunk, steps - done))
        margins = lazy.step_rows(Rows(begin, feature, value), HINGE, order=order)
        violated += int((margins < 1).sum())
        done += order.size
        seconds = of_thread() - start
        counts = lazy.state[parameter]["structure"].tree.counts
        print(
            f"{done:>11,}{seconds:>9.1f}{done / seconds:>10,.0f}{violated / done:>8.2f}"
            f"{counts[ACTIVE]:>9,}{counts[GROUPS]:>9,}",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--active", type=int, nargs="*", default=list(TARGETS))
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--eager-seconds", type=float, default=20.0)
    parser.add_argument("--features", type=int, default=100_000)
    parser.add_argument("--pairs", type=int, default=500_000)
    parser.add_argument("--pair-steps", type=int, default=1_000_000)
    options = parser.parse_args()
    warm = np.random.default_rng(0).normal(size=1000)
    structure = OscarStructure(warm, 0, 0.0, 1e-9)
    lazy_steps(structure.tree, warm, *draw(np.random.default_rng(0), 1000, 2), 0)
    structure.make_room(10_000)
    if options.active:
        print(f"microseconds a step of {TOUCHED} coordinates; {options.steps:,} steps")
        print(
            f"{'weights':>10}{'active':>11}{'groups':>11}{'lazy':>9}{'eager':>10}{'ratio':>9}"
            f"{'target':>8}{'visits':>9}{'differ by':>11}{'compared':>10}{'build ms':>10}"
        )
        times = [compare(n, options.steps, options.eager_seconds) for n in options.active]
        print(f"slowest lazy step / fastest: {max(times) / min(times):.1f} (limit 10)")
    if options.pair_steps:
        pair_steps(options.features, options.pairs, options.pair_steps)


if __name__ == "__main__":
    main()

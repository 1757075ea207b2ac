"""Memory of ten million features: names, weights and AdaGrad's state.

Interns names of 20 to 30 bytes, a hundred thousand at a time, lets the weights and the
optimizer's state grow with them as online tuning does, and prints how much memory the process
holds above what it held after the imports, now and at its peak.

    python scripts/bench/memory.py [--features 10000000]
"""

from __future__ import annotations

import argparse
import resource
from pathlib import Path
from time import perf_counter

import numpy as np
import torch

from torchtune_smt.core.weights import Weights
from torchtune_smt.optim import AdaGrad
from torchtune_smt.regularizers import L1

PORTION, TOUCHED, LIMIT = 100_000, 20_000, 1024
MIB = 1 << 20


def resident() -> float:
    """Return the resident memory of this process, in MiB (Linux)."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / MIB


def peak() -> float:
    """Return the peak of resident memory, in MiB (Linux)."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def warm_up() -> None:
    """Compile the kernels, and load the parts of torch that load when first used."""
    weights = Weights()
    optimizer = AdaGrad([weights.parameter], 0.02, L1(0.1))
    grow_and_step(weights, optimizer, [f"{i}" for i in range(100)], np.random.default_rng(0))
    optimizer.flush()


def grow_and_step(
    weights: Weights, optimizer: AdaGrad, names: list[str], generator: np.random.Generator
) -> None:
    """Add features, and take a step on some of all."""
    weights.features.intern(names)
    weights.grow()
    touched = np.unique(generator.integers(0, len(weights), TOUCHED))
    gradient = torch.from_numpy(generator.normal(size=touched.size))
    optimizer.zero_grad()
    weights.parameter.grad = torch.sparse_coo_tensor(
        torch.from_numpy(touched)[None], gradient, weights.parameter.shape, check_invariants=False
    )
    optimizer.step()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--features", type=int, default=10_000_000)
    arguments = parser.parse_args()
    baseline = resident()
    warm_up()
    print(
        f"after imports {baseline:.0f} MiB, compiled kernels {resident() - baseline:.0f} MiB more"
    )
    generator = np.random.default_rng(0)
    weights = Weights()
    optimizer = AdaGrad([weights.parameter], 0.02, L1(0.1))
    letters = 0
    begin = perf_counter()
    for first in range(0, arguments.features, PORTION):
        numbers = range(first, min(first + PORTION, arguments.features))
        names = [
            f"R:{i * 2654435761 % 2**32:010d}:{'abcdefghijklmnop'[: i % 11]}" + f"{i:x}"
            for i in numbers
        ]
        letters += sum(map(len, names))
        grow_and_step(weights, optimizer, names, generator)
    seconds = perf_counter() - begin
    optimizer.flush()
    optimizer.zero_grad()
    count = len(weights)
    assert count == arguments.features == optimizer.state[weights.parameter]["last"].numel()
    held, most = resident() - baseline, peak() - baseline
    print(f"{count:,} features, names of {letters / count:.1f} bytes, {seconds:.0f} s")
    print(f"held {held:.0f} MiB above the baseline, {held * MIB / count:.1f} bytes a feature")
    print(f"peak {most:.0f} MiB above the baseline")
    print(f"limit {LIMIT} MiB: {held / LIMIT:.2f} of it held, {most / LIMIT:.2f} at the peak")


if __name__ == "__main__":
    main()

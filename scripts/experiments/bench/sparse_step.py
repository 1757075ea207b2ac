"""A step with sparse gradients of embeddings: AdaGrad with L1 here, and torch.optim.Adagrad.

    python scripts/experiments/bench/sparse_step.py --rows 1000000

Of each size, both take steps in turn on the same gradients, repeated rows among them, and so do the
rows that are read before (`catch_up`). Prints milliseconds of processor time a step (on a GPU: of
the clock) on one thread, and how many times torch's they are: of both calls, and of the step alone.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable

import torch
from timing import seconds

from torchtune_smt.optim import FTRL, AdaGrad
from torchtune_smt.regularizers import L1


def measure(rows: int, width: int, touched: int, steps: int, device: str) -> None:
    """Print the times of one size."""
    draw = torch.Generator().manual_seed(1)
    gradients = []
    for _ in range(8):
        indices = torch.randint(rows, (1, touched), generator=draw)
        values = torch.randn(touched, width, generator=draw)
        gradient = torch.sparse_coo_tensor(indices, values, (rows, width), check_invariants=False)
        gradients.append(gradient.to(device))
    start = torch.randn(rows, width, generator=draw)
    made = []
    for build in (
        lambda p: torch.optim.Adagrad([p], 0.1),
        lambda p: AdaGrad([p], 0.1, L1(1e-4)),
        lambda p: FTRL([p], 0.1, L1(1e-4)),
    ):
        parameter = torch.nn.Parameter(start.clone().to(device))
        made.append((parameter, build(parameter)))

    def part(which: int, read: bool) -> Callable[[int], None]:
        parameter, optimizer = made[which]

        def act(number: int) -> None:
            gradient = gradients[number % len(gradients)]
            if read:
                optimizer.catch_up(gradient._indices()[0])
            else:
                parameter.grad = gradient
                optimizer.step()

        return act

    parts = [part(0, False), part(1, True), part(1, False), part(2, False)]
    found: list[list[float]] = [[] for _ in parts]
    for number in range(steps):
        for times, act in zip(found, parts, strict=True):
            times.append(1e3 * seconds(lambda act=act, n=number: act(n), device))
    adagrad, read, lazy, ftrl = map(statistics.median, found)
    ratios = [(read + lazy) / adagrad, lazy / adagrad, ftrl / adagrad]
    print(
        f"{rows:10d} {width:5d} {touched:7d} {adagrad:9.3f} {read + lazy:9.3f} {ftrl:9.3f}   "
        + " ".join(f"{ratio:6.2f}" for ratio in ratios),
        flush=True,
    )


def main() -> None:
    """Measure all sizes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=10**7)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--device", default="cpu")
    given = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    print("      rows width touched   Adagrad AdaGradL1    FTRLL1   ratios: both, step, FTRL")
    for width in (1, 16):
        for touched in (300, 4096, 30_000):
            steps = given.steps if touched < 30_000 else max(given.steps // 5, 1)
            measure(given.rows, width, touched, steps, given.device)


if __name__ == "__main__":
    main()

"""A step with sparse gradients of embeddings: AdaGrad with L1 here, and torch.optim.Adagrad.

Of each size, both take steps in turn on the same gradients, repeated rows among them, and so do the
rows that are read before (`catch_up`). Prints milliseconds of processor time a step (on a GPU: of
the clock, with all that was queued waited for at the end), and how often torch's they are.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch

from torchtune_smt.optim import FTRL, AdaGrad
from torchtune_smt.regularizers import L1


def timed(action: Callable[[int], None], numbers: range, device: str) -> float:
    """Return milliseconds for each number."""
    clock = time.process_time if device == "cpu" else time.perf_counter
    begin = clock()
    for number in numbers:
        action(number)
    if device != "cpu":
        torch.cuda.synchronize()
    return 1000 * (clock() - begin) / len(numbers)


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

    def step(which: int) -> Callable[[int], None]:
        parameter, optimizer = made[which]

        def act(number: int) -> None:
            gradient = gradients[number % len(gradients)]
            if which:
                optimizer.catch_up(gradient._indices()[0])
            parameter.grad = gradient
            optimizer.step()

        return act

    found: list[list[float]] = [[], [], []]
    for turn in range(7):
        for which in range(3):
            first = turn * steps
            found[which].append(timed(step(which), range(first, first + steps), device))
    # The first turn warms up.
    middle = [statistics.median(times[1:]) for times in found]
    ratios = "".join(f"{time:9.3f} ({time / middle[0]:.2f})" for time in middle[1:])
    print(f"{rows:10d} {width:5d} {touched:7d} {middle[0]:9.3f}{ratios}", flush=True)


def main() -> None:
    """Measure all sizes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=10**7)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--device", default="cpu")
    given = parser.parse_args()
    torch.manual_seed(0)
    print("      rows width touched   Adagrad   AdaGrad L1        FTRL L1")
    for width in (1, 16):
        for touched in (300, 4096, 30_000):
            steps = given.steps if touched < 30_000 else max(given.steps // 5, 1)
            measure(given.rows, width, touched, steps, given.device)


if __name__ == "__main__":
    main()

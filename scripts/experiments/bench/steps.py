"""A mini-batch step of every loss with every optimizer: python scripts/experiments/bench/steps.py.

20 sentences, 15 pairs each (listwise losses: the lists of 100), 60 non-zeros a row, 10^6 features.
Times pairs' differences, margins, loss, gradient and step, and prints the ratio to the limit of
5 ms; then the same with ten times as many features, which must cost the same.
"""

import argparse

import numpy as np
import torch
from online_step import BATCH, DENSE, synthetic_kbest
from timing import cpu

from torchtune_smt.core.weights import Weights
from torchtune_smt.kbest.lists import KBest, KBestLists
from torchtune_smt.losses import (
    ExpectedGain,
    Hinge,
    HopeFear,
    Logistic,
    Perceptron,
    Ramp,
    Softmax,
)
from torchtune_smt.optim import FOBOS, SGD, AdaGrad, CumulativeL1
from torchtune_smt.regularizers import L1, L2, ElasticNet, Oscar
from torchtune_smt.samplers import ProSampler
from torchtune_smt.tuners.learner import Learner

LIMIT = 5.0
LOSSES = [
    *(kind(reduction) for kind in (Hinge, Logistic, Perceptron) for reduction in ("sum", "each")),
    Softmax(),
    ExpectedGain(),
    Ramp(),
    HopeFear(reduction="sum"),
    HopeFear(),
]
OPTIMIZERS = {
    "AdaGrad, l1": lambda p: AdaGrad([p], lr=0.02, regularizer=L1(0.1), unregularized=DENSE),
    "FOBOS, l1": lambda p: FOBOS([p], lr=0.1, regularizer=L1(1e-4), unregularized=DENSE),
    "FOBOS, l2": lambda p: FOBOS([p], lr=0.1, regularizer=L2(1e-4), unregularized=DENSE),
    "FOBOS, elastic": lambda p: FOBOS(
        [p], lr=0.1, regularizer=ElasticNet(1e-4, 1e-4), unregularized=DENSE
    ),
    "FOBOS, oscar": lambda p: FOBOS(
        [p], lr=0.1, regularizer=Oscar(1e-10, 3e-8), unregularized=DENSE
    ),
    "cumulative l1": lambda p: CumulativeL1(
        [p], lr=0.01, regularizer=L1(1e-4), unregularized=DENSE
    ),
    "SGD": lambda p: SGD([p], lr=0.001),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--features", type=int, nargs="+", default=[1_000_000, 10_000_000])
    parser.add_argument("--batches", type=int, default=12)
    options = parser.parse_args()
    torch.set_num_threads(1)
    for features in options.features:
        run(features, options.batches)


class Chosen:
    """A sampler that has chosen already."""

    def __init__(self, pairs: list[np.ndarray]) -> None:
        self.pairs = pairs

    def sample(self, kbest: KBest, seed: object) -> np.ndarray:
        """Return the pairs of a list."""
        return self.pairs[kbest.index]


def run(features: int, batches: int) -> None:
    """Print the table for one number of features."""
    generator = np.random.default_rng(0)
    references = generator.integers(0, 20_000, (4 * BATCH, 12))
    kbests = [synthetic_kbest(generator, i, r, features) for i, r in enumerate(references)]
    kbests = [kbest.with_gains(generator.random(len(kbest))) for kbest in kbests]
    sampler = ProSampler()
    chosen_pairs = Chosen([sampler.sample(kbest, (1, 1, kbest.index)) for kbest in kbests])
    parts = [KBestLists.of(kbests[i : i + BATCH]) for i in range(0, len(kbests), BATCH)]
    print(f"\nms a mini-batch, {features:,} features (limit {LIMIT:g})")
    names = [f"{type(loss).__name__}, {loss.reduction}" for loss in LOSSES]
    print(f"{'':<20}" + "".join(f"{name:>16}" for name in OPTIMIZERS))
    worst: dict[str, float] = {}
    for name, loss in zip(names, LOSSES, strict=True):
        row = []
        for optimizer_name, build in OPTIMIZERS.items():
            # Not through Weights: ten million names would only cost memory here.
            weights = Weights.without_names(np.zeros(features))
            learner = Learner(weights, build(weights.parameter))
            times = []
            for batch in range(batches):
                start = cpu()
                learner.step(parts[batch % 4], loss, chosen_pairs)
                times.append(cpu() - start)
            ms = 1e3 * float(np.median(times[batches // 3 :]))
            row.append(ms)
            worst[optimizer_name] = max(worst.get(optimizer_name, 0.0), ms)
        print(f"{name:<20}" + "".join(f"{ms:>16.2f}" for ms in row), flush=True)
    print(f"{'worst / limit':<20}" + "".join(f"{ms / LIMIT:>16.2f}" for ms in worst.values()))


if __name__ == "__main__":
    main()

"""Do steps find the features of the minimum? python scripts/bench/online_support.py --run RUN

Takes steps with OSCAR on the pairs of a run of tuner=grouping (tuner.iterations=1
tuner.keep_lists=true), in mini-batches: FOBOS's last weights, the mean of those after each of its
passes, and regularised dual averaging (RDA), for the hinge and two smooth losses. After 1, 2, 4
and so on passes it compares the features that have a weight with those of the minimum of the same
loss: how many there are, how many of both are the same (Jaccard's index), how many are when the
pairs come in another order, and by how much the objective is above the minimum. Prints a table, and
draws it with --picture.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from stored_run import pairs_of_run

from torchtune_smt.core.arrays import Float64, Int64
from torchtune_smt.core.rows import Rows
from torchtune_smt.core.scoring import sparse_vector
from torchtune_smt.core.textio import atomic_path
from torchtune_smt.minimizer import (
    Accuracy,
    Logistic,
    Minimizer,
    Minimum,
    Penalty,
    SmoothedHinge,
    SquaredHinge,
)
from torchtune_smt.minimizer.losses import MarginLoss
from torchtune_smt.optim import FOBOS, RDA
from torchtune_smt.regularizers import Oscar

LOSSES = {"hinge": SmoothedHinge(), "squared hinge": SquaredHinge(), "logistic": Logistic()}
METHODS = ("FOBOS", "FOBOS, mean", "RDA")
COLUMNS = (
    "loss | features at the minimum | method | passes | features | common with the minimum "
    "| common of two orders | objective"
)


class Point(NamedTuple):
    """Weights after some passes: how they compare with the minimum, and with another order."""

    passes: int
    features: int
    common: float
    orders: float
    excess: float


def jaccard(one: Float64, other: Float64) -> float:
    """Return which part of the features that have a weight in either have one in both."""
    either = np.count_nonzero((one != 0) | (other != 0))
    return float(np.count_nonzero((one != 0) & (other != 0))) / either if either else 1.0


def slopes(loss: MarginLoss, margins: Float64) -> Float64:
    """Return dℓ/dz; of the hinge itself, not of what it is smoothed to."""
    return np.where(margins < 1.0, -1.0, 0.0) if loss.width else -loss.pulls(margins)


def gradient(pairs: Rows, weights: Float64, loss: MarginLoss) -> torch.Tensor:
    """Return the mean gradient of some pairs as a sparse vector."""
    slope = slopes(loss, pairs.dot(weights)) / len(pairs)
    ids, rows = pairs.numbered()
    values = np.bincount(rows.feature, rows.value * np.repeat(slope, np.diff(rows.begin)), ids.size)
    return sparse_vector(torch.from_numpy(ids), torch.from_numpy(values), weights.size)


def trained(
    pairs: Rows, n_dense: int, loss: MarginLoss, oscar: Oscar, given: argparse.Namespace, seed: int
) -> Iterator[tuple[int, list[Float64]]]:
    """Yield the weights of each method after 1, 2, 4, ... passes."""
    size = int(pairs.feature.max()) + 1
    parameters = [torch.nn.Parameter(torch.zeros(size, dtype=torch.float64)) for _ in range(2)]
    options = {"regularizer": oscar, "unregularized": n_dense}
    fobos = FOBOS(parameters[:1], given.lr, schedule="inv_sqrt", average="epoch", **options)
    rda = RDA(parameters[1:], given.lr, **options)
    draw = np.random.default_rng(seed)
    for done in range(1, given.passes + 1):
        order: Int64 = draw.permutation(len(pairs))
        for begin in range(0, len(pairs), given.batch):
            some = pairs.chosen(order[begin : begin + given.batch])
            for parameter, optimizer in zip(parameters, (fobos, rda), strict=True):
                parameter.grad = gradient(some, parameter.detach().numpy(), loss)
                optimizer.step()
        fobos.end_epoch()
        if done & (done - 1) == 0:
            found = (parameters[0], fobos.averaged(), parameters[1])
            yield done, [weights.detach().numpy().copy() for weights in found]


def compared(
    pairs: Rows,
    n_dense: int,
    minimizer: Minimizer,
    minimum: Minimum,
    penalty: Penalty,
    given: argparse.Namespace,
) -> dict[str, list[Point]]:
    """Return what becomes of each method."""
    oscar = Oscar(penalty.lambda1, penalty.lambda2, penalty.dimension)
    points: dict[str, list[Point]] = {method: [] for method in METHODS}
    runs = [trained(pairs, n_dense, minimizer.loss, oscar, given, seed) for seed in (1, 2)]
    least = minimum.certificate.objective
    for (done, own), (_, others) in zip(*runs, strict=True):
        for method, weights, other in zip(METHODS, own, others, strict=True):
            loss = minimizer.loss.mean(pairs.dot(weights)) + penalty.value(weights[n_dense:])
            sparse = (minimum.weights[n_dense:], weights[n_dense:], other[n_dense:])
            point = Point(
                done,
                int(np.count_nonzero(sparse[1])),
                jaccard(sparse[0], sparse[1]),
                jaccard(sparse[1], sparse[2]),
                loss / least - 1.0,
            )
            points[method].append(point)
    return points


def draw(path: Path, results: dict[str, tuple[int, dict[str, list[Point]]]]) -> None:
    """Draw what the features have in common with the minimum's, a panel a loss."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(
        1, len(results), figsize=(4.6 * len(results), 3.8), layout="constrained", squeeze=False
    )
    for axis, (loss, (features, points)) in zip(axes[0], results.items(), strict=True):
        for m, (method, found) in enumerate(points.items()):
            passes = [point.passes for point in found]
            axis.plot(passes, [p.common for p in found], f"C{m}o-", label=method)
            axis.plot(passes, [p.orders for p in found], f"C{m}x:", label=f"{method}: two orders")
        axis.set_xscale("log", base=2)
        axis.set_ylim(-0.02, 1.02)
        axis.set_xlabel("passes over the pairs")
        axis.set_title(f"{loss}: {features:,} features at the minimum", fontsize="medium")
        axis.grid(alpha=0.3)
    axes[0][0].set_ylabel("features in common (Jaccard's index)")
    lines, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(lines, labels, loc="outside lower center", ncols=6, fontsize="small")
    with atomic_path(path) as beside:
        figure.savefig(beside, format=path.suffix[1:], dpi=110)
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("?")[0])
    parser.add_argument("--run", required=True, help="folder of a run that has kept its lists")
    parser.add_argument("--dense", type=int, default=10, help="dense features of the run's model")
    parser.add_argument("--fraction", type=float, default=0.05, help="of λ_max")
    parser.add_argument("--dimension", type=int, default=970_826, help="d")
    parser.add_argument("--losses", nargs="+", choices=LOSSES, default=list(LOSSES))
    parser.add_argument("--passes", type=int, default=16)
    parser.add_argument("--batch", type=int, default=1000, help="pairs a step")
    parser.add_argument("--lr", type=float, default=1.0, help="η0 of FOBOS, 1/γ of RDA")
    parser.add_argument("--picture", type=Path, help="file to draw it in (.png)")
    given = parser.parse_args()
    torch.set_num_threads(1)
    # Ids without gaps: parameters are as long as the largest.
    ids, pairs = pairs_of_run(given.run, given.dense).numbered()
    n_dense = int(np.searchsorted(ids, given.dense))
    print(f"| {COLUMNS} |")
    print("|---" * 8 + "|")
    results = {}
    for name in given.losses:
        minimizer = Minimizer(pairs, n_dense, LOSSES[name])
        penalty = minimizer.penalty(1.0 / 300, 1.0, given.dimension)
        penalty = penalty.times(given.fraction * minimizer.largest_scale(penalty))
        minimum = minimizer.minimize(penalty, accuracy=Accuracy(residual=1e-5))
        points = compared(pairs, n_dense, minimizer, minimum, penalty, given)
        results[name] = minimum.survivors, points
        for method, found in points.items():
            for p in found:
                print(
                    f"| {name} | {minimum.survivors:,} | {method} | {p.passes} | {p.features:,} "
                    f"| {p.common:.2f} | {p.orders:.2f} | {p.excess:.1%} above |",
                    flush=True,
                )
    if given.picture:
        draw(given.picture, results)


if __name__ == "__main__":
    main()

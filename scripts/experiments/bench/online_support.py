"""Do steps find the features of the minimum?

    python scripts/experiments/bench/online_support.py --run RUN

Takes steps with OSCAR on the pairs of a run of tuner=grouping (tuner.iterations=1
tuner.keep_lists=true), in mini-batches: FOBOS's last weights, the mean of those after each of its
passes, and regularised dual averaging (RDA), for the hinge and two smooth losses; for the hinge
also Algorithm 2 of Liu et al. (2013), which takes one pair a step, of size 1/t. After 1, 2, 4 and
so on passes it compares the features that have a weight, and the pairs of features that share one,
with those of the minimum of the same loss: how many there are, how many of both are the same
(Jaccard's index), how many are when the pairs come in another order, and by how much the objective
is above the minimum. Prints a table, and draws it with --picture. With --scaling rms
--dimension lists, features are divided by their root mean square and d is the number of those in
the lists: there the minimum has more groups of several features.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from stored_run import features_of_run, pairs_of_run

from torchtune_smt.core.arrays import Float64, Int64
from torchtune_smt.core.rows import Rows
from torchtune_smt.core.scoring import sparse_vector
from torchtune_smt.core.textio import atomic_path
from torchtune_smt.losses.slope_kernels import HINGE
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
from torchtune_smt.minimizer.minimum import groups_of
from torchtune_smt.optim import FOBOS, RDA
from torchtune_smt.optim.lazy_oscar import FobosOscar
from torchtune_smt.regularizers import Oscar
from torchtune_smt.tuners.grouping.base import Overlap, overlap
from torchtune_smt.tuners.grouping.prepared import SCALINGS, prepared_pairs

LOSSES = {"hinge": SmoothedHinge(), "squared hinge": SquaredHinge(), "logistic": Logistic()}
# The weights of each method after some passes.
Trail = Iterator[tuple[int, list[Float64]]]
METHODS, PUBLISHED = ("FOBOS", "FOBOS, mean", "RDA"), "Algorithm 2"
COLUMNS = (
    "loss | features at the minimum | these share a weight | method | passes | features "
    "| these share a weight | common with the minimum | together | common of two orders "
    "| together | objective"
)


class Point(NamedTuple):
    """Weights after some passes: how they compare with the minimum, and with another order."""

    passes: int
    features: int
    sharing: int
    common: Overlap
    orders: Overlap
    excess: float


def blocks_of(weights: Float64) -> Int64:
    """Return the groups of equal weights, but for rounding, which means are subject to."""
    unit = 1e-12 * float(np.abs(weights).max(initial=1e-300))
    return groups_of(unit * np.round(weights / unit))


def sharing(blocks: Int64) -> int:
    """Return how many features are not alone in their group."""
    sizes = np.unique(blocks[blocks >= 0], return_counts=True)[1]
    return int(sizes[sizes > 1].sum())


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
) -> Trail:
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


def published(
    pairs: Rows, n_dense: int, oscar: Oscar, given: argparse.Namespace, seed: int
) -> Trail:
    """Yield the weights of Algorithm 2 after 1, 2, 4, ... passes."""
    size = int(pairs.feature.max()) + 1
    parameter = torch.nn.Parameter(torch.zeros(size, dtype=torch.float64))
    optimizer = FobosOscar(
        [parameter], 1.0, regularizer=oscar, schedule="1/t", unregularized=n_dense
    )
    draw = np.random.default_rng(seed)
    for done in range(1, given.published + 1):
        optimizer.step_rows(pairs, HINGE, order=draw.integers(len(pairs), size=len(pairs)))
        if done & (done - 1) == 0:
            optimizer.flush()
            yield done, [parameter.detach().numpy().copy()]


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
    loss, least = minimizer.loss, minimum.certificate.objective
    ways: list[tuple[tuple[str, ...], list[Trail]]]
    ways = [(METHODS, [trained(pairs, n_dense, loss, oscar, given, seed) for seed in (1, 2)])]
    if loss.width and given.published:
        runs = [published(pairs, n_dense, oscar, given, seed) for seed in (1, 2)]
        ways.append(((PUBLISHED,), runs))
    points: dict[str, list[Point]] = {}
    for methods, runs in ways:
        for (done, own), (_, others) in zip(*runs, strict=True):
            for method, weights, other in zip(methods, own, others, strict=True):
                value = loss.mean(pairs.dot(weights)) + penalty.value(weights[n_dense:])
                blocks = blocks_of(weights[n_dense:])
                point = Point(
                    done,
                    int(np.count_nonzero(blocks >= 0)),
                    sharing(blocks),
                    overlap(minimum.groups[n_dense:], blocks),
                    overlap(blocks, blocks_of(other[n_dense:])),
                    value / least - 1.0,
                )
                points.setdefault(method, []).append(point)
    return points


def draw(path: Path, results: dict[str, tuple[int, int, dict[str, list[Point]]]]) -> None:
    """Draw what the weights have in common with the minimum's, a column a loss."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    # Where no minimum has any, pairs that share a weight have nothing in common with it.
    rows = 1 + any(shared for _, shared, _ in results.values())
    figure, axes = plt.subplots(
        rows,
        len(results),
        figsize=(4.6 * len(results), 0.6 + 3.2 * rows),
        layout="constrained",
        squeeze=False,
    )
    handles = {}
    for column, (loss, (features, shared, points)) in zip(axes.T, results.items(), strict=True):
        for axis, what in zip(column, ("features", "together"), strict=False):
            for m, (method, found) in enumerate(points.items()):
                passes = [point.passes for point in found]
                for style, of in (("o-", "common"), ("x:", "orders")):
                    values = [getattr(getattr(point, of), what) for point in found]
                    label = method if of == "common" else f"{method}: two orders"
                    handles[label] = axis.plot(passes, values, f"C{m}{style}", label=label)[0]
            axis.set_xscale("log", base=2)
            axis.set_ylim(-0.02, 1.02)
            axis.grid(alpha=0.3)
        title = f"{loss}, minimum: {features:,} features, {shared:,} share a weight"
        column[0].set_title(title, fontsize="medium")
        column[-1].set_xlabel("passes over the pairs")
    names = ("features in common (Jaccard's index)", "pairs of features that share a weight")
    for row, name in zip(axes, names, strict=False):
        row[0].set_ylabel(name)
    figure.legend(handles.values(), handles, loc="outside lower center", ncols=4, fontsize="small")
    with atomic_path(path) as beside:
        figure.savefig(beside, format=path.suffix[1:], dpi=110)
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("?")[0])
    parser.add_argument("--run", required=True, help="folder of a run that has kept its lists")
    parser.add_argument("--dense", type=int, default=10, help="dense features of the run's model")
    parser.add_argument("--fraction", type=float, default=0.05, help="of λ_max")
    parser.add_argument("--dimension", default="970826", help="d; lists: features in the lists")
    parser.add_argument("--scaling", choices=SCALINGS, default="none")
    parser.add_argument("--losses", nargs="+", choices=LOSSES, default=list(LOSSES))
    parser.add_argument("--passes", type=int, default=16)
    parser.add_argument("--published", type=int, default=16, help="passes of Algorithm 2")
    parser.add_argument("--residual", type=float, default=1e-5, help="of the minimum")
    parser.add_argument("--batch", type=int, default=1000, help="pairs a step")
    parser.add_argument("--lr", type=float, default=1.0, help="η0 of FOBOS, 1/γ of RDA")
    parser.add_argument("--picture", type=Path, help="file to draw it in (.png)")
    given = parser.parse_args()
    torch.set_num_threads(1)
    # Ids without gaps: parameters are as long as the largest.
    ids, pairs = pairs_of_run(given.run, given.dense).numbered()
    n_dense = int(np.searchsorted(ids, given.dense))
    if given.scaling != "none":
        prepared = prepared_pairs(
            pairs, n_dense, ids.size, scaling=given.scaling, merge_identical=False
        )
        pairs = prepared.pairs
    d = given.dimension
    if d == "lists":
        d = np.count_nonzero(features_of_run(given.run, given.dense) >= given.dense)
    print(f"| {COLUMNS} |")
    print("|---" * 12 + "|")
    results = {}
    for name in given.losses:
        minimizer = Minimizer(pairs, n_dense, LOSSES[name])
        penalty = minimizer.penalty(1.0 / 300, 1.0, int(d))
        penalty = penalty.times(given.fraction * minimizer.largest_scale(penalty))
        minimum = minimizer.minimize(penalty, accuracy=Accuracy(residual=given.residual))
        points = compared(pairs, n_dense, minimizer, minimum, penalty, given)
        together = sharing(minimum.groups)
        results[name] = minimum.survivors, together, points
        head = f"{name} | {minimum.survivors:,} | {together:,}"
        for method, found in points.items():
            for p in found:
                print(
                    f"| {head} | {method} | {p.passes} | {p.features:,} | {p.sharing:,} "
                    f"| {p.common.features:.2f} | {p.common.together:.2f} "
                    f"| {p.orders.features:.2f} | {p.orders.together:.2f} "
                    f"| {p.excess:.1%} above |",
                    flush=True,
                )
        print(f"{name}: {minimum.certificate}, reached: {minimum.reached}", file=sys.stderr)
    if given.picture:
        draw(given.picture, results)


if __name__ == "__main__":
    main()

"""Does OSCAR group anything? python scripts/experiments/bench/minimum_groups.py --run outputs/RUN

The groups of the minimum on the pairs of a run of tuner=grouping (tuner.iterations=1
tuner.keep_lists=true), as tuner.learning=batch finds them, for each loss, each d, scaled or not,
with and without features that always fire together being one. A row says how many features have a
weight, in how many groups, and how many of these have more than one member: of features, and of
what was left of them to learn from.
"""

from __future__ import annotations

import argparse
import itertools

import numpy as np
from stored_run import features_of_run, pairs_of_run
from timing import cpu

from torchtune_smt.core.arrays import Int64
from torchtune_smt.minimizer import Accuracy
from torchtune_smt.regularizers import Oscar
from torchtune_smt.tuners.grouping.base import Problem
from torchtune_smt.tuners.grouping.minimum import BatchLearning, minimizer_loss
from torchtune_smt.tuners.grouping.prepared import PreparedLearning, identical_columns

COLUMNS = (
    "loss, d, features, merged, part of lambda_max, features, groups, of several features, "
    "these have, largest, of several that differ, these have, reached, s"
)


def several(blocks: Int64) -> Int64:
    """Return the sizes of the groups that have more than one member."""
    sizes = np.unique(blocks[blocks >= 0], return_counts=True)[1]
    return sizes[sizes > 1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--run", required=True, help="folder of a run that has kept its lists")
    parser.add_argument("--dense", type=int, default=10, help="dense features of the run's model")
    parser.add_argument("--charts", type=int, default=820_044, help="d of the charts")
    parser.add_argument("--fractions", type=float, nargs="+", default=[0.1, 0.02])
    parser.add_argument("--losses", nargs="+", default=["smoothed_hinge", "squared_hinge"])
    parser.add_argument("--scalings", nargs="+", default=["none", "rms"])
    parser.add_argument("--seconds", type=float, default=120.0, help="of a minimum, at most")
    options = parser.parse_args()
    pairs, n_dense = pairs_of_run(options.run, options.dense), options.dense
    features = features_of_run(options.run, options.dense)
    start = np.zeros(int(features.max()) + 1)
    lists = int(np.count_nonzero(features >= n_dense))
    print(f"{len(pairs):,} pairs; d: {lists:,} in the lists, {options.charts:,} in the charts")
    print(f"| {COLUMNS.replace(', ', ' | ')} |", flush=True)
    cases = itertools.product(
        options.losses,
        {"lists": lists, "charts": options.charts}.items(),
        options.scalings,
        (False, True),
        options.fractions,
    )
    for loss, (name, d), scaling, merged, fraction in cases:
        begin = cpu()
        accuracy = Accuracy(1e-4, 1e-3, options.seconds)
        oscar = Oscar(1e-10, 3e-8, d)
        learner = BatchLearning(oscar, minimizer_loss(loss, 5e-4), fraction, accuracy)
        found = PreparedLearning(oscar, learner, scaling, merged).learn(
            Problem(pairs, start, n_dense)
        )
        seconds = cpu() - begin
        blocks = found.blocks
        # Features that fire together count once.
        scaled = pairs if found.factor is None or scaling == "none" else pairs.scaled(found.factor)
        one = identical_columns(scaled, n_dense, start.size)
        differ = np.where(one == np.arange(start.size), blocks, -1)
        sizes, apart = several(blocks), several(differ)
        row = (
            loss,
            name,
            "as they are" if scaling == "none" else scaling,
            "yes" if merged else "no",
            f"{fraction:g}",
            f"{np.count_nonzero(blocks >= 0):,}",
            f"{np.unique(blocks[blocks >= 0]).size:,}",
            f"{sizes.size:,}",
            f"{sizes.sum():,}",
            f"{sizes.max(initial=0):,}",
            f"{apart.size:,}",
            f"{apart.sum():,}",
            "yes" if found.numbers["minimum/reached"] else "no",
            f"{seconds:.0f}",
        )
        print(f"| {' | '.join(row)} |", flush=True)


if __name__ == "__main__":
    main()

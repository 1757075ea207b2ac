"""Which groups does the minimum find? python scripts/experiments/bench/planted_groups.py

Lists in which the truth is known: groups of features whose members fire together (each in a share
of the hypotheses in which its group is), of sizes and frequencies that differ; all of a group have
one effect on the gain, and other features have none. Of the minimum of OSCAR at parts of
lambda_max, and at the strengths that noise gives, a row says how many of the features with a
weight are true, and of how many pairs of features that are in one group the planted one is the
same.
"""

from __future__ import annotations

import argparse
from itertools import combinations
from typing import NamedTuple

import numpy as np

from torchtune_smt.core.arrays import Int64
from torchtune_smt.core.rows import Rows
from torchtune_smt.kbest.lists import KBest
from torchtune_smt.minimizer import Minimizer, SmoothedHinge, noise_scale
from torchtune_smt.samplers import ProSampler, pair_rows, shuffled_gains

N_DENSE = 2
COLUMNS = (
    "strength, of lambda_max, features with a weight, true ones, groups, pairs in one group, right"
)


class Planted(NamedTuple):
    """Lists, and the group of each sparse feature: -1 where it says nothing."""

    lists: list[KBest]
    group: Int64


def planted(seed: int, n_lists: int, n_groups: int, n_noise: int, together: float) -> Planted:
    """Draw lists of 50 hypotheses, of groups of 2 to 6 features, by turns better and worse."""
    draw = np.random.default_rng(seed)
    size = 2 + np.arange(n_groups) % 5
    group = np.concatenate([np.arange(n_groups).repeat(size), np.full(n_noise, -1)])
    # As of words, the frequency falls with the rank.
    often = 0.5 / (1 + np.arange(n_groups)) ** 0.5
    noise = draw.permutation(0.5 / (1 + np.arange(n_noise)) ** 0.5)
    effect = np.where(np.arange(n_groups) % 2, -1.0, 1.0) * draw.uniform(0.1, 0.4, n_groups)
    lists = []
    for index in range(n_lists):
        there = draw.random((50, n_groups)) < often
        fires = there[:, group[group >= 0]] & (draw.random((50, size.sum())) < together)
        sparse = np.concatenate([fires, draw.random((50, n_noise)) < noise], axis=1)
        dense = draw.normal(size=(50, N_DENSE))
        gain = 0.3 * dense[:, 0] + fires @ effect.repeat(size) + draw.normal(size=50)
        row, feature = np.nonzero(sparse)
        begin = np.searchsorted(row, np.arange(51))
        rows = Rows(begin, (feature + N_DENSE).astype(np.int32), np.ones(row.size))
        rank = gain.argsort().argsort() / 49
        lists.append(KBest(rows=with_dense(rows, dense), gain=rank, index=index))
    return Planted(lists, group)


def with_dense(rows: Rows, dense: np.ndarray) -> Rows:
    """Return rows with dense features before the sparse ones."""
    begin, n = rows.begin, dense.shape[1]
    at = begin[:-1].repeat(n)
    feature = np.insert(rows.feature, at, np.tile(np.arange(n), len(dense))).astype(np.int32)
    return Rows(
        begin + n * np.arange(begin.size), feature, np.insert(rows.value, at, dense.ravel())
    )


def right(groups: Int64, truth: Int64) -> tuple[int, int]:
    """Return how many pairs of features are in one group, and of how many it is the planted one."""
    blocks = groups[N_DENSE:]
    pairs = same = 0
    for block in np.unique(blocks[blocks >= 0]):
        of = truth[blocks == block]
        pairs += of.size * (of.size - 1) // 2
        same += sum(a == b >= 0 for a, b in combinations(of.tolist(), 2))
    return pairs, same


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    parser.add_argument("--lists", type=int, default=500)
    parser.add_argument("--groups", type=int, default=40)
    parser.add_argument("--noise", type=int, default=300, help="features that say nothing")
    parser.add_argument("--together", type=float, default=0.9)
    parser.add_argument("--fractions", type=float, nargs="+", default=[0.5, 0.2, 0.1, 0.02])
    parser.add_argument("--shares", type=float, nargs="+", default=[0.95])
    options = parser.parse_args()
    sums: dict[str, list[float]] = {}
    for seed in options.seeds:
        lists, group = planted(seed, options.lists, options.groups, options.noise, options.together)
        sampler = ProSampler(pairs=50)
        minimizer = Minimizer(pair_rows(lists, sampler, (seed,)), N_DENSE, SmoothedHinge())
        penalty = minimizer.penalty(lambda1=0.0, lambda2=1.0, dimension=group.size)
        largest = minimizer.largest_scale(penalty)

        def noise(number: int) -> Rows:
            some = (shuffled_gains(kbest, (seed, number), N_DENSE) for kbest in lists)  # noqa: B023
            return pair_rows(some, sampler, (seed, number, 1))  # noqa: B023

        scales = {f"{part:g} of λ_max": part * largest for part in options.fractions}
        for share in options.shares:
            scales[f"noise={share:g}"] = noise_scale(
                noise, penalty, N_DENSE, SmoothedHinge(), share
            )
        for name, scale in scales.items():
            groups = minimizer.minimize(penalty.times(scale)).groups
            blocks = groups[N_DENSE:]
            counts = (
                scale / largest,
                np.count_nonzero(blocks >= 0),
                np.count_nonzero((blocks >= 0) & (group >= 0)),
                np.unique(blocks[blocks >= 0]).size,
                *right(groups, group),
            )
            old = sums.setdefault(name, [0.0] * len(counts))
            sums[name] = [a + float(b) for a, b in zip(old, counts, strict=True)]
    print(f"{np.count_nonzero(group >= 0):,} of {group.size:,} features are true, for each seed")
    print(f"| {COLUMNS.replace(', ', ' | ')} |\n|---|{'---:|' * 6}")
    for name, (part, *counts) in sums.items():
        shown = " | ".join(f"{count:,.0f}" for count in counts)
        print(f"| {name} | {part / len(options.seeds):.3f} | {shown} |")


if __name__ == "__main__":
    main()

"""The minimiser of OSCAR beside sortedl1: python scripts/experiments/bench/minimizer_peer.py.

Needs `pip install sortedl1`, which is nothing that the package uses. Logistic loss without dense
features, at 0.1 and 0.02 of λ_max, until the objective is known to 1e-6; both sides of each
pair are rows for sortedl1. One thread: OMP_NUM_THREADS=1. Of the pairs that are made, each of
--features fires in one at least. Prints seconds of the processor (the least of --repeat times, in
turns; storing the pairs for the minimiser is told apart), the ratio, by how much the objectives
differ, and features and groups of both. So near to the minimum groups are not settled yet: --exact
says how many there are much nearer, where weights that differ by less than a 10^7th of the largest
are taken to be equal, and how many features are in others' company there.
"""

from __future__ import annotations

import argparse

import numpy as np
from minimizer import first_members, made_pairs
from scipy import sparse
from timing import Spread, cpu, peer

from torchtune_smt.core.arrays import Float64
from torchtune_smt.core.offsets import offsets
from torchtune_smt.core.rows import Rows
from torchtune_smt.minimizer import Accuracy, Logistic, Minimizer, Penalty
from torchtune_smt.minimizer.minimum import groups_of


def sparse_only(pairs: Rows, n_dense: int) -> Rows:
    """Return pairs without their dense features, by the numbers of those that are left."""
    ids, rows = pairs.numbered()
    k = int(np.searchsorted(ids, n_dense))
    places = np.arange(-k, ids.size - k)
    places[:k] = -1
    return rows.renamed(places)


def with_rare(pairs: Rows, features: int) -> Rows:
    """Return pairs in which each feature that fires in none does so in one, as rare rules do."""
    rare = np.setdiff1d(np.arange(features, dtype=np.int32), pairs.feature)
    draw = np.random.default_rng(0)
    own = np.repeat(np.arange(len(pairs)), np.diff(pairs.begin))
    row = np.append(own, draw.integers(len(pairs), size=rare.size))
    feature = np.append(pairs.feature, rare)
    value = np.append(pairs.value, draw.choice([-1.0, 1.0], rare.size))
    order = np.lexsort((feature, row))
    begin = offsets(np.bincount(row, minlength=len(pairs)))
    return Rows(begin, feature[order], value[order])


def objective(pairs: Rows, penalty: Penalty, weights: Float64) -> float:
    """Return P."""
    return Logistic().mean(pairs.dot(weights)) + penalty.value(weights)


def compared(own: Float64, theirs: Float64) -> str:
    """Say how features and groups of two weight vectors differ."""
    unit = 1e-7 * np.abs(own).max(initial=1e-300)
    groups = [groups_of(unit * np.round(weights / unit)) for weights in (own, theirs)]
    counts = [np.unique(group[group >= 0]).size for group in groups]
    moved = np.count_nonzero(first_members(groups[0]) != first_members(groups[1]))
    apart = np.count_nonzero((theirs != 0) != (own != 0))
    return (
        f"{np.count_nonzero(own)} features in {counts[0]} groups, theirs "
        f"{np.count_nonzero(theirs)} in {counts[1]}; {apart} features differ, "
        f"{moved} are in others' company"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--pairs", help="archive of numpy (.npz); see minimizer.py")
    parser.add_argument("--n", type=int, default=20_000, help="number of pairs that are made")
    parser.add_argument("--features", type=int, default=100_000, help="that occur in these")
    parser.add_argument("--repeat", type=int, default=3, help="times; the least counts")
    parser.add_argument("--tolerance", type=float, default=1e-6)
    parser.add_argument("--exact", type=float, default=1e-10, help="the tolerance for groups")
    options = parser.parse_args()
    sortedl1 = peer("sortedl1")
    if sortedl1 is None:
        return
    if options.pairs:
        archive = np.load(options.pairs)
        pairs = Rows(archive["begin"], archive["feature"], archive["value"])
        pairs = sparse_only(pairs, int(archive["n_dense"]))
    else:
        ids = np.maximum(np.arange(9 + options.features) - 9, -1)
        made = made_pairs(options.n, d=options.features).renamed(ids)
        pairs = with_rare(made, options.features)
    u = int(pairs.feature.max()) + 1
    print(f"{len(pairs):,} pairs, {u:,} features, {pairs.value.size:,} non-zeros")
    # Compiles the kernels.
    small = Minimizer(pairs.between(0, 500), 0, Logistic(), u)
    norm = small.penalty(1.0 / 300, 1.0)
    small.minimize(norm.times(0.02 * small.largest_scale(norm)))
    begin = cpu()
    minimizer = Minimizer(pairs, 0, Logistic(), u)
    print(f"stored in {cpu() - begin:.2f} s")
    whole = minimizer.penalty(1.0 / 300, 1.0)
    largest = minimizer.largest_scale(whole)
    x = sparse.csr_matrix((pairs.value, pairs.feature, pairs.begin), shape=(len(pairs), u))
    both, classes = sparse.vstack([x, -x]).tocsc(), np.repeat([1, 0], len(pairs))
    for fraction in (0.1, 0.02):
        penalty = whole.times(fraction * largest)
        for tolerance, residual in ((options.tolerance, float("inf")), (options.exact, 1e-6)):
            ours: list[float] = []
            others: list[float] = []
            for _ in range(options.repeat):
                begin = cpu()
                found = minimizer.minimize(penalty, accuracy=Accuracy(residual, tolerance))
                ours.append(cpu() - begin)
                slope = sortedl1.Slope(
                    lam=penalty.by_rank(u),
                    loss="logistic",
                    fit_intercept=False,
                    tol=tolerance,
                    max_iter=10**6,
                )
                begin = cpu()
                slope.fit(both, classes)
                others.append(cpu() - begin)
            theirs = np.asarray(slope.coef_, np.float64).ravel()
            own, other = Spread.of(ours), Spread.of(others)
            least = objective(pairs, penalty, found.weights)
            print(
                f"{fraction} of lambda_max, gap {tolerance:g}: {own.said(1)} s, "
                f"sortedl1 {other.said(1)} s, ratio {other.median / own.median:.1f}; "
                f"objective {least:.9g}, theirs {objective(pairs, penalty, theirs) - least:+.2g}\n"
                f"  {found.certificate}, {found.steps} steps\n"
                f"  {compared(found.weights, theirs)}",
                flush=True,
            )


if __name__ == "__main__":
    main()

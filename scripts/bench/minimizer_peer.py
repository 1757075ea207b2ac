"""The minimiser of OSCAR beside sortedl1: python scripts/bench/minimizer_peer.py.

Needs `pip install sortedl1`, which is nothing that the package uses. Logistic loss without dense
features, at 0.1 and 0.02 of λ_max, until the objective is known to 1e-6; both sides of each
pair are rows for sortedl1. One thread: OMP_NUM_THREADS=1. Prints seconds of the processor, the
ratio, by how much the objectives differ, and features and groups of both.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
import sortedl1
from minimizer import made_pairs
from scipy import sparse

from torchtune_smt.core.arrays import Float64
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


def objective(pairs: Rows, penalty: Penalty, weights: Float64) -> float:
    """Return P."""
    return Logistic().mean(pairs.dot(weights)) + penalty.value(weights)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--pairs", help="archive of numpy (.npz); see minimizer.py")
    parser.add_argument("--n", type=int, default=20_000, help="number of pairs that are made")
    parser.add_argument("--features", type=int, default=100_000)
    parser.add_argument("--tolerance", type=float, default=1e-6)
    options = parser.parse_args()
    if options.pairs:
        archive = np.load(options.pairs)
        pairs = Rows(archive["begin"], archive["feature"], archive["value"])
        pairs = sparse_only(pairs, int(archive["n_dense"]))
    else:
        pairs = sparse_only(made_pairs(options.n, d=options.features), 9)
    u = int(pairs.feature.max()) + 1
    print(f"{len(pairs):,} pairs, {u:,} features, {pairs.value.size:,} non-zeros")
    # Compiles the kernels.
    small = Minimizer(pairs.between(0, 500), 0, Logistic(), u)
    small.minimize(small.penalty(1e-3, 1e-5))
    minimizer = Minimizer(pairs, 0, Logistic(), u)
    whole = minimizer.penalty(1.0 / 300, 1.0)
    largest = minimizer.largest_scale(whole)
    x = sparse.csr_matrix((pairs.value, pairs.feature, pairs.begin), shape=(len(pairs), u))
    both, classes = sparse.vstack([x, -x]).tocsc(), np.repeat([1, 0], len(pairs))
    for fraction in (0.1, 0.02):
        penalty = whole.times(fraction * largest)
        begin = time.process_time()
        accuracy = Accuracy(residual=1e-3, gap=options.tolerance)
        found = minimizer.minimize(penalty, accuracy=accuracy)
        own = time.process_time() - begin
        peer = sortedl1.Slope(
            lam=penalty.by_rank(u), loss="logistic", fit_intercept=False, tol=options.tolerance
        )
        begin = time.process_time()
        peer.fit(both, classes)
        other = time.process_time() - begin
        theirs = np.asarray(peer.coef_, np.float64).ravel()
        least, reached = objective(pairs, penalty, found.weights), objective(pairs, penalty, theirs)
        groups = groups_of(theirs)
        print(
            f"{fraction} of lambda_max: {own:.2f} s, sortedl1 {other:.2f} s, ratio "
            f"{other / own:.1f}; objective {least:.9g}, theirs {reached - least:+.2g}\n"
            f"  {found.certificate}; {found.survivors} features in {found.n_groups} groups, theirs "
            f"{np.count_nonzero(theirs)} in {np.unique(groups[groups >= 0]).size}; "
            f"{np.count_nonzero((theirs != 0) != (found.weights != 0))} features differ",
            flush=True,
        )


if __name__ == "__main__":
    main()

"""The minimiser of OSCAR over stored pairs: python scripts/experiments/bench/minimizer.py.

In processor and wall-clock seconds of one run: a single minimum, a path from λ_max down to it, and
the single minimum of ten times the pairs (of an archive: drawn from it with replacement). Limits:
a minute, five minutes, twelve times. Storing the pairs, which is done once, is printed apart, and
a single minimum both without and with it.

--threads says how many the linear algebra of numpy may take, which else is as many as there are
processors, or OPENBLAS_NUM_THREADS; with more than one, the minimum of one thread is found, too,
and compared. It needs threadpoolctl.

--run takes the pairs of a run of tuner=grouping with tuner.keep_lists=true and tuner.iterations=1,
--pairs an archive of numpy with begin, feature, value and n_dense, as --save writes it; otherwise
pairs are made that are like those of 2,000 sentences of Multi30k: each has eight dense features,
and eight sparse ones of a Zipfian distribution, a few of which mean something.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TypeVar

import numpy as np
from stored_run import pairs_of_run
from timing import cpu, wall

from torchtune_smt.core.arrays import Int64
from torchtune_smt.core.rows import Rows
from torchtune_smt.minimizer import (
    Accuracy,
    Logistic,
    Minimizer,
    Minimum,
    SmoothedHinge,
    SquaredHinge,
    path_scales,
)

LOSSES = {"hinge": SmoothedHinge(), "squared_hinge": SquaredHinge(), "logistic": Logistic()}
LIMITS = {"one minimum": 60.0, "path": 300.0}
Result = TypeVar("Result")


def made_pairs(n: int, n_dense: int = 9, d: int = 14_000, seed: int = 0) -> Rows:
    """Return n pairs; the features and what they mean do not depend on n."""
    fixed = np.random.default_rng(seed)
    mixing = fixed.normal(size=(n_dense, n_dense)) @ np.diag(np.geomspace(1.0, 0.05, n_dense))
    meaning = np.where(fixed.random(d) < 0.05, fixed.normal(size=d), 0.0)
    rank = 1.0 / (np.arange(d) + 10.0)
    draw = np.random.default_rng((seed, n))
    dense = draw.normal(size=(n, n_dense)) @ mixing
    chosen = draw.choice(d, (n, 8), p=rank / rank.sum())
    signs = draw.choice([-1.0, 1.0], chosen.shape)
    margins = dense @ fixed.normal(size=n_dense) + (signs * meaning[chosen]).sum(axis=1)
    better = np.where(margins + 2.0 * draw.normal(size=n) < 0, -1.0, 1.0)[:, None]
    feature = np.hstack([np.broadcast_to(np.arange(n_dense), dense.shape), n_dense + chosen])
    value = np.hstack([dense, signs]) * better
    # A feature drawn twice fires once.
    order = np.argsort(feature, axis=1, kind="stable")
    feature = np.take_along_axis(feature, order, axis=1)
    value = np.take_along_axis(value, order, axis=1)
    kept = np.diff(feature, axis=1, prepend=-1) > 0
    begin = np.append(0, np.cumsum(kept.sum(axis=1))).astype(np.int64)
    return Rows(begin, feature[kept].astype(np.int32), value[kept])


class Timer:
    """Seconds of processor and by the clock."""

    def __init__(self) -> None:
        self._clock, self._cpu = wall(), cpu()

    def show(self, name: str) -> float:
        """Print what went by since it was made, and return the seconds of processor."""
        clock, own = wall() - self._clock, cpu() - self._cpu
        limit = f", limit {LIMITS[name]:.0f} s" if name in LIMITS else ""
        print(f"{name}: {own:.1f} s of processor, {clock:.1f} s by the clock{limit}", flush=True)
        return own


def timed(name: str, function: Callable[[], Result]) -> tuple[Result, float]:
    """Call a function, print what it took, and return its result and the seconds of processor."""
    timer = Timer()
    result = function()
    return result, timer.show(name)


def threads(count: int | None) -> AbstractContextManager[object]:
    """Return where the linear algebra of numpy takes so many threads; None: as many as it does."""
    if count is None:
        return nullcontext()
    from threadpoolctl import threadpool_limits

    return threadpool_limits(count)


def first_members(groups: Int64) -> Int64:
    """Return the first feature of the group of each feature, -1 for those in none."""
    _, first, inverse = np.unique(groups, return_index=True, return_inverse=True)
    return np.where(groups < 0, -1, first[inverse])


def compare(found: Minimum, again: Minimum) -> None:
    """Print how features and groups of two minima differ."""
    open_ones = np.union1d(found.boundary, again.boundary)
    # Numbers of groups may differ: which features have their first member in common does not.
    first = [first_members(minimum.groups) for minimum in (found, again)]
    moved = np.flatnonzero(first[0] != first[1])
    alone = np.count_nonzero((found.groups < 0) != (again.groups < 0))
    print(f"  {alone} features have a weight in one of the two alone; {moved.size} are in others'")
    print(f"  company, {np.setdiff1d(moved, open_ones).size} of them not at the boundary")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--pairs", help="archive of numpy (.npz)")
    parser.add_argument("--run", help="folder of a run that has kept its lists")
    parser.add_argument("--dense", type=int, default=10, help="dense features of the run's model")
    parser.add_argument("--save", help="write the pairs that were made, or some, to an archive")
    parser.add_argument("--n", type=int, default=97_257, help="number of pairs that are made")
    parser.add_argument("--loss", choices=LOSSES, default="hinge")
    parser.add_argument("--lambda2", type=float, default=3e-10, help="λ1 is a 300th of it")
    parser.add_argument("--dimension", type=int, default=970_826, help="d")
    parser.add_argument("--count", type=int, default=20, help="values of the path; 0: no path")
    parser.add_argument("--order", action="store_true", help="the pairs in another order, too")
    parser.add_argument("--residual", type=float, default=1e-4)
    parser.add_argument("--tenfold", action="store_true", help="ten times the pairs, too")
    parser.add_argument("--threads", type=int, help="of the linear algebra of numpy")
    options = parser.parse_args()
    with threads(options.threads):
        measure(options)


def measure(options: argparse.Namespace) -> None:
    """Time what was asked for."""
    n_dense = 9
    if options.pairs:
        archive = np.load(options.pairs)
        pairs = Rows(archive["begin"], archive["feature"], archive["value"])
        n_dense = int(archive["n_dense"])
    elif options.run:
        pairs, n_dense = pairs_of_run(options.run, options.dense), options.dense
    else:
        pairs = made_pairs(options.n)
    if options.save:
        np.savez_compressed(
            options.save,
            begin=pairs.begin,
            feature=pairs.feature,
            value=pairs.value,
            n_dense=n_dense,
        )
    loss = LOSSES[options.loss]
    # Compiles the kernels.
    small = Minimizer(pairs.between(0, min(500, len(pairs))), n_dense, loss)
    small.minimize(small.penalty(1e-3, 1e-5))
    accuracy = Accuracy(residual=options.residual, gap=1e-3)

    both = Timer()
    minimizer, _ = timed("storing the pairs", lambda: Minimizer(pairs, n_dense, loss))
    print(f"{len(pairs):,} pairs, {pairs.value.size:,} non-zeros")
    penalty = minimizer.penalty(options.lambda2 / 300, options.lambda2, options.dimension)
    found, single = timed("one minimum", lambda: minimizer.minimize(penalty, None, accuracy))
    both.show("  storing the pairs included")
    print(f"  {found.certificate}; {found.survivors} features in {found.n_groups} groups")
    print(f"  reached: {found.reached}; {found.steps} steps")
    for message in found.messages:
        print(f"  {message}")
    print(f"  at the boundary: {found.boundary.size} features")
    if options.order:
        order = np.random.default_rng(1).permutation(len(pairs))
        other = Minimizer(pairs.chosen(order), n_dense, loss)
        again, _ = timed("another order", lambda: other.minimize(penalty, None, accuracy))
        compare(found, again)
    if options.threads is not None and options.threads > 1:
        with threads(1):
            again, _ = timed(
                "one thread, storing the pairs included",
                lambda: Minimizer(pairs, n_dense, loss).minimize(penalty, None, accuracy),
            )
        compare(found, again)
        print(f"  the same groups as with one thread: {np.array_equal(found.groups, again.groups)}")
    largest, _ = timed("lambda_max", lambda: minimizer.largest_scale(penalty))
    print(f"  λ2 = {largest * options.lambda2:.4g}, fraction {1 / largest:.3g}")
    if options.count:
        scales = path_scales(largest, 1.0, options.count)
        minima, _ = timed("path", lambda: list(minimizer.path(penalty, scales, None, accuracy)))
        print("  features:", *(minimum.survivors for minimum in minima))
        print("  reached:", sum(minimum.reached for minimum in minima), "of", len(minima))
    if options.tenfold:
        if options.pairs or options.run:
            draw = np.random.default_rng(0)
            many = pairs.chosen(draw.integers(len(pairs), size=10 * len(pairs)))
        else:
            many = made_pairs(10 * options.n)
        both = Timer()
        larger, _ = timed("storing ten times the pairs", lambda: Minimizer(many, n_dense, loss))
        again = larger.penalty(options.lambda2 / 300, options.lambda2, options.dimension)
        found, ten = timed(f"{len(many):,} pairs", lambda: larger.minimize(again, None, accuracy))
        both.show("  storing the pairs included")
        print(f"  {found.certificate}; {found.survivors} features in {found.n_groups} groups")
        print(f"  {found.steps} steps")
        print(f"  {ten / single:.1f} times the time of one minimum, storing in neither, limit 12")


if __name__ == "__main__":
    main()

"""Memory of ten million features, or of pairs of translations.

Interns names of 20 to 30 bytes, a hundred thousand at a time, lets the weights and the
optimizer's state grow with them as online tuning does, and prints how much memory the process
holds above what it held after the imports, now and at its peak.

    python scripts/experiments/bench/memory.py [--features 10000000]

With --pairs, what pairs of 30 values take: 20 of them of sparse features, 10 of dense ones. It goes
through stored lists: their features, the pairs that are drawn from them, and the form in which the
minimiser stores these. Prints what each takes, and how much more there was at the peak.

    python scripts/experiments/bench/memory.py --pairs 200000
"""

from __future__ import annotations

import argparse
import ctypes
import resource
import tempfile
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from timing import cpu

from torchtune_smt.core.offsets import offsets
from torchtune_smt.core.rows import Rows
from torchtune_smt.core.weights import Weights
from torchtune_smt.kbest.lists import KBestLists
from torchtune_smt.kbest.store import ListStore
from torchtune_smt.minimizer.stored_pairs import StoredPairs
from torchtune_smt.optim import AdaGrad
from torchtune_smt.regularizers import L1
from torchtune_smt.samplers import ProSampler, pair_rows

PORTION, TOUCHED, LIMIT = 100_000, 20_000, 1024
MIB = 1 << 20
# Of the lists that pairs come from; two hypotheses have no sparse feature in common as a rule.
LISTS, SIZE, DENSE, SPARSE, DIMENSION = 100, 100, 10, 10, 1_000_000
SAMPLER = ProSampler(candidates=2000, pairs=50, threshold=0.0, distinct=True)

T = TypeVar("T")


def resident() -> float:
    """Return the resident memory of this process, in MiB (Linux)."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / MIB


def peak() -> float:
    """Return the peak of resident memory, in MiB (Linux)."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def warm_up() -> None:
    """Compile the kernels, and load the parts of torch that load when first used."""
    weights = Weights()
    optimizer = AdaGrad([weights.parameter], 0.02, L1(0.1))
    grow_and_step(weights, optimizer, [f"{i}" for i in range(100)], np.random.default_rng(0))
    optimizer.flush()


def grow_and_step(
    weights: Weights, optimizer: AdaGrad, names: list[str], generator: np.random.Generator
) -> None:
    """Add features, and take a step on some of all."""
    weights.features.intern(names)
    weights.grow()
    touched = np.unique(generator.integers(0, len(weights), TOUCHED))
    gradient = torch.from_numpy(generator.normal(size=touched.size))
    optimizer.catch_up(torch.from_numpy(touched))
    optimizer.zero_grad()
    weights.parameter.grad = torch.sparse_coo_tensor(
        torch.from_numpy(touched)[None], gradient, weights.parameter.shape, check_invariants=False
    )
    optimizer.step()


def add_lists(store: ListStore, count: int, first: int, draw: np.random.Generator) -> None:
    """Add an iteration of lists of one size."""
    for begin in range(first, first + count, LISTS):
        index = np.arange(begin, min(begin + LISTS, first + count))
        n = index.size * SIZE
        # Of each hypothesis one from each tenth of the ids.
        steps = np.arange(SPARSE) * (DIMENSION // SPARSE)
        sparse = DENSE + steps + draw.integers(DIMENSION // SPARSE, size=(n, SPARSE))
        feature = np.hstack([np.tile(np.arange(DENSE), (n, 1)), sparse]).astype(np.int32)
        value = np.hstack([draw.normal(size=(n, DENSE)), np.ones((n, SPARSE))])
        begins = offsets(np.full(n, DENSE + SPARSE))
        store.add(
            KBestLists(
                index=index,
                begin=offsets(np.full(index.size, SIZE)),
                rows=Rows(begins, feature.ravel(), value.ravel()),
                gain=draw.random(n),
            )
        )
    store.end_iteration()


def measured(what: str, unit: int, name: str, work: Callable[[], T]) -> T:
    """Print what the result of some work takes, and how much there was at the peak, and give it.

    Parameters
    ----------
    unit : int
        In how many parts the bytes are given.
    """
    # What was freed goes back to the system, and the peak is counted anew from here on.
    trim = ctypes.CDLL(None).malloc_trim
    trim(0)
    before = resident()
    Path("/proc/self/clear_refs").write_text("5")
    result = work()
    status = Path("/proc/self/status").read_text()
    most = int(status.partition("VmHWM:")[2].split()[0]) / 1024 - before
    trim(0)
    held = resident() - before
    print(
        f"{what}: {held * MIB / unit:.0f} bytes a {name} held, {most * MIB / unit:.0f} at the peak"
    )
    return result


def made_lists(folder: Path, pairs: int) -> None:
    """Write lists that a number of pairs come from."""
    store = ListStore(n_dense=DENSE, folder=folder)
    add_lists(store, pairs // SAMPLER.pairs, 0, np.random.default_rng(0))
    size = f"{store.n_hypotheses:,} hypotheses in a file of {store.nbytes / MIB:.0f} MiB"
    print(f"{pairs // SAMPLER.pairs:,} lists, {size}")


def small() -> ListStore:
    """Return lists with which kernels are compiled."""
    store = ListStore(n_dense=DENSE)
    add_lists(store, 2, 0, np.random.default_rng(0))
    return store


def of_their_features(folder: Path, pairs: int) -> None:
    """Print what the features of the lists take."""
    small().features()
    store = ListStore.open(folder, n_dense=DENSE)
    values = store.n_hypotheses * SPARSE
    measured("features of the lists", values, "sparse value of these", store.features)


def of_drawing(folder: Path, pairs: int) -> None:
    """Print what pairs take that are drawn, and save them."""
    pair_rows(small(), SAMPLER, (1,))
    store = ListStore.open(folder, n_dense=DENSE)
    found = measured("pairs", pairs, "pair", lambda: pair_rows(store, SAMPLER, (1,)))
    assert len(found) == pairs
    np.savez(folder / "pairs.npz", begin=found.begin, feature=found.feature, value=found.value)


def of_storing(folder: Path, pairs: int) -> None:
    """Print what the minimiser makes of the pairs takes."""
    StoredPairs(pair_rows(small(), SAMPLER, (1,)), DENSE)
    with np.load(folder / "pairs.npz") as archive:
        rows = Rows(archive["begin"], archive["feature"], archive["value"])
    print(f"{rows.value.size / len(rows):.1f} values a pair")
    measured("pairs as the minimiser has them", pairs, "pair", lambda: StoredPairs(rows, DENSE))


def of_pairs(pairs: int) -> None:
    """Print what pairs take, each step in a process of its own: none has holes of another."""
    with tempfile.TemporaryDirectory() as folder:
        for step in (made_lists, of_their_features, of_drawing, of_storing):
            process = get_context("spawn").Process(target=step, args=(Path(folder), pairs))
            process.start()
            process.join()
            if process.exitcode:
                raise SystemExit(process.exitcode)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--features", type=int, default=10_000_000)
    parser.add_argument("--pairs", type=int, help="measure pairs, so many, and no features")
    arguments = parser.parse_args()
    if arguments.pairs:
        of_pairs(arguments.pairs)
    else:
        of_features(arguments.features)


def of_features(features: int) -> None:
    """Print what features take."""
    baseline = resident()
    warm_up()
    print(
        f"after imports {baseline:.0f} MiB, compiled kernels {resident() - baseline:.0f} MiB more"
    )
    generator = np.random.default_rng(0)
    weights = Weights()
    optimizer = AdaGrad([weights.parameter], 0.02, L1(0.1))
    letters = 0
    begin = cpu()
    for first in range(0, features, PORTION):
        numbers = range(first, min(first + PORTION, features))
        names = [
            f"R:{i * 2654435761 % 2**32:010d}:{'abcdefghijklmnop'[: i % 11]}" + f"{i:x}"
            for i in numbers
        ]
        letters += sum(map(len, names))
        grow_and_step(weights, optimizer, names, generator)
    seconds = cpu() - begin
    optimizer.flush()
    optimizer.zero_grad()
    count = len(weights)
    assert count == features == optimizer.state[weights.parameter]["last"].numel()
    held, most = resident() - baseline, peak() - baseline
    print(f"{count:,} features, names of {letters / count:.1f} bytes, {seconds:.0f} s")
    print(f"held {held:.0f} MiB above the baseline, {held * MIB / count:.1f} bytes a feature")
    print(f"peak {most:.0f} MiB above the baseline")
    print(f"limit {LIMIT} MiB: {held / LIMIT:.2f} of it held, {most / LIMIT:.2f} at the peak")


if __name__ == "__main__":
    main()

"""Lists and pairs that are larger than memory.

As a script it is the process that has no room: ``python test_limited_memory.py FOLDER``.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from torchtune_smt.core.rows import Rows
from torchtune_smt.kbest import store as list_store
from torchtune_smt.kbest.lists import KBestLists
from torchtune_smt.kbest.store import ListStore
from torchtune_smt.minimizer.stored_pairs import StoredPairs
from torchtune_smt.samplers import ProSampler, pair_rows

FEW = ProSampler(candidates=100, pairs=2, threshold=0.0, distinct=True)
MANY = ProSampler(candidates=2000, pairs=1000, threshold=0.0, distinct=True)
MIB = 1 << 20


def totals(rows: Rows) -> list[float]:
    """Return what tells rows from others."""
    return [len(rows), int(rows.feature.sum(dtype=np.int64)), float(rows.value.sum())]


def outcome(room: int, work: Callable[[], Any]) -> Any:
    """Return what some work gives in a process that may take so many bytes more than it has."""
    taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    limits = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (taken + room, limits[1]))
    try:
        return work()
    except Exception as error:
        return [type(error).__name__, str(error)]
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)


def main() -> None:
    """Take up the lists of a store, and print what came of each attempt: a result, or an error.

    Everything is done once with little, which compiles kernels, and then with all.
    """
    lists = ListStore.open(Path(sys.argv[1]), n_dense=1)
    # So that no more than a sixteenth of the usual is laid out at a time.
    list_store._BLOCK = 1 << 12
    some = pair_rows([next(iter(lists))], MANY, (1,))
    StoredPairs(some, 1)
    totals(pair_rows([next(iter(lists))], FEW, (1,)))
    pairs = Rows.joined([some] * 50)
    lists.features()
    attempts = {
        "read ids": (4 * MIB, lambda: sum(np.array(s.feature).size for s in lists._segments)),
        "features": (4 * MIB, lambda: lists.features().tolist()),
        "read lists": (24 * MIB, lambda: len(lists.lists())),
        "few pairs": (24 * MIB, lambda: totals(pair_rows(lists, FEW, (1,)))),
        "many pairs": (24 * MIB, lambda: totals(pair_rows(lists, MANY, (1,)))),
        "stored pairs": (4 * MIB, lambda: len(StoredPairs(pairs, 1))),
    }
    print(json.dumps({name: outcome(room, work) for name, (room, work) in attempts.items()}))


LISTS, SIZE, SPARSE, DIMENSION = 300, 1000, 12, 1200


@pytest.fixture
def store(tmp_path):
    """Lists of 50 MB, of which 14 are ids of features."""
    draw = np.random.default_rng(0)
    store = ListStore(n_dense=1, folder=tmp_path / "lists")
    for first in range(0, LISTS, 50):
        n = 50 * SIZE
        sparse = 1 + np.arange(SPARSE) * 100 + draw.integers(100, size=(n, SPARSE))
        feature = np.hstack([np.zeros((n, 1), np.int32), sparse.astype(np.int32)])
        value = draw.normal(size=feature.size)
        rows = Rows(np.arange(n + 1) * (SPARSE + 1), feature.ravel(), value)
        index, begin = first + np.arange(50), np.arange(51) * SIZE
        store.add(KBestLists(index=index, begin=begin, rows=rows, gain=draw.random(n)))
    store.end_iteration()
    return store


@pytest.mark.skipif(sys.platform != "linux", reason="limits of memory are those of Linux")
def test_lists_that_cannot_be_read_are_gone_through(store):
    """Reading them fails where the sampler and the count of features go on, piece by piece."""
    expected = pair_rows(store, FEW, (1,))
    found = json.loads(subprocess.check_output([sys.executable, __file__, store.folder]))
    assert [found[name][0] for name in ("read ids", "read lists")] == ["MemoryError"] * 2
    assert found["features"] == np.unique(store.lists().rows.feature)[1:].tolist()
    assert found["few pairs"] == totals(expected)
    # Where the result does not fit either, what to do is said.
    for name, begin in (
        ("many pairs", "there is no room for all pairs (there was for those of "),
        ("stored pairs", "the minimiser has no room for 50,000 pairs of "),
    ):
        kind, said = found[name]
        assert kind == "InputError" and said.startswith(begin)
        assert said.endswith("lower sampler.pairs or tuner.sentences")


if __name__ == "__main__":
    main()

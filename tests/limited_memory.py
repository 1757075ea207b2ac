"""Going through k-best lists in a process that has no room for them.

``python limited_memory.py FOLDER`` takes up the lists of a store with one dense feature, and
prints as JSON what came of each attempt: a result, or the name and the text of an error.
"""

from __future__ import annotations

import json
import resource
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from torchtune_smt.core.rows import Rows
from torchtune_smt.kbest import store
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
    """Do everything once with little, which compiles kernels, and then with all."""
    lists = ListStore.open(Path(sys.argv[1]), n_dense=1)
    # So that no more than a sixteenth of the usual is laid out at a time.
    store._BLOCK = 1 << 12
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


if __name__ == "__main__":
    main()

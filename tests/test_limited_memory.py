"""Lists and pairs that are larger than memory."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import limited_memory
import numpy as np
import pytest

from torchtune_smt.core.rows import Rows
from torchtune_smt.kbest.lists import KBestLists
from torchtune_smt.kbest.store import ListStore
from torchtune_smt.samplers import pair_rows

LISTS, SIZE, SPARSE, DIMENSION = 300, 1000, 12, 1200


@pytest.fixture
def store(tmp_path: Path) -> ListStore:
    """Lists of 50 MB, of which 14 are ids of features."""
    draw = np.random.default_rng(0)
    store = ListStore(n_dense=1, folder=tmp_path / "lists")
    for first in range(0, LISTS, 50):
        n = 50 * SIZE
        sparse = 1 + np.arange(SPARSE) * 100 + draw.integers(100, size=(n, SPARSE))
        feature = np.hstack([np.zeros((n, 1), np.int32), sparse.astype(np.int32)])
        store.add(
            KBestLists(
                index=np.arange(first, first + 50),
                begin=np.arange(51) * SIZE,
                rows=Rows(
                    np.arange(n + 1) * (SPARSE + 1), feature.ravel(), draw.normal(size=feature.size)
                ),
                gain=draw.random(n),
            )
        )
    store.end_iteration()
    return store


@pytest.mark.skipif(sys.platform != "linux", reason="limits of memory are those of Linux")
def test_lists_that_cannot_be_read_are_gone_through(store: ListStore) -> None:
    """Reading them fails where the sampler and the count of features go on, piece by piece."""
    expected = pair_rows(store, limited_memory.FEW, (1,))
    done = subprocess.run(
        [sys.executable, limited_memory.__file__, str(store.folder)],
        check=True,
        capture_output=True,
        text=True,
    )
    found = json.loads(done.stdout)
    assert [found[name][0] for name in ("read ids", "read lists")] == ["MemoryError"] * 2
    assert found["features"] == np.unique(store.lists().rows.feature)[1:].tolist()
    assert found["few pairs"] == limited_memory.totals(expected)
    # Where the result does not fit either, what to do is said.
    kind, said = found["many pairs"]
    assert kind == "InputError" and said.endswith("lower sampler.pairs or tuner.sentences")
    assert said.startswith("there is no room for all pairs (there was for those of ")
    kind, said = found["stored pairs"]
    assert kind == "InputError" and said.endswith("lower sampler.pairs or tuner.sentences")
    assert "no room for 50,000 pairs of " in said

"""Kernels of `RuleFeatures`."""

from __future__ import annotations

import numpy as np

from torchtune_smt.core.arrays import Int32, Int64
from torchtune_smt.core.compiled import kernel


@kernel
def store(begin: Int64, pool: Int32, used: int, rules: Int64, counts: Int64, ids: Int32) -> int:
    """Store the features `ids` of `rules` (`counts` each) in the pool; return its new length.

    A rule's entry is its number of features, then the features; ``begin`` holds the place of the
    entry plus one, since 0 means that it has none yet.
    """
    at = 0
    for i in range(rules.size):
        if begin[rules[i]] == 0:
            begin[rules[i]] = used + 1
            pool[used] = counts[i]
            for k in range(counts[i]):
                pool[used + 1 + k] = ids[at + k]
            used += counts[i] + 1
        at += counts[i]
    return used


@kernel
def gather(begin: Int64, pool: Int32, rules: Int64) -> tuple[Int64, Int32]:
    """Return the stored features of `rules` in CSR form."""
    row = np.zeros(rules.size + 1, np.int64)
    for i in range(rules.size):
        row[i + 1] = row[i] + pool[begin[rules[i]] - 1]
    ids = np.empty(row[-1], np.int32)
    for i in range(rules.size):
        first = begin[rules[i]]
        for k in range(row[i + 1] - row[i]):
            ids[row[i] + k] = pool[first + k]
    return row, ids

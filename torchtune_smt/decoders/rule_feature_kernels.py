"""Kernels of sparse features of rules: those of one sentence, over what occurs in it alone."""

from __future__ import annotations

import numpy as np

from torchtune_smt.core.arrays import Int32, Int64
from torchtune_smt.core.compiled import inner, kernel


@kernel
def gather_rows(
    begin: Int64, symbols: Int32, rows: Int32, place: Int32
) -> tuple[Int64, Int32, Int32]:
    """Return some rows behind each other, and the ids that occur, in the order of first sight.

    Parameters
    ----------
    begin, symbols
        All rows (CSR); the symbols are ids of features.
    rows : int32 [n]
        Numbers of rows, plus one.
    place : int32 [features]
        Zeros; ids that occur get a 1 there, which `number_rows` takes away.
    """
    out_begin = np.zeros(rows.size + 1, np.int64)
    for i in range(rows.size):
        row = rows[i]
        out_begin[i + 1] = out_begin[i] + begin[row] - begin[row - 1]
    feature = np.empty(out_begin[rows.size], np.int32)
    distinct = np.empty(feature.size, np.int32)
    count = 0
    for i in range(rows.size):
        first = begin[rows[i] - 1]
        for p in range(out_begin[i + 1] - out_begin[i]):
            f = symbols[first + p]
            feature[out_begin[i] + p] = f
            if place[f] == 0:
                place[f] = 1
                distinct[count] = f
                count += 1
    return out_begin, feature, distinct[:count].copy()


@inner
def number_rows(feature: Int32, distinct: Int32, place: Int32) -> None:
    """Replace each id by its place in `distinct`, and leave nothing but zeros in `place`."""
    for i in range(distinct.size):
        place[distinct[i]] = i
    for p in range(feature.size):
        feature[p] = place[feature[p]]
    for i in range(distinct.size):
        place[distinct[i]] = 0

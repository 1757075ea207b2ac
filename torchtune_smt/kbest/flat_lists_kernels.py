"""Kernels over k-best lists that lie one behind the other."""

from __future__ import annotations

import numpy as np

from torchtune_smt.core.arrays import Float64, Int32, Int64, Integers
from torchtune_smt.core.compiled import inner, kernel
from torchtune_smt.core.rows_kernels import NOISE


@inner
def score_rows(
    row_begin: Int64, feature: Integers, value: Float64, weights: Float64, out: Float64
) -> None:
    """Write the score of each row, summed in the order of its features."""
    for row in range(out.size):
        total = 0.0
        for p in range(row_begin[row], row_begin[row + 1]):
            total += value[p] * weights[feature[p]]
        out[row] = total


@inner
def best_rows(list_begin: Int64, scores: Float64, out: Int64) -> None:
    """Write for each list the number of the row with the largest score, the first of ties."""
    for s in range(out.size):
        best = list_begin[s]
        for row in range(best + 1, list_begin[s + 1]):
            if scores[row] > scores[best]:
                best = row
        out[s] = best


@inner
def dense_columns(row_begin: Int64, feature: Integers, value: Float64, out: Float64) -> None:
    """Write the values of features ``0 .. out.shape[1] - 1`` into a matrix of zeros."""
    for row in range(out.shape[0]):
        for p in range(row_begin[row], row_begin[row + 1]):
            # Ids ascend: what follows is sparse.
            if feature[p] >= out.shape[1]:
                break
            out[row, feature[p]] = value[p]


@kernel
def rename_rows(
    row_begin: Int64, feature: Integers, value: Float64, rename: Int64, dimension: int
) -> tuple[Int64, Int32, Float64]:
    """Return rows with renamed features, those that get one name added up.

    Parameters
    ----------
    row_begin, feature, value : int64 [n + 1], int32 or int64 array, float64 array
    rename : int64 [D]
        New ids, below `dimension`; -1 leaves the feature out.

    Returns
    -------
    row_begin, feature, value : int64 [n + 1], int32 array, float64 array
        Ids ascend within a row. What adds up to 0, but for rounding, is left out.
    """
    total = np.zeros(dimension)
    size = np.zeros(dimension)
    met = np.zeros(dimension, np.bool_)
    longest = 0
    for row in range(row_begin.size - 1):
        longest = max(longest, row_begin[row + 1] - row_begin[row])
    names = np.empty(longest, np.int64)
    out_begin = np.zeros(row_begin.size, np.int64)
    out_feature = np.empty(feature.size, np.int32)
    out_value = np.empty(feature.size)
    n = 0
    for row in range(row_begin.size - 1):
        count = 0
        for p in range(row_begin[row], row_begin[row + 1]):
            new = rename[feature[p]]
            if new < 0:
                continue
            if not met[new]:
                met[new] = True
                names[count] = new
                count += 1
            total[new] += value[p]
            size[new] += abs(value[p])
        names[:count].sort()
        for j in range(count):
            new = names[j]
            if abs(total[new]) > NOISE * size[new]:
                out_feature[n], out_value[n] = new, total[new]
                n += 1
            total[new], size[new], met[new] = 0.0, 0.0, False
        out_begin[row + 1] = n
    return out_begin, out_feature[:n].copy(), out_value[:n].copy()

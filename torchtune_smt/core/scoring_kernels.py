"""Kernels of linear scoring: differences of sparse rows, and their columns renumbered."""

from __future__ import annotations

import numpy as np

from torchtune_smt.core.arrays import Float64, Int64
from torchtune_smt.core.compiled import kernel

# Two derivations may add up one real-valued feature in different orders. Their difference is
# then rounding noise, which AdaGrad would blow up to a step of full size.
NOISE = 1e-12


@kernel
def difference_rows(
    row_begin: Int64, feature: Int64, value: Float64, pairs: Int64
) -> tuple[Int64, Int64, Float64]:
    """Return the rows H(better) - H(worse) of one k-best list, without the zeros.

    Parameters
    ----------
    row_begin, feature, value : int64 [k + 1], int64 array, float64 array
        CSR rows, ids ascending within a row.
    pairs : int64 [p, 2]

    Returns
    -------
    length, feature, value : int64 [p], int64 array, float64 array
        Non-zeros of each row, and CSR rows, ids ascending.
    """
    room = 0
    for p in range(pairs.shape[0]):
        for h in pairs[p]:
            room += row_begin[h + 1] - row_begin[h]
    length = np.empty(pairs.shape[0], np.int64)
    out_feature = np.empty(room, np.int64)
    out_value = np.empty(room)
    n = 0
    for p in range(pairs.shape[0]):
        first = n
        i, i_end = row_begin[pairs[p, 0]], row_begin[pairs[p, 0] + 1]
        j, j_end = row_begin[pairs[p, 1]], row_begin[pairs[p, 1] + 1]
        while i < i_end or j < j_end:
            if j == j_end or (i < i_end and feature[i] < feature[j]):
                out_feature[n], out_value[n] = feature[i], value[i]
                i += 1
                n += 1
            elif i == i_end or feature[j] < feature[i]:
                out_feature[n], out_value[n] = feature[j], -value[j]
                j += 1
                n += 1
            else:
                difference = value[i] - value[j]
                if abs(difference) > NOISE * (abs(value[i]) + abs(value[j])):
                    out_feature[n], out_value[n] = feature[i], difference
                    n += 1
                i += 1
                j += 1
        length[p] = n - first
    return length, out_feature[:n], out_value[:n]


@kernel
def number_columns(feature: Int64) -> tuple[Int64, Int64]:
    """Renumber feature ids in the order of first sight: return (distinct ids, number of each id).

    A hash table finds the distinct ones, so that only these need sorting.
    """
    room = 16
    while room < 2 * feature.size:
        room *= 2
    mask = room - 1
    slots = np.full(room, -1, np.int64)
    distinct = np.empty(feature.size, np.int64)
    column = np.empty(feature.size, np.int64)
    count = 0
    for p in range(feature.size):
        id = feature[p]
        slot = ((id * 0x9E3779B1) >> 15) & mask
        while slots[slot] >= 0 and distinct[slots[slot]] != id:
            slot = (slot + 1) & mask
        if slots[slot] < 0:
            slots[slot] = count
            distinct[count] = id
            count += 1
        column[p] = slots[slot]
    return distinct[:count], column

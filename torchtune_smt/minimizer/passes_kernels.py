"""Passes over stored pairs: margins, gradients, second derivatives of a few features."""

from __future__ import annotations

import numpy as np

from torchtune_smt.core.arrays import Float64, Int32, Int64
from torchtune_smt.core.compiled import kernel


@kernel
def means(begin: Int64, feature: Int32, value: Float64, dual: Float64, columns: int) -> Float64:
    """Return Xᵀa / N of the rows, float64 [columns]."""
    out = np.zeros(columns)
    for i in range(dual.size):
        a = dual[i]
        if a != 0.0:
            for p in range(begin[i], begin[i + 1]):
                out[feature[p]] += a * value[p]
    out /= max(dual.size, 1)
    return out


@kernel
def restricted(
    begin: Int64, feature: Int32, value: Float64, keep: Float64, place: Int32
) -> tuple[Int64, Int64, Int32, Float64]:
    """Return the numbers of the rows whose `keep` is not 0, and these rows over fewer columns.

    place (int32 [columns]): the new id of each column, -1 for those that are left out.
    """
    rows = 0
    room = 0
    for i in range(keep.size):
        if keep[i] != 0.0:
            rows += 1
            for p in range(begin[i], begin[i + 1]):
                if place[feature[p]] >= 0:
                    room += 1
    number = np.empty(rows, np.int64)
    new_begin = np.zeros(rows + 1, np.int64)
    new_feature = np.empty(room, np.int32)
    new_value = np.empty(room)
    rows = 0
    room = 0
    for i in range(keep.size):
        if keep[i] != 0.0:
            number[rows] = i
            rows += 1
            for p in range(begin[i], begin[i + 1]):
                j = place[feature[p]]
                if j >= 0:
                    new_feature[room] = j
                    new_value[room] = value[p]
                    room += 1
            new_begin[rows] = room
    return number, new_begin, new_feature, new_value


@kernel
def slight(
    begin: Int64, feature: Int32, value: Float64, scale: Float64, columns: int, part: float
) -> tuple[Float64, Float64]:
    """Find the rows that add next to nothing to diag(Xᵀ diag(scale) X).

    Returns kept (float64 [rows]): 0 for those that have less than `part` of the largest entry in
        each of their columns.
    Returns bound (float64 [columns]): a diagonal that is no less than their part of Xᵀ diag(scale)
        X: (Σ a)² ≤ n Σ a² for n of them.
    """
    largest, bound = np.zeros(columns), np.zeros(columns)
    for i in range(scale.size):
        for p in range(begin[i], begin[i + 1]):
            own = scale[i] * value[p] * value[p]
            if own > largest[feature[p]]:
                largest[feature[p]] = own
    kept = np.zeros(scale.size)
    for i in range(scale.size):
        for p in range(begin[i], begin[i + 1]):
            if scale[i] * value[p] * value[p] >= part * largest[feature[p]]:
                kept[i] = 1.0
        if kept[i] == 0.0:
            n = begin[i + 1] - begin[i]
            for p in range(begin[i], begin[i + 1]):
                bound[feature[p]] += n * scale[i] * value[p] * value[p]
    return kept, bound


@kernel
def gram(
    begin: Int64,
    feature: Int32,
    value: Float64,
    scale: Float64,
    column_begin: Int64,
    row: Int32,
    entry: Float64,
    most: int,
) -> tuple[Int64, Int32, Float64]:
    """Return Xᵀ diag(scale) X of rows that are also given by columns, in CSR form.

    Where it has more than `most` non-zeros, nothing is computed, and its arrays are empty.
    """
    columns = column_begin.size - 1
    out_begin = np.zeros(columns + 1, np.int64)
    seen = np.full(columns, -1, np.int32)
    room = 0
    for j in range(columns):
        for q in range(column_begin[j], column_begin[j + 1]):
            i = row[q]
            for p in range(begin[i], begin[i + 1]):
                if seen[feature[p]] != j:
                    seen[feature[p]] = j
                    room += 1
        if room > most:
            return np.empty(0, np.int64), np.empty(0, np.int32), np.empty(0)
        out_begin[j + 1] = room
    out_feature = np.empty(room, np.int32)
    out_value = np.empty(room)
    total = np.zeros(columns)
    seen[:] = -1
    for j in range(columns):
        n = out_begin[j]
        for q in range(column_begin[j], column_begin[j + 1]):
            i = row[q]
            a = scale[i] * entry[q]
            for p in range(begin[i], begin[i + 1]):
                k = feature[p]
                if seen[k] != j:
                    seen[k] = j
                    out_feature[n] = k
                    n += 1
                    total[k] = 0.0
                total[k] += a * value[p]
        for q in range(out_begin[j], n):
            out_value[q] = total[out_feature[q]]
    return out_begin, out_feature, out_value

"""Kernels of sparse rows, and of consecutive pieces of any array."""

from __future__ import annotations

import numpy as np

from torchtune_smt.core.arrays import Bool, Float64, Int32, Int64
from torchtune_smt.core.compiled import inlined, inner, kernel
from torchtune_smt.core.sequences_kernels import table_size

# Two derivations may add up one real-valued feature in different orders. Their difference is
# then rounding noise, which AdaGrad would blow up to a step of full size.
NOISE = 1e-12

# Slots that a hash table begins with at most.
_FIRST_SIZE = 1 << 16


@inlined
def dot_row(row: int, begin: Int64, feature: Int32, value: Float64, weights: Float64) -> float:
    """Return W·H of a row, added up in the order of its features."""
    total = 0.0
    for p in range(begin[row], begin[row + 1]):
        total += value[p] * weights[feature[p]]
    return total


@inner
def dot(
    begin: Int64, feature: Int32, value: Float64, weights: Float64, first: int, out: Float64
) -> None:
    """Write W·H of the rows from `first` on."""
    for i in range(out.size):
        out[i] = dot_row(first + i, begin, feature, value, weights)


@inner
def dense(begin: Int64, feature: Int32, value: Float64, out: Float64) -> None:
    """Write the values of features ``0 .. out.shape[1] - 1`` into a matrix of zeros."""
    for row in range(out.shape[0]):
        for p in range(begin[row], begin[row + 1]):
            # Ids ascend: what follows is no smaller.
            if feature[p] >= out.shape[1]:
                break
            out[row, feature[p]] = value[p]


@inner
def mark_features(begin: int, end: int, feature: Int32, mark: Bool, out: Int64, n: int) -> int:
    """Append the features of a span that are not marked yet to `out`, and mark them."""
    for p in range(begin, end):
        f = feature[p]
        if not mark[f]:
            mark[f] = True
            out[n] = f
            n += 1
    return n


@inner
def sort_row(first: int, last: int, feature: Int32, value: Float64) -> None:
    """Sort the entries ``first .. last - 1`` by feature, in place (Shell's sort)."""
    length = last - first
    gap = 1
    while 9 * gap < 4 * length:
        gap = (9 * gap + 4) // 4  # Tokuda's gaps, about: each 2.25 times the one before
    while gap > 0:
        for p in range(first + gap, last):
            f, v = feature[p], value[p]
            q = p
            while q >= first + gap and feature[q - gap] > f:
                feature[q], value[q] = feature[q - gap], value[q - gap]
                q -= gap
            feature[q], value[q] = f, v
        gap = 0 if gap == 1 else max(1, (4 * gap) // 9)


@inner
def sort_rows(begin: Int64, feature: Int32, value: Float64) -> None:
    """Sort each row by feature, in place."""
    for row in range(begin.size - 1):
        sort_row(begin[row], begin[row + 1], feature, value)


@inner
def difference(
    a: int,
    b: int,
    begin: Int64,
    feature: Int32,
    value: Float64,
    noise: float,
    out_feature: Int32,
    out_value: Float64,
    n: int,
) -> int:
    """Append row `a` minus row `b` to an output of `n` entries; return the new number of entries.

    Left out is what is not larger than `noise` times the two values that it is the difference of.
    """
    i, i_end = begin[a], begin[a + 1]
    j, j_end = begin[b], begin[b + 1]
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
            x = value[i] - value[j]
            if abs(x) > noise * (abs(value[i]) + abs(value[j])):
                out_feature[n], out_value[n] = feature[i], x
                n += 1
            i += 1
            j += 1
    return n


@kernel
def places_of(begin: Int64, chosen: Int64) -> tuple[Int64, Int64]:
    """Return the offsets of pieces `chosen` behind each other, and where their items come from."""
    out_begin = np.zeros(chosen.size + 1, np.int64)
    for j in range(chosen.size):
        out_begin[j + 1] = out_begin[j] + begin[chosen[j] + 1] - begin[chosen[j]]
    places = np.empty(out_begin[-1], np.int64)
    for j in range(chosen.size):
        shift = begin[chosen[j]] - out_begin[j]
        for p in range(out_begin[j], out_begin[j + 1]):
            places[p] = p + shift
    return out_begin, places


@kernel
def differences(
    begin: Int64, feature: Int32, value: Float64, pairs: Int64
) -> tuple[Int64, Int32, Float64]:
    """Return the rows H(better) - H(worse), without what cancels; see `Rows.differences`."""
    room = 0
    for p in range(pairs.shape[0]):
        for h in pairs[p]:
            room += begin[h + 1] - begin[h]
    out_begin = np.zeros(pairs.shape[0] + 1, np.int64)
    out_feature = np.empty(room, np.int32)
    out_value = np.empty(room)
    n = 0
    for p in range(pairs.shape[0]):
        n = difference(
            pairs[p, 0], pairs[p, 1], begin, feature, value, NOISE, out_feature, out_value, n
        )
        out_begin[p + 1] = n
    return out_begin, out_feature[:n].copy(), out_value[:n].copy()


@inner
def _number_some(
    ids: Int32 | Int64, start: int, slots: Int32, distinct: Int64, count: int, number: Int32
) -> tuple[int, int]:
    """Number ids from `start` on until the table is half full; return where it stopped, `count`."""
    mask = slots.size - 1
    for p in range(start, ids.size):
        id = np.int64(ids[p])
        slot = ((id * 0x9E3779B1) >> 15) & mask
        while slots[slot] >= 0 and distinct[slots[slot]] != id:
            slot = (slot + 1) & mask
        if slots[slot] < 0:
            if 2 * count >= slots.size:
                return p, count
            slots[slot] = count
            distinct[count] = id
            count += 1
        number[p] = slots[slot]
    return ids.size, count


@kernel
def number_distinct(ids: Int32 | Int64) -> tuple[Int64, Int32]:
    """Number ids in the order of first sight: return (distinct ids, number of each id).

    A hash table finds the distinct ones, so that only these need sorting. It grows with them.
    """
    slots = np.full(min(table_size(ids.size), _FIRST_SIZE), -1, np.int32)
    distinct = np.empty(ids.size, np.int64)
    number = np.empty(ids.size, np.int32)
    p, count = _number_some(ids, 0, slots, distinct, 0, number)
    while p < ids.size:
        slots = np.full(4 * slots.size, -1, np.int32)
        _number_some(distinct[:count], 0, slots, distinct, 0, np.empty(count, np.int32))
        p, count = _number_some(ids, p, slots, distinct, count, number)
    return distinct[:count], number


@kernel
def project(
    begin: Int64, feature: Int32, value: Float64, group: Int64, groups: int
) -> tuple[Int64, Int32, Float64]:
    """Return rows over groups of features, added up; see `Rows.projected`."""
    total = np.zeros(groups)
    size = np.zeros(groups)
    met = np.zeros(groups, np.bool_)
    longest = 0
    for row in range(begin.size - 1):
        longest = max(longest, begin[row + 1] - begin[row])
    names = np.empty(longest, np.int64)
    out_begin = np.zeros(begin.size, np.int64)
    out_feature = np.empty(feature.size, np.int32)
    out_value = np.empty(feature.size)
    n = 0
    for row in range(begin.size - 1):
        count = 0
        for p in range(begin[row], begin[row + 1]):
            new = group[feature[p]]
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

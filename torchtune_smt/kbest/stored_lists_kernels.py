"""Kernels over stored k-best lists: choosing entries, telling equal ones, scoring."""

from __future__ import annotations

import numpy as np

from torchtune_smt.core.arrays import Bool, Float64, Int32, Int64
from torchtune_smt.core.compiled import inner, kernel
from torchtune_smt.kbest.formats_kernels import sort_row


@kernel
def _chosen_begins(begin: Int64, chosen: Int64) -> Int64:
    """Return where rows `chosen` begin when they lie one behind the other, and where they end."""
    out: Int64 = np.zeros(chosen.size + 1, np.int64)
    for j in range(chosen.size):
        out[j + 1] = out[j] + begin[chosen[j] + 1] - begin[chosen[j]]
    return out


@kernel
def gather_items(begin: Int64, items: Int32, chosen: Int64) -> tuple[Int64, Int32]:
    """Return rows `chosen` of ``items[begin[i]:begin[i + 1]]``, as begins and items."""
    out_begin = _chosen_begins(begin, chosen)
    out = np.empty(out_begin[-1], np.int32)
    for j in range(chosen.size):
        shift = begin[chosen[j]] - out_begin[j]
        for p in range(out_begin[j], out_begin[j + 1]):
            out[p] = items[p + shift]
    return out_begin, out


@kernel
def gather_features(
    begin: Int64, feature: Int32, value: Float64, chosen: Int64
) -> tuple[Int64, Int32, Float64]:
    """Return rows `chosen` in CSR form."""
    out_begin = _chosen_begins(begin, chosen)
    out_feature = np.empty(out_begin[-1], np.int32)
    out_value = np.empty(out_begin[-1])
    for j in range(chosen.size):
        shift = begin[chosen[j]] - out_begin[j]
        for p in range(out_begin[j], out_begin[j + 1]):
            out_feature[p] = feature[p + shift]
            out_value[p] = value[p + shift]
    return out_begin, out_feature, out_value


@kernel
def gather_rows(
    begin: Int64, feature: Int32, value: Float64, chosen: Int64, rename: Int64
) -> tuple[Int64, Int32, Float64]:
    """Return rows `chosen` in CSR form, their features renamed."""
    out_begin = _chosen_begins(begin, chosen)
    out_feature = np.empty(out_begin[-1], np.int32)
    out_value = np.empty(out_begin[-1])
    for j in range(chosen.size):
        shift = begin[chosen[j]] - out_begin[j]
        for p in range(out_begin[j], out_begin[j + 1]):
            out_feature[p] = rename[feature[p + shift]]
            out_value[p] = value[p + shift]
    return out_begin, out_feature, out_value


@inner
def sort_rows(begin: Int64, feature: Int32, value: Float64, rank: Int32) -> None:
    """Sort the features of each row by their rank, in place."""
    for row in range(begin.size - 1):
        sort_row(begin[row], begin[row + 1], feature, value, rank)


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
def score_rows(
    first: int,
    last: int,
    begin: Int64,
    feature: Int32,
    value: Float64,
    weight: Float64,
    out: Float64,
) -> None:
    """Write the scores of rows ``first .. last - 1``, summed in the order of the rows."""
    for row in range(first, last):
        total = 0.0
        for p in range(begin[row], begin[row + 1]):
            total += value[p] * weight[feature[p]]
        out[row - first] = total


@inner
def _equal(
    a: int,
    b: int,
    token_begin: Int64,
    tokens: Int32,
    row_begin: Int64,
    feature: Int32,
    value: Float64,
    statistics: Int32,
) -> bool:
    """Say whether two entries are the same in all that they hold."""
    length = token_begin[a + 1] - token_begin[a]
    width = row_begin[a + 1] - row_begin[a]
    if token_begin[b + 1] - token_begin[b] != length or row_begin[b + 1] - row_begin[b] != width:
        return False
    for k in range(statistics.shape[1]):
        if statistics[a, k] != statistics[b, k]:
            return False
    for k in range(length):
        if tokens[token_begin[a] + k] != tokens[token_begin[b] + k]:
            return False
    for k in range(width):
        p, q = row_begin[a] + k, row_begin[b] + k
        if feature[p] != feature[q] or value[p] != value[q]:
            return False
    return True


@inner
def mark_copies(
    list_begin: Int64,
    token_begin: Int64,
    tokens: Int32,
    row_begin: Int64,
    feature: Int32,
    value: Float64,
    bits: Int64,
    statistics: Int32,
    table: Int64,
    copy: Bool,
) -> None:
    """Mark each entry that is the same as an earlier one of its list.

    Parameters
    ----------
    bits : int64
        The values' bits, to be hashed.
    statistics : int32 [entries, n]
    table : int64
        Room for hashing: a power of two, more than twice the longest list.
    copy : bool [entries]
        Written to.
    """
    factor = np.uint64(0x9E3779B97F4A7C15)
    half = np.uint64(32)
    mask = np.uint64(table.size - 1)
    for s in range(list_begin.size - 1):
        table[:] = -1
        for entry in range(list_begin[s], list_begin[s + 1]):
            h = np.uint64(0)
            for k in range(statistics.shape[1]):
                h = (h ^ np.uint64(statistics[entry, k])) * factor
                h ^= h >> half
            for p in range(token_begin[entry], token_begin[entry + 1]):
                h = (h ^ np.uint64(tokens[p])) * factor
                h ^= h >> half
            for p in range(row_begin[entry], row_begin[entry + 1]):
                h = (h ^ np.uint64(feature[p])) * factor
                h = (h ^ (h >> half) ^ np.uint64(bits[p])) * factor
                h ^= h >> half
            slot = h & mask
            copy[entry] = False
            while table[slot] >= 0:
                if _equal(
                    table[slot], entry, token_begin, tokens, row_begin, feature, value, statistics
                ):
                    copy[entry] = True
                    break
                slot = (slot + np.uint64(1)) & mask
            if not copy[entry]:
                table[slot] = entry

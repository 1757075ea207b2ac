"""Kernels over k-best lists: the best of each, copies, hashes, and rows put together."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from torchtune_smt.core.arrays import Bool, Float64, Int32, Int64, UInt64
from torchtune_smt.core.compiled import inner, kernel
from torchtune_smt.core.random_kernels import GAMMA, mix


@inner
def best(begin: Int64, scores: Float64, out: Int64) -> None:
    """Write for each list the number of the hypothesis with the largest score, first of ties."""
    for s in range(out.size):
        best = begin[s]
        for h in range(best + 1, begin[s + 1]):
            if scores[h] > scores[best]:
                best = h
        out[s] = best


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
    begin: Int64,
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

    bits: the values' bits, to be hashed.
    statistics (int32 [entries, n])
    table: room for hashing: a power of two, more than twice the longest list.
    copy (bool [entries]): written to.
    """
    factor = np.uint64(0x9E3779B97F4A7C15)
    half = np.uint64(32)
    mask = np.uint64(table.size - 1)
    for s in range(begin.size - 1):
        table[:] = -1
        for entry in range(begin[s], begin[s + 1]):
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


@kernel
def hash_hypotheses(
    token_begin: Int64,
    tokens: Int32,
    row_begin: Int64,
    feature: Int32,
    bits: NDArray[np.uint32],
    words_only: bool,
) -> UInt64:
    """Return a hash of each hypothesis.

    token_begin, tokens, row_begin, feature: as in `KBestLists`.
    bits (uint32 [non-zeros]): the values' bits; entries with 0 are passed over.
    words_only: leave the features out.
    """
    hashes = np.empty(token_begin.size - 1, np.uint64)
    for h in range(hashes.size):
        value = np.uint64(0)
        for p in range(token_begin[h], token_begin[h + 1]):
            value = mix(value + GAMMA + np.uint64(tokens[p]))
        value = mix(value + GAMMA + np.uint64(token_begin[h + 1] - token_begin[h]))
        if not words_only:
            for p in range(row_begin[h], row_begin[h + 1]):
                if bits[p] != 0:
                    both = (np.uint64(feature[p]) << np.uint64(32)) | np.uint64(bits[p])
                    value = mix(value + GAMMA + both)
        hashes[h] = value
    return hashes


@inner
def join_rows(
    place: Int64,
    dense: Float64,
    begin: Int64,
    feature: Int32,
    value: Float64,
    row_begin: Int64,
    out_feature: Int32,
    out_value: Float64,
) -> None:
    """Write rows that were taken apart to their places, without zeros.

    place (int64 [rows]): the row of the result that each becomes.
    dense (float64 [rows, n_dense])
    begin, feature, value (int64 [rows + 1], int32 array, float64 array)
    row_begin, out_feature, out_value: the result, whose rows have room for what belongs there.
    """
    for j in range(place.size):
        n = row_begin[place[j]]
        for f in range(dense.shape[1]):
            if dense[j, f] != 0.0:
                out_feature[n], out_value[n] = f, dense[j, f]
                n += 1
        for p in range(begin[j], begin[j + 1]):
            out_feature[n], out_value[n] = feature[p], value[p]
            n += 1

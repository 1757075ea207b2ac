"""Kernels of stored k-best lists: hashes, duplicates, rows taken apart and put together."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from torchtune_smt.core.arrays import Bool, Float64, Int32, Int64, UInt64
from torchtune_smt.core.compiled import inner, kernel
from torchtune_smt.core.random_kernels import GAMMA, mix


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

    Parameters
    ----------
    token_begin, tokens, row_begin, feature
        As in `KBestLists`.
    bits : uint32 [non-zeros]
        The values' bits; entries with 0 are passed over.
    words_only : bool
        Leave the features out.
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


@kernel
def mark_new(known: UInt64, hashes: UInt64) -> Bool:
    """Return which of `hashes` are neither among `known` nor among those before them."""
    room = 16
    while room < 2 * (known.size + hashes.size):
        room *= 2
    mask = np.uint64(room - 1)
    slots = np.full(room, -1, np.int64)
    new = np.empty(hashes.size, np.bool_)
    for i in range(known.size + hashes.size):
        code = known[i] if i < known.size else hashes[i - known.size]
        slot = code & mask
        found = False
        while slots[slot] >= 0 and not found:
            j = slots[slot]
            other = known[j] if j < known.size else hashes[j - known.size]
            if other == code:
                found = True
            else:
                slot = (slot + np.uint64(1)) & mask
        if not found:
            slots[slot] = i
        if i >= known.size:
            new[i - known.size] = not found
    return new


@kernel
def split_rows(
    row_begin: Int64, feature: Int32, value: Float64, n_dense: int
) -> tuple[Float64, Int64, Int32, Float64]:
    """Return rows in two parts: the features below `n_dense`, and the others without zeros.

    Returns
    -------
    dense : float64 [rows, n_dense]
    length : int64 [rows]
    feature, value : int32 array, float64 array
    """
    rows = row_begin.size - 1
    dense = np.zeros((rows, n_dense))
    length = np.zeros(rows, np.int64)
    out_feature = np.empty(feature.size, np.int32)
    out_value = np.empty(feature.size)
    n = 0
    for row in range(rows):
        for p in range(row_begin[row], row_begin[row + 1]):
            if feature[p] < n_dense:
                dense[row, feature[p]] = value[p]
            elif value[p] != 0.0:
                out_feature[n], out_value[n] = feature[p], value[p]
                length[row] += 1
                n += 1
    return dense, length, out_feature[:n].copy(), out_value[:n].copy()


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

    Parameters
    ----------
    place : int64 [rows]
        The row of the result that each becomes.
    dense : float64 [rows, n_dense]
    begin, feature, value : int64 [rows + 1], int32 array, float64 array
    row_begin, out_feature, out_value
        The result, whose rows have room for what belongs there.
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

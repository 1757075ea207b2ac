"""Kernels over k-best lists: the best of each, hashes, and rows put together."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from torchtune_smt.core.arrays import Float64, Int32, Int64, UInt64
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


@kernel
def hash_hypotheses(
    token_begin: Int64,
    tokens: Int32,
    row_begin: Int64,
    feature: Int32,
    bits: NDArray[np.uint32],
    words_only: bool,
) -> UInt64:
    """Return a hash of each hypothesis; see `KBestLists.hashes`."""
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

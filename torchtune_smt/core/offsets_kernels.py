"""Kernels of consecutive pieces."""

from __future__ import annotations

import numpy as np

from torchtune_smt.core.arrays import Int64
from torchtune_smt.core.compiled import kernel


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

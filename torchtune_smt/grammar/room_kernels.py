"""Arrays that grow within a kernel.

Copies are loops, since a slice assignment costs numba half a second of compilation each.
"""

from __future__ import annotations

import numpy as np

from torchtune_smt.core.arrays import Int32, Int64
from torchtune_smt.core.compiled import kernel


@kernel
def longer(array: Int32, needed: int) -> Int32:
    """Return `array`, or a copy of twice the length where `needed` places are not there."""
    if needed <= array.size:
        return array
    larger = np.empty(max(needed, 2 * array.size), np.int32)
    for i in range(array.size):
        larger[i] = array[i]
    return larger


@kernel
def longer_offsets(array: Int64, needed: int) -> Int64:
    """Do as `longer`, for int64."""
    if needed <= array.size:
        return array
    larger = np.empty(max(needed, 2 * array.size), np.int64)
    for i in range(array.size):
        larger[i] = array[i]
    return larger


@kernel
def more_rows(array: Int32) -> Int32:
    """Return a copy of a matrix with twice the rows."""
    larger = np.empty((2 * array.shape[0], array.shape[1]), np.int32)
    for i in range(array.shape[0]):
        for j in range(array.shape[1]):
            larger[i, j] = array[i, j]
    return larger

"""Arrays that grow within a kernel.

Copies are loops, since a slice assignment costs numba half a second of compilation each.
"""

from __future__ import annotations

import numpy as np

from torchtune_smt.compiled import kernel
from torchtune_smt.kernel_types import Ids, Offsets


@kernel
def longer(array: Ids, needed: int) -> Ids:
    """Return `array`, or a copy of twice the length where `needed` places are not there."""
    if needed <= array.size:
        return array
    larger = np.empty(max(needed, 2 * array.size), np.int32)
    for i in range(array.size):
        larger[i] = array[i]
    return larger


@kernel
def longer_offsets(array: Offsets, needed: int) -> Offsets:
    """Do as `longer`, for int64."""
    if needed <= array.size:
        return array
    larger = np.empty(max(needed, 2 * array.size), np.int64)
    for i in range(array.size):
        larger[i] = array[i]
    return larger


@kernel
def more_rows(array: Ids) -> Ids:
    """Return a copy of a matrix with twice the rows."""
    larger = np.empty((2 * array.shape[0], array.shape[1]), np.int32)
    for i in range(array.shape[0]):
        for j in range(array.shape[1]):
            larger[i, j] = array[i, j]
    return larger

"""Arrays that grow within a kernel.

Copies are loops, since a slice assignment costs numba half a second of compilation each.
"""

from __future__ import annotations

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from torchtune_smt.core.arrays import Int32
from torchtune_smt.core.compiled import kernel

T = TypeVar("T", bound=np.generic)


@kernel
def longer(array: NDArray[T], needed: int) -> NDArray[T]:
    """Return `array`, or a copy of twice the length where `needed` places are not there."""
    if needed <= array.size:
        return array
    larger = np.empty(max(needed, 2 * array.size), array.dtype)
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

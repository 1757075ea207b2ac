"""Arrays that grow within a kernel."""

from __future__ import annotations

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from torchtune_smt.core.compiled import kernel

T = TypeVar("T", bound=np.generic)


@kernel
def longer(array: NDArray[T], needed: int) -> NDArray[T]:
    """Return `array`, or a copy of twice the length where `needed` rows are not there."""
    if needed <= array.shape[0]:
        return array
    larger = np.empty((max(needed, 2 * array.shape[0]), *array.shape[1:]), array.dtype)
    # A loop, since assigning a slice costs numba half a second of compilation.
    for i in range(array.shape[0]):
        larger[i] = array[i]
    return larger

"""Seeds of random streams, as kernels take them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from torchtune_smt.core.arrays import Int64


def stream_seed(parts: Sequence[int]) -> Int64:
    """Return the integers that name a random stream as an array; ValueError if one has no room."""
    try:
        return np.array(parts, np.int64)
    except OverflowError:
        raise ValueError(f"seeds must be below 2^63, not {max(parts, key=abs)}") from None

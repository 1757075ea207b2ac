"""Names of the array types that kernels take and return."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Codes = NDArray[np.uint64]
# Ids of features: int32 where they are stored, int64 where torch wants them.
Features = NDArray[np.int32] | NDArray[np.int64]
Flags = NDArray[np.bool_]
Floats = NDArray[np.float32]
Ids = NDArray[np.int32]
Lengths = NDArray[np.int8]
Offsets = NDArray[np.int64]
Reals = NDArray[np.float64]
Records = NDArray[np.void]

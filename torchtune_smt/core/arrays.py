"""Names of the array types that kernels take and return."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

UInt8 = NDArray[np.uint8]
UInt64 = NDArray[np.uint64]
# Ids of features: int32 where they are stored, int64 where torch wants them.
Integers = NDArray[np.int32] | NDArray[np.int64]
Bool = NDArray[np.bool_]
Float32 = NDArray[np.float32]
Int32 = NDArray[np.int32]
Int64 = NDArray[np.int64]
Float64 = NDArray[np.float64]
Records = NDArray[np.void]

"""Passes over stored pairs where torch works on them."""

from __future__ import annotations

import torch
from torch import Tensor

from torchtune_smt.core.arrays import Float64
from torchtune_smt.core.rows import Rows
from torchtune_smt.core.scoring import csr_matrices


class DevicePasses:
    """The two products of a Newton step that take all pairs, on a device that holds these.

    Parameters
    ----------
    rows : Rows
        The sparse part of the pairs.
    columns : int
        Sparse features.
    device : torch.device or str
    """

    def __init__(self, rows: Rows, columns: int, device: torch.device | str) -> None:
        self._matrix, self._transposed = csr_matrices(rows, columns, device)

    def margins(self, sparse: Float64) -> Float64:
        """Return X w, float64 [rows]."""
        return _product(self._matrix, sparse)

    def means(self, dual: Float64) -> Float64:
        """Return Xᵀa / N, float64 [columns]."""
        return _product(self._transposed, dual / max(dual.size, 1))


def _product(matrix: Tensor, vector: Float64) -> Float64:
    found: Float64 = (matrix @ torch.from_numpy(vector).to(matrix.device)).cpu().numpy()
    return found

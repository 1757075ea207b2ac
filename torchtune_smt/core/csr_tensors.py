"""Rows as sparse matrices of torch."""

from __future__ import annotations

import warnings

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from torchtune_smt.core.rows import Rows


def csr_matrices(rows: Rows, columns: int, device: torch.device | str) -> tuple[Tensor, Tensor]:
    """Return rows as a sparse CSR matrix, float64 [rows, columns], and its transpose, on a device.

    A product with either is a pass over what is not 0; nothing is added up by atomic operations
    where the other one is taken for products with the transpose.
    """
    row_begin = torch.from_numpy(rows.begin).to(device)
    column = torch.from_numpy(rows.feature.astype(np.int64)).to(device)
    value = torch.from_numpy(rows.value).to(device)
    size = (len(rows), columns)
    order = torch.argsort(column, stable=True)
    row = torch.repeat_interleave(row_begin.diff())[order]
    counts = torch.bincount(column, minlength=columns)
    begin = F.pad(counts.cumsum(0), (1, 0))
    with warnings.catch_warnings():
        # torch calls such matrices beta; products with them are compared with dense ones in tests.
        warnings.filterwarnings("ignore", message="Sparse (CSR|invariant)", category=UserWarning)
        matrix = torch.sparse_csr_tensor(row_begin, column, value, size, check_invariants=False)
        transposed = torch.sparse_csr_tensor(
            begin, row, value[order], size[::-1], check_invariants=False
        )
    return matrix, transposed

"""Linear scores W·H of sparse rows, with sparse gradients."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from torchtune_smt.core.arrays import Int64
from torchtune_smt.core.rows import Rows
from torchtune_smt.core.rows_kernels import NOISE


def sparse_vector(
    indices: Tensor, values: Tensor, length: int, *, ascending: bool = True
) -> Tensor:
    """Return a sparse vector; `ascending` says that its indices are, each once."""
    return torch.sparse_coo_tensor(
        indices.unsqueeze(0),
        values,
        (length,),
        device=values.device,
        is_coalesced=ascending,
        check_invariants=False,
    )


def score_rows(
    rows: Rows, weight: Tensor, feature: Int64 | None = None, *, drop_noise: bool = False
) -> Tensor:
    """Return W·H of rows, [rows], whose gradient is a sparse tensor: nothing is as long as D.

    weight (float tensor [D]): W, up to date for these features where an optimizer puts updates off.
    feature (int64 [u]): those that occur, ascending, in which the ids of rows are places, as from
        `Rows.numbered`; the gradient has them alone. None: all of the weights.
    drop_noise: leave a feature out of the gradient where rows cancel but for rounding, which
        AdaGrad would blow up to a step of full size.
    """
    # Of numpy: a caller's `with torch.device` makes no other tensor of it.
    ids = np.arange(weight.numel()) if feature is None else feature
    return sparse_scores(
        weight,
        torch.from_numpy(ids).to(weight.device),
        torch.from_numpy(rows.begin).to(weight.device),
        torch.from_numpy(rows.feature.astype(np.int64)).to(weight.device),
        torch.from_numpy(rows.value).to(weight.device, weight.dtype),
        drop_noise,
    )


def sparse_scores(
    weight: Tensor,
    feature: Tensor,
    row_begin: Tensor,
    column: Tensor,
    value: Tensor,
    drop_noise: bool,
) -> Tensor:
    """Return W·H as `score_rows` does, of rows that are tensors where the weights are.

    feature (int64 tensor [u]): ids of the features that occur, ascending.
    row_begin, column (int64 tensors [rows + 1], [non-zeros]): row i has the features
        ``feature[column[row_begin[i]:row_begin[i + 1]]]``.
    value (tensor [non-zeros], of the weights' dtype)
    """
    scores: Tensor = _SparseScores.apply(  # type: ignore[no-untyped-call]
        weight, feature, row_begin, column, value, drop_noise
    )
    return scores


class _SparseScores(torch.autograd.Function):
    """Score = embedding_bag over the weights that occur.

    `F.embedding_bag(sparse=True)` wants the weights as a matrix, and autograd cannot take a
    sparse gradient back through the view of a vector. Here the gradient is also summed over
    the few features that occur, which spares optimizers the coalescing.
    """

    @staticmethod
    def forward(ctx: Any, weight: Tensor, *rows: Any) -> Tensor:
        feature, row_begin, column, value, drop_noise = rows
        ctx.save_for_backward(feature, row_begin, column, value)
        ctx.dimension = weight.numel()
        ctx.drop_noise = drop_noise
        if column.numel() == 0:
            return weight.new_zeros(row_begin.numel() - 1)
        chosen = weight.detach().index_select(0, feature).unsqueeze(1)
        return F.embedding_bag(
            column,
            chosen,
            row_begin,
            mode="sum",
            per_sample_weights=value,
            include_last_offset=True,
        ).squeeze(1)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        feature, row_begin, column, value = ctx.saved_tensors
        spread = torch.repeat_interleave(gradients[0], row_begin.diff(), output_size=column.numel())
        parts = spread * value
        summed = value.new_zeros(feature.numel()).index_add_(0, column, parts)
        if ctx.drop_noise:
            size = value.new_zeros(feature.numel()).index_add_(0, column, parts.abs_())
            # What is not finite has to reach the optimizer, which says so.
            real = (summed.abs() > NOISE * size) | size.isfinite().logical_not_()
            kept = real.nonzero().squeeze(1)
            feature, summed = feature[kept], summed[kept]
        gradient = sparse_vector(feature, summed, ctx.dimension)
        return gradient, None, None, None, None, None


def without_noise(feature: Tensor, parts: Tensor) -> tuple[Tensor, Tensor]:
    """Return parts of a gradient, in order, whose sums over each feature are not rounding alone.

    feature (int64 tensor [n]), parts (tensor [n]): in any order, features repeatedly. Others count
        as 0. Nothing waits for the device.
    """
    feature, order = feature.sort(stable=True)
    parts = parts.index_select(0, order)
    begins = torch.zeros_like(feature)
    torch.ne(feature[1:], feature[:-1], out=begins[1:])
    place = begins.cumsum(0)
    summed = torch.zeros_like(parts).index_add_(0, place, parts)
    size = torch.zeros_like(parts).index_add_(0, place, parts.abs())
    real = (summed.abs() > NOISE * size) | size.isfinite().logical_not_()
    return feature, parts.where(real.index_select(0, place), 0)


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

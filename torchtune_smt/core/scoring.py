"""Linear scores W·H of sparse rows, with sparse gradients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from torchtune_smt.core.arrays import Int64
from torchtune_smt.core.rows import Rows
from torchtune_smt.core.rows_kernels import NOISE
from torchtune_smt.core.weights import Readable, Weights
from torchtune_smt.kbest.lists import KBest


@dataclass(frozen=True)
class SparseRows:
    """Rows of feature values in CSR form, over the features that occur in them.

    Attributes
    ----------
    feature : int64 tensor [u]
        Ids of the features that occur, ascending.
    row_begin : int64 tensor [rows + 1]
    column : int64 tensor [non-zeros]
        Places in `feature`.
    value : float tensor [non-zeros]
    """

    feature: Tensor
    row_begin: Tensor
    column: Tensor
    value: Tensor

    @classmethod
    def of(cls, rows: Rows) -> SparseRows:
        """Return rows over feature ids, with their columns renumbered."""
        feature, numbered = rows.numbered()
        column = numbered.feature.astype(np.int64)
        return cls(*map(torch.from_numpy, (feature, rows.begin, column, rows.value)))

    @classmethod
    def of_lists(cls, kbests: Sequence[KBest]) -> SparseRows:
        """Return the rows of some k-best lists, list after list."""
        return cls.of(Rows.joined([kbest.rows for kbest in kbests]))

    @classmethod
    def differences(cls, kbests: Sequence[KBest], pairs: Sequence[Int64]) -> SparseRows:
        """Return x = H(better) - H(worse), one row a pair, list after list.

        Parameters
        ----------
        kbests : sequence of KBest
        pairs : sequence of int64 [p, 2]
            For each list its pairs (better, worse).
        """
        parts = zip(kbests, pairs, strict=True)
        return cls.of(Rows.joined([kbest.rows.differences(chosen) for kbest, chosen in parts]))

    def __len__(self) -> int:
        return self.row_begin.numel() - 1

    def to(self, weight: Tensor) -> SparseRows:
        """Return the rows on the device of `weight`, with values of its dtype."""
        return SparseRows(
            self.feature.to(weight.device),
            self.row_begin.to(weight.device),
            self.column.to(weight.device),
            self.value.to(weight.device, weight.dtype),
        )

    def scores(self, weight: Tensor, *, drop_noise: bool = False) -> Tensor:
        """Return the score of each row.

        Parameters
        ----------
        weight : float tensor [D]
            Its gradient is sparse (COO): features that occur, each once, ascending.
        drop_noise : bool
            Leave a feature out of the gradient where rows cancel but for rounding, which AdaGrad
            would blow up to a step of full size.

        Returns
        -------
        tensor [rows]
        """
        rows = self.to(weight)
        scores: Tensor = _SparseScores.apply(  # type: ignore[no-untyped-call]
            weight, rows.feature, rows.row_begin, rows.column, rows.value, drop_noise
        )
        return scores


def csr_tensor(rows: Rows, dimension: int) -> Tensor:
    """Return rows as a sparse CSR tensor, rows × `dimension`, that shares their values."""
    return torch.sparse_csr_tensor(
        torch.from_numpy(rows.begin),
        torch.from_numpy(rows.feature.astype(np.int64)),
        torch.from_numpy(rows.value),
        size=(len(rows), dimension),
        check_invariants=False,
    )


def score_rows(weight: Tensor, rows: Rows) -> Tensor:
    """Return W·H of rows; the gradient is sparse in D.

    Parameters
    ----------
    weight : float tensor [D]
        Up to date for these features (see `Weights.before_read`).
    rows : Rows
        H.

    Returns
    -------
    tensor [rows]
    """
    return SparseRows.of(rows).scores(weight)


def pair_margins(weights: Weights, kbests: Sequence[KBest], pairs: Sequence[Int64]) -> Tensor:
    """Return the margins z = W·(H(better) - H(worse)) of pairs from several k-best lists.

    Parameters
    ----------
    weights : Weights
        Brought up to date for the features that are read.
    kbests, pairs
        As for `SparseRows.differences`.

    Returns
    -------
    tensor [number of pairs]
        Connected to ``weights.parameter``, whose gradient is sparse.
    """
    rows = SparseRows.differences(kbests, pairs)
    bring_up_to_date(weights, rows)
    return rows.scores(weights.parameter)


def bring_up_to_date(weights: Readable, rows: SparseRows) -> None:
    """Make the weights as long as their features, and those of some rows fit to be read."""
    weights.grow()
    if weights.before_read is not None:
        weights.before_read(rows.feature.to(weights.parameter.device))


class _SparseScores(torch.autograd.Function):
    """Score = embedding_bag over the weights that occur.

    `F.embedding_bag(sparse=True)` wants the weights as a matrix, and autograd cannot take a
    sparse gradient back through the view of a vector. Here the gradient is also summed over
    the few features that occur, which spares optimizers the coalescing.
    """

    @staticmethod
    def forward(
        ctx: Any,
        weight: Tensor,
        feature: Tensor,
        row_begin: Tensor,
        column: Tensor,
        value: Tensor,
        drop_noise: bool,
    ) -> Tensor:
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
        gradient = torch.sparse_coo_tensor(
            feature.unsqueeze(0),
            summed,
            (ctx.dimension,),
            is_coalesced=True,
            check_invariants=False,
        )
        return gradient, None, None, None, None, None

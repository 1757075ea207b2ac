"""Pairs as the minimiser stores them: dense features apart, sparse ones by their own numbers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
import torch
from torch import Tensor

from torchtune_smt.core.arrays import Float64, Int64
from torchtune_smt.core.checks import check_device
from torchtune_smt.core.errors import InputError
from torchtune_smt.core.rows import Rows, mark
from torchtune_smt.core.scoring import csr_matrices
from torchtune_smt.minimizer import passes_kernels as kernels
from torchtune_smt.minimizer.dense_basis import dense_basis

# Values are squared, and their squares multiplied with weights.
LARGEST: Final = 1e100

# Pairs that are stored at a time, and their values.
_BLOCK: Final = 1 << 13
_PIECE: Final = 1 << 16


class StoredPairs:
    """x = H(better) - H(worse) of N pairs, in an order of their own, over features that differ.

    device ("cpu", "cuda"): where margins and gradients of sparse features are computed, which take
        a pass over all pairs; the rest is for the CPU. Elsewhere the last bits are other ones.

    As attributes:
    dense_id, sparse_id (int64 [k], [u]): ids of the features, ascending.
    dense (float64 [N, k']): Z; see `basis`.
    basis: what Z has to do with the dense features X: weights and gradients of dense features are
        those of Z in all that follows.
    one_sided: dense features of which no two pairs have values of different signs: their numbers,
        and how many pairs have one that is not 0.
    sparse: over places in `sparse_id`.
    size (float64 [u]): mean |value| of each sparse feature, over those that are not 0.

    Raises InputError: there are no pairs, or no room for them; a value is above 1e100. ValueError:
    the rows are damaged, or the device is not there.
    """

    def __init__(self, pairs: Rows, n_dense: int, device: str = "cpu") -> None:
        if len(pairs) == 0:
            raise InputError(
                "there are no pairs to learn from: lower sampler.threshold, or take longer lists "
                "(decoder.k) or more sentences"
            )
        try:
            pairs.check()
            _check_sizes(pairs)
            # In a value that is 0 no pair differs.
            self._store(pairs.where(pairs.value != 0.0), n_dense)
        except MemoryError:
            raise InputError(
                f"the minimiser has no room for {len(pairs):,} pairs of {pairs.value.size:,} "
                "values, which take about twice their memory there: lower sampler.pairs or "
                "tuner.sentences"
            ) from None
        # X and its transpose, where torch takes the products.
        self.on_device: tuple[Tensor, Tensor] | None = None
        if device != "cpu":
            check_device(device)
            self.on_device = csr_matrices(self.sparse, self.n_sparse, device)

    def _store(self, pairs: Rows, n_dense: int) -> None:
        """Store pairs some at a time: beside them there is room for what is stored, no more."""
        found = np.zeros(int(pairs.feature.max(initial=-1)) + 1, np.bool_)
        mark(found, pairs.feature)
        ids = np.flatnonzero(found)
        k = int(np.searchsorted(ids, n_dense))
        self.dense_id, self.sparse_id = ids[:k], ids[k:]
        places = [np.full(found.size, -1, np.int32) for _ in range(2)]
        for place, own in zip(places, (self.dense_id, self.sparse_id), strict=True):
            place[own] = np.arange(own.size, dtype=np.int32)
        order = _side_by_side(pairs)
        dense = np.empty((len(pairs), k))

        def parts() -> Iterator[Rows]:
            for first in range(0, len(pairs), _BLOCK):
                some = slice(first, first + _BLOCK)
                rows = pairs.chosen(order[some])
                dense[some] = rows.renamed(places[0]).dense(k)
                yield rows.renamed(places[1])

        self.sparse = Rows.gathered(parts())
        self.one_sided = [
            (int(number), int(np.count_nonzero(column)))
            for number, column in zip(self.dense_id, dense.T, strict=True)
            if column.min() >= 0.0 or column.max() <= 0.0
        ]
        self.dense, self.basis = dense_basis(dense)
        self._given = None if self.dense is dense else dense
        self.size = _mean_sizes(self.sparse, self.n_sparse)

    def __len__(self) -> int:
        return len(self.sparse)

    @property
    def n_sparse(self) -> int:
        """The number u of sparse features."""
        return self.sparse_id.size

    def margins(self, dense: Float64, sparse: Float64) -> Float64:
        """Return W·x of each pair, for the weights of both kinds of features."""
        there = self.on_device
        own = self.sparse.dot(sparse) if there is None else product(there[0], sparse)
        margins: Float64 = self.dense @ dense + own
        return margins

    def given_margins(self, weights: Float64) -> tuple[Float64, float] | None:
        """Return W·x of each pair with the dense features as they were given, and its rounding.

        None where `margins` does so: where `basis` is of these themselves. Otherwise what it has
        differs from them by rounding, which large weights make visible. The mean may differ by
        about so much if terms are added in another order: errors of single ones cancel out.
        """
        if self._given is None:
            return None
        own = self.sparse.dot(weights[self.sparse_id])
        dense = weights[self.dense_id]
        size = (np.abs(self._given) @ np.abs(dense)).max(initial=0.0)
        rounding = np.finfo(np.float64).eps * size / np.sqrt(len(self))
        return self._given @ dense + own, float(rounding)

    def means(self, dual: Float64) -> tuple[Float64, Float64]:
        """Return Xᵀa / N of the dense and of the sparse features; one pass over all."""
        dense: Float64 = self.dense.T @ dual / len(self)
        if self.on_device is not None:
            return dense, product(self.on_device[1], dual / len(self))
        return dense, self.means_of(self.sparse.value, dual)

    def means_of(self, value: Float64, dual: Float64) -> Float64:
        """Return the same of the sparse features alone, with other values, as |X|."""
        return kernels.means(self.sparse.begin, self.sparse.feature, value, dual, self.n_sparse)


def product(matrix: Tensor, vector: Float64) -> Float64:
    """Return the product with a matrix of torch, wherever that is."""
    found: Float64 = (matrix @ torch.from_numpy(vector).to(matrix.device)).cpu().numpy()
    return found


def _check_sizes(pairs: Rows) -> None:
    """Raise InputError where squares of values would overflow."""
    for at in (pairs.value.argmax(), pairs.value.argmin()) if pairs.value.size else ():
        if abs(pairs.value[at]) > LARGEST:
            raise InputError(
                f"feature {pairs.feature[at]} differs by {pairs.value[at]:.3g} in a pair, and the "
                f"minimiser takes no more than {LARGEST:g}: give it in a larger unit"
            )


def _side_by_side(pairs: Rows) -> Int64:
    """Return an order of pairs in which those that have a rare feature in common are neighbours.

    Pairs of a sentence have their rare features, of the highest ids, in common: columns of these
    are then not all over the memory. With a million pairs in a random order that is most of the
    time.
    """
    last = np.full(len(pairs), -1, np.int32)
    filled = np.diff(pairs.begin) > 0
    last[filled] = pairs.feature[pairs.begin[1:][filled] - 1]
    return np.argsort(last, kind="stable")


def _mean_sizes(rows: Rows, n: int) -> Float64:
    """Return the mean |value| of each of n features, over those that are not 0."""
    total, count = np.zeros(n), np.zeros(n)
    for begin in range(0, rows.feature.size, _PIECE):
        feature = rows.feature[begin : begin + _PIECE]
        size = np.abs(rows.value[begin : begin + _PIECE])
        # As `bincount` adds them: one after the other.
        np.add.at(total, feature, size)
        np.add.at(count, feature, (size > 0.0).astype(np.float64))
    found: Float64 = total / np.maximum(count, 1.0)
    return found

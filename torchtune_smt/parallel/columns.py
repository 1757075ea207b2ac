"""The weights of all shards, added up feature by feature."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from torchtune_smt.core.arrays import Float64, Int64
from torchtune_smt.core.checks import DAMAGED, well_formed
from torchtune_smt.core.snapshot import FrozenWeights
from torchtune_smt.core.state import vector
from torchtune_smt.core.vocabulary import Vocabulary


class Columns:
    """Sums over the columns of the matrix W [shards, D] of weights, of which no row is kept.

    A shard that does not know a feature has weight 0 for it.

    Parameters
    ----------
    features : Vocabulary
        Takes the names of the shards' features; ids are in it.
    n_dense : int
        Ids below it are dense features.
    shards : int
        How many will be added.

    Attributes
    ----------
    total : float64 [D]
        Σ_z W[z, k].
    squares : float64 [D]
        Σ_z W[z, k]², of which the l2 norm of a column is the root.
    count : int64 [D]
        Shards with a weight that is not 0.
    """

    def __init__(self, features: Vocabulary, n_dense: int, shards: int) -> None:
        self.features = features
        self.n_dense = n_dense
        self.shards = shards
        self._total: Float64 = np.zeros(len(features))
        self._squares: Float64 = np.zeros(len(features))
        self._count: Int64 = np.zeros(len(features), np.int64)

    @property
    def total(self) -> Float64:
        """The sum of each column."""
        self._grow()
        return self._total[: len(self.features)]

    @property
    def squares(self) -> Float64:
        """The sum of squares of each column."""
        self._grow()
        return self._squares[: len(self.features)]

    @property
    def count(self) -> Int64:
        """The number of non-zeros of each column."""
        self._grow()
        return self._count[: len(self.features)]

    def add(self, weights: FrozenWeights) -> None:
        """Add the weights of a shard; sums have the bits of the order in which shards come."""
        ids = self.features.intern_spans(*weights.features.spans(np.arange(len(weights))))
        self._grow()
        self._total[ids] += weights.values
        self._squares[ids] += weights.values**2
        self._count[ids] += weights.values != 0

    def mean(self) -> Float64:
        """Return the mean over shards of each weight."""
        return self.total / self.shards

    def norm(self) -> Float64:
        """Return the l2 norm of each column."""
        return np.sqrt(self.squares)

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Return the sums."""
        parts = {"total": self.total, "squares": self.squares, "count": self.count}
        return {name: torch.from_numpy(part.copy()) for name, part in parts.items()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over what `state_dict` gave; raise ValueError if it is not whole."""
        with well_formed():
            total, squares, count = (state_dict[name] for name in ("total", "squares", "count"))
        length = len(self.features)
        for part, kind in ((total, torch.float64), (squares, torch.float64), (count, torch.int64)):
            if vector(part, kind, length).numel() != total.numel():
                raise ValueError(DAMAGED)
        self._total, self._squares, self._count = total.numpy(), squares.numpy(), count.numpy()
        self._grow()

    def _grow(self) -> None:
        length = len(self.features)
        if self._total.size < length:
            # A quarter more each time keeps the cost of growing constant per feature.
            room = max(length, self._total.size * 5 // 4)
            self._total = _longer(self._total, room)
            self._squares = _longer(self._squares, room)
            self._count = _longer(self._count, room)


def _longer(array: NDArray[Any], length: int) -> NDArray[Any]:
    return np.append(array, np.zeros(length - array.size, array.dtype))

"""k-best lists as tensors, and the log-linear model that scores them."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from torchtune_smt.core.arrays import Int64
from torchtune_smt.core.scoring import sparse_scores

if TYPE_CHECKING:
    from torchtune_smt.kbest.lists import KBestLists


@dataclass(frozen=True, kw_only=True)
class ListTensors:
    """The k-best lists of S sentences, n hypotheses in all, on one device; nothing is padded.

    See `torchtune_smt.kbest.lists.KBestLists`, whose numbers these are.

    index (int64 [S])
    begin (int64 [S + 1]): hypotheses of list s are ``begin[s] .. begin[s + 1] - 1``.
    feature (int64 [u]): ids of the features that occur, ascending.
    row_begin (int64 [n + 1])
    column (int64 [non-zeros])
    value (float64 [non-zeros]): features in CSR form: hypothesis h has ``value[i]`` of
        ``feature[column[i]]`` for i from ``row_begin[h]`` to ``row_begin[h + 1] - 1``.
    score, gain (float64 [n])
    statistics (int32 [n, statistics])
    token_begin (int64 [n + 1])
    tokens (int64 [number of tokens])
    pairs (int64 [p, 2]): numbers of hypotheses, counted through all lists, the better one first.
    """

    index: Tensor
    begin: Tensor
    feature: Tensor
    row_begin: Tensor
    column: Tensor
    value: Tensor
    score: Tensor | None = None
    gain: Tensor | None = None
    statistics: Tensor | None = None
    token_begin: Tensor | None = None
    tokens: Tensor | None = None
    pairs: Tensor | None = None

    @classmethod
    def of(cls, lists: KBestLists, pairs: Int64 | None = None) -> ListTensors:
        """Return lists as tensors; see `KBestLists.to_torch`."""
        feature, rows = lists.rows.numbered()
        names = ("index", "begin", "score", "gain", "statistics", "token_begin")
        arrays = {name: getattr(lists, name) for name in names} | {
            "feature": feature,
            "row_begin": rows.begin,
            "column": rows.feature.astype("int64"),
            "value": rows.value,
            "tokens": None if lists.tokens is None else lists.tokens.astype("int64"),
            "pairs": pairs,
        }
        # Copies: what is done to tensors is not done to the lists.
        given: Any = {n: None if a is None else torch.tensor(a) for n, a in arrays.items()}
        return cls(**given)

    def __len__(self) -> int:
        return self.index.numel()

    def to(self, device: torch.device | str, **options: Any) -> ListTensors:
        """Return the lists on a device; options are those of `Tensor.to`."""
        return self._each(lambda tensor: tensor.to(device, **options))

    def pin_memory(self) -> ListTensors:
        """Return the lists in pinned memory, as a `DataLoader` asks for."""
        return self._each(Tensor.pin_memory)

    def _each(self, change: Any) -> ListTensors:
        tensors = {f.name: getattr(self, f.name) for f in fields(self)}
        given: Any = {n: None if t is None else change(t) for n, t in tensors.items()}
        return ListTensors(**given)


class LogLinear(torch.nn.Module):
    """W·H: the score of each hypothesis is the sum of its features, each times its weight.

    features: d, the number of features: ``len(lists.features)``.
    dtype, device: of the weights, which begin with 0.

    As attributes:
    weight (torch.nn.Parameter [D]): its gradient is sparse (COO, coalesced): nothing is as long as
        D, and what is the same in hypotheses that are compared has none, not even by rounding.
    """

    def __init__(
        self,
        features: int,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(features, dtype=dtype, device=device))

    def forward(self, lists: ListTensors) -> Tensor:
        """Return the scores of all hypotheses, [n].

        Raises IndexError: the lists have a feature that the model has no weight of.
        """
        return sparse_scores(
            self.weight,
            lists.feature,
            lists.row_begin,
            lists.column,
            lists.value.to(self.weight.dtype),
            drop_noise=True,
        )

    def rows_read(self, lists: ListTensors) -> Tensor:
        """Return the weights that `forward` reads, for `SparseOptimizer.attach`."""
        return lists.feature

    def extra_repr(self) -> str:
        """Return the number of features, for ``print(model)``."""
        return f"{self.weight.numel()}"

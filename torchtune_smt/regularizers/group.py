"""The group lasso: an l1 norm of the lengths of rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from torchtune_smt.core.accepts import Checked, accepting
from torchtune_smt.regularizers.base import STRENGTH
from torchtune_smt.regularizers.ops import as_step, group_prox


@dataclass(frozen=True)
class GroupLasso(Checked):
    """Ω(W) = strength · Σ_r ‖w_r‖₂ over the rows of W (Yuan and Lin, 2006): whole rows become 0.

    Its prox makes each row shorter by step · strength, and 0 where it is no longer than that. Rows
    are along the first dimension; those of a vector are its coordinates, for which this is `L1`.

    strength: λ, 0 or more. Yuan and Lin's has a factor for the size of groups, which here are of
        one.
    """

    strength: float = 0.1

    accepts = accepting(strength=STRENGTH)
    separable: ClassVar[bool] = False
    separable_by_rows: ClassVar[bool] = True
    lazy: ClassVar[bool] = True

    def value(self, weights: Tensor) -> Tensor:
        """Return Ω(W), a scalar tensor."""
        total: Tensor = torch.linalg.vector_norm(_rows(weights), dim=1).sum()
        return total * self.strength

    def prox(self, weights: Tensor, step: Tensor | float) -> Tensor:
        """Return each row, shorter by step · strength; `step` may be [rows, 1, ...], or [rows]."""
        rows = _rows(weights)
        sizes = as_step(step)
        result: Tensor = group_prox(
            rows, sizes.view(-1, 1) if sizes.dim() else sizes, self.strength
        )
        return result.view(weights.shape)


def _rows(weights: Tensor) -> Tensor:
    return weights.reshape(-1, 1) if weights.dim() < 2 else weights.flatten(1)

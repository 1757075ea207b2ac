"""The group lasso: an l1 norm of the lengths of rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from torchtune_smt.core.accepts import Checked, accepting
from torchtune_smt.regularizers.base import STRENGTH
from torchtune_smt.regularizers.ops import check_step, check_weights


@dataclass(frozen=True)
class GroupLasso(Checked):
    """Ω(W) = strength · Σ_r ‖w_r‖₂ over the rows of W (Yuan and Lin, 2006): whole rows become 0.

    Its prox makes each row shorter by step · strength, and 0 where it is no longer than that. Rows
    are along the first dimension; those of a vector are its coordinates, for which this is `L1`.

    Parameters
    ----------
    strength : float
        λ, 0 or more. Yuan and Lin's has a factor for the size of groups, which here are of one.
    """

    strength: float = 0.1

    accepts = accepting(strength=STRENGTH)
    separable: ClassVar[bool] = False
    separable_by_rows: ClassVar[bool] = True
    lazy: ClassVar[bool] = True

    def value(self, weights: Tensor) -> Tensor:
        """Return Ω(W), a scalar tensor."""
        return self.strength * _lengths(weights).sum()

    def prox(self, weights: Tensor, step: Tensor | float) -> Tensor:
        """Return each row, shorter by step · strength; `step` may be [rows, 1, ...], or [rows]."""
        check_weights(weights)
        check_step(step)
        length = _lengths(weights)
        if isinstance(step, Tensor) and step.dim():
            step = step.reshape(-1)
        kept = (length - step * self.strength).clamp_min(0)
        part = torch.where(length > 0, kept / length, 0.0).to(weights.dtype)
        return (
            weights * part.view(-1, *[1] * (weights.dim() - 1)) if weights.dim() else weights * part
        )


def _lengths(weights: Tensor) -> Tensor:
    return weights.abs() if weights.dim() < 2 else weights.flatten(1).norm(dim=1)

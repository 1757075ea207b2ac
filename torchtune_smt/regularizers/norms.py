"""Norms as penalties: l1, squared l2, both of them, none, and an l1 norm of the lengths of rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from torchtune_smt.core.accepts import Checked, accepting
from torchtune_smt.regularizers.base import STRENGTH
from torchtune_smt.regularizers.ops import elastic_prox, group_prox


class _Elastic(Checked):
    """Ω(w) = λ1 Σ |w_i| + ½ λ2 Σ w_i² of a frozen dataclass whose fields are strengths."""

    accepts = accepting(strength=STRENGTH, lambda1=STRENGTH, lambda2=STRENGTH)
    separable: ClassVar[bool] = True

    @property
    def elastic(self) -> tuple[float, float]:
        """(λ1, λ2)."""
        raise NotImplementedError

    def value(self, weights: Tensor) -> Tensor:
        """Return Ω(w), a scalar tensor."""
        lambda1, lambda2 = self.elastic
        total = weights.new_zeros(())
        if lambda1:
            total = total + lambda1 * weights.abs().sum()
        if lambda2:
            total = total + 0.5 * lambda2 * weights.square().sum()
        return total

    def prox(self, weights: Tensor, step: Tensor | float) -> Tensor:
        """Return the soft threshold by step · λ1, divided by 1 + step · λ2."""
        return elastic_prox(weights, step, *self.elastic)


@dataclass(frozen=True)
class L1(_Elastic):
    """Ω(w) = strength · Σ |w_i|; its prox is the soft threshold. 0.1 in Green et al. (2013)."""

    strength: float = 0.1
    lazy: ClassVar[bool] = True

    @property
    def elastic(self) -> tuple[float, float]:
        """(λ1, λ2)."""
        return self.strength, 0.0


@dataclass(frozen=True)
class L2(_Elastic):
    """Ω(w) = ½ strength · Σ w_i²; its prox divides by 1 + step · strength.

    Two steps are not one of the summed size, so it is not `lazy`; but optimizers put its steps
    off by another rule.
    """

    strength: float = 0.1
    lazy: ClassVar[bool] = False

    @property
    def elastic(self) -> tuple[float, float]:
        """(λ1, λ2)."""
        return 0.0, self.strength


@dataclass(frozen=True)
class ElasticNet(_Elastic):
    """Ω(w) = lambda1 · Σ |w_i| + ½ lambda2 · Σ w_i²: soft threshold, then division."""

    lambda1: float = 0.1
    lambda2: float = 0.1
    lazy: ClassVar[bool] = False

    @property
    def elastic(self) -> tuple[float, float]:
        """(λ1, λ2)."""
        return self.lambda1, self.lambda2


@dataclass(frozen=True)
class NoRegularizer(_Elastic):
    """Ω(w) = 0; its prox leaves weights as they are."""

    lazy: ClassVar[bool] = True
    elastic: ClassVar[tuple[float, float]] = (0.0, 0.0)


@dataclass(frozen=True)
class GroupLasso(Checked):
    """Ω(W) = strength · Σ_r ‖w_r‖₂ over the rows of W (Yuan and Lin, 2006): whole rows become 0.

    Its prox makes each row shorter by step · strength, and 0 where it is no longer than that. Rows
    are along the first dimension; those of a vector are its coordinates, for which this is `L1`.
    Yuan and Lin's strength has a factor for the size of groups, which here are of one.
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
        if isinstance(step, Tensor) and step.dim():
            step = step.view(-1, 1)
        return group_prox(_rows(weights), step, self.strength).view(weights.shape)


def _rows(weights: Tensor) -> Tensor:
    return weights.reshape(-1, 1) if weights.dim() < 2 else weights.flatten(1)

"""The l1 norm, the squared l2 norm, both of them, and none."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from torchtune_smt.core.accepts import Checked, accepting
from torchtune_smt.regularizers.base import STRENGTH, check_weights
from torchtune_smt.regularizers.ops import check_step, elastic_prox


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
    """Ω(w) = strength · Σ |w_i|; its prox is the soft threshold.

    strength: λ, 0 or more; 0.1 in Green et al. (2013).
    """

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

    strength: λ, 0 or more.
    """

    strength: float = 0.1

    lazy: ClassVar[bool] = False

    @property
    def elastic(self) -> tuple[float, float]:
        """(λ1, λ2)."""
        return 0.0, self.strength


@dataclass(frozen=True)
class ElasticNet(_Elastic):
    """Ω(w) = lambda1 · Σ |w_i| + ½ lambda2 · Σ w_i²: soft threshold, then division.

    lambda1, lambda2: 0 or more.
    """

    lambda1: float = 0.1
    lambda2: float = 0.1

    lazy: ClassVar[bool] = False

    @property
    def elastic(self) -> tuple[float, float]:
        """(λ1, λ2)."""
        return self.lambda1, self.lambda2


@dataclass(frozen=True)
class NoRegularizer:
    """Ω(w) = 0; its prox leaves weights as they are."""

    separable: ClassVar[bool] = True
    lazy: ClassVar[bool] = True
    elastic: ClassVar[tuple[float, float]] = (0.0, 0.0)

    def value(self, weights: Tensor) -> Tensor:
        """Return 0, a scalar tensor."""
        return weights.new_zeros(())

    def prox(self, weights: Tensor, step: Tensor | float) -> Tensor:
        """Return a copy of the weights."""
        check_weights(weights)
        check_step(step)
        return weights.clone()

"""OSCAR: an l1 norm, and a pairwise maximum norm that makes weights equal."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from torchtune_smt.core.accepts import Checked, accepting, integer
from torchtune_smt.core.scoring import sparse_vector
from torchtune_smt.regularizers.base import STRENGTH, dimension_error
from torchtune_smt.regularizers.ops import check_step, is_dual, oscar_prox


@dataclass(frozen=True)
class Oscar(Checked):
    """Ω(w) = lambda1 · Σ |w_i| + lambda2 · Σ_{i<j} max(|w_i|, |w_j|).

    Liu et al. (2013), Eq. 2. With |w| sorted in descending order, rank i of d has the weight
    lambda1 + lambda2 (d - i): a sorted l1 norm. Zeros take part in d alone, so all methods cost
    O(u log u) for the u weights that are not 0, given as a sparse vector.

    lambda1, lambda2: in the paper, 1e-10 and 3e-8.
    dimension: d; by default the length of the vector at hand. In the paper, 500,000.
    """

    accepts = accepting(lambda1=STRENGTH, lambda2=STRENGTH, dimension=integer(1).or_null())

    lambda1: float = 1e-10
    lambda2: float = 3e-8
    dimension: int | None = None

    separable: ClassVar[bool] = False
    lazy: ClassVar[bool] = True
    # Options beside these: strengths that are known later, from the data
    # (`torchtune_smt.tuners.grouping.minimum.BatchLearning`).
    later: ClassVar[tuple[str, ...]] = ("fraction", "noise")

    def value(self, weights: Tensor) -> Tensor:
        """Return Ω(w), a scalar tensor, of a vector, dense or sparse (COO)."""
        values = weights.coalesce().values() if weights.is_sparse else weights
        # Ranks and sums that half precision has not.
        magnitudes = values.abs().double().sort(descending=True).values
        dimension = self._dimension(weights)
        active = int(magnitudes.count_nonzero())
        if dimension < active:
            raise dimension_error(dimension, active)
        rank = torch.arange(magnitudes.numel(), device=magnitudes.device).to(magnitudes)
        below = (dimension - 1 - rank).clamp_min(0)
        total = ((self.lambda1 + self.lambda2 * below) * magnitudes).sum()
        return total.to(values.dtype)

    def prox(self, weights: Tensor, step: Tensor | float) -> Tensor:
        """Return argmin_v ½‖v - w‖² + step · Ω(v) of a vector, dense or sparse (COO).

        Raises ValueError, too, if more than `dimension` weights are not 0.
        """
        values, _ = self._prox(weights, step, False)
        if not weights.is_sparse:
            return values
        return sparse_vector(weights.coalesce().indices()[0], values, weights.numel())

    def groups(self, weights: Tensor, step: Tensor | float) -> tuple[Tensor, Tensor]:
        """Return the proximal point, and the groups of weights that are equal in it.

        Membership comes from the prox itself, not from a comparison of floating-point numbers. Of
        a sparse vector the results are those of its values.

        Returns weights (tensor [n])
        Returns group (int64 tensor [n]): equal for equal weights, sign included; 2 b for positive
            and 2 b + 1 for negative ones of block b, which count from 0 in descending order of |w|.
            -1 for those that are 0.
        """
        result, block = self._prox(weights, step, True)
        return result, torch.where(block < 0, block, 2 * block + (result < 0))

    def _dimension(self, weights: Tensor) -> int:
        return weights.numel() if self.dimension is None else self.dimension

    def _prox(self, weights: Tensor, step: Tensor | float, blocks: bool) -> tuple[Tensor, Tensor]:
        values = weights.coalesce().values() if weights.is_sparse else weights
        if weights.dim() != 1:
            raise ValueError(f"OSCAR is of a vector, not of shape {tuple(weights.shape)}")
        check_step(step)
        if isinstance(step, Tensor) and (step.requires_grad or is_dual(step)):
            raise ValueError("OSCAR's prox has a gradient of the weights alone: detach the step")
        strengths = float(step) * self.lambda1, float(step) * self.lambda2
        result: tuple[Tensor, Tensor] = oscar_prox(
            values, *strengths, self._dimension(weights), blocks
        )
        return result

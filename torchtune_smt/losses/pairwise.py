"""Losses on the margins of pairs, one small class each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor

from torchtune_smt.losses import slope_kernels as kernels
from torchtune_smt.losses.base import Reduced, Reduction


@dataclass(frozen=True)
class Hinge(Reduced):
    """ℓ(z) = max(0, 1 - z), whose derivative is -1 for z < 1 and 0 from 1 on.

    Liu et al. (2013), Eq. 1, who take a step on one pair at a time.
    """

    reduction: Reduction = "each"

    slope_kind: ClassVar[int] = kernels.HINGE

    def __call__(self, margins: Tensor) -> Tensor:
        """Return the loss of each pair."""
        return F.relu(1 - margins)  # relu has derivative 0 at 0, clamp has 1


@dataclass(frozen=True)
class Logistic(Reduced):
    """ℓ(z) = log(1 + e^-z), whose derivative is -1 / (1 + e^z).

    Green et al. (2013), Eq. 12, who sum over the pairs of a mini-batch.
    """

    reduction: Reduction = "sum"

    slope_kind: ClassVar[int] = kernels.LOGISTIC

    def __call__(self, margins: Tensor) -> Tensor:
        """Return the loss of each pair."""
        return -F.logsigmoid(margins)  # no margin overflows


@dataclass(frozen=True)
class Perceptron(Reduced):
    """ℓ(z) = max(0, -z), whose derivative is -1 for z ≤ 0, also at 0: else W = 0 would never move.

    Simianer et al. (2012), who take a step after each pair, in order.
    """

    reduction: Reduction = "each"

    slope_kind: ClassVar[int] = kernels.PERCEPTRON

    def __call__(self, margins: Tensor) -> Tensor:
        """Return the loss of each pair."""
        return (-margins).clamp_min(0)  # clamp has derivative 1 at 0, relu has 0

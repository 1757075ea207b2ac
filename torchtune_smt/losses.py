"""Losses on the margins of pairs, one small class each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

import torch.nn.functional as F
from torch import Tensor

Reduction = Literal["sum", "mean"]


class PairwiseLoss(Protocol):
    """A loss ℓ(z) of a pair's margin z = W·(H(better) - H(worse)).

    Its gradient comes from autograd, so a new loss is one expression of torch functions.

    Attributes
    ----------
    reduction : "sum" or "mean"
        How the pairs of a mini-batch make one number; see `reduce`.
    """

    @property
    def reduction(self) -> Reduction:
        """How the pairs of a mini-batch make one number."""
        ...

    def __call__(self, margins: Tensor) -> Tensor:
        """Return the loss of each pair (tensor [pairs]) from its margin (tensor [pairs])."""
        ...


@dataclass(frozen=True)
class Logistic:
    """ℓ(z) = log(1 + e^-z), whose derivative is -1 / (1 + e^z).

    Green et al. (2013), Eq. 12, who sum over the pairs of a mini-batch.

    Parameters
    ----------
    reduction : "sum" or "mean"
    """

    reduction: Reduction = "sum"

    def __post_init__(self) -> None:
        check_reduction(self.reduction)

    def __call__(self, margins: Tensor) -> Tensor:
        """Return the loss of each pair; no margin overflows."""
        return -F.logsigmoid(margins)


def reduce(losses: Tensor, reduction: Reduction) -> Tensor:
    """Return the sum or the mean of the losses of a mini-batch; 0 where there are none."""
    total = losses.sum()
    return total / losses.numel() if reduction == "mean" and losses.numel() else total


def check_reduction(reduction: str) -> None:
    """Raise ValueError if `reduction` is neither "sum" nor "mean"."""
    if reduction not in ("sum", "mean"):
        raise ValueError(f'reduction must be "sum" or "mean", not {reduction!r}')

"""Losses: on the margins of pairs, or on the scores of whole k-best lists."""

from torchtune_smt.losses.base import (
    ListwiseLoss,
    Loss,
    PairwiseLoss,
    Reduction,
    check_loss,
    is_listwise,
    loss_of_lists,
    reduce,
)
from torchtune_smt.losses.listwise import ExpectedGain, HopeFear, Ramp, Softmax
from torchtune_smt.losses.pairwise import Hinge, Logistic, Perceptron

__all__ = [
    "ExpectedGain",
    "Hinge",
    "HopeFear",
    "ListwiseLoss",
    "Logistic",
    "Loss",
    "PairwiseLoss",
    "Perceptron",
    "Ramp",
    "Reduction",
    "Softmax",
    "check_loss",
    "is_listwise",
    "loss_of_lists",
    "reduce",
]

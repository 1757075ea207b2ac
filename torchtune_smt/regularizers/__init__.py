"""Regularisers, one file each: value and proximal operator."""

from torchtune_smt.regularizers.base import Regularizer
from torchtune_smt.regularizers.l1 import L1
from torchtune_smt.regularizers.none import NoRegularizer

__all__ = ["L1", "NoRegularizer", "Regularizer"]

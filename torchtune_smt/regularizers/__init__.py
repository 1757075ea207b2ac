"""Regularisers: value and proximal operator."""

from torchtune_smt.regularizers.base import (
    Regularizer,
    check_regularizer,
    is_lazy,
    is_separable,
    is_separable_by_rows,
)
from torchtune_smt.regularizers.norms import L1, L2, ElasticNet, GroupLasso, NoRegularizer
from torchtune_smt.regularizers.oscar import Oscar

__all__ = [
    "L1",
    "L2",
    "ElasticNet",
    "GroupLasso",
    "NoRegularizer",
    "Oscar",
    "Regularizer",
    "check_regularizer",
    "is_lazy",
    "is_separable",
    "is_separable_by_rows",
]

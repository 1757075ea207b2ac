"""Regularisers, one file each: value and proximal operator."""

from torchtune_smt.regularizers.base import (
    Regularizer,
    check_regularizer,
    is_lazy,
    is_separable,
)
from torchtune_smt.regularizers.elastic_net import ElasticNet
from torchtune_smt.regularizers.l1 import L1
from torchtune_smt.regularizers.l2 import L2
from torchtune_smt.regularizers.none import NoRegularizer
from torchtune_smt.regularizers.oscar import Oscar

__all__ = [
    "L1",
    "L2",
    "ElasticNet",
    "NoRegularizer",
    "Oscar",
    "Regularizer",
    "check_regularizer",
    "is_lazy",
    "is_separable",
]

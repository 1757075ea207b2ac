"""Comparing systems."""

from torchtune_smt.evaluation.comparison import Comparison, Evaluation, SystemScore
from torchtune_smt.evaluation.oracle import Oracle, oracle_bleu

__all__ = [
    "Comparison",
    "Evaluation",
    "Oracle",
    "SystemScore",
    "oracle_bleu",
]

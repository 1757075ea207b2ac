"""Comparing systems, and what their features are worth elsewhere."""

from torchtune_smt.evaluation.comparison import Comparison, Evaluation, SystemScore
from torchtune_smt.evaluation.oracle import Oracle, oracle_bleu
from torchtune_smt.evaluation.reuse import Reuse, count_reuse, firing_features

__all__ = [
    "Comparison",
    "Evaluation",
    "Oracle",
    "Reuse",
    "SystemScore",
    "count_reuse",
    "firing_features",
    "oracle_bleu",
]

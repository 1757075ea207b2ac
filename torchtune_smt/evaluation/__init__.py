"""Systems compared: scores, significance, oracles, analyses, tables, pictures and reports."""

from torchtune_smt.evaluation.oracle import Oracle, oracle_bleu
from torchtune_smt.evaluation.significance import Comparison, Evaluation, SystemScore

__all__ = [
    "Comparison",
    "Evaluation",
    "Oracle",
    "SystemScore",
    "oracle_bleu",
]

"""N-gram language models: ARPA files, queries from compiled code, estimation."""

from torchtune_smt.lm.arpa import read_arpa, write_arpa
from torchtune_smt.lm.estimate import DISCOUNT_FALLBACK, estimate
from torchtune_smt.lm.model import NgramModel

__all__ = [
    "DISCOUNT_FALLBACK",
    "NgramModel",
    "estimate",
    "read_arpa",
    "write_arpa",
]

"""N-gram language models: ARPA files, queries from compiled code, estimation."""

from torchtune_smt.lm.arpa import read_arpa, write_arpa
from torchtune_smt.lm.estimate import DISCOUNT_FALLBACK, estimate
from torchtune_smt.lm.folds import build_folds, load_folds
from torchtune_smt.lm.model import NgramModel
from torchtune_smt.lm.ngrams import Ngrams
from torchtune_smt.lm.tables import LmTables, build_tables

__all__ = [
    "DISCOUNT_FALLBACK",
    "LmTables",
    "NgramModel",
    "Ngrams",
    "build_folds",
    "build_tables",
    "estimate",
    "load_folds",
    "read_arpa",
    "write_arpa",
]

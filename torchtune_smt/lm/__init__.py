"""N-gram language models: ARPA files, queries from compiled code, estimation."""

from torchtune_smt.lm.arpa import read_arpa, write_arpa
from torchtune_smt.lm.model import NgramModel
from torchtune_smt.lm.ngrams import Ngrams
from torchtune_smt.lm.tables import LmTables, build_tables

__all__ = ["LmTables", "NgramModel", "Ngrams", "build_tables", "read_arpa", "write_arpa"]

"""Samplers of pairs of hypotheses to be ranked, within one sentence's k-best list."""

from torchtune_smt.samplers.base import PairSampler, list_pairs, pair_rows, shuffled_gains
from torchtune_smt.samplers.pairs import AllPairs, Multipartite, ProSampler

__all__ = [
    "AllPairs",
    "Multipartite",
    "PairSampler",
    "ProSampler",
    "list_pairs",
    "pair_rows",
    "shuffled_gains",
]

"""Samplers of pairs of hypotheses to be ranked, within one sentence's k-best list."""

from torchtune_smt.samplers.base import PairSampler, list_pairs, pair_rows, shuffled_gains
from torchtune_smt.samplers.pro import ProSampler
from torchtune_smt.samplers.ranked import AllPairs, Multipartite

__all__ = [
    "AllPairs",
    "Multipartite",
    "PairSampler",
    "ProSampler",
    "list_pairs",
    "pair_rows",
    "shuffled_gains",
]

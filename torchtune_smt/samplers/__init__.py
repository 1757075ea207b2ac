"""Samplers of pairs of hypotheses to be ranked, within one sentence's k-best list."""

from torchtune_smt.samplers.base import (
    AllPairs,
    Multipartite,
    PairSampler,
    ProSampler,
    list_pairs,
    pair_rows,
    shuffled_gains,
)

__all__ = [
    "AllPairs",
    "Multipartite",
    "PairSampler",
    "ProSampler",
    "list_pairs",
    "pair_rows",
    "shuffled_gains",
]

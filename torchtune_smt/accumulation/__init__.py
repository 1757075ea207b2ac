"""k-best lists of several iterations, kept compactly, and what batch tuners take from them."""

from torchtune_smt.accumulation.accumulated_lists import AccumulatedLists
from torchtune_smt.accumulation.flat_lists import FlatLists
from torchtune_smt.accumulation.pair_rows import PairRows

__all__ = ["AccumulatedLists", "FlatLists", "PairRows"]

"""Comparing systems, and what their features are worth elsewhere."""

from torchtune_smt.evaluation.reuse import Reuse, count_reuse, firing_features
from torchtune_smt.evaluation.significance import Comparison, compare

__all__ = ["Comparison", "Reuse", "compare", "count_reuse", "firing_features"]

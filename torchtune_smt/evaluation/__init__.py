"""Comparing systems."""

from torchtune_smt.evaluation.significance import Comparison, compare

__all__ = ["Comparison", "compare"]

"""Tuning by groups of features that share a weight, and what learns the groups."""

from torchtune_smt.tuners.grouping.groups import FeatureGroups, read_groups, save_groups
from torchtune_smt.tuners.grouping.tuner import GroupedSolver, GroupingTuner

__all__ = ["FeatureGroups", "GroupedSolver", "GroupingTuner", "read_groups", "save_groups"]

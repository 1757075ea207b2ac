"""Tuning by groups of features that share a weight, and what learns the groups."""

from torchtune_smt.tuners.grouping.base import GroupLearner, LearntGroups
from torchtune_smt.tuners.grouping.groups import FeatureGroups, read_groups, save_groups
from torchtune_smt.tuners.grouping.minimum import BatchLearning
from torchtune_smt.tuners.grouping.prepared import PreparedLearning
from torchtune_smt.tuners.grouping.steps import GroupLearning, MixedLearning
from torchtune_smt.tuners.grouping.tuner import GroupedSolver, GroupingTuner, scale_solver

__all__ = [
    "BatchLearning",
    "FeatureGroups",
    "GroupLearner",
    "GroupLearning",
    "GroupedSolver",
    "GroupingTuner",
    "LearntGroups",
    "MixedLearning",
    "PreparedLearning",
    "read_groups",
    "save_groups",
    "scale_solver",
]

"""Solvers to which groups of features are features."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import cast

import numpy as np

from torchtune_smt.core.arrays import Float64
from torchtune_smt.core.rows import Rows
from torchtune_smt.kbest.lists import KBestLists
from torchtune_smt.samplers import PairSampler
from torchtune_smt.tuners.batch import PairSolver, Solution, Solver, checked_solution, wants_pairs
from torchtune_smt.tuners.feature_groups import FeatureGroups


@dataclass(frozen=True)
class GroupedSolver:
    """Finds one weight for each group of features, with a solver that sees groups as features.

    Parameters
    ----------
    solver : Solver
    groups : FeatureGroups
        Features in none of them get weight 0.
    """

    solver: Solver
    groups: FeatureGroups

    @property
    def takes_pairs(self) -> bool:
        """Whether the solver needs no more than pairs."""
        return wants_pairs(self.solver)

    @property
    def sampler(self) -> PairSampler:
        """What chooses the pairs of such a solver."""
        return cast(PairSolver, self.solver).sampler

    def solve(self, lists: KBestLists, start: Float64, seed: Sequence[int]) -> Solution:
        """Return weights of single features; see `Solver.solve`."""
        groups = self.groups
        rows = groups.project(lists.rows, start.size)
        projected = replace(lists, rows=rows, features=None)
        solution = self.solver.solve(projected, groups.mean(start), seed)
        return self._unpacked(solution, start.size)

    def solve_pairs(self, pairs: Rows, start: Float64, seed: Sequence[int]) -> Solution:
        """Return weights of single features; see `PairSolver.solve_pairs`."""
        groups = self.groups
        projected = groups.project(pairs, start.size)
        solution = cast(PairSolver, self.solver).solve_pairs(projected, groups.mean(start), seed)
        return self._unpacked(solution, start.size)

    def _unpacked(self, solution: Solution, dimension: int) -> Solution:
        found = checked_solution(solution, self.solver, len(self.groups))
        return replace(found, weights=self.groups.unpack(found.weights, dimension))


@dataclass(frozen=True)
class ScaleSolver:
    """Finds dense weights, and one factor of all sparse weights, whose ratios stay as they are.

    To the solver, Σ_j w_j H_j over sparse features is one feature, whose weight is 1 at the start
    of each iteration.

    Parameters
    ----------
    solver : Solver
    n_dense : int
        Ids below it are dense features.
    """

    solver: Solver
    n_dense: int

    @property
    def takes_pairs(self) -> bool:
        """Whether the solver needs no more than pairs."""
        return wants_pairs(self.solver)

    @property
    def sampler(self) -> PairSampler:
        """What chooses the pairs of such a solver."""
        return cast(PairSolver, self.solver).sampler

    def solve(self, lists: KBestLists, start: Float64, seed: Sequence[int]) -> Solution:
        """Return weights of single features; see `Solver.solve`."""
        return self._grouped(start).solve(lists, start, seed)

    def solve_pairs(self, pairs: Rows, start: Float64, seed: Sequence[int]) -> Solution:
        """Return weights of single features; see `PairSolver.solve_pairs`."""
        return self._grouped(start).solve_pairs(pairs, start, seed)

    def _grouped(self, start: Float64) -> GroupedSolver:
        together = np.where(start != 0.0, 0, -1)
        factor = np.where(start != 0.0, start, 1.0)
        factor[: self.n_dense] = 1.0
        return GroupedSolver(self.solver, FeatureGroups.of(together, self.n_dense, factor=factor))

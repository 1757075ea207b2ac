"""The solver that fits the number of features."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from torchtune_smt.core.accepts import Checked, accepting, integer
from torchtune_smt.core.arrays import Float64
from torchtune_smt.kbest.lists import KBestLists
from torchtune_smt.tuners.lines import candidates_of, search
from torchtune_smt.tuners.mert import Mert
from torchtune_smt.tuners.mira import KBestMira
from torchtune_smt.tuners.solver import Solution, check_start


@dataclass(frozen=True)
class Auto(Checked):
    """Search along lines for a few features, MERT for tens, expected errors for thousands.

    few: up to so many, `torchtune_smt.tuners.lines.search` finds the weights.
    tens: up to so many, `Mert`, with its defaults; above, `ExpectedErrors`, or, where the start's
        weights are 0, and say nothing of what is probable, `KBestMira`.
    """

    takes_measure: ClassVar[bool] = True

    accepts = accepting(few=integer(0), tens=integer(0))

    few: int = 4
    tens: int = 50

    def solve(self, lists: KBestLists, start: Float64, seed: Sequence[int]) -> Solution:
        """See `Solver.solve`."""
        active, rows = lists.rows.numbered()
        if active.size > self.tens:
            # It brings torch, which a few weights do without.
            from torchtune_smt.tuners.expected import ExpectedErrors

            many = ExpectedErrors() if start.any() else KBestMira()
            return many.solve(lists, start, seed)
        if active.size > self.few or active.size == 0:
            return Mert(max_features=self.tens).solve(lists, start, seed)
        check_start(lists, start)
        active, candidates = candidates_of(lists, (active, rows))
        begin = start[active]
        starts = [begin] if begin.any() else [np.ones(active.size)]
        weights = start.copy()
        weights[active] = search(candidates, starts, seed)
        score, before = (candidates.at(one) for one in (weights[active], begin))
        return Solution(weights, {"score": score, "start_score": before})

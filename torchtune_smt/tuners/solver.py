"""What finds weights on k-best lists: it is given them all, and decodes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, Protocol, TypeGuard, get_args, runtime_checkable

import numpy as np

from torchtune_smt.core.accepts import declared, one_of
from torchtune_smt.core.arrays import Float64, Int32
from torchtune_smt.core.checks import checked_numbers, described
from torchtune_smt.core.errors import DivergenceError, InputError
from torchtune_smt.core.rows import Rows
from torchtune_smt.core.snapshot import FrozenWeights, Snapshot
from torchtune_smt.kbest.lists import KBestLists
from torchtune_smt.kbest.store import ListStore
from torchtune_smt.samplers import PairSampler, pair_rows

Towards = Literal["zero", "start"]
"""What weights are pulled to."""
TOWARDS: Final = one_of(*get_args(Towards))


@dataclass(frozen=True)
class Solution:
    """Weights (float64 [D]) that were found on k-best lists, and numbers for the log, by name."""

    weights: Float64
    report: dict[str, float]


class Solver(Protocol):
    """Finds weights on k-best lists."""

    def solve(self, lists: KBestLists, start: Float64, seed: Sequence[int]) -> Solution:
        """Return weights for the lists.

        lists: with gains, and statistics of BLEU where there are some; ids of features are below D.
        start (float64 [D]): the weights so far.
        seed: names the random streams: equal seeds give equal weights.

        Raises InputError: the lists are none that this solver can work on.
        """


@runtime_checkable
class PairSolver(Protocol):
    """A solver that may need no more of the lists than pairs, which take less memory.

    takes_pairs: whether it does so now.
    """

    takes_pairs: bool
    sampler: PairSampler

    def solve_pairs(self, pairs: Rows, start: Float64, seed: Sequence[int]) -> Solution:
        """Return weights for pairs; else as `Solver.solve`."""


def wants_pairs(solver: Solver) -> TypeGuard[PairSolver]:
    """Say whether a solver takes pairs alone; one with a `solve` of its own has to say so anew."""
    return isinstance(solver, PairSolver) and bool(declared(solver, "takes_pairs", "solve"))


def check_start(lists: KBestLists, start: Float64) -> None:
    """Raise ValueError if a feature has no start weight: kernels look at no limits."""
    needed = int(lists.rows.feature.max(initial=-1)) + 1
    if start.ndim != 1 or start.size < needed:
        raise ValueError(f"there must be {needed} start weights or more, not {start.size}")


def statistics_of(lists: KBestLists) -> Int32 | Float64:
    """Return the statistics of lists; raise InputError if there are none."""
    if lists.statistics is None:
        raise InputError(
            "the lists have no statistics, of which a corpus score is computed; give references or "
            "Moses's scores.dat (in Python see torchtune_smt.measured), or tune with tuner=pro"
        )
    return lists.statistics


def solve_lists(solver: Solver, lists: ListStore, start: Float64, seed: Sequence[int]) -> Solution:
    """Return what a solver finds on stored lists; see `Solver.solve` and `checked_solution`."""
    lists.require(start.size)
    # A solver may work in the weights that it is given.
    begin = start.copy()
    if wants_pairs(solver):
        found = solver.solve_pairs(pair_rows(lists, solver.sampler, seed), begin, seed)
    else:
        found = solver.solve(lists.lists(), begin, seed)
    return checked_solution(found, solver, start.size)


def checked_solution(solution: Any, solver: object, dimension: int) -> Solution:
    """Return what a solver, perhaps of a user's class, has found, with weights in float64.

    Raises InputError: it is not a weight for each feature. DivergenceError: a weight is not finite.
    """
    name = type(solver).__name__
    if not isinstance(solution, Solution):
        raise InputError(
            f"{name} must return a torchtune_smt.tuners.solver.Solution, and returned "
            f"{described(solution)}"
        )
    must = f"{name} must find a weight for each feature,"
    found = checked_numbers(solution.weights, (dimension,), must)
    if not np.isfinite(found).all():
        raise DivergenceError(
            f"{name} has found weights that are not finite: lower the learning rate if there is "
            "one, and check the feature values of the k-best lists"
        )
    return replace(solution, weights=found)


def tune(
    lists: KBestLists, solver: Solver, start: Snapshot | None = None, seed: Sequence[int] = (0,)
) -> FrozenWeights:
    """Return weights for k-best lists.

    lists: with names of features, and whatever the solver needs: gains, statistics of BLEU (see
        `torchtune_smt.metrics.lists.measured`).
    solver: `Stochastic` takes any loss, sampler and optimizer; others are `Pro`, `KBestMira`,
        `Mert`.
    start: the weights so far; by default all are 0.
    """
    if lists.features is None:
        raise ValueError("these lists have no names of features")
    dimension = len(lists.features)
    first = np.zeros(dimension)
    if start is not None:
        first = start.read(lists.features, np.arange(dimension))
    found = checked_solution(solver.solve(lists, first, seed), solver, dimension)
    return FrozenWeights(lists.features, found.weights)

"""Batch tuning: decode all sentences, add to the k-best lists, find weights on all of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, Protocol, TypeGuard, runtime_checkable

import numpy as np
import torch

from torchtune_smt.core.accepts import above, accepting, declared, least
from torchtune_smt.core.archive import DAMAGED, well_formed, whole
from torchtune_smt.core.arrays import Float64
from torchtune_smt.core.checks import checked_numbers, described
from torchtune_smt.core.errors import DivergenceError, InputError
from torchtune_smt.core.rows import Rows
from torchtune_smt.core.snapshot import FrozenWeights, Snapshot
from torchtune_smt.kbest.lists import KBestLists
from torchtune_smt.kbest.store import ListStore
from torchtune_smt.metrics.base import Score
from torchtune_smt.samplers import PairSampler, pair_rows
from torchtune_smt.tuners.base import Report, Tuner
from torchtune_smt.tuners.collect import Collector


@dataclass(frozen=True)
class Solution:
    """Weights that were found on k-best lists.

    weights (float64 [D])
    report: what the log is to have, by name: a loss, a number of pairs.
    """

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
        ...


@runtime_checkable
class PairSolver(Protocol):
    """A solver that may need no more of the lists than pairs, which take less memory.

    takes_pairs: whether it does so now.
    sampler: chooses the pairs.
    """

    takes_pairs: bool
    sampler: PairSampler

    def solve_pairs(self, pairs: Rows, start: Float64, seed: Sequence[int]) -> Solution:
        """Return weights for pairs; else as `Solver.solve`."""
        ...


def wants_pairs(solver: Solver) -> TypeGuard[PairSolver]:
    """Say whether a solver takes pairs alone; one with a `solve` of its own has to say so anew."""
    return isinstance(solver, PairSolver) and bool(declared(solver, "takes_pairs", "solve"))


def check_start(lists: KBestLists, start: Float64) -> None:
    """Raise ValueError if a feature has no start weight, or one of them is not finite."""
    needed = int(lists.rows.feature.max(initial=-1)) + 1
    if start.ndim != 1 or start.size < needed:
        raise ValueError(f"there must be {needed} start weights or more, not {start.size}")
    if not np.isfinite(start).all():
        raise ValueError("a start weight is not finite")


def solve_lists(solver: Solver, lists: ListStore, start: Float64, seed: Sequence[int]) -> Solution:
    """Return what a solver finds on stored lists; see `Solver.solve`.

    Raises InputError: the lists are none that this solver can work on, or what it finds is not a
    weight for each feature. DivergenceError: a weight that it finds is not finite.
    """
    lists.require(start.size)
    # A solver may work in the weights that it is given.
    begin = start.copy()
    if wants_pairs(solver):
        pairs = pair_rows(lists, solver.sampler, seed)
        return checked_solution(solver.solve_pairs(pairs, begin, seed), solver, start.size)
    return checked_solution(solver.solve(lists.lists(), begin, seed), solver, start.size)


def checked_solution(solution: Any, solver: object, dimension: int) -> Solution:
    """Return what a solver, perhaps of a user's class, has found, with weights in float64.

    Raises InputError: it is not a weight for each feature. DivergenceError: a weight is not finite.
    """
    name = type(solver).__name__
    if not isinstance(solution, Solution):
        raise InputError(
            f"{name} must return a torchtune_smt.tuners.batch.Solution, and returned "
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
    seed: equal seeds give equal weights.

    Raises ValueError: the lists have no names of features. InputError: the lists are none that the
    solver can work on.
    """
    if lists.features is None:
        raise ValueError("these lists have no names of features")
    dimension = len(lists.features)
    first = np.zeros(dimension)
    if start is not None:
        first = start.read(lists.features, np.arange(dimension))
    found = checked_solution(solver.solve(lists, first, seed), solver, dimension)
    return FrozenWeights(lists.features, found.weights)


@dataclass(eq=False, repr=False)
class BatchTuner(Tuner):
    """Finds weights on the k-best lists of all iterations.

    Iteration i decodes the sentences with W^(i-1), adds to their lists, and finds W^i on these.

    collector: its lists are empty, or those of the run that is taken up again.
    interpolation: Ψ in (0, 1]: W ← Ψ W_new + (1 - Ψ) W_old.
    tolerance: the run is over where decoding brings nothing new and the last iteration has moved no
        weight by more than this share of the largest one.
    dimension: returns OSCAR's d, where it took part in the last solution.

    As attributes:
    earlier: iterations of the lists that were there before; weights are found on all of them.
    moved: in the last iteration: the largest change of a weight, as a share of the largest weight.
    """

    advice = "fewer features, more sentences, longer lists, another tuner or tuner.patience=null"

    accepts = accepting(interpolation=above(0, 1), tolerance=least(0, infinite=True))

    collector: Collector
    solver: Solver
    _: KW_ONLY
    interpolation: float = 1.0
    tolerance: float = 1e-3
    seed: int = 0
    dimension: Callable[[], int | None] = lambda: None

    def __post_init__(self) -> None:
        super().__post_init__()
        self.weights = self.collector.weights
        self.begin()

    def begin(self) -> None:
        """Begin a run of iterations; those that the lists have are earlier ones."""
        self.earlier = self.collector.lists.n_iterations
        self.moved = float("inf")
        # Of the iteration under way: what its solution has to say, and when it began.
        self._numbers: dict[str, float] = {}
        self._clock, self._solving = time.perf_counter(), 0.0

    def score(self) -> Score:
        """Decode with the weights as they are, for the next iteration; return what comes out.

        Where the sentences tuned on are those that weights are to be evaluated on, this is the
        evaluation, and nothing is decoded twice.
        """
        return self.collector.collect(self.show).score

    def round(self, number: int, done: int = 0) -> Iterator[Report]:
        """Do an iteration; none if decoding brings nothing new and weights no longer move."""
        self._clock = time.perf_counter()
        if done:
            return
        weights, lists = self.weights, self.collector.lists
        iteration = self.earlier + number
        if lists.n_iterations < iteration:
            self.collector.collect(self.show)
        if lists.sizes[iteration - 1] == 0 and self.moved <= self.tolerance:
            return
        weights.grow()
        start: Float64 = weights.parameter.detach().to("cpu", torch.float64, copy=True).numpy()
        decoded = time.perf_counter()
        solution = solve_lists(self.solver, lists, start, (self.seed, iteration))
        self._solving = time.perf_counter() - decoded
        share = self.interpolation
        mixed = share * solution.weights + (1 - share) * start
        largest = float(np.abs(mixed).max(initial=0.0))
        self.moved = float(np.abs(mixed - start).max(initial=0.0)) / largest if largest > 0 else 0.0
        weights.parameter.data[:] = torch.from_numpy(mixed)
        sizes = lists.sizes[:iteration]
        self._numbers = {
            "lists/hypotheses": sum(sizes),
            "lists/new": sizes[-1],
            **{f"fit/{name}": value for name, value in solution.report.items()},
            "fit/moved": self.moved,
        }
        yield Report("step", sentences=len(self.collector.sentences))

    def summary(self, kept: bool) -> Report:
        """Return what the iteration did."""
        numbers, d = dict(self._numbers), self.dimension()
        if d is not None:
            numbers["oscar/dimension"] = d
        seconds = time.perf_counter() - self._clock
        numbers |= {"speed/seconds": seconds, "speed/seconds_fitting": self._solving}
        active = int(self.weights.parameter.count_nonzero())
        text = (
            f"{numbers['lists/new']:,} new hypotheses of {numbers['lists/hypotheses']:,}, "
            f"{active:,} active features, {seconds:.0f} s{'' if d is None else f', d = {d:,}'}"
        )
        # Those that the next iteration begins with.
        lists = self.collector.lists
        held = (
            f"; holding the lists of {lists.n_iterations} iterations ({lists.nbytes / 1e6:,.1f} MB)"
        )
        return Report("round", numbers, text + held)

    def state_dict(self) -> dict[str, Any]:
        """Return what there is besides weights; the lists are in their folder."""
        return {
            "lists": self.collector.lists.state_dict(),
            "earlier": self.earlier,
            "moved": self.moved,
            "numbers": self._numbers,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """See `Tuner`; the lists must be those of the run."""
        with well_formed():
            lists, moved = state_dict["lists"], state_dict["moved"]
            numbers = dict(state_dict["numbers"])
            earlier = whole(state_dict["earlier"], 0, lists["iterations"])
        if {type(value) for value in numbers.values()} - {int, float} or type(moved) is not float:
            raise ValueError(DAMAGED)
        self.collector.lists.load_state_dict(lists)
        self.earlier, self.moved, self._numbers = earlier, moved, numbers

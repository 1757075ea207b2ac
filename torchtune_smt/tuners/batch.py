"""Batch tuning: decode all sentences, add to the k-best lists, find weights on all of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, TypeGuard, get_args, runtime_checkable

import numpy as np
import torch

from torchtune_smt.core.arrays import Float64
from torchtune_smt.core.errors import DivergenceError
from torchtune_smt.core.rows import Rows
from torchtune_smt.core.shortcuts import declared
from torchtune_smt.core.weights import Weights
from torchtune_smt.kbest.accumulated_lists import AccumulatedLists
from torchtune_smt.kbest.flat_lists import FlatLists
from torchtune_smt.runs.epochs import Progress, check_ending, set_weights
from torchtune_smt.samplers.pairs import PairSampler
from torchtune_smt.tuners.collect import Collector

Result = Literal["best", "last"]


@dataclass(frozen=True)
class Solution:
    """Weights that were found on k-best lists.

    Attributes
    ----------
    weights : float64 [D]
    report : dict of str to float
        What the log is to have, by name: a loss, a number of pairs.
    """

    weights: Float64
    report: dict[str, float]


class Solver(Protocol):
    """Finds weights on k-best lists."""

    def solve(self, lists: FlatLists, start: Float64, seed: Sequence[int]) -> Solution:
        """Return weights for the lists.

        Parameters
        ----------
        lists : FlatLists
        start : float64 [D]
            The weights so far.
        seed : sequence of int
            Names the random streams: equal seeds give equal weights.

        Raises
        ------
        InputError
            The lists are none that this solver can work on.
        """
        ...


@runtime_checkable
class PairSolver(Protocol):
    """A solver that may need no more of the lists than pairs, which take less memory.

    Attributes
    ----------
    takes_pairs : bool
        Whether it does so now.
    sampler : PairSampler
    """

    @property
    def takes_pairs(self) -> bool:
        """Whether pairs are enough."""
        ...

    @property
    def sampler(self) -> PairSampler:
        """What chooses the pairs."""
        ...

    def solve_pairs(self, pairs: Rows, start: Float64, seed: Sequence[int]) -> Solution:
        """Return weights for pairs; else as `Solver.solve`."""
        ...


def wants_pairs(solver: Solver) -> TypeGuard[PairSolver]:
    """Say whether a solver takes pairs alone; one with a `solve` of its own has to say so anew."""
    return isinstance(solver, PairSolver) and bool(declared(solver, "takes_pairs", "solve"))


def check_start(lists: FlatLists, start: Float64) -> None:
    """Raise ValueError if there are not D start weights, or not all are finite."""
    if start.shape != (lists.dimension,):
        raise ValueError(f"there must be {lists.dimension} start weights, not {start.size}")
    if not np.isfinite(start).all():
        raise ValueError("a start weight is not finite")


def solve_lists(
    solver: Solver, lists: AccumulatedLists, start: Float64, seed: Sequence[int]
) -> Solution:
    """Return what a solver finds on accumulated lists; see `Solver.solve`."""
    if wants_pairs(solver):
        lists.require(start.size)
        return solver.solve_pairs(lists.pair_rows(solver.sampler, seed), start, seed)
    return solver.solve(lists.flat(start.size), start, seed)


@dataclass(frozen=True)
class IterationSettings:
    """How weights are taken over, when tuning ends, and with which weights.

    Parameters
    ----------
    iterations : int
        At most.
    patience : int, optional
        Stop after this many iterations without a better score.
    interpolation : float
        Ψ in (0, 1]: W ← Ψ W_new + (1 - Ψ) W_old.
    tolerance : float
        Stop, too, where decoding brings nothing new and the last iteration has moved no weight by
        more than this share of the largest one.
    result : {"best", "last"}
        Weights of the iteration with the best score (or the start's, if its score is known and none
        is better), or of the last one.

    Raises
    ------
    ValueError
        A value is out of range.
    """

    iterations: int = 15
    patience: int | None = 3
    interpolation: float = 1.0
    tolerance: float = 1e-3
    result: Result = "best"

    def __post_init__(self) -> None:
        check_ending("iterations", self.iterations, self.patience, self.result, get_args(Result))
        if not 0 < self.interpolation <= 1:
            raise ValueError(
                f"interpolation must be above 0 and at most 1, not {self.interpolation}"
            )
        if not self.tolerance >= 0:
            raise ValueError(f"tolerance must be 0 or more, not {self.tolerance}")


@dataclass(frozen=True)
class IterationReport:
    """What one iteration did.

    Attributes
    ----------
    iteration : int
        From 1.
    hypotheses, new : int
        In the lists that weights were found on; of these, those that came last.
    score : float
        Of the new weights.
    fit : dict of str to float
        See `Solution.report`.
    seconds, fitting : float
        Wall-clock time of all, and of finding weights in it.
    """

    iteration: int
    hypotheses: int
    new: int
    score: float
    fit: dict[str, float]
    seconds: float
    fitting: float


def tune_batch(
    collector: Collector,
    solver: Solver,
    settings: IterationSettings,
    evaluate: Callable[[], float] | None,
    *,
    seed: int = 0,
    earlier: int = 0,
    progress: Progress | None = None,
    on_iteration: Callable[[IterationReport, Progress], None] = lambda report, progress: None,
    save: Callable[[Progress], None] = lambda progress: None,
) -> Progress:
    """Run the iterations of a batch tuner and leave the resulting weights in place.

    Iteration i decodes the sentences with W^(i-1), adds to their lists, and finds W^i on these.

    Parameters
    ----------
    collector : Collector
        With lists that have `earlier` iterations, and one for each one done (and one more if
        `evaluate` is None).
    solver : Solver
    settings : IterationSettings
    evaluate : callable, optional
        Returns the score (larger is better) of the weights as they are. None: it is corpus BLEU of
        the collector's sentences, which comes with the lists of the next iteration.
    seed : int
    earlier : int
        Iterations of the lists that were there before the run; weights are found on all of them.
    progress : Progress, optional
        Where an earlier run stopped; weights and lists are as they were then. Or one that has noted
        the score of the start. If none is noted and `evaluate` is None, the first lists tell it.
    on_iteration : callable
        Told what happened.
    save : callable
        Called after each iteration, when the state may be saved.

    Raises
    ------
    DivergenceError
        A weight is not finite.
    """
    progress = progress or Progress()
    weights, lists = collector.weights, collector.lists
    while progress.epoch <= settings.iterations and not progress.is_stale(settings.patience):
        begin = time.perf_counter()
        iteration = earlier + progress.epoch
        if lists.n_iterations < iteration:
            collected = collector.collect()
            if evaluate is None and progress.best is None:
                progress.note_start(collected.bleu, weights.parameter)
        sizes = lists.sizes[:iteration]
        if sizes[-1] == 0 and progress.moved <= settings.tolerance:
            break
        start = _current(weights)
        decoded = time.perf_counter()
        solution = solve_lists(solver, lists, start, (seed, iteration))
        fitting = time.perf_counter() - decoded
        progress.moved = _interpolate(weights, start, solution.weights, settings.interpolation)
        score = collector.collect().bleu if evaluate is None else evaluate()
        progress.compare(score, weights.parameter.detach()[: start.size])
        progress.sentences += len(collector.sentences)
        seconds = time.perf_counter() - begin
        report = IterationReport(
            progress.epoch, sum(sizes), sizes[-1], score, solution.report, seconds, fitting
        )
        on_iteration(report, progress)
        progress.epoch += 1
        save(progress)
    if settings.result == "best" and progress.best is not None:
        weights.grow()
        set_weights(weights.parameter, progress.best.weights)
    return progress


def _current(weights: Weights) -> Float64:
    """Return a copy of the weights of all features known."""
    weights.grow()
    values: Float64 = weights.parameter.detach().to("cpu", torch.float64, copy=True).numpy()
    return values


def _interpolate(weights: Weights, old: Float64, new: Float64, share: float) -> float:
    """Set weights to a mean of new and old; return the largest change over the largest weight."""
    mixed = share * new + (1 - share) * old
    if not np.isfinite(mixed).all():
        raise DivergenceError(
            "a weight is not finite after fitting: check the feature values, and the learning rate "
            "if the tuner has one"
        )
    set_weights(weights.parameter, torch.from_numpy(mixed))
    largest = float(np.abs(mixed).max(initial=0.0))
    change = float(np.abs(mixed - old).max(initial=0.0))
    return change / largest if largest > 0 else 0.0

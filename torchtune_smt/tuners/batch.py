"""Batch tuning: decode all sentences, add to the k-best lists, find weights on all of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import KW_ONLY, dataclass
from typing import Any, Final, NamedTuple

import numpy as np
import torch

from torchtune_smt.core.accepts import above, accepting, least
from torchtune_smt.core.archive import DAMAGED, well_formed, whole
from torchtune_smt.core.arrays import Float64, Int64
from torchtune_smt.core.errors import InputError
from torchtune_smt.core.weights import Weights
from torchtune_smt.decoders.base import Decoder
from torchtune_smt.kbest.lists import KBestLists
from torchtune_smt.kbest.measure import BLEU, Measure
from torchtune_smt.kbest.sentences import ELSEWHERE, Sentences
from torchtune_smt.kbest.store import ListStore
from torchtune_smt.metrics.base import BoundMetric, Judge, Score
from torchtune_smt.metrics.bleu import BleuReferences
from torchtune_smt.metrics.corpus import bleu_scores
from torchtune_smt.tuners.base import Report, Show, Tuner, silent
from torchtune_smt.tuners.learner import take

# `Solution` stands here for classes of users, too.
from torchtune_smt.tuners.solver import Solution as Solution
from torchtune_smt.tuners.solver import Solver, solve_lists

# Sentences decoded between two reports.
_BATCH: Final = 64


class Collected(NamedTuple):
    """New hypotheses, the score of the best ones, and how long a pass over the sentences took."""

    new: int
    score: Score
    seconds: float


@dataclass(eq=False, repr=False)
class Collector:
    """Decodes sentences with the weights of the moment and adds to their k-best lists.

    sentences: one at least.
    metric: of the gains.
    name: what the sentences are called, where it is shown how many have been decoded.
    measure: what weights are chosen by: of the statistics of the lists.
    """

    decoder: Decoder
    weights: Weights
    sentences: Sentences
    metric: BoundMetric
    lists: ListStore
    name: str = ""
    measure: Measure = BLEU

    def __post_init__(self) -> None:
        references = self.sentences.references if self.sentences.has_references else []
        if self.measure != BLEU:
            # Which may be without words.
            references = [row if any(row) else ELSEWHERE for row in references]
        self._references = BleuReferences(references, self.decoder.words)
        self._judge = Judge(self.metric, self.measure)

    def collect(self, show: Show = silent) -> Collected:
        """Decode all sentences, and end an iteration of the lists.

        Raises InputError: all lists have one hypothesis.
        """
        start = time.perf_counter()
        total, sums = np.zeros(10, np.int64), np.zeros(self.measure.width)
        done, sources = 0, self.sentences.sources
        for lists in self._decoded():
            lists = self._add(lists, total, sums)
            self.lists.add(lists)
            done += len(lists)
            show(f"decoding {self.name}".rstrip(), done, len(sources), "sent")
        new = self.lists.end_iteration()
        if self.lists.n_hypotheses <= len(self.sentences):
            raise InputError(
                "every list has one hypothesis, which leaves nothing to choose and to learn from; "
                "let lists be longer (decoder.k)"
            )
        return Collected(new, self._score(total, sums), time.perf_counter() - start)

    def score(self) -> Score:
        """Return the score of the weights of the moment, and leave the lists as they are."""
        total, sums = np.zeros(10, np.int64), np.zeros(self.measure.width)
        for lists in self._decoded():
            self._add(lists.chosen(lists.begin[:-1]), total, sums)
        return self._score(total, sums)

    def _add(self, lists: KBestLists, total: Int64, sums: Float64) -> KBestLists:
        """Return lists with statistics and gains; add BLEU's and the measure's of the best."""
        if self.measure == BLEU:
            lists = self._references.with_statistics(lists)
        lists = self._judge.judged(lists)
        best = lists.chosen(lists.begin[:-1])
        counts = self._references.with_statistics(best).statistics
        assert best.statistics is not None and counts is not None
        # Column by column, as a mean is summed.
        sums += best.statistics.T.copy().sum(axis=1)
        total += counts.sum(axis=0, dtype=np.int64)
        return lists

    def _score(self, total: Int64, sums: Float64) -> Score:
        bleu = float(bleu_scores(total))
        return Score(bleu if self.measure == BLEU else self._judge.of_sums(sums), bleu)

    def _decoded(self) -> Iterator[KBestLists]:
        for lists in self.decoder.decode_all(self.sentences.sources, self.weights, _BATCH):
            yield take(self.weights, lists)


@dataclass(eq=False, repr=False)
class BatchTuner(Tuner):
    """Finds weights on the k-best lists of all iterations.

    Iteration i decodes the sentences with W^(i-1), adds to their lists, and finds W^i on these.

    collector: its lists are empty, or those of the run that is taken up again.
    interpolation: Ψ in (0, 1]: W ← Ψ W_new + (1 - Ψ) W_old.
    tolerance: the run is over where decoding brings nothing new and the last iteration has moved no
        weight by more than this share of the largest one, which is `moved`.
    dimension: returns OSCAR's d, where it took part in the last solution.
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

        Where weights are evaluated on the sentences tuned on, nothing is decoded twice.
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
        held, size = self.collector.lists.n_iterations, self.collector.lists.nbytes / 1e6
        text += f"; holding the lists of {held} iterations ({size:,.1f} MB)"
        return Report("round", numbers, text)

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

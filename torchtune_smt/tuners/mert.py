"""Minimum error rate training (MERT), and the solver that fits the number of features."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from torchtune_smt.core.accepts import Checked, above, accepting, integer
from torchtune_smt.core.arrays import Float64
from torchtune_smt.core.errors import InputError
from torchtune_smt.kbest.lists import KBestLists
from torchtune_smt.kbest.lists_kernels import best
from torchtune_smt.kbest.measure import BLEU
from torchtune_smt.tuners import lines
from torchtune_smt.tuners import mert_kernels as kernels
from torchtune_smt.tuners.lines import Candidates, candidates_of
from torchtune_smt.tuners.mira import KBestMira
from torchtune_smt.tuners.solver import Solution, check_start, statistics_of

GAIN = 1e-6  # a round that gains less (of BLEU in 0..1) is the last one
BEHIND = 0.3  # of what its first round gains: restarts that are behind by more are given up
NARROW = 1e-7  # an interval as narrow as this part of the weights is rounding's, not theirs
FAR = 1.0  # as many times the weights, a step along a line may move them


@dataclass(frozen=True)
class Mert(Checked):
    """Minimum error rate training: Och (2003), for a few dense features.

    Maximises the corpus score of the best hypotheses, by the measure of the lists' statistics:
    BLEU, an error rate, the mean of a column. Along a line W + γ d it changes only where the
    best hypothesis of some list does; all these thresholds are found that move W by up to its
    length, and γ is the middle of the interval with the best score. Rounds of such line searches,
    in random order along the axes and along some random directions, new in each round, climb until
    one gains nothing.

    The first climb begins at the given weights, each restart at the best ones so far, moved at
    random. A restart whose first round ends below the best score by more than 0.3 of what it has
    gained is given up: later rounds gain less. BLEU is sacrebleu's without smoothing, 0 where some
    order has no match in the corpus.

    Weights of 0 leave lists in the order that they came in, which no other weights may reach. They
    rank nothing, so a climb from them would have nowhere to begin: it begins at random weights
    instead, and its result is never 0, even where the order of the lists has the better score.

    Features are measured by how far they spread within the lists: random directions and moves are
    normal noise in these units. What is equal in all hypotheses of each list has no effect, and
    its weight is left alone. The score does not depend on the scale of the others: they keep the l1
    norm that they had at the start (1 if they were all 0).

    restarts, random_directions: 20, in each round, in Green et al. (2013).
    spread: how far restarts move: the size of the noise in proportion to that of the weights.
    max_features: more are refused: each round costs a line search along each.
    """

    takes_measure: ClassVar[bool] = True

    accepts = accepting(
        restarts=integer(0), random_directions=integer(0), spread=above(0), max_features=integer(1)
    )

    restarts: int = 20
    random_directions: int = 20
    spread: float = 0.2
    max_features: int = 50

    def solve(self, lists: KBestLists, start: Float64, seed: Sequence[int]) -> Solution:
        """Return the weights of the best score that was found; see `Solver.solve`.

        It is never worse than the start's, unless that has no weight that makes a difference. The
        report has `bleu` on the lists (0..1) and that of the start, `start_bleu`, or `score` and
        `start_score` of another measure (larger is better).

        Raises InputError: the lists have no statistics, or more than `max_features` features.
        """
        active, rows = lists.rows.numbered()
        if active.size > self.max_features:
            raise InputError(
                f"the lists have {active.size:,} features, and MERT takes up to "
                f"{self.max_features} (max_features); leave the sparse ones out (features=dense, "
                "decoder.features=dense for stored lists), or take a tuner for many features, such "
                "as mira or pro"
            )
        check_start(lists, start)
        generator = np.random.default_rng(seed)
        unit, scale = candidates_of(lists, (active, rows))[1].standard()
        feature, scale = active[scale > 0], scale[scale > 0]
        search = _Search(unit, lists.measure.code)
        old = start[feature]
        norm = float(np.abs(old).sum()) or 1.0
        first = old * scale if old.any() else generator.standard_normal(old.size)
        point, score = self._climb(search, _unit(first), generator)
        for _ in range(self.restarts):
            noise = generator.standard_normal(point.size) / math.sqrt(max(point.size, 1))
            begin = _unit(point + self.spread * noise)
            other, reached = self._climb(search, begin, generator, score)
            if reached > score:
                point, score = other, reached
        weights = start.copy()
        new = point / scale
        weights[feature] = new * (norm / (float(np.abs(new).sum()) or 1.0))
        # The last word is with the lists as they are, not with what rounding made of them.
        before, score = _score(lists, start), _score(lists, weights)
        if score <= before and old.any():
            weights, score = start.copy(), before
        name = "bleu" if lists.measure == BLEU else "score"
        done = {"restarts": float(self.restarts), "line_searches": float(search.count)}
        return Solution(weights, {name: score, f"start_{name}": before, **done})

    def _climb(
        self, search: _Search, point: Float64, draw: np.random.Generator, known: float = -math.inf
    ) -> tuple[Float64, float]:
        """Return a point from which no round of line searches gains, and its score.

        It is given up after a first round that leaves it far below a score that is known.
        """
        axes = np.eye(point.size)
        first = score = search.begin(point)
        while True:
            before = score
            noise = draw.standard_normal((self.random_directions, point.size))
            directions = draw.permutation(np.concatenate([axes, noise]))
            units = np.array([_unit(direction) for direction in directions])
            for unit, slope in zip(units, search.slopes(units), strict=True):
                gamma, score = search.move(slope, score)
                point = point + gamma * unit
            norm = float(np.linalg.norm(point)) or 1.0
            point = point / norm
            search.offset /= norm
            behind = before == first and known - score > BEHIND * (score - first)
            if score - before < GAIN or behind:
                return point, score


class _Search:
    """Line searches over lists, in features of unit spread; `offset` has the scores of now."""

    def __init__(self, unit: Candidates, code: Float64) -> None:
        self._unit, self._code = unit, code
        self.count = 0
        self.offset = np.empty(unit.features.shape[1])
        self._chosen = np.empty(unit.begin.size - 1, np.int64)

    def begin(self, point: Float64) -> float:
        """Go to a point; return the score there."""
        kernels.combine(self._unit.features, point[None], self.offset[None])
        return self._score()

    def slopes(self, directions: Float64) -> Float64:
        """Return how fast the scores of hypotheses grow along directions (rows)."""
        found = np.empty((len(directions), self.offset.size))
        kernels.combine(self._unit.features, directions, found)
        return found

    def move(self, slope: Float64, score: float) -> tuple[float, float]:
        """Go from the present point, which has this score, to the best one along a direction.

        Returns how far that is, 0 unless the score grows, and the score there.
        """
        self.count += 1
        lines = self._unit.changes(self.offset, slope, self._chosen, FAR)
        of = self._unit.statistics
        promised, gamma = kernels.sweep(*lines, of, self._code, NARROW, FAR)
        if promised <= score or gamma == 0.0:
            return 0.0, score
        self.offset += gamma * slope
        found = self._score()
        if found > score:
            return gamma, found
        # Rounding broke the promise.
        self.offset -= gamma * slope
        return 0.0, score

    def _score(self) -> float:
        best(self._unit.begin, self.offset, self._chosen)
        return float(kernels.chosen_score(self._unit.statistics, self._chosen, self._code))


def _unit(vector: Float64) -> Float64:
    return vector / (float(np.linalg.norm(vector)) or 1.0)


def _score(lists: KBestLists, weights: Float64) -> float:
    chosen = lists.best(weights)
    return float(kernels.chosen_score(statistics_of(lists), chosen, lists.measure.code))


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
        weights[active] = lines.search(candidates, starts, seed)
        score, before = (candidates.at(one) for one in (weights[active], begin))
        return Solution(weights, {"score": score, "start_score": before})

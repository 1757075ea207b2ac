"""Rounds of tuning: evaluation after each, the best one kept, stopped and taken up again."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, NamedTuple

import torch

from torchtune_smt.core.accepts import integer, one_of
from torchtune_smt.core.errors import DivergenceError
from torchtune_smt.kbest.measure import BLEU, Measure
from torchtune_smt.metrics.base import Score
from torchtune_smt.tuners.base import Report, Tuner


class Best(NamedTuple):
    """The best round so far: its number, its score, its weights [D then].

    Number 0 is the start: the weights before the first one.
    """

    round: int
    score: float
    weights: torch.Tensor


@dataclass
class Progress:
    """How far tuning has come, and what has come out.

    round: the round under way, from 1.
    done: reports of it so far.
    sentences: sentences tuned on in all rounds.
    total (tensor [D then]): sum of the weights at the ends of the rounds.
    stale: rounds since the best one, or since the start.
    records: lines that the run's log has so far; whoever writes one keeps count here.
    last: score of the last round.
    """

    round: int = 1
    done: int = 0
    sentences: int = 0
    best: Best | None = None
    total: torch.Tensor | None = None
    stale: int = 0
    records: int = 0
    last: float = float("nan")

    def note_start(self, score: float, weights: torch.Tensor) -> None:
        """Note the score of the weights before the first round: no worse ones are the best."""
        _check_score(score, "before the first round")
        self.best = Best(0, score, weights.detach().clone())

    def compare(self, score: float, weights: torch.Tensor) -> None:
        """Note the score of the round under way, and its weights if they are the best so far."""
        _check_score(score, f"of round {self.round}")
        self.last = score
        self.stale += 1
        if self.best is None or score > self.best.score:
            self.best = Best(self.round, score, weights.detach().clone())
            self.stale = 0

    def is_stale(self, patience: int | None) -> bool:
        """Say whether so many rounds have gone by without a better one."""
        return patience is not None and self.stale >= patience

    @property
    def begun(self) -> int:
        """How many rounds there have been, with the one that is under way."""
        return self.round if self.done else self.round - 1


class Callback:
    """Told what a run does. Of these methods, write those that you need."""

    def on_start(self, run: Rounds) -> None:
        """A run begins, or goes on."""

    def on_report(self, report: Report, run: Rounds) -> None:
        """Something was done. With the report of a round, ``run.progress`` is in the next one."""

    def on_work(self, what: str, done: int, total: int, unit: str) -> None:
        """A long piece of work has come so far; see `tuners.base.Show`."""

    def on_end(self, run: Rounds) -> None:
        """The run is over, or an exception ends it."""


def check_ending(kind: type[Tuner] | Tuner, rounds: int, patience: int | None, result: str) -> None:
    """Raise ValueError if when tuning ends, or with which weights, is out of range."""
    integer(1).check(f"{kind.unit}s", rounds)
    integer(1).or_null().check("patience", patience)
    one_of(*kind.results).check("result", result)


@dataclass(eq=False, repr=False)
class Rounds:
    """A run: rounds of a tuner, until there have been enough, or none has been better for long.

    evaluate: returns the score (larger is better) of the weights as they are, alone or with corpus
        BLEU beside it; asked before the first round, if `Progress.note_start` was not, and after
        each.
    rounds: at most.
    patience: stop after this many rounds without a better score.
    result ("best", "last", "average"): weights of the round with the best score (or the start's, if
        none is better), of the last one, or, of tuners that have it, the average: `Tuner.averaged`,
        or the mean of the weights after each round (Simianer et al. 2012, Algorithm 1).
    measure: what the score is, by the metric that is tuned.
    callbacks: asked in this order. Whoever saves comes last.
    """

    tuner: Tuner
    evaluate: Callable[[], float | Score]
    _: KW_ONLY
    rounds: int = 10
    patience: int | None = None
    result: str = "best"
    measure: Measure = BLEU
    callbacks: Sequence[Callback] = ()

    def __post_init__(self) -> None:
        check_ending(self.tuner, self.rounds, self.patience, self.result)
        self.begin()

    def begin(self) -> None:
        """Forget what has come out so far; the weights stay as they are."""
        self.progress = Progress()

    def check_left(self) -> None:
        """Raise ValueError if a run that goes on was to end before where it is.

        To end in the midst of a round would leave weights that no round ends with, nor begins.
        """
        unit, progress = self.tuner.unit, self.progress
        where = f"is in {unit} {progress.round}" if progress.done else f"has had {progress.begun}"
        if progress.begun > self.rounds:
            raise ValueError(
                f"{unit}s must be at least {progress.begun}, not {self.rounds}: the run {where}"
            )
        if progress.done and progress.is_stale(self.patience):
            raise ValueError(
                f"patience must be above {progress.stale}, or null, not {self.patience}: the run "
                f"{where}, and none of the last {progress.stale} was better"
            )

    def run(self) -> Progress:
        """Tune, from where `progress` is, and leave the resulting weights in place.

        Raises InputError: there is nothing to learn from.
        Raises DivergenceError: a weight is not finite.
        Raises ValueError: a score is not finite, or it was to end before where `progress` is.
        """
        self.tuner.show = self._show
        try:
            for callback in self.callbacks:
                callback.on_start(self)
            for report in self.steps():
                for callback in self.callbacks:
                    callback.on_report(report, self)
        finally:
            for callback in self.callbacks:
                callback.on_end(self)
        return self.progress

    def steps(self) -> Iterator[Report]:
        """Do what `run` does, without callbacks, yielding what was done.

        What `state_dict` returns after a yield suffices to go on from there.
        """
        self.check_left()
        tuner, progress, weights = self.tuner, self.progress, self.tuner.weights
        if progress.best is None:
            progress.note_start(self._scored().tuned, weights.parameter)
        while progress.round <= self.rounds and not progress.is_stale(self.patience):
            number = progress.round
            for report in tuner.round(number, progress.done):
                progress.done += 1
                progress.sentences += report.sentences
                yield replace(report, round=number)
            if progress.done == 0:
                break
            values = weights.parameter.detach()
            if not values.isfinite().all():
                raise DivergenceError(
                    f"a weight is not finite after {tuner.unit} {number}: check the feature "
                    "values, and lower the learning rate if there is one"
                )
            score = self._scored()
            progress.compare(score.tuned, values)
            if self.result == "average" and tuner.averaged() is None:
                total = weights.parameter.detach().clone()
                if progress.total is not None:
                    total[: progress.total.numel()] += progress.total
                progress.total = total
            kept = self.result == "last" or progress.stale == 0
            report = tuner.summary(kept)
            said = f"{tuner.unit} {number}: dev {self.shown(score.tuned)}"
            numbers = {"bleu/dev": score.bleu}
            if self.name != "BLEU":
                said += f", BLEU {score.bleu:.2f}"
                numbers["metric/dev"] = self.measure.better(score.tuned)
            progress.round += 1
            progress.done = 0
            yield replace(
                report,
                numbers=numbers | report.numbers,
                text=", ".join(filter(None, [said, report.text])),
                round=number,
                kept=kept,
            )
        weights.grow()
        average: torch.Tensor | None = None
        if self.result == "average":
            average = tuner.averaged()
            if average is None and progress.total is not None:
                average = progress.total / (progress.round - 1)
        assert progress.best is not None
        result = progress.best.weights if self.result == "best" else average
        if result is not None:
            # Features that came later have none.
            values = weights.parameter.detach()
            values.zero_()
            values[: result.numel()] = result

    @property
    def name(self) -> str:
        """What the score is called."""
        return self.measure.name

    def shown(self, score: float) -> str:
        """Return a score as it is written for people."""
        return f"{self.name} {self.measure.shown(score)}"

    def _scored(self) -> Score:
        score = self.evaluate()
        return score if isinstance(score, Score) else Score(score, score)

    def state_dict(self) -> dict[str, Any]:
        """Return, in numbers, strings and tensors, what there is besides weights."""
        return {"progress": {**vars(self.progress)}, "tuner": self.tuner.state_dict()}

    def step_dict(self) -> dict[str, Any] | None:
        """Return what suffices to take the last step again; None if the tuner cannot say it."""
        step = self.tuner.step_dict()
        if step is None:
            return None
        progress = self.progress
        counts = [progress.round, progress.done, progress.sentences, progress.records]
        return {"progress": counts, "tuner": step}

    def redo(self, step_dict: dict[str, Any]) -> None:
        """Take the step of which `step_dict` was given."""
        self.tuner.redo(step_dict["tuner"])
        progress = self.progress
        _, progress.done, progress.sentences, progress.records = step_dict["progress"]

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over what `state_dict` gave."""
        progress = Progress(**state_dict["progress"])
        if progress.best is not None:
            progress.best = Best(*progress.best)
        self.tuner.load_state_dict(state_dict["tuner"])
        self.progress = progress

    def _show(self, what: str, done: int, total: int, unit: str) -> None:
        for callback in self.callbacks:
            callback.on_work(what, done, total, unit)


def _check_score(score: float, when: str) -> None:
    if not math.isfinite(score):
        raise ValueError(
            f"the score {when} is {score}, and must be a finite number to be compared: check "
            "what evaluates the weights"
        )

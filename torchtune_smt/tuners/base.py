"""What a tuner is: it says what a round does."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import torch

from torchtune_smt.core.accepts import Checked
from torchtune_smt.core.weights import Weights

Show = Callable[[str, int, int, str], None]
"""Told now and then how far a long piece of work is: what it is, done, of how many, the unit."""


def silent(what: str, done: int, total: int, unit: str) -> None:
    """Show nothing."""


@dataclass(frozen=True)
class Report:
    """What a round has done, or a part of it.

    kind: a step is short, and there may be many: a mini-batch. A part is long: groups were learnt.
    numbers: what the log is to have, by names: "train/loss".
    text: for people; that of a step is short.
    sentences: sentences tuned on.
    round: its number, which the loop adds.
    kept: of a round: whether tuning would have its weights as result if it ended now; the loop adds
        it.
    """

    kind: Literal["step", "part", "round"]
    numbers: dict[str, float] = field(default_factory=dict)
    text: str = ""
    sentences: int = 0
    round: int = 0
    kept: bool = True


class Tuner(Checked, ABC):
    """Changes weights, round after round; `runs.rounds.Rounds` is the loop.

    weights: those of all rounds; the loop reads them, and sets them in the end, as it sets `show`.
    unit: what a round is called.
    advice: what to try where nothing was gained.
    results: what the loop's `result` may be.
    """

    weights: Weights
    show: Show = staticmethod(silent)
    unit: ClassVar[str] = "iteration"
    advice: ClassVar[str] = ""
    results: ClassVar[tuple[str, ...]] = ("best", "last")

    @abstractmethod
    def round(self, number: int, done: int = 0) -> Iterator[Report]:
        """Do a round, yielding what was done; its weights then lie ready to be evaluated.

        What `state_dict` returns after a yield must suffice to go on from there. A round without
        any report is none: nothing is left to be learnt, and the loop ends.

        number: from 1.
        done: so many reports of this round were yielded before the run was stopped.
        """

    def summary(self, kept: bool) -> Report:
        """Return what is said of a round once it has been evaluated; see `Report.kept`."""
        return Report("round")

    def averaged(self) -> torch.Tensor | None:
        """Return an average of all weights so far; None: the mean of those after each round."""
        return None

    def state_dict(self) -> dict[str, Any]:
        """Return, in numbers, strings and tensors, what there is besides weights and `Progress`."""
        return {}

    def step_dict(self) -> dict[str, Any] | None:
        """Return, in numbers and tensors, what suffices to take the last step again; see `redo`.

        With it a run that is killed loses no step but the one under way. None: `state_dict` alone
        will do.
        """
        return None

    def redo(self, step_dict: dict[str, Any]) -> None:
        """Take the step of which `step_dict` was given; else as `load_state_dict`."""
        raise NotImplementedError

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over what `state_dict` gave; raise ValueError, before anything, if it is not whole.

        It may come from a file: all kinds, lengths and ranges are to be checked. The weights' names
        are there already.
        """

"""What `train` asks of a kind of tuning."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from torchtune_smt.cli.task import Task
from torchtune_smt.runs.checkpoint import Stateful
from torchtune_smt.runs.epochs import Progress
from torchtune_smt.runs.log import RunLog


class TuningRun(Protocol):
    """One kind of tuning.

    It is made from the configuration and its parts (``Kind(cfg, parts)``), before anything is
    read or built: bad options are found then, and raise InputError.

    Attributes
    ----------
    unit : str
        What `Progress.epoch` counts: epoch, or iteration.
    advice : str
        What to try where nothing was gained.
    """

    unit: str
    advice: str

    def open(self, task: Task, folder: Path, *, resumed: bool) -> Stateful:
        """Make everything that depends on what is tuned.

        Parameters
        ----------
        folder : path
            The run's own, for what has to survive until the run is resumed.
        resumed : bool
            Whether the folder has something from before.

        Returns
        -------
        Stateful
            What checkpoints hold besides weights and progress.
        """
        ...

    def plan(self) -> str:
        """Return in one line what is going to be done."""
        ...

    def tune(self, log: RunLog, progress: Progress, save: Callable[[Progress], None]) -> Progress:
        """Tune, show and record how it goes, and leave the resulting weights in place.

        Parameters
        ----------
        progress : Progress
            Where an earlier run stopped; weights and state are as they were then.
        save : callable
            Writes a checkpoint.
        """
        ...

    def finish(self) -> None:
        """Remove what is of no use once the run is finished."""
        ...

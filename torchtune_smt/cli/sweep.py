"""A sweep (``-m``): one run after the other, whatever becomes of each."""

from __future__ import annotations

import math
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode


class Sweep:
    """What became of the runs of a sweep; of a single run nothing is known.

    Attributes
    ----------
    folder : Path, optional
        In which the runs lie, once the first has begun.
    runs : int
        Those that were begun.
    done : list of Path
        The folders of those that ended well.
    failed : list of str
        The overrides of those that failed.
    """

    def __init__(self) -> None:
        self.folder: Path | None = None
        self.runs = 0
        self.done: list[Path] = []
        self.failed: list[str] = []

    def do(self, job: Callable[[], Any]) -> Any:
        """Do a run; one of a sweep may fail without ending the others, and returns NaN then.

        Sweepers that look for the best value take NaN for a failure.
        """
        config = HydraConfig.get()
        if config.mode != RunMode.MULTIRUN:
            return job()
        self.folder = Path(config.sweep.dir)
        self.runs += 1
        overrides = " ".join(config.overrides.task)
        # What all runs have was typed so.
        own = " ".join(o for o in config.overrides.task if o not in sys.argv) or overrides
        print(f"{'' if self.runs == 1 else chr(10)}run {self.runs}: {own}", flush=True)
        try:
            score = job()
            self.done.append(Path(config.runtime.output_dir))
            return score
        except SystemExit as error:
            # A number is of a broken pipe: nobody listens any more.
            if not isinstance(error.code, str):
                raise
            print(error.code, file=sys.stderr, flush=True)
        except Exception:
            traceback.print_exc()
        self.failed.append(overrides)
        return math.nan

    def summary(self) -> str:
        """Return which runs failed."""
        failed = "; ".join(self.failed)
        return f"error: {len(self.failed)} of {self.runs} runs failed: {failed}"

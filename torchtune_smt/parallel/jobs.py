"""Who computed what when, for the log of a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from torchtune_smt.core.arrays import Float64

_COLUMNS: Final = ("worker", "begin", "seconds")


@dataclass(frozen=True)
class Job:
    """An epoch on a shard, or the gradient of a mini-batch.

    Attributes
    ----------
    worker : int
        Who computed it, from 1.
    begin : float
        When, in seconds since 1970.
    seconds : float
        How long it took.
    learning : float
        Seconds of these that were not decoding, as far as the tuner says.
    """

    worker: int
    begin: float
    seconds: float
    learning: float

    def numbers(self) -> dict[str, float]:
        """Return what the log is to have of it."""
        return {
            "parallel/worker": self.worker,
            "parallel/begin": self.begin,
            "parallel/seconds": self.seconds,
            "parallel/seconds_learning": self.learning,
        }


def utilisation_numbers(jobs: Sequence[Job]) -> dict[str, float]:
    """Return what the log is to have of an epoch: the utilisation, if there were jobs."""
    if not jobs:
        return {}
    columns = (np.array([getattr(job, name) for job in jobs]) for name in _COLUMNS)
    return {"parallel/utilisation": utilisation(*columns)}


def utilisation(worker: Float64, begin: Float64, seconds: Float64) -> float:
    """Return the share of the workers' time, from first begin to last end, with a job."""
    span = (begin + seconds).max() - begin.min()
    return float(seconds.sum() / (np.unique(worker).size * span)) if span > 0 else 1.0

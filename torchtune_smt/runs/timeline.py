"""Which worker computed which shard when, as a picture."""

from __future__ import annotations

from typing import IO, Final

import numpy as np

from torchtune_smt.core.arrays import Float64
from torchtune_smt.core.pictures import picture
from torchtune_smt.runs.curves import Run

_NAMES: Final = ("parallel/worker", "parallel/begin", "parallel/seconds")


def has_shards(run: Run) -> bool:
    """Return whether a run has written down when which shard was computed."""
    return all(name in run for name in _NAMES)


def utilisation(run: Run) -> float:
    """Return the share of the time of all workers, from first begin to last end, with a shard."""
    worker, begin, seconds = _bars(run)
    span = (begin + seconds).max() - begin.min()
    return float(seconds.sum() / (np.unique(worker).size * span))


def draw_timeline(run: Run, output: IO[bytes], form: str) -> None:
    """Draw a bar for each shard, a row for each worker; gaps are mixing, evaluation, and waiting.

    Parameters
    ----------
    output : binary file
    form : {"png", "svg", "pdf"}
    """
    worker, begin, seconds = _bars(run)
    workers = np.unique(worker)
    size = 10, 1.2 + 0.4 * workers.size
    with picture(output, form, figsize=size) as (_, axes):
        for number, one in enumerate(workers):
            bars = np.column_stack([begin - begin.min(), seconds])[worker == one]
            axes.broken_barh(bars.tolist(), (number - 0.4, 0.8), facecolor="C0", edgecolor="white")
        axes.set_yticks(range(workers.size), [f"worker {one:.0f}" for one in workers])
        axes.invert_yaxis()
        axes.set_xlabel("seconds")
        axes.set_title(f"{seconds.size:,} shards, {utilisation(run):.0%} of the workers' time")


def _bars(run: Run) -> list[Float64]:
    return [np.array(run[name].values) for name in _NAMES]

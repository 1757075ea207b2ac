"""Which worker computed what when, as a picture."""

from __future__ import annotations

from typing import IO, Final

import numpy as np

from torchtune_smt.core.arrays import Float64
from torchtune_smt.core.pictures import picture
from torchtune_smt.parallel import engine
from torchtune_smt.runs.curves import Run

_NAMES: Final = ("parallel/worker", "parallel/begin", "parallel/seconds")
_LEARNING: Final = "parallel/seconds_learning"


def has_jobs(run: Run) -> bool:
    """Return whether a run has written down when its shards, or mini-batches, were computed."""
    return all(name in run for name in _NAMES)


def utilisation(run: Run) -> float:
    """Return the share of the time of all workers, from first begin to last end, with a job."""
    return engine.utilisation(*_bars(run))


def draw_timeline(run: Run, output: IO[bytes], form: str) -> None:
    """Draw a bar for each job, a row for each worker; gaps are mixing, evaluation, and waiting.

    What of a job was learning stands at the end of its bar, wherever it was done.

    form ("png", "svg", "pdf")
    """
    worker, begin, seconds = _bars(run)
    learning = np.zeros(seconds.size)
    if _LEARNING in run:
        learning = np.array(run[_LEARNING].values)
    workers = np.unique(worker)
    size = 10, 1.2 + 0.4 * workers.size
    with picture(output, form, figsize=size) as (_, axes):
        first = begin - begin.min()
        parts = {
            "decoding": (first, seconds - learning),
            "learning": (first + seconds - learning, learning),
        }
        for colour, (part, (left, width)) in enumerate(parts.items()):
            for number, one in enumerate(workers):
                axes.broken_barh(
                    np.column_stack([left, width])[worker == one].tolist(),
                    (number - 0.4, 0.8),
                    facecolor=f"C{colour}",
                    edgecolor="white",
                    linewidth=0.2,
                    label=part if number == 0 else None,
                )
        axes.set_yticks(range(workers.size), [f"worker {one:.0f}" for one in workers])
        axes.invert_yaxis()
        axes.set_xlabel("seconds")
        axes.set_title(f"{seconds.size:,} jobs, {utilisation(run):.0%} of the workers' time")
        axes.legend(loc="center left", bbox_to_anchor=(1, 0.5))


def _bars(run: Run) -> list[Float64]:
    return [np.array(run[name].values) for name in _NAMES]

"""How long rounds took, and which worker computed what when, as a picture."""

from __future__ import annotations

from typing import IO, Final

import numpy as np

from torchtune_smt.core.arrays import Float64, Int64
from torchtune_smt.core.pictures import picture
from torchtune_smt.parallel import engine
from torchtune_smt.runs.curves import Run

_NAMES: Final = ("parallel/worker", "parallel/begin", "parallel/seconds")
_LEARNING: Final = "parallel/seconds_learning"


def has_jobs(run: Run) -> bool:
    """Return whether a run has written down when its shards, or mini-batches, were computed."""
    return all(name in run for name in _NAMES)


def round_seconds(run: Run) -> Float64:
    """Return how long each round took (float64 [rounds], seconds): epochs, or iterations.

    Of mini-batches it is the sum of their times; of shards, and of mini-batches that were computed
    side by side, the time from the first begin to the last end, without the evaluation on dev; of a
    batch tuner's iteration, all of it. A run that did not record it, such as one that learns
    groups, gives none.
    """
    if "speed/seconds" in run:
        return np.array(run["speed/seconds"].values)
    # The first is the start's.
    bounds = np.array(run["bleu/dev"].steps if "bleu/dev" in run else [0])

    def rounds(steps: list[int]) -> list[Int64]:
        """The numbers of the records of each round."""
        number = np.searchsorted(bounds, steps) - 1
        return [np.flatnonzero(number == n) for n in range(bounds.size - 1)]

    if has_jobs(run):
        begin, seconds = (np.array(run[f"parallel/{name}"].values) for name in ("begin", "seconds"))
        inside = rounds(run["parallel/begin"].steps)
        return np.array([(begin + seconds)[i].max() - begin[i].min() for i in inside if i.size])
    if "speed/sentences_per_second" in run:
        steps, rates = run["speed/sentences_per_second"]
        seconds = np.diff(steps, prepend=0) / np.array(rates)
        return np.array([seconds[i].sum() for i in rounds(steps) if i.size])
    return np.empty(0)


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

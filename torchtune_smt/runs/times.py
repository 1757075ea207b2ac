"""How long the rounds of a run took."""

from __future__ import annotations

import numpy as np

from torchtune_smt.core.arrays import Float64, Int64
from torchtune_smt.runs.curves import Run
from torchtune_smt.runs.timeline import has_jobs


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

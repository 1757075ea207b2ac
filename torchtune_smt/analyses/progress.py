"""How runs went on: scores of their rounds, and time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from torchtune_smt.runs.curves import Run
from torchtune_smt.runs.times import round_seconds


class Progress(NamedTuple):
    """What came out of the rounds of a run, or their means over runs; None: was not recorded.

    Attributes
    ----------
    rounds : float, optional
        Epochs, or iterations, so far.
    dev_before, best_dev, last_dev : float, optional
        BLEU before tuning, after the best round, and after the last.
    of_round : float, optional
        The best round; 0 is the start.
    test : float, optional
        BLEU with the weights that were kept.
    s_a_round, s_in_all : float, optional
        Seconds of a round, and of all of them (`round_seconds`).
    active : float, optional
        Features with a weight after the last round.
    """

    rounds: float | None
    dev_before: float | None
    best_dev: float | None
    of_round: float | None
    last_dev: float | None
    test: float | None
    s_a_round: float | None
    s_in_all: float | None
    active: float | None


def progress_of(run: Run) -> Progress:
    """Return how a run went on, finished or not."""
    dev = run["bleu/dev"].values if "bleu/dev" in run else []
    test = run["bleu/test_tuned"].values if "bleu/test_tuned" in run else []
    active = [series.values[-1] for name, series in run.items() if name.startswith("active/")]
    seconds = round_seconds(run)
    best = int(np.argmax(dev)) if dev else None
    return Progress(
        rounds=len(dev) - 1 if dev else None,
        dev_before=dev[0] if dev else None,
        best_dev=max(dev, default=None),
        of_round=best,
        last_dev=dev[-1] if dev else None,
        test=test[-1] if test else None,
        s_a_round=float(seconds.mean()) if seconds.size else None,
        s_in_all=float(seconds.sum()) if seconds.size else None,
        active=sum(active) if active else None,
    )


def mean_progress(runs: Sequence[Run]) -> Progress:
    """Return the means over runs, each of those that recorded it."""
    columns = zip(*map(progress_of, runs), strict=True)
    known = [[value for value in column if value is not None] for column in columns]
    return Progress(*(float(np.mean(values)) if values else None for values in known))

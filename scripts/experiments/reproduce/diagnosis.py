"""A picture of how much of a row's groups is chance: by iterations of its runs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import numpy as np

from torchtune_smt.core.textio import atomic_path, read_lines

METRICS: Final = "metrics.jsonl"
TAGS: Final = {
    "diagnosis/overlap_features": "features that another order of the pairs gives, too",
    "diagnosis/fired_last": "features that fire in the last steps",
}


# By tag, what is said after each iteration, from the first one on; None: nothing.
Diagnosis = dict[str, list[float | None]]


def read_diagnosis(folder: Path) -> Diagnosis:
    """Return what a run of tuner=grouping says of its groups.

    An iteration without groups says nothing, and of the last steps only Algorithm 2 does. Empty
    where nothing is said at all.
    """
    path = folder / METRICS
    if not path.is_file():
        return {}
    found: Diagnosis = {}
    # Steps are sentences; dev is translated before the first iteration and after each.
    before = 0
    for entry in map(json.loads, read_lines(path)):
        for tag in TAGS.keys() & entry.keys():
            said = found.setdefault(tag, [])
            said += [None] * (before - 1 - len(said))
            said[before - 1 :] = [entry[tag]]
        before += "bleu/dev" in entry
    return found


def plot_diagnosis(path: Path, runs: Mapping[str, Sequence[Diagnosis]]) -> None:
    """Draw what is said of groups by iteration: a panel a tag, a colour a row, a line a seed.

    A panel has the rows that say something of its tag; a line ends where an iteration has nothing.

    Parameters
    ----------
    runs : mapping of str to sequence of Diagnosis
        Of each row what `read_diagnosis` returns of its seeds, one at least.
    """
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, len(TAGS), figsize=(11.2, 4.2), layout="constrained")
    for axis, (tag, title) in zip(axes, TAGS.items(), strict=True):
        for r, (row, seeds) in enumerate(runs.items()):
            for found in seeds:
                if values := found.get(tag):
                    shares = [np.nan if value is None else value for value in values]
                    named = axis.get_legend_handles_labels()[1]
                    label = None if row in named else row
                    axis.plot(range(1, len(shares) + 1), shares, f"C{r % 10}.-", label=label)
        axis.set_ylim(-0.02, 1.02)
        axis.set_xlabel("iteration")
        axis.set_title(title, fontsize="medium")
        axis.grid(alpha=0.3)
        if axis.lines:
            axis.legend(fontsize="x-small")
    axes[0].set_ylabel("share")
    with atomic_path(path) as beside:
        figure.savefig(beside, format=path.suffix[1:], dpi=110)
    plt.close(figure)

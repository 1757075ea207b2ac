"""A picture of how much of a row's groups is chance: by iterations of its runs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from torchtune_smt.core.textio import atomic_path, read_lines

METRICS: Final = "metrics.jsonl"
TAGS: Final = {
    "diagnosis/overlap_features": "features that another order of the pairs gives, too",
    "diagnosis/fired_last": "features that fire in the last steps",
}


def read_diagnosis(folder: Path) -> dict[str, list[float]]:
    """Return what a run of tuner=grouping says of its groups, by tag, a number an iteration.

    Empty where it says nothing: only Algorithm 2 has an order.
    """
    path = folder / METRICS
    if not path.is_file():
        return {}
    entries = [json.loads(line) for line in read_lines(path)]
    found = {tag: [entry[tag] for entry in entries if tag in entry] for tag in TAGS}
    return found if all(found.values()) else {}


def plot_diagnosis(path: Path, runs: Mapping[str, Sequence[dict[str, list[float]]]]) -> None:
    """Draw what is said of groups by iteration: a panel a tag, a colour a row, a line a seed.

    Parameters
    ----------
    runs : mapping of str to sequence of dict
        Of each row what `read_diagnosis` returns of its seeds, one at least.
    """
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, len(TAGS), figsize=(11.2, 4.2), layout="constrained")
    for axis, (tag, title) in zip(axes, TAGS.items(), strict=True):
        for r, (row, seeds) in enumerate(runs.items()):
            for s, found in enumerate(seeds):
                values = found[tag]
                iterations = range(1, len(values) + 1)
                axis.plot(iterations, values, f"C{r % 10}.-", label=None if s else row)
        axis.set_ylim(-0.02, 1.02)
        axis.set_xlabel("iteration")
        axis.set_title(title, fontsize="medium")
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("share")
    axes[0].legend(fontsize="x-small")
    with atomic_path(path) as beside:
        figure.savefig(beside, format=path.suffix[1:], dpi=110)
    plt.close(figure)

"""What each row of Liu et al. (2013) gains: python scripts/experiments/reproduce/liu2013_gains.py.

Reads the published tables, and draws gains.png beside them: of each row the difference from PRO
with dense features, on devtest and on test.
"""

from __future__ import annotations

import argparse
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import tables
from alike import groups_of
from command_line import ended
from liu2013_results import CSV, Result
from liu2013_rows import BASELINE
from published import read_results
from runs import REPOSITORY
from tables import SIGNIFICANT

from torchtune_smt.core.errors import InputError
from torchtune_smt.core.textio import atomic_path

RESULTS: Final = REPOSITORY / "docs" / "results" / "liu2013"
PICTURE: Final = "gains.png"
SETS: Final = ("devtest", "test")
# Of a line of a row's name.
WIDTH: Final = 40


class Panel(NamedTuple):
    """What a panel shows.

    Attributes
    ----------
    table : str
        The folder of the table.
    corpus, title : str
    seeds : bool
        Whether rows have several seeds: those with one are left out then.
    """

    table: str
    corpus: str
    title: str
    seeds: bool


PANELS: Final = (
    Panel("seeds", "multi30k", "Multi30k, 5,000 training sentences, five seeds", True),
    Panel("first-iteration", "fisher", "Fisher, 5,000, one iteration, five seeds", True),
    Panel("full", "multi30k", "Multi30k, all 29,000, one seed", False),
    Panel("full", "fisher", "Fisher, all 18,872, one iteration with groups, one seed", False),
)


class Gain(NamedTuple):
    """What a row gains over the baseline on a set.

    Attributes
    ----------
    mean, spread : float
        The difference, of means where there are several seeds, and the standard deviation of the
        row over seeds, 0 of one.
    significant : bool
    """

    mean: float
    spread: float
    significant: bool


def gains(group: tables.Group, name: str) -> Gain | None:
    """Return what results that differ in the seed gain on devtest or test; None: not comparable."""
    own, theirs = ([getattr(r, name) for r in rs] for rs in (group.results, group.baseline))
    if not theirs or (len(own) > 1 and len(theirs) < 2):
        return None
    if len(own) > 1:
        p = tables.p_over_seeds(group, name)
    else:
        p = getattr(group.results[0], f"p_{name}")
    spread = float(np.std(own, ddof=1)) if len(own) > 1 else 0.0
    return Gain(float(np.mean(own) - np.mean(theirs)), spread, p is not None and p < SIGNIFICANT)


def shown(folder: Path, panel: Panel) -> dict[str, dict[str, Gain]]:
    """Return the gains of a panel: by row as it is called, on devtest and test.

    Raises
    ------
    InputError
        The table is not there, or has nothing of the corpus.
    """
    path = folder / panel.table / CSV
    results = [r for r in read_results(path, Result) if r.corpus == panel.corpus]
    if not results:
        raise InputError(f"has no row of {panel.corpus}", path=path)
    found: dict[str, dict[str, Gain]] = {}
    for group in groups_of(results, BASELINE):
        first = group.results[0]
        if first.row == BASELINE or (len(group.results) > 1) != panel.seeds:
            continue
        both = {name: gain for name in SETS if (gain := gains(group, name))}
        if both:
            found[called(first)] = both
    return found


def called(result: tables.Result) -> str:
    """Return a row's name, short: what is tuned on is said where groups are not learnt."""
    if result.tuning_set == "train, dev":
        words = [result.method]
    else:
        words = [result.method.removesuffix(" (not in the paper)"), "on", result.tuning_set]
        words += [result.features] * (result.features != "default")
    if result.language_models == "full":
        words.append("lm=full")
    return " ".join(words)


def draw(path: Path, panels: Sequence[tuple[str, dict[str, dict[str, Gain]]]]) -> None:
    """Draw panels, each with its title: a line a row, filled where a gain is significant."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    from matplotlib.lines import Line2D

    columns = 2
    lines = -(-len(panels) // columns)
    most = [
        max(len(rows) for _, rows in panels[line * columns : (line + 1) * columns])
        for line in range(lines)
    ]
    figure, axes = plt.subplots(
        lines,
        columns,
        figsize=(13.0, 1.5 * lines + 0.3 * sum(most)),
        height_ratios=[count + 2 for count in most],
        layout="constrained",
        squeeze=False,
    )
    for axis in axes.flat[len(panels) :]:
        axis.set_axis_off()
    for axis, (title, rows) in zip(axes.flat, panels, strict=False):
        for s, name in enumerate(SETS):
            for place, both in enumerate(rows.values()):
                if (gain := both.get(name)) is None:
                    continue
                axis.errorbar(
                    [gain.mean],
                    [place + 0.3 * s - 0.15],
                    xerr=[gain.spread] if gain.spread else None,
                    fmt="os"[s],
                    color=f"C{s}",
                    markerfacecolor=None if gain.significant else "white",
                    markersize=5,
                )
        axis.axvline(0.0, color="gray", linewidth=1)
        names = [textwrap.fill(row, WIDTH) for row in rows]
        axis.set_yticks(range(len(rows)), names, fontsize="x-small")
        axis.set_ylim(len(rows) - 0.4, -0.6)
        axis.set_xlabel("BLEU above dense PRO on dev", fontsize="small")
        axis.set_title(title, fontsize="medium")
        axis.grid(axis="x", alpha=0.3)
    legend = [
        Line2D([], [], marker="os"[s], color=f"C{s}", label=SETS[s]) for s in range(len(SETS))
    ]
    filled = f"filled: p below {SIGNIFICANT}"
    legend.append(Line2D([], [], linestyle="", marker="D", color="gray", label=filled))
    figure.legend(handles=legend, loc="outside lower center", ncols=3, fontsize="small")
    with atomic_path(path) as beside:
        figure.savefig(beside, format=path.suffix[1:], dpi=110)
    plt.close(figure)


def main() -> int:
    parser = argparse.ArgumentParser(description="Draws what each row gains over dense PRO.")
    parser.add_argument(
        "--folder",
        type=Path,
        default=RESULTS,
        metavar="DIR",
        help="of the tables, and of the picture (default: docs/results/liu2013)",
    )
    folder = parser.parse_args().folder

    def work() -> list[str]:
        draw(folder / PICTURE, [(panel.title, shown(folder, panel)) for panel in PANELS])
        print(folder / PICTURE)
        return []

    return ended(work)


if __name__ == "__main__":
    sys.exit(main())

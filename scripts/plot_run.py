"""Plot tuning runs: python scripts/plot_run.py outputs/.../ [...] --output run.png.

Needs matplotlib: pip install -c constraints.txt matplotlib.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from torchtune_smt.core.errors import InputError
from torchtune_smt.core.textio import atomic_path, read_lines

Series = tuple[list[int], list[float]]


def read_metrics(folder: Path) -> dict[str, Series]:
    """Return what ``metrics.jsonl`` of a run recorded: steps and values by name.

    Raises
    ------
    InputError
        The file is missing, or a line of it is no JSON object with a step.
    """
    path = folder / "metrics.jsonl" if folder.is_dir() else folder
    series: dict[str, Series] = {}
    for number, line in enumerate(read_lines(path), start=1):
        try:
            entry = json.loads(line)
            step = entry.pop("step")
        except (ValueError, KeyError, TypeError, AttributeError):
            raise InputError(
                "is no line of a metrics file; give the folder of a run", path=path, line=number
            ) from None
        for name, value in entry.items():
            steps, values = series.setdefault(name, ([], []))
            steps.append(step)
            values.append(value)
    return series


def smoothed(values: list[float], window: int) -> list[float]:
    """Return the mean of each value and those before it, `window` at most."""
    parts = [values[max(0, i + 1 - window) : i + 1] for i in range(len(values))]
    return [sum(part) / len(part) for part in parts]


def plot(runs: dict[str, dict[str, Series]], output: Path, window: int) -> None:
    """Draw dev BLEU, loss, gain and the active features of each template to a file."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(2, 2, figsize=(9, 6), sharex=True, layout="constrained")
    bleu, loss, gain, active = axes.flat
    colours = plt.rcParams["axes.prop_cycle"].by_key()["color"]
    markers = "os^Dvx"
    for r, (label, series) in enumerate(runs.items()):
        colour = colours[r % len(colours)]
        if "bleu/dev" in series:
            bleu.plot(*series["bleu/dev"], marker="o", color=colour, label=label)
        for axis, name in ((loss, "train/loss"), (gain, "train/gain")):
            if name in series:
                steps, values = series[name]
                axis.plot(steps, values, color=colour, alpha=0.25)
                axis.plot(steps, smoothed(values, window), color=colour, label=label)
        names = [name for name in sorted(series) if name.startswith("active/")]
        for t, name in enumerate(names):
            steps, values = series[name]
            template = name.partition("/")[2]
            # One run: a colour for each template. Several: the run's colour, a marker for each.
            single = len(runs) == 1
            active.plot(
                steps,
                values,
                color=colours[t % len(colours)] if single else colour,
                marker=markers[t % len(markers)],
                label=template if single or r == 0 else None,
            )
    _finish(bleu, "dev BLEU", legend=len(runs) > 1)
    _finish(loss, "mean loss of a pair")
    _finish(gain, "mean gain of the best hypotheses")
    _finish(active, "active features", legend=True)
    active.set_yscale("log")
    for axis in axes[1]:
        axis.set_xlabel("sentences tuned on")
    with atomic_path(output) as beside:
        figure.savefig(beside, format=output.suffix[1:], dpi=110)


def _finish(axis: Any, title: str, *, legend: bool = False) -> None:
    axis.set_title(title, fontsize="medium")
    axis.grid(alpha=0.3)
    if legend and axis.has_data():
        axis.legend(fontsize="small")


def main() -> int:
    parser = argparse.ArgumentParser(
        description="Plots dev BLEU, loss, gain and active features by template of tuning runs."
    )
    parser.add_argument("runs", nargs="+", type=Path, help="run folders (outputs/.../)")
    parser.add_argument(
        "--output",
        type=Path,
        default=Path("run.png"),
        help="file to write: .png, .svg or .pdf (default: %(default)s)",
    )
    parser.add_argument(
        "--labels", nargs="+", help="names of the runs in the legend (default: their folders)"
    )
    parser.add_argument(
        "--smooth",
        type=int,
        default=5,
        metavar="N",
        help="mean over N mini-batches, for loss and gain (default: %(default)s)",
    )
    options = parser.parse_args()
    labels = options.labels or [str(folder) for folder in options.runs]
    if len(labels) != len(options.runs) or len(set(labels)) < len(labels):
        parser.error("give each run once, and a name of its own to each with --labels")
    if options.output.suffix not in (".png", ".svg", ".pdf"):
        parser.error(f"--output must end with .png, .svg or .pdf, not {options.output.name}")
    if options.smooth < 1:
        parser.error(f"--smooth must be at least 1, not {options.smooth}")
    try:
        runs = {label: read_metrics(f) for label, f in zip(labels, options.runs, strict=True)}
        plot(runs, options.output, options.smooth)
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except ModuleNotFoundError as error:
        if error.name != "matplotlib":
            raise
        print("error: matplotlib is missing: pip install matplotlib", file=sys.stderr)
        return 1
    print(options.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""``torchtune-smt plot``: the curves of runs and sweeps in one picture."""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path
from typing import Final

from torchtune_smt.cli.systems import find_systems
from torchtune_smt.core.errors import InputError
from torchtune_smt.core.pictures import write_picture
from torchtune_smt.runs.curves import (
    draw,
    draw_timeline,
    has_jobs,
    legend,
    read_curves,
    read_metrics,
)
from torchtune_smt.runs.folder import METRICS

# Mini-batches that a point of a curve is the mean of.
_SMOOTH: Final = 5


def main() -> int:
    """Read the command line, draw, and return the exit code."""
    parser = argparse.ArgumentParser(
        description="Draws dev BLEU, loss, gain and active features by template of tuning runs. "
        "Runs whose overrides differ in the seed alone are one curve, with a band from the lowest "
        "to the highest; the legend has the overrides that others do not have, and test BLEU.",
    )
    add = parser.add_argument
    add("runs", nargs="+", help="folders of runs or sweeps")
    written = "file to write: .png, .svg or .pdf (default: %(default)s)"
    add("--output", type=Path, default=Path("run.png"), help=written)
    add("--labels", nargs="+", help="names in the legend (default: overrides, or folders)")
    add("--each", action="store_true", help="a curve for each run, whatever its seed")
    smooth = f"mean over N mini-batches, for loss and gain (default: {_SMOOTH})"
    add("--smooth", type=int, metavar="N", help=smooth)
    timeline = "of one run with shards or stale gradients: which worker computed what when"
    add("--timeline", action="store_true", help=timeline)
    options = parser.parse_args()
    if options.output.suffix not in (".png", ".svg", ".pdf"):
        parser.error(f"--output must end with .png, .svg or .pdf, not {options.output.name}")
    window = _SMOOTH if options.smooth is None else options.smooth
    if window < 1:
        parser.error(f"--smooth must be at least 1, not {window}")
    if options.timeline:
        if len(options.runs) > 1:
            parser.error("--timeline is of one run")
        for name in ("smooth", "labels", "each"):
            if getattr(options, name):
                parser.error(f"--{name} is of curves, which --timeline does not draw; leave it out")
        folder = Path(options.runs[0])
        run = read_metrics(folder)
        if not has_jobs(run):
            raise InputError(
                "has no workers, of which there could be a timeline; give a run with "
                "parallel=stale, mix, itermix or itersel",
                path=folder,
            )
        write_picture(options.output, partial(draw_timeline, run))
        print(options.output)
        return 0
    systems = find_systems(options.runs, marker=METRICS, group_seeds=not options.each)
    labels = options.labels or list(systems)
    if len(labels) != len(systems) or len(set(labels)) < len(labels):
        parser.error(
            f"give each of the {len(systems)} curves a name of its own with --labels: "
            f"{', '.join(systems)}"
        )
    curves = {}
    for label, outputs in zip(labels, systems.values(), strict=True):
        runs = [read_curves(output.path) for output in outputs]
        curves[legend(label, runs)] = runs
    write_picture(options.output, partial(draw, curves, window=window))
    print(options.output)
    return 0

"""Curves of runs, from their records, with a band over seeds; and who computed what when."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from torchtune_smt.core.arrays import Float64, Int64
from torchtune_smt.core.errors import InputError, escaped
from torchtune_smt.core.pictures import Canvas, add_legend
from torchtune_smt.core.textio import read_lines
from torchtune_smt.parallel import engine
from torchtune_smt.runs.folder import METRICS

# What is drawn, and how the names of the numbers of active features begin.
_BLEU, _LOSS, _GAIN = _DRAWN = ("bleu/dev", "train/loss", "train/gain")
_ACTIVE: Final = "active/"
# Where it is another metric than BLEU that was tuned.
_TUNED: Final = "metric/dev"


class Series(NamedTuple):
    """What was recorded under one name, at steps in sentences tuned on."""

    steps: list[int]
    values: list[float]


Run = Mapping[str, Series]
"""All that a run recorded."""


def read_metrics(path: Path) -> dict[str, Series]:
    """Return what a run recorded, by name, given its folder or its ``metrics.jsonl``."""
    path = path / METRICS if path.is_dir() else path
    series: dict[str, Series] = {}
    lines = list(read_lines(path))
    for number, line in enumerate(lines, start=1):
        if number == len(lines) > 1 and not line.endswith("}"):
            # It is being written, or the disk was full.
            break
        try:
            # JSON has names that no text can hold, and no picture.
            entry = {escaped(name): float(value) for name, value in json.loads(line).items()}
            step = int(entry.pop("step"))
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
            raise InputError(
                "is no line of a metrics file; give the folder of a run", path=path, line=number
            ) from None
        for name, value in entry.items():
            found = series.setdefault(name, Series([], []))
            found.steps.append(step)
            found.values.append(value)
    return series


def read_curves(path: Path) -> Run:
    """Return what a run recorded; raise InputError if there is nothing that `draw` shows."""
    run = read_metrics(path)
    if not any(name in _DRAWN or name.startswith(_ACTIVE) for name in run):
        raise InputError(
            "has nothing to draw: nothing was measured yet; wait, or leave it out", path=path
        )
    return run


def smoothed(values: Sequence[float], window: int) -> list[float]:
    """Return the mean of each value and those before it, `window` at most."""
    parts = [values[max(0, i + 1 - window) : i + 1] for i in range(len(values))]
    return [sum(part) / len(part) for part in parts]


def band(runs: Sequence[Series]) -> tuple[list[int], Float64, Float64, Float64]:
    """Return the steps that all runs have, and the mean, least and largest value at each.

    Of two values at a step the later counts.
    """
    at = [dict(zip(run.steps, run.values, strict=True)) for run in runs]
    steps = sorted(set.intersection(*(set(values) for values in at)))
    rows = np.array([[values[step] for step in steps] for values in at])
    return steps, rows.mean(axis=0), rows.min(axis=0), rows.max(axis=0)


def legend(name: str, runs: Sequence[Run]) -> str:
    """Return a system's name with the test BLEU of its runs, as far as they recorded it."""
    scores = [run["bleu/test_tuned"].values[-1] for run in runs if "bleu/test_tuned" in run]
    if not scores:
        return name
    spread = f" ± {np.std(scores, ddof=1):.2f}" if len(scores) > 1 else ""
    return f"{name} (test {np.mean(scores):.2f}{spread})"


def draw(systems: Mapping[str, Sequence[Run]], canvas: Canvas, window: int = 5) -> None:
    """Draw dev BLEU, loss, gain and the active features of each template.

    Where all runs were tuned on another metric, it stands in the place of BLEU. Where a system has
    several runs, a line is their mean, and a band reaches from the lowest to the highest of them.

    systems: the runs of each system by its label.
    window: mini-batches that loss and gain are averaged over.
    """
    with canvas(2, 2, figsize=(9, 6), sharex=True) as (figure, axes):
        bleu, loss, gain, active = axes.flat
        colours = [f"C{number}" for number in range(10)]
        markers = "os^Dvx"
        every = {name for runs in systems.values() for run in runs for name in run}
        templates = sorted(name for name in every if name.startswith(_ACTIVE))
        score = _TUNED if all(_TUNED in run for runs in systems.values() for run in runs) else _BLEU
        named: dict[str, Any] = {}
        known: list[tuple[str, Any]] = []
        for s, (label, runs) in enumerate(systems.items()):
            colour = colours[s % len(colours)]
            if any(score in run for run in runs):
                known.append((label, _curve(bleu, runs, score, color=colour, marker="o")))
            for axis, name in ((loss, _LOSS), (gain, _GAIN)):
                _curve(axis, runs, name, window, color=colour)
            # One system: a colour for each template. Several: its colour, a marker for each.
            for t, name in enumerate(templates):
                if any(name in run for run in runs):
                    colour_of_template = colours[t % len(colours)] if len(systems) == 1 else colour
                    marker = markers[t % len(markers)]
                    line = _curve(active, runs, name, color=colour_of_template, marker=marker)
                    named.setdefault(name.partition("/")[2], line)
        _finish(bleu, "dev BLEU" if score == _BLEU else "dev, by the metric that was tuned")
        # Names of systems are long: they would hide the curves.
        add_legend(figure, known, loc="outside lower left", fontsize="small")
        _finish(loss, "mean loss of a pair")
        _finish(gain, "mean gain of the best hypotheses")
        _finish(active, "active features")
        if active.has_data():
            add_legend(active, list(named.items()), fontsize="small")
        active.set_yscale("log")
        for axis in axes[1]:
            axis.set_xlabel("sentences tuned on")


def _curve(axis: Any, runs: Sequence[Run], name: str, window: int = 0, **style: Any) -> Any:
    """Draw what some runs recorded under a name, as far as they did; return the line."""
    found = [run[name] for run in runs if name in run]
    if not found:
        return None
    steps, mean, low, high = band(found)
    colour = style["color"]
    if len(found) > 1:
        smooth = [smoothed(values.tolist(), max(window, 1)) for values in (low, high)]
        axis.fill_between(steps, *smooth, color=colour, alpha=0.2, linewidth=0)
    elif window:
        axis.plot(steps, mean, color=colour, alpha=0.25)
    (line,) = axis.plot(steps, smoothed(mean.tolist(), max(window, 1)), **style)
    return line


def _finish(axis: Any, title: str) -> None:
    axis.set_title(title, fontsize="medium")
    axis.grid(alpha=0.3)


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


def draw_timeline(run: Run, canvas: Canvas) -> None:
    """Draw a bar for each job, a row for each worker; gaps are mixing, evaluation, and waiting.

    What of a job was learning stands at the end of its bar, wherever it was done.
    """
    worker, begin, seconds = _bars(run)
    learning = np.zeros(seconds.size)
    if _LEARNING in run:
        learning = np.array(run[_LEARNING].values)
    workers = np.unique(worker)
    with canvas(figsize=(10, 1.2 + 0.4 * workers.size)) as (_, axes):
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

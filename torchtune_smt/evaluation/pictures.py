"""Pictures of analyses."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from torchtune_smt.core.errors import escaped
from torchtune_smt.core.pictures import Canvas, add_legend
from torchtune_smt.evaluation.features import (
    DENSE,
    Contribution,
    Overlap,
    Spelling,
    by_template,
)
from torchtune_smt.evaluation.tuned import Judged, WeightRange
from torchtune_smt.runs.curves import Run, round_seconds


def draw_overlaps(pairs: Sequence[tuple[str, str, Sequence[Overlap]]], canvas: Canvas) -> None:
    """Draw bars for each pair of sets, by their names, and template: features of one or of both."""
    size = 8, 1 + 0.3 * sum(len(found) for *_, found in pairs) + 0.4 * len(pairs)
    with canvas(len(pairs), 1, figsize=size, squeeze=False) as (_, axes):
        for axis, (first, second, found) in zip(axes.flat, pairs, strict=True):
            labels = [one.template for one in found]
            parts = np.array([(x.first - x.both, x.both, x.second - x.both) for x in found]).T
            shares, left, drawn = parts / np.maximum(parts.sum(axis=0), 1), np.zeros(len(found)), []
            for n, name in enumerate((f"{first} alone", "both", f"{second} alone")):
                bars = axis.barh(labels, shares[n], left=left, color=f"C{n}")
                drawn.append((name, bars))
                said = [f"{count:,}" if count else "" for count in parts[n]]
                axis.bar_label(bars, said, label_type="center")
                left = left + shares[n]
            axis.invert_yaxis()
            axis.set_xlabel("share of the features of either")
            above: dict[str, Any] = {"loc": "lower center", "bbox_to_anchor": (0.5, 1)}
            add_legend(axis, drawn, ncols=3, **above, fontsize="small")


def draw_ranges(ranges: Sequence[WeightRange], judged: Judged, canvas: Canvas) -> None:
    """Draw the score by each weight, around those values that are better than before."""
    columns = min(len(ranges), 3)
    rows = -(-len(ranges) // columns)
    size = 3.2 * columns, 2.4 * rows
    with canvas(rows, columns, figsize=size, squeeze=False) as (_, axes):
        for axis, one in zip(axes.flat, ranges, strict=False):
            low, high = one.gaining or one.equal
            # As wide as the weight at least: what is infinite, or very wide, tells nothing.
            room = max(abs(one.weight), 1e-9)
            low = max(low - room / 4, one.weight - 2 * room)
            high = min(high + room / 4, one.weight + 2 * room)
            bound = np.clip(one.curve.bound, low, high)
            axis.stairs(judged.measure.unit * one.curve.score, bound, baseline=None)
            axis.axhline(judged.before, color="gray", linestyle="--", linewidth=1)
            axis.axvline(one.weight, color="C1", linewidth=1)
            axis.set_xlim(low, high)
            axis.set_xlabel(escaped(one.name))
            inside = (bound[1:] > low) & (bound[:-1] < high)
            shown = judged.measure.unit * one.curve.score[inside]
            ends = [*shown.tolist(), judged.before]
            margin = (max(ends) - min(ends)) / 20 or 0.1
            axis.set_ylim(min(ends) - margin, max(ends) + margin)
        for axis in axes.flat[len(ranges) :]:
            axis.set_axis_off()


def draw_weights(
    first: tuple[str, Mapping[str, float]],
    second: tuple[str, Mapping[str, float]],
    dense: Collection[str],
    canvas: Canvas,
) -> None:
    """Draw a point for each sparse feature with a weight in either of two systems, given by name.

    Where there are none it is dense ones, whose weights are much larger.
    """
    (a, ours), (b, theirs) = first, second
    groups = by_template(ours.keys() | theirs.keys(), dense)
    if len(groups) > 1:
        groups.pop(DENSE, None)
    with canvas(figsize=(6.5, 6)) as (figure, axis):
        drawn = []
        for template, names in groups.items():
            x, y = ([side.get(name, 0.0) for name in names] for side in (ours, theirs))
            # Points are pixels: there may be a million.
            drawn.append((template, axis.scatter(x, y, s=8, alpha=0.6, rasterized=True)))
        axis.axhline(0, color="grey", linewidth=0.5)
        axis.axvline(0, color="grey", linewidth=0.5)
        axis.axline((0, 0), slope=1, color="grey", linewidth=0.5, linestyle=":")
        axis.set_xlabel(f"weight in {a}")
        axis.set_ylabel(f"weight in {b}")
        if groups:
            add_legend(figure, drawn, loc="outside upper center", ncols=4, fontsize="small")


def draw_spellings(systems: Mapping[str, Sequence[Spelling]], canvas: Canvas) -> None:
    """Draw how often words occur in the references, and in the features, of each system."""
    with canvas(1, 2, figsize=(10, 4)) as (figure, axes):
        for axis, what in zip(axes, ("tokens", "features"), strict=True):
            width = 0.8 / len(systems)
            drawn = []
            for n, (name, found) in enumerate(systems.items()):
                places = np.arange(len(found)) + (n - (len(systems) - 1) / 2) * width
                heights = [getattr(one, what) for one in found]
                drawn.append((name, axis.bar(places, heights, width)))
            axis.set_xticks(range(len(found)), [one.word for one in found])
            axis.set_ylabel("in references" if what == "tokens" else what)
        # Both have the same colours.
        add_legend(figure, drawn, loc="outside upper center", ncols=4, fontsize="small")


def draw_orders(sizes: Mapping[str, Mapping[int, int]], canvas: Canvas) -> None:
    """Draw how many segments have whose order in a reference, by their numbers of words."""
    lengths = sorted({size for counts in sizes.values() for size in counts})
    with canvas(figsize=(8, 4)) as (_, axis):
        places, bottom = np.arange(len(lengths)), np.zeros(len(lengths))
        drawn = []
        for name, counts in sizes.items():
            heights = np.array([counts.get(size, 0) for size in lengths])
            label = f"{name} ({heights.sum():,})"
            drawn.append((label, axis.bar(places, heights, bottom=bottom)))
            bottom += heights
        axis.set_xticks(places, [str(length) for length in lengths])
        axis.set_xlabel("words in another order")
        axis.set_ylabel("segments")
        axis.locator_params(axis="y", integer=True)
        add_legend(axis, drawn, title="order of a reference", fontsize="small")


def draw_progress(systems: Mapping[str, Sequence[Run]], canvas: Canvas) -> None:
    """Draw dev BLEU after each round, by the number of the round and by the time so far."""
    with canvas(1, 2, figsize=(10, 4.5), sharey=True) as (figure, (by_round, by_time)):
        drawn = {}
        for s, (name, runs) in enumerate(systems.items()):
            style = {"color": f"C{s % 10}", "marker": "o", "markersize": 3}
            for run in runs:
                dev = run["bleu/dev"].values if "bleu/dev" in run else []
                (line,) = by_round.plot(range(len(dev)), dev, **style)
                drawn[name] = line
                seconds = [0.0, *accumulate(round_seconds(run))]
                if len(seconds) == len(dev):
                    by_time.plot(seconds, dev, **style)
        by_round.set_ylabel("dev BLEU")
        by_round.locator_params(axis="x", integer=True)
        for axis, what in ((by_round, "round"), (by_time, "seconds of tuning")):
            axis.set_xlabel(what)
            axis.grid(alpha=0.3)
        add_legend(figure, list(drawn.items()), loc="outside lower left", fontsize="small")


def draw_contributions(
    found: Sequence[Contribution], systems: tuple[str, str], canvas: Canvas
) -> None:
    """Draw what features add to the lead of the first translation in either system, or scores."""
    with canvas(figsize=(8, 1.5 + 0.35 * len(found))) as (_, axis):
        places = np.arange(len(found))
        drawn = []
        for n, name in enumerate(systems):
            adds = [(one.first, one.second)[n] for one in found]
            drawn.append((f"in {name}", axis.barh(places + 0.4 * n - 0.2, adds, 0.4)))
        axis.set_yticks(places, [one.name for one in found])
        axis.invert_yaxis()
        axis.axvline(0, color="grey", linewidth=0.5)
        if all(len(one.values) == 1 for one in found):
            axis.set_xlabel(f"for the translation of {systems[0]} (right), of {systems[1]} (left)")
        else:
            axis.set_xlabel("added to the score of its own translation")
        add_legend(axis, drawn, fontsize="small")

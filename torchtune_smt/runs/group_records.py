"""What a run of tuning by groups leaves besides its log: a file of groups, and pictures of them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from torchtune_smt.core.arrays import Float64, Int64, UInt8
from torchtune_smt.runs.folder import GROUPS
from torchtune_smt.runs.log import RunLog
from torchtune_smt.runs.rounds import Callback, Rounds
from torchtune_smt.tuners.base import Report
from torchtune_smt.tuners.grouping.groups import save_groups
from torchtune_smt.tuners.grouping.tuner import GroupingTuner

WIDTH, HEIGHT = 800, 560
# The corners of the plot within the picture.
LEFT, TOP, RIGHT, BOTTOM = 90, 60, 770, 490

_GREY, _LIGHT, _BLUE, _ORANGE = (70, 70, 70), (225, 225, 225), (31, 119, 180), (230, 110, 20)


@dataclass(eq=False)
class GroupRecords(Callback):
    """Draws the groups of each iteration, and writes those of the weights that are kept.

    log: has the pictures.
    folder: of the run.
    """

    log: RunLog
    folder: Path

    def on_report(self, report: Report, run: Rounds) -> None:
        """Record the weights and sizes of groups after an iteration."""
        if report.kind != "round":
            return
        assert isinstance(run.tuner, GroupingTuner) and run.tuner.groups is not None
        groups, step = run.tuner.groups, run.progress.sentences
        packed = groups.pack(run.tuner.weights.parameter.detach().numpy())
        weights, sizes = packed[groups.n_dense :], groups.sizes[groups.n_dense :]
        if weights.size:
            self.log.histogram("groups/weights", weights, step)
            self.log.histogram("groups/log10_sizes", np.log10(sizes), step)
        title = (
            f"iteration {report.round}: {weights.size:,} groups of {sizes.sum():,} features, "
            f"dev {run.shown(run.progress.last)}"
        )
        self.log.image("groups/picture", draw_groups(weights, sizes, title), step)
        if report.kept:
            save_groups(self.folder / GROUPS, groups, packed, run.tuner.weights.features)


def draw_groups(weights: Float64, sizes: Int64, title: str) -> UInt8:
    """Draw a point a group: its weight to the right, its number of features upwards.

    The scale of weights is linear, that of sizes logarithmic. Positive weights are blue, negative
    ones orange. It is drawn with Pillow, which TensorBoard needs for pictures anyhow.

    weights, sizes (float64 [groups], int64 [groups]): those of the groups of sparse features; there
        may be none.

    Returns uint8 [height, width, 3]
    """
    image = Image.new("RGB", (WIDTH, HEIGHT), "white")
    draw = ImageDraw.Draw(image)
    font = ImageFont.load_default(15)
    draw.text((LEFT, 12), title, _GREY, font)
    if weights.size == 0:
        draw.text((WIDTH // 2, HEIGHT // 2), "no groups", _GREY, font, anchor="mm")
        return np.asarray(image)
    step = _nice(float(np.abs(weights).max()) / 3)
    last = max(math.ceil(float(np.abs(weights).max()) / step), 1)
    decades = max(math.ceil(math.log10(float(sizes.max()))), 1)
    x = LEFT + (RIGHT - LEFT) * (weights / (last * step) / 2 + 0.5)
    y = BOTTOM + (TOP - BOTTOM) * (np.log10(sizes) / decades)
    for i in range(-last, last + 1):
        place = LEFT + (RIGHT - LEFT) * (i + last) / (2 * last)
        draw.line((place, TOP, place, BOTTOM), _GREY if i == 0 else _LIGHT)
        draw.text((place, BOTTOM + 8), f"{i * step:.4g}", _GREY, font, anchor="mt")
    within = (1, 2, 5) if decades < 3 else (1,)
    for size in [m * 10**i for i in range(decades) for m in within] + [10**decades]:
        place = BOTTOM + (TOP - BOTTOM) * math.log10(size) / decades
        draw.line((LEFT, place, RIGHT, place), _LIGHT)
        draw.text((LEFT - 8, place), f"{size:,}", _GREY, font, anchor="rm")
    draw.rectangle((LEFT, TOP, RIGHT, BOTTOM), outline=_GREY)
    draw.text((LEFT - 70, TOP - 22), "features in the group", _GREY, font)
    middle = (LEFT + RIGHT) // 2
    draw.text((middle, HEIGHT - 25), "weight of the group", _GREY, font, anchor="mm")
    for px, py, weight in zip(x.tolist(), y.tolist(), weights.tolist(), strict=True):
        colour = _BLUE if weight > 0 else _ORANGE if weight < 0 else _GREY
        draw.ellipse((px - 3, py - 3, px + 3, py + 3), outline=colour, width=2)
    return np.asarray(image)


def _nice(value: float) -> float:
    """Return the smallest of 1, 2, 5 times a power of ten that is not below a value."""
    if not 0 < value < float("inf"):
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(m * power for m in (1, 2, 5, 10) if m * power >= value * (1 - 1e-9))

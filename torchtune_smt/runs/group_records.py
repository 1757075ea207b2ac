"""What a run of tuning by groups leaves besides its log: a file of groups, and pictures of them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from torchtune_smt.runs.folder import GROUPS
from torchtune_smt.runs.log import RunLog
from torchtune_smt.runs.rounds import Callback, Rounds
from torchtune_smt.tuners.base import Report
from torchtune_smt.tuners.feature_groups import save_groups
from torchtune_smt.tuners.group_picture import draw_groups
from torchtune_smt.tuners.grouping import GroupingTuner


@dataclass(eq=False)
class GroupRecords(Callback):
    """Draws the groups of each iteration, and writes those of the weights that are kept.

    Parameters
    ----------
    log : RunLog
        Has the pictures.
    folder : path
        Of the run.
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

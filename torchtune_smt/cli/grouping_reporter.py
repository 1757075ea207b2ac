"""What `train` shows and writes down of tuning by groups."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from tqdm import tqdm

from torchtune_smt.core.weights import Weights
from torchtune_smt.runs.epochs import Progress
from torchtune_smt.runs.log import RunLog, active_features
from torchtune_smt.tuners.batch import IterationReport
from torchtune_smt.tuners.feature_groups import save_groups
from torchtune_smt.tuners.group_picture import draw_groups
from torchtune_smt.tuners.grouping import GroupingReport, LearningReport

GROUPS = "groups.tsv.gz"


class GroupingReporter:
    """Progress bars, log, pictures, messages and the file of groups of a run.

    Parameters
    ----------
    log : RunLog
    weights : Weights
    folder : path
        Of the run; the groups of the weights that are kept are written there.
    """

    def __init__(self, log: RunLog, weights: Weights, folder: Path) -> None:
        self._log = log
        self._weights = weights
        self._folder = folder
        # The bar, what it is about, and what it shows.
        self._bar: tqdm | None = None
        self._what = ""
        self._done = 0

    def sentences(self, what: str, more: int, total: int) -> None:
        """Show that so many more sentences have been decoded, of so many."""
        before = self._done if self._what == what else 0
        self._show(what, before + more, total, "sent")

    def steps(self, done: int, steps: int) -> None:
        """Show how many steps of Algorithm 2 are done."""
        self._show("learning groups", done, steps, "step")

    def learned(self, report: LearningReport, progress: Progress) -> None:
        """Record groups that were learnt."""
        self.close()
        groups, n_dense = report.groups, report.groups.n_dense
        sizes = groups.sizes[n_dense:]
        self._log.scalars(
            progress.sentences,
            {
                "groups/number": groups.n_sparse,
                "groups/features": int(sizes.sum()),
                "groups/largest": int(sizes.max(initial=0)),
                "oscar/dimension": report.dimension,
                "oscar/loss": report.loss,
                "oscar/pairs": report.pairs,
                "oscar/steps": report.steps,
                "lists/hypotheses": report.hypotheses,
                "lists/new": report.new,
                "bleu/learning": report.bleu,
                "seconds/decoding": report.decoding,
                "seconds/learning": report.learning,
            },
        )
        begin = f"iteration {report.iteration}: "
        print(
            f"{begin}{report.hypotheses:,} hypotheses ({report.new:,} new), {report.pairs:,} "
            f"pairs, d = {report.dimension:,}; decoding {report.decoding:.0f} s, "
            f"{report.steps:,} steps {report.learning:.0f} s"
        )
        if groups.n_sparse == 0:
            print(
                f"{begin}no groups: OSCAR has left no weight that is not 0, so the default "
                "features are tuned alone; smaller regularizer.lambda1 and lambda2 leave more"
            )
        else:
            print(
                f"{begin}{groups.n_sparse:,} groups of {sizes.sum():,} features, the largest has "
                f"{sizes.max():,}"
            )
        sys.stdout.flush()

    def fit(self, report: IterationReport, progress: Progress) -> None:
        """Record an iteration of the tuner on dev."""
        self.close()
        self._log.scalars(
            progress.sentences,
            {
                "fit/bleu": report.score,
                "fit/hypotheses": report.hypotheses,
                "fit/new": report.new,
                "fit/seconds": report.seconds,
                **{f"fit/{name}": value for name, value in report.fit.items()},
            },
        )

    def iteration(self, report: GroupingReport, progress: Progress) -> None:
        """Record an iteration: its score, and the weights and sizes of its groups."""
        groups, step = report.groups, progress.sentences
        weights = report.group_weights[groups.n_dense :]
        sizes = groups.sizes[groups.n_dense :]
        active = int(np.count_nonzero(weights))
        self._log.scalars(
            step,
            {
                "bleu/dev": report.score,
                "groups/active": active,
                "seconds/tuning": report.tuning,
            },
        )
        self._log.weights(step, self._weights)
        if weights.size:
            self._log.histogram("groups/weights", weights, step)
            self._log.histogram("groups/log10_sizes", np.log10(sizes), step)
        title = (
            f"iteration {report.iteration}: {weights.size:,} groups of {sizes.sum():,} features, "
            f"dev BLEU {report.score:.2f}"
        )
        self._log.image("groups/picture", draw_groups(weights, sizes, title), step)
        if report.kept:
            features = self._weights.features
            save_groups(self._folder / GROUPS, groups, report.group_weights, features)
        single = sum(active_features(self._weights).values())
        print(
            f"iteration {report.iteration}: dev BLEU {report.score:.2f}, {report.fits} fits "
            f"{report.tuning:.0f} s; {active:,} active groups, {single:,} active features"
            f"{'' if report.kept else ' (not kept)'}",
            flush=True,
        )

    def close(self) -> None:
        """End the progress bar."""
        if self._bar is not None:
            self._bar.close()
        self._bar, self._what, self._done = None, "", 0

    def _show(self, what: str, done: int, total: int, unit: str) -> None:
        """Show how much of a piece of work is done."""
        if self._what != what:
            self.close()
            self._what = what
            # Only on a terminal (None): a log has the lines that say what each part has brought.
            self._bar = tqdm(
                desc=what,
                total=total,
                unit=unit,
                unit_scale=unit == "step",
                file=sys.stderr,
                leave=False,
                disable=None,
            )
        if self._bar is not None:
            self._bar.update(done - self._done)
        self._done = done
        if done >= total:
            self.close()

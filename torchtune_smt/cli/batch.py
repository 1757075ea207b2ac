"""``train`` with a batch tuner: PRO, MIRA, MERT and others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

import numpy as np
from omegaconf import DictConfig

from torchtune_smt.cli.dimension import Dimension
from torchtune_smt.cli.hydra_main import option_errors
from torchtune_smt.cli.lists import has_statistics
from torchtune_smt.cli.parts import Parts
from torchtune_smt.cli.reporting import BatchReporter
from torchtune_smt.cli.run_files import LISTS, remove_lists
from torchtune_smt.cli.solvers import groups_taken, make_solver
from torchtune_smt.cli.task import Task, evaluate, has_stored_lists, make_judge
from torchtune_smt.core.errors import InputError
from torchtune_smt.decoders.kbest_files import KBestFiles
from torchtune_smt.kbest.accumulated_lists import AccumulatedLists
from torchtune_smt.kbest.stored_lists import StoredLists
from torchtune_smt.metrics import BleuPlusOne
from torchtune_smt.runs.checkpoint import Stateful
from torchtune_smt.runs.epochs import Progress
from torchtune_smt.runs.log import RunLog
from torchtune_smt.tuners.batch import IterationSettings, tune_batch
from torchtune_smt.tuners.collect import Collector


class BatchRun:
    """Batch tuning; see `TuningRun`."""

    unit = "iteration"
    advice = "fewer features, more sentences, longer lists, another tuner or tuner.patience=null"

    def __init__(self, cfg: DictConfig, parts: Parts) -> None:
        self._cfg = cfg
        with option_errors("tuner"):
            self._settings = IterationSettings(
                cfg.tuner.iterations,
                cfg.tuner.patience,
                cfg.tuner.interpolation,
                cfg.tuner.tolerance,
                cfg.tuner.result,
            )
        self._dimension = Dimension(cfg, parts)
        self._solver = make_solver(cfg, parts, self._dimension.arguments)
        # MERT has a limit.
        self._max_features: int | None = getattr(self._solver, "max_features", None)
        if self._max_features and cfg.features.templates and not has_stored_lists(cfg):
            raise InputError(
                f"this tuner takes up to {self._max_features} features, and there are templates "
                "that make sparse ones without number: set features=dense, or take a tuner for "
                "many features, such as tuner=mira or tuner=pro"
            )
        # Where no gains are asked for, lists have some all the same.
        self._metric = parts.metric if "metric" in groups_taken(cfg) else BleuPlusOne()

    def open(self, task: Task, folder: Path, *, resumed: bool) -> Stateful:
        """Open the lists."""
        if self._max_features and isinstance(task.decoder, KBestFiles):
            stored = task.decoder.sets[self._cfg.tuner.tune_on]
            check_list_features(stored, task.decoder.dense_names, self._max_features)
        self._task = task
        self._folder = folder
        self._lists = open_accumulated(folder / LISTS, self._cfg.tuner.unique, task, resumed)
        self._judge = make_judge(self._metric, task.decoder, task.tuning)
        self._dimension.open(task, self._lists)
        return self._lists

    def plan(self) -> str:
        """Return the number of iterations."""
        return f"up to {self._settings.iterations} iterations"

    def tune(self, log: RunLog, progress: Progress, save: Callable[[Progress], None]) -> Progress:
        """Run the iterations."""
        task = self._task
        with closing(BatchReporter(log, task.weights, len(task.tuning))) as reporter:
            collector = Collector(
                task.decoder, task.weights, task.tuning, self._judge, self._lists, reporter.decoded
            )

            def score() -> float:
                return evaluate(task.decoder, task.weights, task.sets["dev"])[0].score

            return tune_batch(
                collector,
                self._solver,
                self._settings,
                None if task.tuning is task.sets["dev"] else score,
                seed=self._cfg.seed,
                progress=progress,
                on_iteration=lambda report, progress: reporter.iteration(
                    report, progress, self._dimension.value
                ),
                save=save,
            )

    def finish(self) -> None:
        """Remove the lists, unless they are to be kept."""
        if not self._cfg.tuner.keep_lists:
            remove_lists(self._folder)


def check_list_features(lists: StoredLists, dense: Sequence[str], most: int) -> None:
    """Raise InputError if stored lists have more features than a tuner takes."""
    count = np.unique(lists.feature).size
    if count > most:
        raise InputError(
            f"the k-best lists have {count:,} features, {len(dense)} of them dense, and this tuner "
            f"takes up to {most}: set decoder.features=dense, or name some, as in "
            "decoder.features=[NAME,NAME], or take a tuner for many features, such as tuner=mira "
            "or tuner=pro"
        )


def open_accumulated(folder: Path, unique: str, task: Task, resumed: bool) -> AccumulatedLists:
    """Return the lists of a run's folder, or empty ones for a run that begins."""
    n_dense = task.weights.n_dense
    without_words = isinstance(task.decoder, KBestFiles) and has_statistics(
        task.decoder, task.tuning
    )
    if unique == "string" and without_words:
        raise InputError(
            "tuner.unique=string tells hypotheses apart by their words, and features.dat has none; "
            "leave it out"
        )
    with option_errors("tuner"):
        if resumed:
            return AccumulatedLists.open(folder, n_dense=n_dense, unique=unique)  # type: ignore[arg-type]
        return AccumulatedLists(folder=folder, n_dense=n_dense, unique=unique)  # type: ignore[arg-type]

"""``train`` with ``tuner=grouping``."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Final

import torch
from omegaconf import DictConfig

from torchtune_smt.cli.batch import open_accumulated
from torchtune_smt.cli.dimension import Dimension
from torchtune_smt.cli.grouping_reporter import GroupingReporter
from torchtune_smt.cli.hydra_main import option_errors
from torchtune_smt.cli.parts import Parts
from torchtune_smt.cli.run_files import LISTS, remove_lists
from torchtune_smt.cli.solvers import make_solver
from torchtune_smt.cli.task import Task, has_stored_lists, make_judge
from torchtune_smt.core.errors import InputError
from torchtune_smt.decoders.kbest_files import KBestFiles
from torchtune_smt.runs.checkpoint import Stateful
from torchtune_smt.runs.epochs import Progress
from torchtune_smt.runs.log import RunLog
from torchtune_smt.tuners.batch import IterationSettings
from torchtune_smt.tuners.collect import Collector
from torchtune_smt.tuners.grouping import (
    GroupingReport,
    GroupingSettings,
    GroupingTuner,
    LearningReport,
)
from torchtune_smt.tuners.learn_groups import GroupLearning
from torchtune_smt.tuners.sentences import Sentences

# What Algorithm 2 is made of.
_ALGORITHM: Final = {
    "regularizer": ("oscar", "torchtune_smt.regularizers.Oscar"),
    "optimizer": ("fobos_oscar", "torchtune_smt.optim.FobosOscar"),
}


def check_grouping(cfg: DictConfig) -> None:
    """Raise InputError where the configuration of a grouping tuner makes no sense."""
    for group, (choice, kind) in _ALGORITHM.items():
        if cfg[group]["_target_"] != kind:
            raise InputError(
                f"tuner=grouping learns groups by FOBOS with OSCAR, and {group} is "
                f"{cfg[group]['_target_']}: set {group}={choice}, or leave {group} out"
            )
    if cfg.optimizer.get("regularize_dense"):
        raise InputError(
            "optimizer.regularize_dense=true: with tuner=grouping each dense feature is a group of "
            "its own, which OSCAR does not pull at; leave it out"
        )
    if not has_stored_lists(cfg) and not cfg.features.templates:
        raise InputError(
            "tuner=grouping groups sparse features, and there are none: set features=rule_id or "
            "features=sparse, or tune dense features with tuner=pro"
        )


class GroupingRun:
    """Tuning by groups of features; see `TuningRun`."""

    unit = "iteration"
    advice = "another regularizer.lambda2, more sentences, longer lists or tuner=pro"

    def __init__(self, cfg: DictConfig, parts: Parts) -> None:
        self._cfg = cfg
        self._parts = parts
        options = cfg.tuner
        with option_errors("tuner"):
            self._settings = GroupingSettings(
                options.iterations, options.patience, options.result, options.zero_group
            )
        with option_errors("tuner.dev"):
            self._inner = IterationSettings(
                options.dev.iterations,
                options.dev.patience,
                options.dev.interpolation,
                options.dev.tolerance,
            )
        # As an optimizer, its options have been checked.
        group = parts.optimizer([torch.nn.Parameter(torch.zeros(1).double())]).param_groups[0]
        with option_errors("tuner"):
            self._learning = GroupLearning(
                group["regularizer"], group["lr"], group["schedule"], options.passes
            )
        self._dimension = Dimension(cfg, parts)
        # It sees groups as features, all of which it may regularise.
        self._solver = make_solver(cfg, parts, dict)

    def open(self, task: Task, folder: Path, *, resumed: bool) -> Stateful:
        """Open the lists, and make the tuner."""
        cfg, parts = self._cfg, self._parts
        decoder = task.decoder
        if isinstance(decoder, KBestFiles) and len(decoder.features) <= len(decoder.dense_names):
            raise InputError(
                "tuner=grouping groups sparse features, and the k-best lists have none: say with "
                "decoder.dense which of theirs are dense, or tune with tuner=pro"
            )
        self._task = task
        self._folder = folder
        learning = self._learning
        self._dimension.open(task)
        if self._dimension.source != "lists":
            learning = replace(learning, regularizer=self._dimension.regularizer())

        def collector(name: str, sentences: Sentences) -> Collector:
            lists = open_accumulated(folder / LISTS / name, cfg.tuner.unique, task, resumed)
            judge = make_judge(parts.metric, decoder, sentences)

            def show(more: int) -> None:
                self._reporter.sentences(f"decoding {name}", more, len(sentences))

            return Collector(decoder, task.weights, sentences, judge, lists, show)

        self._tuner = GroupingTuner(
            collector("learning", task.tuning),
            collector("dev", task.sets["dev"]),
            parts.sampler,
            learning,
            self._solver,
            self._settings,
            self._inner,
            seed=cfg.seed,
        )
        return self._tuner

    def plan(self) -> str:
        """Return the number of iterations, and OSCAR's d if it is known."""
        iterations = self._settings.iterations
        what = self._dimension.text()
        return f"up to {iterations} iterations, groups tuned on dev in each{what}"

    def tune(self, log: RunLog, progress: Progress, save: Callable[[Progress], None]) -> Progress:
        """Run the iterations."""
        saved, due = time.perf_counter(), False

        def learned(report: LearningReport, progress: Progress) -> None:
            nonlocal due
            due = True
            reporter.learned(report, progress)

        def iteration(report: GroupingReport, progress: Progress) -> None:
            nonlocal due
            due = True
            reporter.iteration(report, progress)

        def save_now_and_then(progress: Progress) -> None:
            nonlocal saved, due
            # A checkpoint has the names of all features, which may be millions.
            minutes = (time.perf_counter() - saved) / 60
            if due or minutes >= self._cfg.tuner.checkpoint_minutes:
                save(progress)
                saved, due = time.perf_counter(), False

        with closing(GroupingReporter(log, self._task.weights, self._folder)) as reporter:
            self._reporter = reporter
            return self._tuner.tune(
                progress,
                on_steps=reporter.steps,
                on_learned=learned,
                on_fit=reporter.fit,
                on_iteration=iteration,
                save=save_now_and_then,
            )

    def finish(self) -> None:
        """Remove the lists, unless they are to be kept."""
        if not self._cfg.tuner.keep_lists:
            remove_lists(self._folder)

"""``train`` with ``tuner=online``."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from torchtune_smt.cli.dimension import Dimension
from torchtune_smt.cli.hydra_main import option_errors
from torchtune_smt.cli.parts import Parts, refuse_device
from torchtune_smt.cli.reporting import Reporter
from torchtune_smt.cli.task import Task, bind_metric, evaluate
from torchtune_smt.core.errors import InputError
from torchtune_smt.runs.checkpoint import Stateful
from torchtune_smt.runs.epochs import EpochSettings, Progress, tune
from torchtune_smt.runs.log import RunLog
from torchtune_smt.tuners.online import BatchReport, OnlineTuner


class OnlineRun:
    """Online tuning; see `TuningRun`."""

    unit = "epoch"
    advice = "a smaller optimizer.lr, fewer features, a stronger regularizer or more sentences"

    def __init__(self, cfg: DictConfig, parts: Parts) -> None:
        if parts.optimizer.averages and cfg.tuner.result != "average":
            raise InputError(
                f"optimizer.average={cfg.optimizer.average} has no effect on tuner.result="
                f"{cfg.tuner.result}: set tuner.result=average, or optimizer.average=none"
            )
        refuse_device(cfg)
        self._cfg = cfg
        self._parts = parts
        self._dimension = Dimension(cfg, parts)
        with option_errors("tuner"):
            self._settings = EpochSettings(cfg.tuner.epochs, cfg.tuner.patience, cfg.tuner.result)

    def open(self, task: Task, folder: Path, *, resumed: bool) -> Stateful:
        """Make the tuner, with its optimizer."""
        cfg, parts, weights = self._cfg, self._parts, task.weights
        self._task = task
        self._dimension.open(task)
        with option_errors("tuner"):
            self._tuner = OnlineTuner(
                task.decoder,
                weights,
                bind_metric(parts.metric, task.decoder, task.tuning),
                parts.sampler,
                parts.loss,
                parts.optimizer([weights.parameter], **self._dimension.arguments()),
                batch_size=cfg.tuner.batch_size,
                shuffle=cfg.tuner.shuffle,
                seed=cfg.seed,
            )
        return self._tuner.optimizer

    def plan(self) -> str:
        """Return the number of epochs, and OSCAR's d."""
        epochs = self._settings.epochs
        return f"{epochs} epoch{'s' if epochs > 1 else ''}{self._dimension.text()}"

    def tune(self, log: RunLog, progress: Progress, save: Callable[[Progress], None]) -> Progress:
        """Run the epochs."""
        cfg, task = self._cfg, self._task
        optimizer: Any = self._tuner.optimizer
        total = self._settings.epochs * len(task.tuning)
        saved = time.perf_counter()
        if self._dimension.value is not None and progress.sentences == 0:
            log.scalars(0, {"oscar/dimension": self._dimension.value})

        def save_now_and_then(progress: Progress) -> None:
            nonlocal saved
            due = time.perf_counter() - saved >= 60 * cfg.tuner.checkpoint_minutes
            if due or progress.batches == 0:
                save(progress)
                saved = time.perf_counter()

        with closing(Reporter(log, task.weights, total, progress.sentences)) as reporter:

            def on_batch(report: BatchReport, progress: Progress) -> None:
                reporter.batch(report, progress, float(optimizer.param_groups[0].get("lr", "nan")))

            return tune(
                self._tuner,
                task.tuning,
                self._settings,
                lambda: evaluate(task.decoder, task.weights, task.sets["dev"])[0].score,
                average=optimizer.averaged if self._parts.optimizer.averages else None,
                progress=progress,
                on_batch=on_batch,
                on_epoch=reporter.epoch,
                save=save_now_and_then,
            )

    def finish(self) -> None:
        """Leave all as it is: nothing was written besides checkpoints."""

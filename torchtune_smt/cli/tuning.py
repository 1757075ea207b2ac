"""The tuner that the configuration describes, in the loop of its rounds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch
from omegaconf import DictConfig

from torchtune_smt.cli.dimension import Dimension
from torchtune_smt.cli.hydra_main import option_errors
from torchtune_smt.cli.objects import decoder_class
from torchtune_smt.cli.parts import Parts, refuse_device
from torchtune_smt.cli.solvers import groups_taken, make_solver
from torchtune_smt.cli.task import Task, bind
from torchtune_smt.core.errors import InputError
from torchtune_smt.kbest.sentences import Sentences
from torchtune_smt.kbest.store import ListStore
from torchtune_smt.metrics import BleuPlusOne
from torchtune_smt.runs.folder import LISTS
from torchtune_smt.runs.rounds import Rounds, check_ending
from torchtune_smt.tuners.base import Tuner
from torchtune_smt.tuners.batch import BatchTuner, Mixing
from torchtune_smt.tuners.collect import Collector
from torchtune_smt.tuners.grouping import GroupingTuner
from torchtune_smt.tuners.learn_groups import GroupLearning
from torchtune_smt.tuners.online import OnlineTuner
from torchtune_smt.tuners.sentences import evaluate

KINDS: Final[dict[str, type[Tuner]]] = {
    "online": OnlineTuner,
    "batch": BatchTuner,
    "grouping": GroupingTuner,
}

# What Algorithm 2 is made of.
_ALGORITHM: Final = {
    "regularizer": ("oscar", "torchtune_smt.regularizers.Oscar"),
    "optimizer": ("fobos_oscar", "torchtune_smt.optim.FobosOscar"),
}


class Tuning:
    """How the configuration tunes.

    It is made before anything is read or built: bad options are found then.

    Raises
    ------
    InputError
        An option is out of range, or has no effect.
    """

    def __init__(self, cfg: DictConfig, parts: Parts) -> None:
        self._cfg = cfg
        self._parts = parts
        options = cfg.tuner
        self._kind = KINDS[options.kind]
        self._rounds = options[f"{self._kind.unit}s"]
        if self._kind is OnlineTuner:
            _check_online(cfg, parts)
        with option_errors("tuner"):
            check_ending(self._kind, self._rounds, options.patience, options.result)
        self.dimension = Dimension(cfg, parts)
        if self._kind is OnlineTuner:
            return
        inner = options.dev if self._kind is GroupingTuner else options
        with option_errors("tuner" if inner is options else "tuner.dev"):
            self._mixing = Mixing(inner.interpolation, inner.tolerance)
        if self._kind is GroupingTuner:
            with option_errors("tuner.dev"):
                check_ending(BatchTuner, inner.iterations, inner.patience, "best")
            # As an optimizer, its options have been checked.
            group = parts.optimizer([torch.nn.Parameter(torch.zeros(1).double())]).param_groups[0]
            with option_errors("tuner"):
                self._learning = GroupLearning(
                    group["regularizer"], group["lr"], group["schedule"], options.passes
                )
            # The solver sees groups as features, all of which it may regularise.
            self._solver = make_solver(cfg, parts, dict)
            return
        self._solver = make_solver(cfg, parts, self.dimension.arguments)
        # MERT has a limit.
        self._max_features: int | None = getattr(self._solver, "max_features", None)
        if self._max_features and cfg.features.templates and not parts.decoder.stored:
            raise InputError(
                f"this tuner takes up to {self._max_features} features, and there are templates "
                "that make sparse ones without number: set features=dense, or take a tuner for "
                "many features, such as tuner=mira or tuner=pro"
            )

    def open(self, task: Task, folder: Path, *, resumed: bool) -> Rounds:
        """Return the rounds of tuning, at the start.

        Parameters
        ----------
        folder : path
            The run's own, for lists that have to survive until the run is resumed.
        resumed : bool
            Whether the folder has some from before.
        """

        def collector(name: str, sentences: Sentences, metric: Any) -> Collector:
            lists = _open_lists(folder / LISTS / name, self._cfg, task, resumed)
            bound = bind(metric, task.decoder, sentences)
            return Collector(task.decoder, task.weights, sentences, bound, lists, name)

        options = self._cfg.tuner
        if self._kind is OnlineTuner:
            tuner, score = self._online(task), None
        elif self._kind is BatchTuner:
            tuner, score = self._batch(task, collector)
        else:
            tuner, score = self._grouping(task, collector)
        return Rounds(
            tuner,
            score or partial(_dev_score, task),
            rounds=self._rounds,
            patience=options.patience,
            result=options.result,
        )

    def plan(self) -> str:
        """Return in one line what is going to be done."""
        n, what = self._rounds, f"up to {self._rounds} iterations"
        if self._kind is OnlineTuner:
            what = f"{n} epoch{'s' if n > 1 else ''}"
        if self._kind is GroupingTuner:
            what += ", groups tuned on dev in each"
        return f"{what}{self.dimension.text()}"

    def _online(self, task: Task) -> Tuner:
        cfg, parts, weights = self._cfg, self._parts, task.weights
        self.dimension.open(task)
        with option_errors("tuner"):
            return OnlineTuner(
                task.decoder,
                weights,
                task.tuning,
                bind(parts.metric, task.decoder, task.tuning),
                parts.sampler,
                parts.loss,
                parts.optimizer([weights.parameter], **self.dimension.arguments()),
                batch_size=cfg.tuner.batch_size,
                shuffle=cfg.tuner.shuffle,
                seed=cfg.seed,
                average=parts.optimizer.averages,
            )

    def _batch(
        self, task: Task, collector: Callable[[str, Sentences, Any], Collector]
    ) -> tuple[Tuner, Callable[[], float] | None]:
        cfg = self._cfg
        if self._max_features and task.decoder.stored:
            _check_list_features(task, self._max_features)
        # Where no gains are asked for, lists have some all the same.
        metric = self._parts.metric if "metric" in groups_taken(cfg) else BleuPlusOne()
        lists = collector("", task.tuning, metric)
        self.dimension.open(task, lists.lists)
        tuner = BatchTuner(
            lists,
            self._solver,
            self._mixing,
            seed=cfg.seed,
            dimension=lambda: self.dimension.value,
        )
        return tuner, tuner.score if task.tuning is task.sets["dev"] else None

    def _grouping(
        self, task: Task, collector: Callable[[str, Sentences, Any], Collector]
    ) -> tuple[Tuner, Callable[[], float] | None]:
        cfg, decoder, metric = self._cfg, task.decoder, self._parts.metric
        if decoder.stored and len(decoder.features) <= len(decoder.dense_names):
            raise InputError(
                "tuner=grouping groups sparse features, and the k-best lists have none: say with "
                "decoder.dense which of theirs are dense, or tune with tuner=pro"
            )
        learning = self._learning
        self.dimension.open(task)
        if self.dimension.source != "lists":
            learning = replace(learning, regularizer=self.dimension.regularizer())
        train = collector("learning", task.tuning, metric)
        dev = BatchTuner(
            collector("dev", task.sets["dev"], metric), self._solver, self._mixing, seed=cfg.seed
        )
        inner = cfg.tuner.dev
        rounds = Rounds(dev, dev.score, rounds=inner.iterations, patience=inner.patience)
        tuner = GroupingTuner(
            train,
            rounds,
            self._parts.sampler,
            learning,
            zero_group=cfg.tuner.zero_group,
            seed=cfg.seed,
        )
        return tuner, tuner.score


def _check_online(cfg: DictConfig, parts: Parts) -> None:
    """Raise InputError where the configuration of the online tuner makes no sense."""
    if parts.optimizer.averages and cfg.tuner.result != "average":
        raise InputError(
            f"optimizer.average={cfg.optimizer.average} has no effect on tuner.result="
            f"{cfg.tuner.result}: set tuner.result=average, or optimizer.average=none"
        )
    refuse_device(cfg)


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
    if not decoder_class(cfg).stored and not cfg.features.templates:
        raise InputError(
            "tuner=grouping groups sparse features, and there are none: set features=rule_id or "
            "features=sparse, or tune dense features with tuner=pro"
        )


def _dev_score(task: Task) -> float:
    """Return corpus BLEU of dev; what the decoder has met there has its ids from now on."""
    score = evaluate(task.decoder, task.weights, task.sets["dev"])[0].score
    task.weights.take(task.decoder.features)
    return score


def _check_list_features(task: Task, most: int) -> None:
    """Raise InputError if stored lists have more features than a tuner takes."""
    features = task.decoder.feature_ids(task.tuning.sources)
    if features is not None and features.size > most:
        raise InputError(
            f"the k-best lists have {features.size:,} features, {len(task.decoder.dense_names)} of "
            f"them dense, and this tuner takes up to {most}: set decoder.features=dense, or name "
            "some, as in decoder.features=[NAME,NAME], or take a tuner for many features, such as "
            "tuner=mira or tuner=pro"
        )


def _open_lists(folder: Path, cfg: DictConfig, task: Task, resumed: bool) -> ListStore:
    """Return the lists of a run's folder, or empty ones for a run that begins."""
    unique, n_dense = cfg.tuner.unique, task.weights.n_dense
    if unique == "string" and not task.tuning.has_references:
        raise InputError(
            "tuner.unique=string tells hypotheses apart by their words, and features.dat has none; "
            "leave it out"
        )
    with option_errors("tuner"):
        if resumed:
            return ListStore.open(folder, n_dense=n_dense, unique=unique)
        return ListStore(folder=folder, n_dense=n_dense, unique=unique)

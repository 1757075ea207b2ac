"""The tuner that the configuration describes, in the loop of its rounds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from torchtune_smt.cli.dimension import Dimension
from torchtune_smt.cli.group_learners import group_learner
from torchtune_smt.cli.hydra_main import option_errors
from torchtune_smt.cli.options import chosen_name
from torchtune_smt.cli.parts import Parts, make_solver, refuse_device
from torchtune_smt.cli.spending import (
    groups_taken,
    has_solver,
    taken_by_others,
    tuner_takes,
    tunes_while_decoding,
)
from torchtune_smt.cli.task import Task, bind, score_of
from torchtune_smt.cli.wire import class_of, make
from torchtune_smt.core.accepts import declared
from torchtune_smt.core.errors import InputError
from torchtune_smt.core.weights import Weights
from torchtune_smt.decoders.base import Decoder
from torchtune_smt.kbest.sentences import Sentences
from torchtune_smt.kbest.store import ListStore
from torchtune_smt.metrics import BleuPlusOne
from torchtune_smt.metrics.base import BoundMetric, Metric, Score, is_of_bleu, metric_name
from torchtune_smt.parallel.base import Serial, Strategy, Work
from torchtune_smt.parallel.decode import Decode, DecodeWorker
from torchtune_smt.parallel.engine import Engine, InProcess, Worker
from torchtune_smt.parallel.shard_worker import ShardWorker
from torchtune_smt.runs.folder import LISTS
from torchtune_smt.runs.rounds import Rounds, check_ending
from torchtune_smt.tuners.base import Tuner
from torchtune_smt.tuners.batch import BatchTuner, Solver
from torchtune_smt.tuners.collect import Collector
from torchtune_smt.tuners.grouping.base import GroupLearner
from torchtune_smt.tuners.grouping.steps import ShardSteps, StepsResult, compute_here
from torchtune_smt.tuners.grouping.tuner import ScaleSolver
from torchtune_smt.tuners.sentences import evaluate_by


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
        self._takes = tuner_takes(cfg)
        kind: type[Tuner] = class_of(cfg, "tuner")
        self.online = tunes_while_decoding(cfg)
        self._unit = kind.unit
        self._rounds = options[f"{kind.unit}s"]
        if parts.optimizer.averages and "average" in self._takes and options.result != "average":
            raise InputError(
                f"optimizer.average={cfg.optimizer.average} has no effect on tuner.result="
                f"{options.result}: set tuner.result=average, or optimizer.average=none"
            )
        with option_errors("tuner"):
            check_ending(kind, self._rounds, options.patience, options.result)
        self.strategy: Strategy = make(cfg, "parallel", "tuner", "shards_data")
        self.engine: Engine = InProcess()
        if self.uses_engine:
            self.engine = make(cfg, "engine", "serve", "map", "close")
        self._check_strategy()
        self.dimension = Dimension(cfg, parts)
        if not has_solver(cfg):
            refuse_device(cfg)
            return
        if "dev" not in self._takes:
            # What a decoder knows before it decodes is dense.
            known = cfg.init["values"] if parts.decoder.stored else None
            if _scales(cfg) and cfg.init.file is None and not known:
                raise _nothing_to_scale()
            self._solver = make_solver(cfg, parts, self.dimension.arguments)
            self._max_features = _max_features(cfg, parts, self._solver)
            return
        with option_errors("tuner.dev"):
            check_ending(BatchTuner, options.dev.iterations, options.dev.patience, "best")
        self._learning = group_learner(cfg, parts, self._compute)
        # The solver sees groups as features, all of which it may regularise.
        self._solver = make_solver(cfg, parts, dict)

    def open(self, task: Task, folder: Path, *, resumed: bool) -> Rounds:
        """Return the rounds of tuning, at the start.

        Parameters
        ----------
        folder : path
            The run's own, for lists that have to survive until the run is resumed.
        resumed : bool
            Whether the folder has some from before.
        """
        cfg, parts, takes = self._cfg, self._parts, self._takes
        # Where no gains are asked for, lists have some all the same.
        metric = parts.metric if "metric" in groups_taken(cfg) else BleuPlusOne()
        name = metric_name(metric)
        self.by = self._bound_to_dev(metric, task)
        if name != "BLEU" and self.by is None:
            print(f"{name} scores no sentences of dev: weights are chosen by its BLEU")
            name = "BLEU"

        def collector(what: str, sentences: Sentences) -> Collector:
            lists = _open_lists(folder / LISTS / what, cfg, task, resumed)
            bound = bind(metric, task.decoder, sentences)
            decoder = self.strategy.decoder(task.decoder, self.engine)
            return Collector(decoder, task.weights, sentences, bound, lists, what, self.by is None)

        on_dev = task.tuning is task.sets["dev"]
        lists = None
        scales = _scales(cfg)
        if "collector" in takes:
            if self._max_features and task.decoder.stored:
                _check_list_features(task, self._max_features)
            lists = collector("", task.tuning)
        if "learning" in takes:
            _check_list_groups(task)
        self.dimension.open(task, None if lists is None else lists.lists)
        others: dict[str, Callable[[], Any]] = {
            "collector": lambda: lists,
            "solver": lambda: self._scaling(task, resumed) if scales else self._solver,
            "dimension": lambda: lambda: self.dimension.value,
            "learning": self._group_learning,
            "train": lambda: collector("learning", task.tuning),
            "dev": lambda: self._on_dev(collector("dev", task.sets["dev"]), name),
        }
        if self.strategy.shards_data:
            # Counted before weights come from a checkpoint, and the same in all workers.
            self.dimension.arguments()
            self.shard_dimension = self.dimension.value
        self.make_tuner = self._maker(metric, others)
        tuner = self.strategy.tuner(
            Work(
                self.make_tuner,
                task.weights,
                task.tuning,
                task.decoder,
                self.engine,
                cfg.seed,
                task.lines,
                task.total_lines,
            )
        )
        own = "dev" in takes or ("collector" in takes and on_dev)
        score: Callable[[], Score] = tuner.score if own else partial(self._dev_score, task)  # type: ignore[attr-defined]
        options = cfg.tuner
        return Rounds(
            tuner,
            score,
            rounds=self._rounds,
            patience=options.patience,
            result=options.result,
            name=name,
        )

    def take_met(self, task: Task) -> None:
        """Give what the decoder has met its ids in the weights.

        Those that workers return know their features by their names, and nobody needs others.
        """
        if not self.strategy.shards_data:
            task.weights.take(task.decoder.features)

    def _dev_score(self, task: Task) -> Score:
        """Return the score of dev; what the decoder has met there has its ids from now on."""
        found = evaluate_by(self.by, task.decoder, task.weights, task.sets["dev"])
        self.take_met(task)
        return score_of(found)

    def _bound_to_dev(self, metric: Metric, task: Task) -> BoundMetric | None:
        """Return the metric for dev, where its mean is what weights are chosen by."""
        dev = task.sets["dev"]
        elsewhere = self._cfg.tuner.tune_on == "train" and declared(metric, "by_number", "bind")
        if is_of_bleu(metric) or elsewhere or not dev.has_references:
            return None
        return bind(metric, task.decoder, dev)

    @property
    def uses_engine(self) -> bool:
        """Whether workers of an engine compute something."""
        return self.strategy.shards_data or self.strategy.decodes_lists

    def worker(self, decoder: Decoder) -> Worker:
        """Return what computes an epoch on a shard, or decodes."""
        if self.strategy.decodes_lists:
            return DecodeWorker(decoder)
        self.dimension.open_known(len(decoder.dense_names))
        return ShardWorker(self._maker(self._parts.metric), decoder)

    def _maker(
        self, metric: Metric, others: Mapping[str, Callable[[], Any]] | None = None
    ) -> Callable[[Weights, Sentences, Decoder], Tuner]:
        """Return what makes the tuner, of some weights, on some sentences."""
        cfg, parts = self._cfg, self._parts
        elsewhere = taken_by_others(cfg)

        def make_tuner(weights: Weights, sentences: Sentences, decoder: Decoder) -> Tuner:
            offered: dict[str, Callable[[], Any]] = {
                "decoder": lambda: decoder,
                "weights": lambda: weights,
                "sentences": lambda: sentences,
                "metric": lambda: bind(metric, decoder, sentences),
                "sampler": lambda: parts.sampler,
                "loss": lambda: parts.loss,
                "optimizer": lambda: parts.optimizer(
                    [weights.parameter], **self.dimension.arguments()
                ),
                "average": lambda: parts.optimizer.averages,
                "seed": lambda: cfg.seed,
            }
            offered |= others or {}
            tuner: Tuner = make(cfg, "tuner", "round", without=elsewhere, offered=offered)
            return tuner

        return make_tuner

    def _check_strategy(self) -> None:
        """Raise InputError if the tuner's rounds cannot be spread as the strategy says."""
        options, name = self._cfg, type(self.strategy).__name__
        # Of this package's tuners, one alone decodes itself.
        tuner = chosen_name(options, "tuner", "online")
        if not self.online and not isinstance(self.strategy, Serial | Decode):
            if self._takes.isdisjoint(("collector", "train", "dev")):
                raise InputError(
                    f"parallel: {name} gives each shard a decoder, and {tuner} takes none: take "
                    "parallel=serial, or let its class have an argument decoder"
                )
            raise InputError(
                f"parallel: {name} spreads the mini-batches of an epoch, and this tuner collects "
                "lists of all sentences: take parallel=decode, or tuner=online"
            )
        if self.online and self.strategy.decodes_lists:
            raise InputError(
                f"parallel: {name} decodes all sentences with the same weights, and {tuner} "
                "changes them while it decodes: take parallel=stale or itermix, or a tuner "
                "that collects lists, such as tuner=pro"
            )
        if self.strategy.shards_data and self._parts.optimizer.averages:
            raise InputError(
                f"optimizer.average={options.optimizer.average}: under parallel={name.lower()} "
                "each shard has an optimizer of its own, whose average nobody asks for; set "
                "optimizer.average=none, and tuner.result=average for the mean over epochs"
            )
        resends = self.strategy.shards_data and getattr(self.strategy, "resends", True)
        if resends and self._parts.optimizer.forgets:
            raise InputError(
                f"{self._parts.optimizer.name} forgets the sparse weights that it begins with, and "
                f"under parallel={name.lower()} each epoch begins with those of all shards: take "
                "parallel=mix, whose shards go on with their own, or another optimizer"
            )
        loss = self._parts.loss if "loss" in self._takes else None
        self.strategy.check(class_of(options, "tuner"), loss)

    def plan(self, folder: Path) -> str:
        """Return in one line what is going to be done, and where lists are held meanwhile."""
        n, what = self._rounds, f"up to {self._rounds} {self._unit}s"
        if self.online:
            what = f"{n} {self._unit}{'s' if n > 1 else ''}"
        if "dev" in self._takes:
            what += ", groups tuned on dev in each"
        text = f"{what}{self.dimension.text()}"
        if not {"collector", "train"} & set(self._takes):
            return text
        kept = self._cfg.tuner.get("keep_lists", True)
        fate = "they stay there" if kept else "removed at the end"
        return f"{text}; k-best lists of all iterations in {folder / LISTS} ({fate})"

    def _scaling(self, task: Task, resumed: bool) -> Solver:
        """Return the solver, to which all sparse weights are one feature."""
        weights = task.weights
        if not resumed and not bool(weights.parameter[weights.n_dense :].any()):
            raise _nothing_to_scale()
        return ScaleSolver(self._solver, weights.n_dense)

    def _group_learning(self) -> GroupLearner:
        """Return how groups are learnt, with OSCAR's d unless lists tell it."""
        if self.dimension.source == "lists":
            return self._learning
        return replace(self._learning, regularizer=self.dimension.regularizer())

    def _compute(self, tasks: Iterable[ShardSteps]) -> Iterator[StepsResult]:
        """Yield what shards of pairs come to, from workers if there are some."""
        return self.engine.map(None, tasks) if self.uses_engine else compute_here(tasks)

    def _on_dev(self, collector: Collector, name: str) -> Rounds:
        """Return a run on dev that finds the weights of groups."""
        options = self._cfg.tuner.dev
        tuner = BatchTuner(
            collector,
            self._solver,
            interpolation=options.interpolation,
            tolerance=options.tolerance,
            seed=self._cfg.seed,
        )
        rounds, patience = options.iterations, options.patience
        return Rounds(tuner, tuner.score, rounds=rounds, patience=patience, name=name)


def _nothing_to_scale() -> InputError:
    """Return the error where there are no sparse weights to start from."""
    return InputError(
        "tuner.sparse=scale tunes a factor of the sparse weights, and there are none to start "
        "from: name a weights file that has some (init=file init.file=), or leave tuner.sparse out"
    )


def _scales(cfg: DictConfig) -> bool:
    """Return whether sparse weights keep their ratios, and have one factor."""
    return bool(cfg.tuner.get("sparse") == "scale")


def _max_features(cfg: DictConfig, parts: Parts, solver: Solver) -> int | None:
    """Return how many features a solver takes at most; MERT has a limit."""
    if _scales(cfg):
        return None
    most: int | None = getattr(solver, "max_features", None)
    if most and cfg.features.templates and not parts.decoder.stored:
        raise InputError(
            f"this tuner takes up to {most} features, and there are templates that make sparse "
            "ones without number: set features=dense, or take a tuner for many features, such as "
            "tuner=mira or tuner=pro, or tune one factor of weights that they have "
            "(tuner.sparse=scale)"
        )
    return most


def _check_list_groups(task: Task) -> None:
    """Raise InputError if stored lists have no features that could be grouped."""
    decoder = task.decoder
    if decoder.stored and len(decoder.features) <= len(decoder.dense_names):
        raise InputError(
            "tuner=grouping groups sparse features, and the k-best lists have none: say with "
            "decoder.dense which of theirs are dense, or tune with tuner=pro"
        )


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

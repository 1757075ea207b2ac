"""How a run tunes: its tuner, in the loop of its rounds."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from torchtune_smt.core.accepts import declared
from torchtune_smt.core.arrays import Int64
from torchtune_smt.core.errors import InputError
from torchtune_smt.core.recipe import named_errors
from torchtune_smt.core.weights import Weights
from torchtune_smt.decoders.base import Decoder, lists_of
from torchtune_smt.kbest.measure import BLEU, Measure
from torchtune_smt.kbest.sentences import Sentences
from torchtune_smt.kbest.store import ListStore
from torchtune_smt.metrics import BleuPlusOne
from torchtune_smt.metrics.base import Judge, Metric, Score, is_of_bleu, measure_of, with_gains
from torchtune_smt.parallel.base import Serial, Strategy, Work
from torchtune_smt.parallel.decode import Decode, DecodeTask, DecodeWorker
from torchtune_smt.parallel.engine import Engine, InProcess, Worker
from torchtune_smt.parallel.shard_worker import ShardTask, ShardWorker, active
from torchtune_smt.regularizers import Oscar
from torchtune_smt.runs.folder import LISTS
from torchtune_smt.runs.parts import Parts
from torchtune_smt.runs.rounds import Rounds, check_ending
from torchtune_smt.runs.task import (
    Task,
    bind,
    model_digests,
    open_decoder,
    open_task,
    score_of,
)
from torchtune_smt.tuners.base import Tuner
from torchtune_smt.tuners.batch import BatchTuner, Collector
from torchtune_smt.tuners.grouping.base import GroupLearner
from torchtune_smt.tuners.grouping.steps import (
    MixedLearning,
    ShardSteps,
    StepsResult,
    compute_here,
    one_step,
)
from torchtune_smt.tuners.grouping.tuner import scale_solver
from torchtune_smt.tuners.sentences import Evaluated, evaluate_by
from torchtune_smt.tuners.solver import Solver
from torchtune_smt.tuners.start import PulledFeatures, features_there, fitting_scale

# Sentences whose lists say which scale fits the weights of the start.
_SCALED_ON: Final = 100
# Sentences that a worker is tried on.
_TRIED: Final = 5


class Tuning:
    """How the parts of a run tune; bad options are found before anything is read or built.

    dimension: OSCAR's d, once it has been counted.
    """

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._takes = parts.tuning.names
        kind, optimizer = parts.tuner, parts.optimizer
        if optimizer.averages and "average" in self._takes and parts.result != "average":
            raise InputError(
                f"optimizer.average={optimizer.average} has no effect on tuner.result="
                f"{parts.result}: set tuner.result=average, or optimizer.average=none"
            )
        with named_errors("tuner"):
            check_ending(kind, parts.rounds, parts.patience, parts.result)
        self.strategy: Strategy = parts.strategy()
        self.engine: Engine = parts.engine() if self.uses_engine else InProcess()
        self._check_strategy()
        # Whose features OSCAR's d counts, or the number that was given; None without OSCAR.
        counts = "regularizer" in parts.used and optimizer.regularizes
        self._counted = _counted(parts) if counts and isinstance(parts.regularizer, Oscar) else None
        self.dimension: int | None = None
        # Weights, and what came of dev under them: the best that was seen, as it is the last, too.
        self._best_dev: tuple[Tensor, Evaluated] | None = None
        if parts.solving is None:
            refuse_device(parts)
            return
        if "dev" not in self._takes:
            # What a decoder knows before it decodes is dense.
            known = parts.init_values if parts.decoder.stored else None
            if parts.scales and not parts.starts and not known:
                raise _nothing_to_scale()
            self._solver = self._make_solver(self._for_optimizer)
            self._max_features = self._limit_of_features()
            return
        with named_errors("tuner.dev"):
            check_ending(BatchTuner, parts.on_dev["iterations"], parts.on_dev["patience"], "best")
        assert parts.learner is not None
        self._learning = parts.learner(self._compute)
        # The solver sees groups as features, all of which it may regularise.
        self._solver = self._make_solver(dict)

    def _make_solver(self, arguments: Callable[[], dict[str, Any]]) -> Solver:
        """Return the solver, whose optimizers are made with arguments that are asked for then."""
        parts, recipe = self._parts, self._parts.solving
        assert recipe is not None
        if "device" not in recipe.names:
            refuse_device(parts)

        def optimizer(parameters: list[Tensor]) -> Any:
            return parts.optimizer(parameters, **arguments())

        solver: Solver = recipe(
            sampler=lambda: parts.sampler,
            loss=lambda: parts.loss,
            optimizer=lambda: optimizer,
            device=lambda: parts.device,
            average=lambda: parts.optimizer.averages,
        )
        return solver

    def open(self, task: Task, folder: Path, *, resumed: bool) -> Rounds:
        """Return the rounds of tuning, at the start.

        folder: the run's own, for lists that have to survive until the run is resumed.
        resumed: whether the folder has some from before.
        """
        parts, takes = self._parts, self._takes
        # Where no gains are asked for, lists have some all the same.
        metric = parts.metric if "metric" in parts.used else BleuPlusOne()
        measure = measure_of(metric)
        self.by = self._judge_of_dev(metric, task)
        if measure != BLEU and self.by is None:
            print(f"{measure.name} scores no sentences of dev: weights are chosen by its BLEU")
            measure = BLEU

        def collector(what: str, sentences: Sentences) -> Collector:
            lists = self._open_lists(folder / LISTS / what, task, resumed, measure)
            bound = bind(metric, task.decoder, sentences)
            decoder = self.strategy.decoder(task.decoder, self.engine)
            return Collector(decoder, task.weights, sentences, bound, lists, what, measure)

        on_dev, n_dense = task.tuning is task.sets["dev"], len(task.decoder.dense_names)
        lists = None
        if "collector" in takes:
            if self._max_features and task.decoder.stored:
                _check_list_features(task, self._max_features)
            lists = collector("", task.tuning)
        if "learning" in takes and task.decoder.stored and len(task.decoder.features) <= n_dense:
            raise InputError(
                "tuner=grouping groups sparse features, and the k-best lists have none: say with "
                "decoder.dense which of theirs are dense, or tune with tuner=pro"
            )
        self._count(task, None if lists is None else lists.lists)
        others: dict[str, Callable[[], Any]] = {
            "collector": lambda: lists,
            "solver": lambda: self._scaling(task, resumed) if parts.scales else self._solver,
            "dimension": lambda: lambda: self.dimension,
            "learning": self._group_learning,
            "train": lambda: collector("learning", task.tuning),
            "dev": lambda: self._on_dev(collector("dev", task.sets["dev"]), measure),
        }
        if self.strategy.shards_data:
            # Counted before weights come from a checkpoint, and the same in all workers.
            self._for_optimizer()
            self.shard_dimension = self.dimension
        self.make_tuner = self._maker(metric, others)
        tuner = self.strategy.tuner(
            Work(
                self.make_tuner,
                task.weights,
                task.tuning,
                task.decoder,
                self.engine,
                parts.seed,
                task.lines,
                task.total_lines,
            )
        )
        own = "dev" in takes or ("collector" in takes and on_dev)
        score: Callable[[], Score] = tuner.score if own else partial(self._dev_score, task)  # type: ignore[attr-defined]
        return Rounds(
            tuner,
            score,
            rounds=parts.rounds,
            patience=parts.patience,
            result=parts.result,
            measure=measure,
        )

    def scale_start(self, task: Task) -> None:
        """Multiply the weights that tuning starts from by ``init.scale``.

        For ``auto`` that is the scale that fits the loss of an online tuner's lists (see
        `fitting_scale`), if the weights' own is more than twice as large, or less than half of it.
        """
        parts, scale = self._parts, self._parts.init_scale
        parameter = task.weights.parameter.detach()
        if scale == "auto":
            if not parts.online or not bool(parameter.any()):
                return
            # What the sample's lists have besides is no feature of the run.
            decoder, sentences = task.decoder.fork(), task.tuning.sample(_SCALED_ON, parts.seed)
            lists = lists_of(decoder, sentences.sources, task.weights)
            lists = with_gains(bind(parts.metric, decoder, sentences), lists)
            found = fitting_scale(lists, task.weights, parts.loss, parts.sampler, (parts.seed, 0))
            if found is None or 0.5 <= found <= 2:
                return
            scale = found
            print(
                f"init.scale={scale:g}: at so many times the weights of the start the loss of "
                f"{len(sentences):,} sentences is least (init.scale=1 leaves them as they are)"
            )
        parameter *= float(scale)

    # OSCAR's d

    def _count(self, task: Task, lists: ListStore | None) -> None:
        """Learn what is tuned, on lists or else those of the decoder, before any is decoded."""
        self._n_dense = task.weights.n_dense
        found: Callable[[], Int64]
        found = partial(features_there, task.decoder, task.tuning.sources, task.weights)
        if self._counted == "charts":
            print("counting the features of the charts, for OSCAR's d", flush=True)
            found = partial(np.copy, found())
        elif lists is not None:
            found = lists.features
        dense = self._parts.optimizer.regularizes_dense
        self._pulled = PulledFeatures(task.weights, dense, found)
        if isinstance(self._counted, int):
            self._pulled.check(self._counted)

    def _for_optimizer(self) -> dict[str, Any]:
        """Return what an optimizer of the run's weights is made with; d is counted now."""
        oscar = {} if self._counted is None else {"regularizer": self._oscar()}
        return {"n_dense": self._n_dense, **oscar}

    def _oscar(self) -> Oscar:
        given = self._counted
        self.dimension = given if isinstance(given, int) else self._pulled.count()
        oscar: Oscar = replace(self._parts.regularizer, dimension=self.dimension)  # type: ignore[assignment, type-var]
        return oscar

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
        score = score_of(found)
        if self._best_dev is None or score.tuned > score_of(self._best_dev[1]).tuned:
            self._best_dev = task.weights.parameter.detach().clone(), found
        return score

    def known_dev(self, task: Task) -> Evaluated | None:
        """Return what came of dev under the weights as they are, if a round was scored by it."""
        if self._best_dev is None:
            return None
        (then, found), now = self._best_dev, task.weights.parameter
        # Features that came later had no weight then.
        same = now[: then.numel()].equal(then) and not bool(now[then.numel() :].any())
        return found if same else None

    def _judge_of_dev(self, metric: Metric, task: Task) -> Judge | None:
        """Return the metric for dev, where weights are chosen by it and not by BLEU."""
        dev = task.sets["dev"]
        elsewhere = self._parts.tune_on == "train" and declared(metric, "by_number", "bind")
        if is_of_bleu(metric) or elsewhere or not dev.has_references:
            return None
        return Judge(bind(metric, task.decoder, dev), measure_of(metric))

    @property
    def uses_engine(self) -> bool:
        """Whether workers compute something."""
        return self.strategy.shards_data or self.strategy.decodes_lists

    @property
    def mixes_groups(self) -> bool:
        """Whether workers take steps that groups are learnt by."""
        learning = getattr(self, "_learning", None)
        return isinstance(getattr(learning, "learner", learning), MixedLearning)

    def worker(self, decoder: Decoder) -> Worker:
        """Return what computes an epoch on a shard, or decodes."""
        if self.strategy.decodes_lists:
            return DecodeWorker(decoder)
        # d is a number there.
        self._n_dense = len(decoder.dense_names)
        return ShardWorker(self._maker(self._parts.metric), decoder)

    def _maker(
        self, metric: Metric, others: Mapping[str, Callable[[], Any]] | None = None
    ) -> Callable[[Weights, Sentences, Decoder], Tuner]:
        """Return what makes the tuner, of some weights, on some sentences."""
        parts = self._parts

        def make_tuner(weights: Weights, sentences: Sentences, decoder: Decoder) -> Tuner:
            offered: dict[str, Callable[[], Any]] = {
                "decoder": lambda: decoder,
                "weights": lambda: weights,
                "sentences": lambda: sentences,
                "metric": lambda: bind(metric, decoder, sentences),
                "sampler": lambda: parts.sampler,
                "loss": lambda: parts.loss,
                "optimizer": lambda: parts.optimizer([weights.parameter], **self._for_optimizer()),
                "average": lambda: parts.optimizer.averages,
                "seed": lambda: parts.seed,
            }
            tuner: Tuner = parts.tuning(**offered, **(others or {}))
            return tuner

        return make_tuner

    def _check_strategy(self) -> None:
        optimizer, name = self._parts.optimizer, type(self.strategy).__name__
        tuner, online = self._parts.tuner.__name__, self._parts.online
        if not online and not isinstance(self.strategy, Serial | Decode):
            raise InputError(
                f"parallel: {name} spreads the mini-batches of an epoch, and {tuner} takes no "
                "decoder: take parallel=decode if it collects lists of all sentences, or serial"
            )
        if online and self.strategy.decodes_lists:
            raise InputError(
                f"parallel: {name} decodes all sentences with the same weights, and {tuner} "
                "changes them while it decodes: take parallel=stale or itermix, or a tuner "
                "that collects lists, such as tuner=pro"
            )
        if self.strategy.shards_data and optimizer.averages:
            raise InputError(
                f"optimizer.average={optimizer.average}: under parallel={name.lower()} each shard "
                "has an optimizer of its own; leave it out, and set tuner.result=average"
            )
        resends = self.strategy.shards_data and getattr(self.strategy, "resends", True)
        if resends and optimizer.forgets:
            raise InputError(
                f"{optimizer.name} forgets the sparse weights that it begins with, and "
                f"under parallel={name.lower()} each epoch begins with those of all shards: take "
                "parallel=mix, whose shards go on with their own, or another optimizer"
            )
        if resends and self._parts.tuning.options.get("towards") == "start":
            raise InputError(
                f"tuner.towards=start: under parallel={name.lower()} each epoch begins with the "
                "weights of all shards, which are no start: take parallel=serial, stale or mix"
            )
        self.strategy.check(self._parts.tuner, self._parts.loss if "loss" in self._takes else None)

    def plan(self, folder: Path) -> str:
        """Return in one line what is going to be done, and where lists are held meanwhile."""
        n, unit = self._parts.rounds, self._parts.tuner.unit
        what = f"{n} {unit}{'s' if n > 1 else ''}" if self._parts.online else f"up to {n} {unit}s"
        if "dev" in self._takes:
            what += ", groups tuned on dev in each"
        if self.dimension is not None:
            given = isinstance(self._counted, int)
            said = "as given" if given else f"features of the {self._counted}"
            what += f"; OSCAR's d = {self.dimension:,} ({said})"
        if self._takes.isdisjoint(("collector", "train")):
            return what
        fate = "they stay there" if self._parts.keep_lists else "removed at the end"
        return f"{what}; k-best lists of all iterations in {folder / LISTS} ({fate})"

    def _scaling(self, task: Task, resumed: bool) -> Solver:
        """Return the solver, to which all sparse weights are one feature."""
        weights = task.weights
        if not resumed and not bool(weights.parameter[weights.n_dense :].any()):
            raise _nothing_to_scale()
        return scale_solver(self._solver, weights.n_dense)

    def _group_learning(self) -> GroupLearner:
        """Return how groups are learnt, with OSCAR's d unless lists tell it."""
        if self._counted == "lists":
            return self._learning
        return replace(self._learning, regularizer=self._oscar())

    def _compute(self, tasks: Iterable[ShardSteps]) -> Iterator[StepsResult]:
        """Yield what shards of pairs come to, from workers if there are some."""
        return self.engine.map(None, tasks) if self.uses_engine else compute_here(tasks)

    def _on_dev(self, collector: Collector, measure: Measure) -> Rounds:
        options = self._parts.on_dev
        tuner = BatchTuner(
            collector,
            self._solver,
            interpolation=options["interpolation"],
            tolerance=options["tolerance"],
            seed=self._parts.seed,
        )
        rounds, patience = options["iterations"], options["patience"]
        return Rounds(tuner, tuner.score, rounds=rounds, patience=patience, measure=measure)

    def _limit_of_features(self) -> int | None:
        """Return how many features the solver takes at most; MERT has a limit."""
        if self._parts.scales:
            return None
        most: int | None = getattr(self._solver, "max_features", None)
        if most and self._parts.templates and not self._parts.decoder.stored:
            raise InputError(
                f"this tuner takes up to {most} features, and there are templates that make sparse "
                "ones without number: set features=dense, or take a tuner for many features, such "
                "as tuner=mira or tuner=pro, or tune one factor of weights that they have "
                "(tuner.sparse=scale)"
            )
        return most

    def _open_lists(self, folder: Path, task: Task, resumed: bool, measure: Measure) -> ListStore:
        unique, n_dense = self._parts.unique, task.weights.n_dense
        if unique == "string" and not task.tuning.has_references:
            raise InputError(
                "tuner.unique=string tells hypotheses apart by their words, and features.dat has "
                "none; leave it out"
            )
        with named_errors("tuner"):
            make = ListStore.open if resumed else ListStore
            return make(folder=folder, n_dense=n_dense, unique=unique, measure=measure)


def refuse_device(parts: Parts) -> None:
    """Raise InputError if a device was chosen for a tuner that has no use for one."""
    if parts.device != "cpu":
        raise InputError(
            f"device={parts.device}: this tuner works on the CPU alone; leave it out, or take "
            "tuner=pro or tuner=stochastic"
        )


def _counted(parts: Parts) -> str | int:
    """Return whose features OSCAR's d counts, or the number that was given."""
    given, stored = parts.dimension, parts.decoder.stored
    usual = "charts" if parts.online and not stored else "lists"
    if given == "charts" and stored:
        why = "stored k-best lists come without charts"
    elif given == "lists" and usual == "charts":
        why = "while tuning online decodes, its lists are not known beforehand"
    else:
        return usual if given is None else given
    raise InputError(f"regularizer.dimension={given}: {why}; set {usual}, or a number")


def _nothing_to_scale() -> InputError:
    return InputError(
        "tuner.sparse=scale tunes a factor of the sparse weights, and there are none to start "
        "from: name a weights file that has some (init=file init.file=), or leave tuner.sparse out"
    )


def _check_list_features(task: Task, most: int) -> None:
    features = task.decoder.feature_ids(task.tuning.sources)
    if features is not None and features.size > most:
        raise InputError(
            f"the k-best lists have {features.size:,} features, {len(task.decoder.dense_names)} of "
            f"them dense, and this tuner takes up to {most}: set decoder.features=dense, or name "
            "some, as in decoder.features=[NAME,NAME], or take a tuner for many features, such as "
            "tuner=mira or tuner=pro"
        )


# Workers of an engine: they open what a run is made of once more.


def serve_workers(tuning: Tuning, task: Task, make_parts: Callable[[], Parts]) -> None:
    """Tell the engine how workers are opened.

    make_parts: makes the parts of the run once more, in another process; it can be pickled.
    """
    # Kernels that nobody has compiled yet are compiled here, once, and not in each worker.
    dimension = None
    if tuning.strategy.shards_data:
        tried = task.tuning.part(range(min(_TRIED, len(task.tuning))))
        worker = ShardWorker(tuning.make_tuner, task.decoder.fork())
        worker(active(task.weights), ShardTask(1, tried))
        dimension = tuning.shard_dimension
    else:
        some = task.tuning.sources[:_TRIED]
        decode = DecodeWorker(task.decoder.fork())
        decode(active(task.weights), DecodeTask(some, None))
        if tuning.mixes_groups:
            decode(None, one_step())
    tuning.engine.serve(OpenWorker.of(task, make_parts, dimension))


@dataclass(frozen=True)
class OpenWorker:
    """Opens a worker, in any process. Its sentences come with its tasks.

    dimension: OSCAR's d, which is known already.
    words: `Task.words`: they have the same ids in all processes.
    model: `model_digests` of the run's model.
    """

    make_parts: Callable[[], Parts]
    dimension: int | None
    words: list[str]
    model: list[str]

    @classmethod
    def of(cls, task: Task, make_parts: Callable[[], Parts], dimension: int | None) -> OpenWorker:
        """Return what opens workers of a run."""
        return cls(make_parts, dimension, task.words, model_digests(task.model))

    def __call__(self) -> Worker:
        """Return a worker."""
        torch.set_num_threads(1)
        # The driver has said it.
        with (
            contextlib.redirect_stdout(io.StringIO()),
            contextlib.redirect_stderr(io.StringIO()),
        ):
            parts = self.make_parts()
            # Processes share the cores.
            parts.threads = parts.threads or 1
            parts.dimension = self.dimension or parts.dimension
            tuning = Tuning(parts)
            kind = parts.decoder
            if kind.stored or kind.sentences is not Decoder.sentences:
                # It has to see the sets of the data before it can decode them.
                return tuning.worker(open_task(parts, may_write_model=False).decoder)
            return tuning.worker(open_decoder(parts, self.words, self.model))

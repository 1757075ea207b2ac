"""What a run is made of, before anything is read, built or decoded."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
import torch
from torch import Tensor

from torchtune_smt.core.accepts import behaves_as
from torchtune_smt.core.arrays import Float64
from torchtune_smt.core.errors import InputError
from torchtune_smt.core.recipe import Recipe, named_errors
from torchtune_smt.core.resources import PACKAGE
from torchtune_smt.core.snapshot import NamedWeights
from torchtune_smt.data.dataset import Dataset
from torchtune_smt.decoders.base import NO_PARTS, Decoder, checked_decoder
from torchtune_smt.features.templates import OrientedTemplate, check_classes, of_classes
from torchtune_smt.kbest.lists import KBestLists
from torchtune_smt.losses import Logistic, Loss, is_listwise
from torchtune_smt.metrics import Metric, NakovBleu
from torchtune_smt.metrics.base import is_of_bleu
from torchtune_smt.models.base import CLASS_MODEL_OPTIONS, ModelSource
from torchtune_smt.models.moses_ini_writing import INI, export_to_ini, files_of_ini
from torchtune_smt.optim import AdaGrad
from torchtune_smt.optim.adapter import check_optimizer
from torchtune_smt.parallel.base import Serial, Strategy
from torchtune_smt.parallel.engine import Engine, InProcess
from torchtune_smt.regularizers import L1, NoRegularizer, Regularizer
from torchtune_smt.samplers import PairSampler, ProSampler
from torchtune_smt.tuners.base import Tuner
from torchtune_smt.tuners.grouping.base import GroupLearner
from torchtune_smt.tuners.grouping.steps import Compute
from torchtune_smt.tuners.online import OnlineTuner
from torchtune_smt.tuners.solver import Solution, checked_solution


class Optimizers:
    """Makes optimizers.

    regularizer: given to a class that has an argument of this name; an attribute, too.
    regularizes_dense: whether dense features are not left alone.

    As attributes:
    name: of the class.
    regularizes: whether it takes a regulariser.
    forgets: whether the weights that it begins with do not matter to it.
    averages: whether it is to keep an average of the weights.
    """

    def __init__(
        self, recipe: Recipe, regularizer: Regularizer, *, regularizes_dense: bool = False
    ) -> None:
        self.regularizes_dense = regularizes_dense
        self._recipe = recipe
        self.regularizer = regularizer
        kind = recipe.kind
        self.name = getattr(kind, "__name__", str(kind))
        self.forgets = bool(getattr(kind, "forgets", False))
        self.regularizes = "regularizer" in recipe.names
        if self.regularizes and not regularizes_dense and "unregularized" not in recipe.names:
            raise InputError(
                f"optimizer: {self.name} takes a regularizer and no `unregularized`, the number of "
                "dense features, which come first and are to be left alone: let it take that, or "
                "have dense features regularised, too (+optimizer.regularize_dense=true)"
            )
        optimizer = self([torch.nn.Parameter(torch.zeros(1, dtype=torch.float64))])
        # Those of this package are tested, and have kernels that take long to compile.
        if not type(optimizer).__module__.startswith(f"{PACKAGE.name}."):
            check_optimizer(self)
        self.average = recipe.options.get("average", "none")
        self.averages = self.average != "none" and hasattr(optimizer, "averaged")

    def __call__(
        self, parameters: list[Tensor], n_dense: int = 0, regularizer: Regularizer | None = None
    ) -> torch.optim.Optimizer:
        """Return a new optimizer; `n_dense` features come first."""
        offered = {
            "regularizer": self.regularizer if regularizer is None else regularizer,
            "unregularized": 0 if self.regularizes_dense else n_dense,
        }
        taken = {name: value for name, value in offered.items() if name in self._recipe.names}
        optimizer: torch.optim.Optimizer = self._recipe.make(parameters, **taken)
        return optimizer


# What an argument of a tuner's or solver's class stands for.
_GROUPS: Final = {
    "metric": ("metric",),
    "sampler": ("sampler", "metric"),
    "loss": ("loss", "metric"),
    "optimizer": ("optimizer", "regularizer"),
    "learning": ("optimizer", "regularizer"),
}


_CLASSES: Final = ("classes", "source_classes")


def options_of(model: ModelSource, part: str, names: Sequence[str]) -> list[Any]:
    """Return the values of some options of a model, or one of its `parts`, that has such ones."""
    own = getattr(model, part.rstrip(".")) if part else model
    return [getattr(own, name) for name in names if hasattr(own, name)]


@dataclass(kw_only=True)
class Parts:
    """The replaceable parts of a run, and when it ends.

    decoding: of the decoder, which is offered ``model``, ``templates``, ``threads`` and
        ``tune_on``.
    model: for a decoder that takes one.
    template_options: their arguments, which tell one of a name from another.
    optimizer: a recipe may stand for it, of a class that takes the regulariser.
    tuning: of the tuner; see `torchtune_smt.runs.tuning.Tuning.open` for what it is offered.
    solving: of the solver of a tuner that has one, or of its rounds on dev.
    learner: returns what learns groups, given what computes its steps.
    strategy, engine: return a parallel strategy, and where it computes.
    dimension ({"charts", "lists"} or int): OSCAR's d, or whose features are counted for it.
    init_file, init_values: the weights that tuning starts from. Instead of one file there may be
        some for parts of the decoder, by their names (see `Decoder.pools`).
    init_scale ("auto" or float): they are multiplied by it; see `Tuning.scale_start`.
    required: features among `init_values` that must be there.
    tune_on ("dev", "train")
    sentences: so many of them, drawn with the seed.
    folds: whether sentences of ``train`` are decoded with cross-fitted language models.
    device ("cpu", "cuda"): for solvers that take one.
    rounds, patience, result: see `torchtune_smt.runs.rounds.Rounds`.
    unique ("derivation", "string"): what k-best lists hold once.
    scales: whether sparse weights keep their ratios, and have one factor.
    on_dev: ``iterations``, ``patience``, ``interpolation``, ``tolerance`` of rounds on dev.
    keep_lists: whether k-best lists stay when the run is finished.
    checkpoint_minutes: a step is saved if the last time was so long ago.
    """

    dataset: Dataset
    decoding: Recipe
    model: ModelSource | None = None
    templates: Sequence[Any] = ()
    template_options: Sequence[Mapping[str, Any]] = ()
    metric: Metric = field(default_factory=NakovBleu)
    sampler: PairSampler = field(default_factory=ProSampler)
    loss: Loss = field(default_factory=Logistic)
    regularizer: Regularizer = field(default_factory=lambda: L1(0.1))
    optimizer: Optimizers = None  # type: ignore[assignment]
    tuning: Recipe = field(default_factory=lambda: Recipe.of(OnlineTuner))
    solving: Recipe | None = None
    learner: Callable[[Compute], GroupLearner] | None = None
    strategy: Callable[[], Strategy] = Serial
    engine: Callable[[], Engine] = InProcess
    dimension: str | int | None = None
    init_file: str | Mapping[str, str] | None = None
    init_values: Mapping[str, float] = field(default_factory=dict)
    init_scale: str | float = 1.0
    required: Collection[str] = ()
    tune_on: str = "dev"
    sentences: int | None = None
    seed: int = 1
    threads: int | None = None
    folds: bool = True
    device: str = "cpu"
    rounds: int = 8
    patience: int | None = None
    result: str = "best"
    unique: Literal["derivation", "string"] = "derivation"
    scales: bool = False
    on_dev: Mapping[str, Any] = field(default_factory=dict)
    keep_lists: bool = True
    checkpoint_minutes: float = math.inf

    def __post_init__(self) -> None:
        if self.optimizer is None or isinstance(self.optimizer, Recipe):
            recipe = self.optimizer or Recipe.of(AdaGrad, lr=0.02)
            self.optimizer = Optimizers(recipe, self.regularizer)
        if self.optimizer.regularizes and self.optimizer.regularizer != self.regularizer:
            raise InputError(
                f"the optimizer takes {self.optimizer.regularizer}, and the run "
                f"{self.regularizer}: give one, as regularizer, and the optimizer as a Recipe"
            )
        self.template_options = self.template_options or [{} for _ in self.templates]
        kind = checked_decoder(self.decoding.kind)
        if self.model is not None and kind.phrases not in (None, self.model.phrases):
            takes, has = "phrase pairs", "rules with gaps"
            cure = "take model=phrase or model=moses"
            if not kind.phrases:
                takes, has, cure = has, takes, "take model=hiero, or decoder=phrase"
            raise InputError(f"this decoder takes {takes}, and this model has {has}; {cure}")
        if self.model is not None:
            # Before the model is built, which takes long.
            if kind.pools and len(self.model.parts) < len(kind.pools):
                raise InputError(NO_PARTS)
            for part in self.model.parts:
                given = options_of(self.model, part, _CLASSES)
                with named_errors(f"decoder.{part[:-1]}" if part else "features.templates"):
                    check_classes(self._templates_of(part), any(given) or not given)
        named = self.init_file if isinstance(self.init_file, Mapping) else ()
        if wrong := [name for name in named if name not in kind.pools]:
            there = f"its parts are {' and '.join(kind.pools)}"
            raise InputError(
                f"init.file has a file for a part {wrong[0]} of the decoder, and "
                + (there if kind.pools else "this one has no parts; name one file")
            )
        if lacking := [name for name in kind.pools if named and name not in named]:
            raise InputError(
                f"init.file has no file for the part {lacking[0]} of the decoder, whose weights "
                "would all start at 0; name one"
            )

    @property
    def decoder(self) -> type[Decoder]:
        """The class of the decoder."""
        return self.decoding.kind  # type: ignore[return-value]

    @property
    def tuner(self) -> type[Tuner]:
        """The class of the tuner."""
        return self.tuning.kind  # type: ignore[return-value]

    @property
    def online(self) -> bool:
        """Whether the tuner decodes itself, and no lists are collected for it."""
        return "decoder" in self.tuning.names

    @property
    def used(self) -> set[str]:
        """Which of metric, sampler, loss, regularizer and optimizer the tuner takes."""
        names = set(self.tuning.names)
        if self.solving is not None:
            names |= self.solving.names
            # On statistics of lists, which metrics of BLEU's family have in common.
            if getattr(self.solving.kind, "takes_measure", False) and not is_of_bleu(self.metric):
                names.add("metric")
            if getattr(self.solving.kind, "takes_gains", False):
                names.add("metric")
        return {group for name in names for group in _GROUPS.get(name, ())}

    def _templates_of(self, part: str) -> list[Any]:
        """Return the templates that a part of the decoder takes, of `ModelSource.parts`."""
        name, own = part.rstrip("."), self.templates
        chosen = (self.decoding.options.get(name) or {}).get("templates")
        if not self.decoder.pools.get(name, True):
            # A part that does not order phrases takes none that look at that.
            own = [one for one in own if not isinstance(one, OrientedTemplate)]
        return [one for one in own if chosen is None or one.name in chosen]

    def check(self) -> None:
        """Raise InputError if parts, each right by itself, make no sense together."""
        ours = self.decoder.__module__.startswith("torchtune_smt.")
        if ours and self.decoding.options.get("k") == 1:
            raise InputError(
                "decoder.k=1: lists of one hypothesis leave nothing to choose, and nothing can be "
                "learned from them; give 2 or more"
            )
        if self.model is not None and self.tune_on == "train":
            self.model.check_training(self.folds)

    def unused(self, named: Callable[[str], str], data: Mapping[str, Any]) -> dict[str, str]:
        """Return the groups and options of a run that have no effect, each with the reason.

        named: returns how a message names what is chosen of a group: ``loss=hinge``.
        data: the options of the group.
        """
        return {
            **self._unused_start(),
            **self._unused_data(named, data),
            **self.unused_groups(named),
        }

    def _unused_start(self) -> dict[str, str]:
        """Return what model and start weights do not use."""
        unused: dict[str, str] = {}
        parts = ("",) if self.model is None else self.model.parts
        if self.model is not None and self.tune_on != "train":
            unused["lm"] = "lm is about decoding the bitext (tuner.tune_on=train)"
            reason = "no sentence of the bitext is decoded (tuner.tune_on=train)"
            unused |= {f"model.{p}{o}": reason for p in parts for o in ("leave_out", "folds")}
        elif not self.folds:
            reason = "lm=full takes the language model of the whole bitext"
            unused |= {f"model.{part}folds": reason for part in parts}
        unused |= {
            f"model.{part}{name}": "none of the templates is of classes (features.templates)"
            for part in parts
            if not any(map(of_classes, self._templates_of(part)))
            if self.model is None or not any(options_of(self.model, part, CLASS_MODEL_OPTIONS))
            for name in (*_CLASSES, "target_classes")
        }
        if self.model is not None:
            unused |= {f"model.{name}": reason for name, reason in self.model.unused().items()}
        if self.starts:
            unused["init.values"] = "init.file has the weights"
        elif not self.init_values:
            unused["init.scale"] = "all weights are 0"
        return unused

    def _unused_data(self, named: Callable[[str], str], data: Mapping[str, Any]) -> dict[str, str]:
        """Return which sets of the data, and which ways to prepare them, are not used."""
        stored, options = self.decoder.stored, self.decoding.options
        unused = dict(self.decoder.unused(options, self.tune_on, drops_copies=not self.online))
        if self.model is not None and not self.model.from_bitext:
            unused["data.train"] = f"{named('model')} is not built from a bitext"
        elif self.model is None and self.tune_on != "train":
            reason = f"{named('decoder')} takes no model to build from a bitext"
            unused.setdefault("data.train", reason)
        takes_pairs = "data.train" not in unused and not stored
        if stored:
            unused["data.split_compounds"] = "stored lists are of a source that is as it is"
        elif data.get("split_compounds") is not None:
            # The counts of words are taken from there.
            unused.pop("data.train", None)
        read = [name for name in ("train", "dev", "test") if f"data.{name}" not in unused]
        if not read:
            prepared = ("lowercase", "normalize", "tokenize", "empty")
            unused |= dict.fromkeys((f"data.{name}" for name in prepared), "no data are read")
        if not any(isinstance(data.get(name), str) for name in read):
            unused["data.folders"] = "all data that are read are named by their files"
        if not takes_pairs:
            reason = "pairs are left out where a model is built from them"
            unused |= dict.fromkeys(("data.max_length", "data.max_ratio"), reason)
        return unused

    def unused_groups(self, named: Callable[[str], str]) -> dict[str, str]:
        """Return the groups that the tuner does not take, and options that others cancel."""
        groups = {group for found in _GROUPS.values() for group in found} - self.used
        unused = {group: f"{named('tuner')} takes no {group}" for group in groups}
        if "loss" in self.used:
            # A tuner with a sampler and no loss has another use for it.
            takes = self.tuning.names
            if is_listwise(self.loss) and ("loss" in takes or "sampler" not in takes):
                unused["sampler"] = f"{named('loss')} takes no sampler"
            if self.loss.reduction == "each":
                unused["tuner.solver.batch_size"] = (
                    f"{named('loss')} takes a step after each pair or list (loss.reduction=sum "
                    "does not)"
                )
        what_optimizers_do: tuple[str, ...]
        what_optimizers_do = ("optimizer.regularize_dense", "optimizer.regularize_each")
        pulls_at_none = behaves_as(self.regularizer, NoRegularizer, "value", "prox")
        if not self.optimizer.regularizes:
            reason = f"{self.optimizer.name} takes no regularizer"
            unused |= dict.fromkeys(what_optimizers_do, reason)
            if not pulls_at_none:
                unused.setdefault("regularizer", reason)
        elif pulls_at_none:
            if "optimizer" in self.used and not self.optimizer.forgets:
                what_optimizers_do += "tuner.towards", "tuner.solver.towards"
            unused |= dict.fromkeys(what_optimizers_do, "regularizer=none pulls at no weight")
        return unused

    @property
    def starts(self) -> dict[str, str]:
        """The files of `init_file`, in the order of the parts; one for all has the name ""."""
        given = self.init_file
        if isinstance(given, Mapping):
            return {part: given[part] for part in self.decoder.pools if part in given}
        return {} if given is None else {"": given}

    @property
    def ini_of_start(self) -> Path | None:
        """The ``moses.ini`` whose weights tuning begins with."""
        given = self.starts.get("")
        return None if given is None or Path(given).suffix != ".ini" else Path(given)

    @property
    def kept(self) -> list[Path]:
        """The files that `export` reads, which nobody may remove before."""
        given = getattr(self.model, "ini", None)
        kept = [] if given is None else [Path(given)]
        inis = [Path(path) for path in self.starts.values() if Path(path).suffix == ".ini"]
        return [*kept, *(file for ini in inis for file in files_of_ini(ini))]

    def left_alone(self, folder: Path) -> list[Path]:
        """Return `kept` where `export` writes nothing, as its ``moses.ini`` is the folder's."""
        copied = self.ini_of_start if self.model is None else getattr(self.model, "ini", None)
        own = folder / INI
        return self.kept if copied and own.exists() and own.samefile(copied) else []

    def export(self, folder: Path, weights: NamedWeights) -> str | None:
        """Write tuned weights to a run's folder for another decoder, if there is one.

        That is the model's, or where lists were tuned from a ``moses.ini`` on, the one that it is
        of. Returns why nothing is written, although there is such a decoder.
        """
        if self.model is not None:
            return self.model.export(folder, weights)
        start = self.ini_of_start
        if start is None or not self.decoder.stored:
            return None
        if self.decoding.options.get("features", "all") != "all":
            return f"no {INI} is written: decoder.features may leave out features of {start}"
        return export_to_ini(folder, start, weights)


@dataclass(frozen=True)
class SolverOnLists:
    """A solver that takes parts, for lists whose dense features come in any order.

    dense: returns the names of the features that the optimizer leaves alone.
    """

    parts: Parts
    dense: Callable[[], Collection[str]]

    def solve(self, lists: KBestLists, start: Float64, seed: Sequence[int]) -> Solution:
        """Return weights for the lists; see `Solver.solve`."""
        parts, solving = self.parts, self.parts.solving
        assert lists.features is not None and solving is not None
        ids = lists.features.lookup(list(self.dense()))
        ids = ids[ids >= 0]
        order = np.append(ids, np.setdiff1d(np.arange(start.size), ids))
        place = np.argsort(order)
        solver = solving(
            sampler=lambda: parts.sampler,
            loss=lambda: parts.loss,
            optimizer=lambda: partial(parts.optimizer, n_dense=ids.size),
            average=lambda: parts.optimizer.averages,
        )
        inside = replace(lists, rows=lists.rows.renamed(place), features=None)
        found = checked_solution(solver.solve(inside, start[order], seed), solver, start.size)
        return replace(found, weights=found.weights[place])

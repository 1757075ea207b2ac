"""A configuration is spent: constructors take the options that their signatures name.

What a constructor asks for and somebody else makes (`INJECTED`) is no option. The group ``tuner``
has several owners: the tuner's class, the loop of its rounds, the lists that it collects, its
solver, how it learns groups. What the user gave and nobody took is refused.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Final

from omegaconf import DictConfig, OmegaConf

from torchtune_smt.cli.command_line import added_options, nearest, options_of_command
from torchtune_smt.cli.options import check_values
from torchtune_smt.cli.wire import class_of
from torchtune_smt.core.accepts import rules_of
from torchtune_smt.core.errors import InputError
from torchtune_smt.core.recipe import argument_names, takes_anything
from torchtune_smt.core.resources import config_folder
from torchtune_smt.data.dataset import Dataset
from torchtune_smt.minimizer import Accuracy, SmoothedHinge
from torchtune_smt.runs.parts import groups_of, takes_measure
from torchtune_smt.tuners.base import Tuner
from torchtune_smt.tuners.batch import BatchTuner
from torchtune_smt.tuners.grouping.base import GroupLearner
from torchtune_smt.tuners.grouping.controls import ClusteredWeights
from torchtune_smt.tuners.grouping.learners import LEARNERS
from torchtune_smt.tuners.grouping.minimum import MINIMIZER_LOSSES, BatchLearning
from torchtune_smt.tuners.grouping.prepared import PreparedLearning

PART_GROUPS: Final = ("metric", "sampler", "loss", "regularizer", "optimizer")

INJECTED: Final = {
    "model": frozenset[str](),
    "decoder": frozenset({"model", "templates", "threads", "tune_on"}),
    "metric": frozenset[str](),
    "sampler": frozenset[str](),
    "loss": frozenset[str](),
    "regularizer": frozenset[str](),
    "optimizer": frozenset({"params", "defaults", "regularizer", "unregularized", "maximize"}),
    "tuner": frozenset(
        "decoder weights sentences metric sampler loss optimizer average seed collector solver "
        "dimension learning train dev".split()
    ),
    "tuner.solver": frozenset({"sampler", "loss", "optimizer", "device", "average"}),
    "parallel": frozenset[str](),
    "engine": frozenset[str](),
}
"""Groups that describe an object of a class, and the arguments that it gets from elsewhere."""

# What a class must have to be one of these at all: who makes the object says so.
_METHODS: Final = {"decoder": "decode", "tuner": "round", "tuner.solver": "solve"}
# What `train` itself reads of the tuner's group: on what is tuned, and what is kept of it.
_OF_TRAIN: Final = frozenset(("tune_on", "sentences", "checkpoint_minutes", "keep_lists"))


def tuner_takes(cfg: DictConfig) -> set[str]:
    """Return the names of the arguments of the configured tuner's class.

    Raises InputError: there is no such class of tuners.
    """
    kind = class_of(cfg, "tuner")
    if not inspect.isclass(kind) or not issubclass(kind, Tuner):
        raise InputError(f"tuner._target_={cfg.tuner['_target_']} is no tuner; see docs/extend.md")
    return argument_names(kind)


def has_solver(cfg: DictConfig) -> bool:
    """Return whether the configured tuner has a solver, of its own or in its run on dev."""
    return not tuner_takes(cfg).isdisjoint(("solver", "dev"))


def tunes_while_decoding(cfg: DictConfig) -> bool:
    """Return whether the configured tuner decodes itself, and no lists are collected for it."""
    return "decoder" in tuner_takes(cfg)


def learner_class(cfg: DictConfig) -> type[GroupLearner] | None:
    """Return the class that learns groups for the configured tuner; None: it learns none."""
    if "learning" not in tuner_takes(cfg):
        return None
    return LEARNERS.get(cfg.tuner.get("learning"))


def groups_taken(cfg: DictConfig) -> set[str]:
    """Return which of the groups `PART_GROUPS` the configured tuner takes.

    Raises InputError: there is no such class of tuners or solvers.
    """
    names = tuner_takes(cfg)
    if has_solver(cfg):
        solver = class_of(cfg, "tuner.solver")
        names |= argument_names(solver)
        of_bleu = getattr(class_of(cfg, "metric"), "from_statistics", False)
        if takes_measure(solver) and not of_bleu:
            names.add("metric")
    return groups_of(names)


def options_taken(cfg: DictConfig, holder: str, *, at_all: bool = False) -> set[str] | None:
    """Return the options of a part of the configuration that somebody takes; None: any.

    holder: a group, or a part of it that has options of its own (``tuner.solver``).
    at_all: whether those count, too, that are taken with other values of others.
    """
    if holder not in INJECTED:
        return _OF_OTHERS[holder]() if holder in _OF_OTHERS else None
    part = OmegaConf.select(cfg, holder)
    if not OmegaConf.is_dict(part) or "_target_" not in part:
        # Who makes the object says so.
        return None
    try:
        kind = class_of(cfg, holder)
    except InputError:
        return None
    if takes_anything(kind):
        # It says itself which it does not want.
        return None
    if not hasattr(kind, _METHODS.get(holder, "__class__")):
        return None
    names = argument_names(kind)
    own = names - INJECTED[holder] - {"self"}
    if holder == "optimizer":
        own.add("regularize_dense")
    if holder == "tuner":
        own |= taken_by_others(cfg, at_all=at_all)
    if holder == "regularizer":
        learner = None if at_all else learner_class(cfg)
        late = set(getattr(kind, "later", ()))
        own |= late if at_all else late & (argument_names(learner) if learner else set())
    return own


def check_tuner(cfg: DictConfig) -> None:
    """Raise InputError if an owner of the group ``tuner`` does not accept one of its options."""
    owners: dict[str, tuple[Any, ...]] = {
        "tuner": (PreparedLearning, *LEARNERS.values(), class_of(cfg, "tuner")),
        "tuner.dev": (BatchTuner,),
        "tuner.minimizer": (BatchLearning, SmoothedHinge, Accuracy),
        "tuner.clusters": (ClusteredWeights,),
        "regularizer": (BatchLearning,),
    }
    rules = {
        f"{holder}.{name}": rule
        for holder, kinds in owners.items()
        for kind in kinds
        for name, rule in rules_of(kind).items()
    }
    rules["tuner.minimizer.loss"] = MINIMIZER_LOSSES
    rules["tuner.minimizer.seconds"] = rules["tuner.minimizer.seconds"].or_null()
    check_values(cfg, rules)


def taken_by_others(cfg: DictConfig, *, at_all: bool = True) -> set[str]:
    """Return the options of the group ``tuner`` that others than the tuner's class take."""
    kind = class_of(cfg, "tuner")
    names = argument_names(kind)
    found = {*_OF_TRAIN, *_OF_ROUNDS, f"{getattr(kind, 'unit', 'round')}s"}
    if names & {"collector", "train"}:
        found.add("unique")
    if names & {"solver", "dev"}:
        found.add("solver")
    if "solver" in names:
        found.add("sparse")
    if "learning" in names:
        found |= {"learning", "dev"}
        chosen = cfg.tuner.get("learning")
        for name, learner in LEARNERS.items():
            if at_all or name == chosen:
                arguments = argument_names(learner)
                found |= arguments & {"passes", "shards"}
                found |= {"minimizer"} if "accuracy" in arguments else set()
                found |= {"clusters"} if "count" in arguments else set()
                found |= {"scaling", "merge_identical"} if learner.prepares else set()
    return found


_OF_ROUNDS: Final = ("patience", "result")


def _of_minimizer() -> set[str]:
    return {"loss", "mu", "path", *(field.name for field in fields(Accuracy))}


def _of_clusters() -> set[str]:
    return argument_names(ClusteredWeights) - {"self", "regularizer", "passes"}


def _of_dev() -> set[str]:
    return {"iterations", "patience", *(argument_names(BatchTuner) - INJECTED["tuner"] - {"self"})}


_OF_OTHERS: Final[dict[str, Any]] = {
    "init": lambda: {"file", "values"},
    "features": lambda: {"templates"},
    "experiment": set,
    "data": lambda: {field.name for field in fields(Dataset)} - {"compounds"},
    "tuner.dev": _of_dev,
    "tuner.minimizer": _of_minimizer,
    "tuner.clusters": _of_clusters,
}


def cancelled_by_learning(cfg: DictConfig, choices: Mapping[str, str]) -> dict[str, str]:
    """Return the options of the tuner and the regulariser that nobody takes as things are.

    Returns dict of str to str: why, by the names of groups and options.
    """
    chosen, learner = f"tuner={choices['tuner']}", learner_class(cfg)
    if learner is not None:
        chosen += f" tuner.learning={cfg.tuner.learning}"
    unused = {} if learner is None else {n: f"{chosen} {r}" for n, r in learner.takes_not.items()}
    if learner is BatchLearning and cfg.tuner.minimizer.loss != "smoothed_hinge":
        reason = f"tuner.minimizer.loss={cfg.tuner.minimizer.loss} is smooth as it is"
        unused["tuner.minimizer.mu"] = reason
    if learner is BatchLearning:
        unused |= _second_strengths(cfg.regularizer)
    for holder in ("tuner", "regularizer"):
        names = options_taken(cfg, holder)
        if names is not None:
            idle = {str(name) for name in cfg[holder]} - names - {"_target_"}
            unused |= {f"{holder}.{name}": f"{chosen} makes no use of it" for name in idle}
    return unused


def _second_strengths(regularizer: Any) -> dict[str, str]:
    """Return the options of OSCAR that another one overrules where groups are those of the minimum.

    A lambda of 0 is no strength: it says which norm it is.
    """
    noise, fraction = regularizer.get("noise"), regularizer.get("fraction")
    if fraction is not None:
        said = f"regularizer.fraction={fraction} says how strong OSCAR is"
        return {"regularizer.noise": said}
    if noise is None:
        return {}
    said = f"regularizer.noise={noise} says how strong OSCAR is (null: lambda1 and lambda2 do)"
    return {f"regularizer.{n}": said for n in ("lambda1", "lambda2") if regularizer.get(n)}


def refuse_untaken(command: str, cfg: DictConfig) -> None:
    """Raise InputError if the command line, or a file of the user's, adds what nobody takes.

    command: the name of the command's configuration.
    cfg: the composed configuration.
    """
    for given in added_options(command, cfg):
        reason = _why_untaken(command, cfg, given.option)
        if reason is not None:
            raise given.refused(reason, nearest(cfg, given.option))


def _why_untaken(command: str, cfg: DictConfig, option: str) -> str | None:
    """Return why nobody takes an option, as the beginning of a sentence; None if somebody may."""
    group, *inner = option.split(".")
    if group not in options_of_command(command):
        return f"{command} has no option {group}"
    if not inner or not (config_folder() / group).is_dir():
        return None
    for depth, name in enumerate(inner):
        holder = ".".join([group, *inner[:depth]])
        names = options_taken(cfg, holder, at_all=True)
        # What Hydra makes of it: _target_, _args_, _partial_.
        if names is None or (holder in INJECTED and name.startswith("_")):
            return None
        if name not in names:
            return f"{_maker(cfg, holder)} has no option {name}"
        if holder in INJECTED and f"{holder}.{name}" not in (*INJECTED, *_OF_OTHERS):
            # Whatever is in it is an argument's.
            return None
    return None


def _maker(cfg: DictConfig, holder: str) -> str:
    """Return what a part of the configuration is called in a message."""
    target = OmegaConf.select(cfg, f"{holder}._target_") if holder in INJECTED else None
    return holder if target is None else f"{holder} ({str(target).rpartition('.')[2]})"

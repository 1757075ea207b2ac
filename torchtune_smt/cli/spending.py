"""A configuration is spent: constructors take the options that their signatures name.

What a constructor asks for and somebody else makes (`INJECTED`) is no option. The group ``tuner``
has several owners: the tuner's class, the loop of its rounds, the lists that it collects, its
solver, how it learns groups. What the user gave is refused where nobody took it, or where it has no
effect with what else was chosen.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from functools import partial
from typing import Final

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from torchtune_smt.cli.command_line import (
    Given,
    added_options,
    nearest,
    options_of_command,
    override_key,
    places_in_own_files,
    refuse_given,
)
from torchtune_smt.cli.options import chosen_name
from torchtune_smt.cli.wire import class_of, not_taken_by_decoder
from torchtune_smt.core.errors import InputError
from torchtune_smt.core.recipe import argument_names, takes_anything
from torchtune_smt.core.resources import config_folder
from torchtune_smt.data.dataset import Dataset
from torchtune_smt.minimizer import Accuracy
from torchtune_smt.runs.parts import Parts
from torchtune_smt.tuners.base import Tuner
from torchtune_smt.tuners.batch import BatchTuner
from torchtune_smt.tuners.grouping.base import GroupLearner
from torchtune_smt.tuners.grouping.controls import ClusteredWeights
from torchtune_smt.tuners.grouping.tuner import LEARNERS

INJECTED: Final = {
    group: {"self", *names.split()}
    for group, names in {
        **dict.fromkeys(("model", "metric", "sampler", "loss", "regularizer"), ""),
        "decoder": "model templates threads tune_on",
        "optimizer": "params defaults regularizer unregularized maximize wait",
        "tuner": "decoder weights sentences metric sampler loss optimizer average seed collector "
        "solver dimension learning train dev",
        "tuner.solver": "sampler loss optimizer device average",
        **dict.fromkeys(("parallel", "engine"), ""),
    }.items()
}
"""Groups that describe an object of a class, and the arguments that it gets from elsewhere."""

# What a class must have to be one of these at all: who makes the object says so.
_METHODS: Final = {"decoder": "decode", "tuner": "round", "tuner.solver": "solve"}
OF_RUNS: Final = "tune_on sentences checkpoint_minutes keep_lists patience result unique".split()
"""Of the tuner's group: on what is tuned, what is kept of it, when rounds end; as in `Parts`."""

_OF_OTHERS: Final[dict[str, Callable[[], set[str]]]] = {
    "init": lambda: {"file", "values", "scale"},
    "features": lambda: {"templates"},
    "experiment": set,
    "data": lambda: {field.name for field in fields(Dataset)} - {"compounds"},
    "tuner.dev": lambda: (
        {"iterations", "patience", *argument_names(BatchTuner)} - INJECTED["tuner"]
    ),
    "tuner.minimizer": lambda: {"loss", "mu", "path", *(field.name for field in fields(Accuracy))},
    "tuner.clusters": lambda: argument_names(ClusteredWeights) - {"self", "regularizer", "passes"},
}


def tuner_takes(cfg: DictConfig) -> set[str]:
    """Return the names of the arguments of the configured tuner's class."""
    kind = class_of(cfg, "tuner")
    if not inspect.isclass(kind) or not issubclass(kind, Tuner):
        raise InputError(f"tuner._target_={cfg.tuner['_target_']} is no tuner; see docs/extend.md")
    return argument_names(kind)


def learner_class(cfg: DictConfig) -> type[GroupLearner] | None:
    """Return the class that learns groups for the configured tuner; None: none does."""
    if "learning" not in tuner_takes(cfg):
        return None
    return LEARNERS.get(cfg.tuner.get("learning"))


def options_taken(cfg: DictConfig, holder: str, *, at_all: bool = False) -> set[str] | None:
    """Return the options of a part of the configuration that somebody takes; None: any.

    at_all: whether those count, too, that are taken with other values of others.
    """
    if holder not in INJECTED:
        return _OF_OTHERS[holder]() if holder in _OF_OTHERS else None
    part = OmegaConf.select(cfg, holder)
    # Otherwise who makes the object says what is wrong with it.
    if not OmegaConf.is_dict(part) or "_target_" not in part:
        return None
    try:
        kind = class_of(cfg, holder)
    except InputError:
        return None
    if takes_anything(kind) or not hasattr(kind, _METHODS.get(holder, "__class__")):
        return None
    own = argument_names(kind) - INJECTED[holder]
    if holder == "optimizer":
        own.add("regularize_dense")
    if holder == "tuner":
        own |= taken_by_others(cfg, at_all=at_all)
    if holder == "regularizer":
        learner = None if at_all else learner_class(cfg)
        late = set(getattr(kind, "later", ()))
        own |= late if at_all else late & (argument_names(learner) if learner else set())
    return own


def taken_by_others(cfg: DictConfig, *, at_all: bool = True) -> set[str]:
    """Return the options of the group ``tuner`` that others than the tuner's class take."""
    kind = class_of(cfg, "tuner")
    names = argument_names(kind)
    found = {*OF_RUNS, f"{getattr(kind, 'unit', 'round')}s"}
    if not names & {"collector", "train"}:
        found.remove("unique")
    if names & {"solver", "dev"}:
        found.add("solver")
    if "solver" in names:
        found.add("sparse")
    if "learning" in names:
        found |= {"learning", "dev"}
        chosen = cfg.tuner.get("learning")
        for learner in (one for name, one in LEARNERS.items() if at_all or name == chosen):
            arguments = argument_names(learner)
            found |= arguments & {"passes", "shards"}
            found |= {"minimizer"} if "accuracy" in arguments else set()
            found |= {"clusters"} if "count" in arguments else set()
            found |= {"scaling", "merge_identical"} if learner.prepares else set()
    return found


def refuse_untaken(command: str, cfg: DictConfig) -> None:
    """Raise InputError if the command line, or a file of the user's, adds what nobody takes."""
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
            target = OmegaConf.select(cfg, f"{holder}._target_") if holder in INJECTED else None
            own = "" if target is None else f" ({str(target).rpartition('.')[2]})"
            return f"{holder}{own} has no option {name}"
        if holder in INJECTED and f"{holder}.{name}" not in (*INJECTED, *_OF_OTHERS):
            # Whatever is in it is an argument's.
            return None
    return None


def refuse_unused(unused: Mapping[str, str], overrides: Sequence[str]) -> None:
    """Raise InputError if the user's overrides set an option that has no effect.

    What the files of ``conf/`` set, those of ``experiment=`` among them, may have none.
    """
    refuse_given(unused, overrides)
    # Where the user has said nothing of noise, lambdas in a file are not meant as a ratio alone.
    given = set(map(override_key, HydraConfig.get().overrides.task))
    strengths = ("regularizer.noise", "regularizer.fraction")
    if not given.intersection(strengths) and not any(map(places_in_own_files, strengths)):
        for option in ("regularizer.lambda1", "regularizer.lambda2"):
            for path, line in places_in_own_files(option) if option in unused else ():
                raise Given(option, option, path=path, line=line).refused(
                    unused[option], "; add noise: null, and they are taken as they are"
                )


def unused_options(cfg: DictConfig, parts: Parts, choices: Mapping[str, str]) -> dict[str, str]:
    """Return the groups and options of ``train`` without effect, each with the reason."""
    named = partial(chosen_name, cfg, choices)
    return {
        **not_taken_by_decoder(cfg, choices),
        # One that is missing may still be given as a name.
        **parts.unused(named, {str(name): cfg.data.get(name, "") for name in cfg.data}),
        **_of_parallel(cfg, named),
        **_of_learning(cfg, choices["tuner"]),
    }


def _of_parallel(cfg: DictConfig, named: Callable[[str], str]) -> dict[str, str]:
    kind = class_of(cfg, "parallel")
    if getattr(kind, "decodes_lists", False):
        return {}
    if getattr(kind, "shards_data", False):
        return {"tuner.checkpoint_minutes": f"{named('parallel')} saves the run after each shard"}
    return {"engine": f"{named('parallel')} has no shards for an engine to compute"}


def _of_learning(cfg: DictConfig, choice: str) -> dict[str, str]:
    """Return the options of the tuner and the regulariser that nobody takes as things are."""
    chosen, learner = f"tuner={choice}", learner_class(cfg)
    if learner is not None:
        chosen += f" tuner.learning={cfg.tuner.learning}"
    unused = {}
    if learner is not None:
        unused = learner.unused(chosen, cfg.tuner, cfg.regularizer)
    for holder in ("tuner", "regularizer"):
        names = options_taken(cfg, holder)
        if names is not None:
            idle = {str(name) for name in cfg[holder]} - names - {"_target_"}
            unused |= {f"{holder}.{name}": f"{chosen} makes no use of it" for name in idle}
    return unused

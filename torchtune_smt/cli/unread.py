"""Options that nothing reads: those of the command line (``+foo=1``), or of the user's files."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any, Final

import yaml
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from omegaconf import DictConfig, OmegaConf

from torchtune_smt.cli.command_line import leaves
from torchtune_smt.cli.given import own_folders
from torchtune_smt.cli.help import option_names, read_sentences
from torchtune_smt.cli.objects import argument_names, class_of
from torchtune_smt.core.errors import InputError, did_you_mean
from torchtune_smt.core.resources import config_folder
from torchtune_smt.data.dataset import Dataset
from torchtune_smt.tuners.cluster_groups import ClusteredWeights

# Groups that describe an object of a class, and the arguments that it gets from elsewhere.
_OBJECTS: Final = {
    "model": "",
    "decoder": "model templates threads tune_on",
    "metric": "",
    "sampler": "",
    "loss": "",
    "regularizer": "",
    "optimizer": "params regularizer unregularized",
    "tuner": "decoder weights sentences metric sampler loss optimizer average seed collector "
    "solver dimension learning train dev",
    "tuner.solver": "sampler loss optimizer device average",
    "parallel": "",
    "engine": "",
}
# What a class must have to be one of these at all: who makes the object says so.
_METHODS: Final = {"decoder": "decode", "tuner": "round", "tuner.solver": "solve"}
# What else is read of them.
_BESIDES: Final = {"optimizer": ("regularize_dense",)}
# Groups without a class.
_PLAIN: Final = {
    "init": ("file", "values"),
    "features": ("templates",),
    "data": tuple(field.name for field in fields(Dataset) if field.name != "compounds"),
    "tuner.dev": ("iterations", "patience", "interpolation", "tolerance"),
    "tuner.minimizer": ("loss", "mu", "residual", "gap", "seconds", "path"),
    "tuner.clusters": tuple(
        field.name
        for field in fields(ClusteredWeights)
        if field.name not in ("regularizer", "passes")
    ),
}
# How the rounds of any tuner are run.
_ROUNDS: Final = "patience result tune_on sentences checkpoint_minutes keep_lists".split()
# What is read of a tuner whose class has one of some arguments.
_OF_TUNER: Final = (
    (("collector", "train"), ("unique",)),
    (("solver", "dev"), ("solver",)),
    (("solver",), ("sparse",)),
    (("learning",), ("dev", "learning", "minimizer", "clusters", "scaling")),
    (("learning",), ("merge_identical", "passes", "shards")),
)


def refuse_unread(command: str, cfg: DictConfig) -> None:
    """Raise InputError if the command line, or a file of the user's, adds an option nothing reads.

    An option that another one names in ``${...}`` is read.

    Parameters
    ----------
    command : str
        The name of the command's configuration.
    cfg : DictConfig
        The composed configuration.
    """
    for parsed in _additions():
        for option in _options(parsed, cfg):
            reason = _why_unread(command, cfg, option)
            if reason is not None and not _is_named(cfg, option):
                raise InputError(
                    f"{reason}, and {parsed.input_line} would change nothing"
                    + (_others(cfg, option) or "; leave it out")
                )
    folders = own_folders()
    if not folders:
        return
    # What the package's own files set may have no effect: they are of any combination of parts.
    known = _of_package(command)
    for option, _ in leaves("", OmegaConf.to_container(cfg)):
        if option in known:
            continue
        reason = _why_unread(command, cfg, option)
        if reason is not None and not _is_named(cfg, option):
            path, line = _place(folders, option)
            raise InputError(
                f"{reason}, and {option} would change nothing"
                + (_others(cfg, option) or "; take it out"),
                path=path,
                line=line,
            )


def _of_package(command: str) -> set[str]:
    """Return the options that the package's own files set, those that are chosen."""
    names = set()
    for group, choice in HydraConfig.get().runtime.choices.items():
        path = config_folder() / str(group) / f"{choice}.yaml"
        if path.is_file():
            prefix = "" if group == "experiment" else f"{group}."
            names |= {f"{prefix}{name}" for name in read_sentences(path).options}
    return names


def _place(folders: list[Path], option: str) -> tuple[Path, int | None]:
    """Return the user's file, and the line in it, that sets an option; or the folder at least."""
    for group, choice in HydraConfig.get().runtime.choices.items():
        for folder in folders:
            path = folder / group / f"{choice}.yaml"
            if path.is_file():
                lines = dict(_lines(yaml.compose(path.read_text("utf-8")), ""))
                line = lines.get(option, lines.get(option.removeprefix(f"{group}.")))
                if line is not None:
                    return path, line
    return folders[0], None


def _lines(node: yaml.Node | None, prefix: str) -> Iterator[tuple[str, int]]:
    """Yield the options that a YAML file sets, and their lines, counted from 1."""
    if not isinstance(node, yaml.MappingNode):
        return
    for key, value in node.value:
        yield f"{prefix}{key.value}", key.start_mark.line + 1
        yield from _lines(value, f"{prefix}{key.value}.")


def _additions() -> Iterator[Override]:
    """Yield the overrides that may add something."""
    parser = OverridesParser.create()
    for override in HydraConfig.get().overrides.task:
        parsed = parser.parse_override(override)
        if parsed.is_add() or parsed.is_force_add():
            yield parsed


def _options(parsed: Override, cfg: DictConfig) -> Iterator[str]:
    """Yield the options that an override adds, as far as they are of the command line."""
    value = parsed.value()
    key, choices = parsed.get_key_element().lstrip("+"), HydraConfig.get().runtime.choices
    if key in choices and not isinstance(value, dict):
        # What is in the file that is chosen may belong elsewhere: `# @package _global_`.
        place = parsed.key_or_group if parsed.package is None else parsed.package
        if OmegaConf.select(cfg, place, throw_on_missing=False) is not None:
            yield place
        return
    yield from (option for option, _ in leaves(parsed.key_or_group, value))


def _why_unread(command: str, cfg: DictConfig, option: str) -> str | None:
    """Return why nothing reads an option, as the beginning of a sentence; None if something may."""
    group, *inner = option.split(".")
    if group not in _read_by(command):
        return f"{command} has no option {group}"
    if not inner or not (config_folder() / group).is_dir():
        return None
    for depth in range(len(inner)):
        holder, name = ".".join([group, *inner[:depth]]), inner[depth]
        names = _names(cfg, holder)
        # What Hydra makes of it: _target_, _args_, _partial_.
        if names is None or (holder in _OBJECTS and name.startswith("_")):
            return None
        if name not in names:
            return f"{_maker(cfg, holder)} has no option {name}"
        if holder in _OBJECTS and f"{holder}.{name}" not in (*_OBJECTS, *_PLAIN):
            # Whatever is in it is an argument's.
            return None
    return None


def _read_by(command: str) -> set[str]:
    """Return the groups and options of a command, those of the user's own files left out."""
    names, following = set(), [command]
    while following:
        path = config_folder() / f"{following.pop()}.yaml"
        names |= {name.partition(".")[0] for name in read_sentences(path).options}
        for entry in yaml.safe_load(path.read_text("utf-8")).get("defaults", []):
            if isinstance(entry, str):
                following += [entry] if entry != "_self_" else []
            else:
                names |= {str(name) for name in entry}
    return names - {"defaults"}


def _names(cfg: DictConfig, holder: str) -> set[str] | None:
    """Return the options that are read of a part of the configuration; None if it takes any."""
    if holder in _PLAIN:
        return set(_PLAIN[holder])
    if holder not in _OBJECTS:
        return set() if holder == "experiment" else None
    part = OmegaConf.select(cfg, holder)
    if not OmegaConf.is_dict(part) or "_target_" not in part:
        # Who makes the object says so.
        return None
    try:
        kind = class_of(cfg, holder)
    except InputError:
        return None
    if _takes_any(kind) or not hasattr(kind, _METHODS.get(holder, "__class__")):
        return None
    arguments = argument_names(kind)
    names = arguments - {"self", *_OBJECTS[holder].split()}
    names.update(_BESIDES.get(holder, ()), getattr(kind, "later", ()))
    if holder == "tuner":
        names.update(_ROUNDS, [f"{getattr(kind, 'unit', 'round')}s"])
        for some, options in _OF_TUNER:
            if arguments.intersection(some):
                names.update(options)
    return names


def _takes_any(kind: Any) -> bool:
    """Return whether a class takes arguments of any name: it says itself which it does not want."""
    parameters = inspect.signature(kind).parameters.values()
    return any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)


def _maker(cfg: DictConfig, holder: str) -> str:
    """Return what a part of the configuration is called in a message."""
    target = OmegaConf.select(cfg, f"{holder}._target_") if holder in _OBJECTS else None
    return holder if target is None else f"{holder} ({str(target).rpartition('.')[2]})"


def _others(cfg: DictConfig, option: str) -> str:
    """Return a question that names what may be meant: of the same group, or of none."""
    group, _, name = option.rpartition(".")
    if not group and (config_folder() / name).is_dir():
        return ""
    near = {other for other in option_names() if other != option and _has(cfg, other)}
    if group:
        start = f"{group.partition('.')[0]}."
        near = {other for other in near if other.startswith(start) or "." not in other}
    return did_you_mean(name, near)


def _has(cfg: DictConfig, option: str) -> bool:
    group, _, name = option.rpartition(".")
    holder = OmegaConf.select(cfg, group) if group else cfg
    return OmegaConf.is_dict(holder) and name in holder


def _is_named(cfg: DictConfig, option: str) -> bool:
    """Return whether another option takes its value from one, as in ``model.folder=${foo}/m``."""
    parts = option.split(".")
    whole = [re.escape(".".join(parts[: n + 1])) for n in range(len(parts))]
    wanted = "|".join([*whole, rf"{whole[-1]}[.\[][^}}]*"])
    text = str(OmegaConf.to_container(cfg, resolve=False))
    return re.search(rf"\$\{{(?:[^}}]*[:,])?\.*(?:{wanted})\}}", text) is not None

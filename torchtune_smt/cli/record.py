"""What a run records in its folder, and what is taken from there: values.

A run's folder may come from anybody. The configuration is composed anew, of the choices of files
that the folder records by their bare names, and the values that it records are put into it. No
class is taken from a folder, nothing of one is read as an override, and neither does it say where
to compute or to build a model.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Final

import yaml
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf, open_dict, read_write
from omegaconf.errors import OmegaConfBaseException

from torchtune_smt.cli.command_line import override_key
from torchtune_smt.core.errors import InputError
from torchtune_smt.core.resources import config_folder
from torchtune_smt.core.textio import atomic_writer
from torchtune_smt.runs.folder import LONGER, RECORDS
from torchtune_smt.runs.records import (
    CONFIG,
    HYDRA,
    OVERRIDES,
    merged,
    of_hydra,
    place_of,
    read_yaml,
    recorded_overrides,
)

WHERE: Final = frozenset({"engine", "threads", "device", "decoder.keep_mb", "parallel.workers"})
"""What says where a command computes, and with how much: its own command line alone, no record."""

# What is of use only to the command that it is given to.
_OWN: Final = WHERE | {"resume", "overwrite", "experiment"}


_CHOICE = re.compile(r"\w[\w-]*", re.ASCII)


@dataclass
class Settings:
    """What a command is told: by its own command line, and by a run that it takes up.

    choices, values: what the run chose of groups, and what its options were, group by group.
    overrides: those of the run that the command line does not replace, as they are shown.
    elsewhere: overrides of the run that are of `WHERE`, and are not taken.
    place: the folder in which the run was started, by where its own folder lies now.
    path: where the values stand.
    cure: what the user can do about overrides that are not taken.
    """

    given: Sequence[str]
    choices: Mapping[str, str] = field(default_factory=dict)
    values: Mapping[str, Any] = field(default_factory=dict)
    overrides: Sequence[str] = ()
    has_run: bool = False
    elsewhere: Sequence[str] = ()
    place: Path | None = None
    path: Path | None = None
    cure: str = ""
    _names_folder: bool = False

    @property
    def names_model(self) -> bool:
        """Whether it is said which model is meant, not left to a default."""
        named = ("data", "model", "model.folder")
        return self.has_run or any(override_key(o) in named for o in self.given)

    def gives(self, group: str) -> bool:
        """Return whether it is said, not left to a default, what a group is."""
        return any(_group(override) == group for override in self.given)

    @property
    def may_write_model(self) -> bool:
        """Whether the user chose where the model lies, not the run."""
        return not self._names_folder or "model.folder" in map(override_key, self.given)

    @property
    def recorded(self) -> list[str]:
        """The choices as overrides: they are plain words."""
        return [f"{group}={choice}" for group, choice in self.choices.items()]

    def apply(self, cfg: DictConfig, *, goes_on: bool = False) -> None:
        """Put the values of the run into a configuration that was composed of its choices.

        goes_on: the command is the run's own, and its overrides are those of the run.
        """
        if not self.has_run:
            return
        fresh: Any = OmegaConf.to_container(cfg)
        before = _model_named(cfg)
        refused: dict[str, Any] = {}
        given = set(map(override_key, self.given))
        found = {
            name: merged(name, fresh[name], value, given | WHERE, refused)
            for name, value in self.values.items()
            if name in fresh and name not in given - _groups()
        }
        if refused:
            shown = " ".join(f"{name}={value}" for name, value in refused.items())
            raise InputError(
                f"the run has {shown}, and of a folder only plain settings are taken (no classes, "
                f"no interpolations, no paths out of place): {self.cure}",
                path=self.path,
            )
        deleted = [override_key(o) for o in self.overrides if o.startswith("~")]
        with open_dict(cfg):
            for name, value in found.items():
                cfg[name] = value
            for group, _, name in (option.rpartition(".") for option in deleted):
                if OmegaConf.is_dict(OmegaConf.select(cfg, group)):
                    OmegaConf.select(cfg, group).pop(name, None)
        if before is None or _model_named(cfg) != before:
            self._names_folder = True
        if goes_on:
            hydra: Any = HydraConfig.get()
            with read_write(hydra), open_dict(hydra):
                hydra.overrides.task = [*self.given, *self.overrides]


def _model_named(cfg: DictConfig) -> Any:
    """Return what says where a model lies; None if some of it is missing."""
    try:
        return [OmegaConf.to_container(cfg[group], resolve=True) for group in ("data", "model")]
    except OmegaConfBaseException:
        return None


def record(folder: Path, cfg: DictConfig, *, longer: bool = False) -> None:
    """Write to a run's folder how it was configured, in the files that Hydra would write.

    Hydra writes them before anybody can say whether a run may be there: what it refuses would
    have replaced the record of the run that is.

    longer: a finished run is being made longer: its record stays as it is until it has ended again,
        and there is one beside it to resume from.
    """
    hydra = HydraConfig.get()
    parts = {
        CONFIG: OmegaConf.to_container(cfg, resolve=True),
        f"{RECORDS}/config.yaml": cfg,
        HYDRA: {"hydra": hydra},
        OVERRIDES: hydra.overrides.task,
    }
    if longer:
        chosen = {"hydra": {"runtime": {"choices": hydra.runtime.choices}}}
        parts = {LONGER: {CONFIG: parts[CONFIG], HYDRA: chosen, OVERRIDES: parts[OVERRIDES]}}
    elif not (folder / OVERRIDES).exists():
        # First the one by which the folder is known for that of a run: of a run that is killed
        # before the others are there, they are nobody else's files.
        parts = {OVERRIDES: parts.pop(OVERRIDES), **parts}
    for name, part in parts.items():
        with atomic_writer(folder / name, own=True) as file:
            file.write(OmegaConf.to_yaml(part))


def take_up(
    folder: Path,
    given: Sequence[str],
    *,
    needless: Collection[str] = (),
    cure: str = "give these overrides again",
    resumes: bool = False,
) -> Settings:
    """Return what is given now, and what a run recorded in its folder.

    needless: groups of which nothing is taken.
    resumes: whether the run goes on, one that was being made longer included.
    """
    path = folder / CONFIG
    if not (os.path.lexists(path) and os.path.lexists(folder / OVERRIDES)):
        return Settings(given)
    overrides, values = recorded_overrides(folder), read_yaml(path, dict, "configuration")
    choices = _choices(of_hydra(folder), folder / HYDRA)
    if resumes and os.path.lexists(folder / LONGER):
        path = folder / LONGER
        found = read_yaml(path, dict, "record of a run that is being made longer")
        overrides, values, hydra = (found.get(name) for name in (OVERRIDES, CONFIG, HYDRA))
        if not (isinstance(overrides, list) and isinstance(values, dict)):
            raise InputError("is no record; the run folder is damaged", path=path)
        choices = _choices(hydra, path)
    replaced = set(map(override_key, given))
    # What was chosen anew has options of its own.
    anew = {g for g in replaced & choices.keys() if f"{g}={choices[g]}" not in given}
    left = {*needless, *_OWN, *anew}
    overrides = [o for o in overrides if override_key(o) not in {*replaced, "resume", "overwrite"}]
    defaults = yaml.safe_load((config_folder() / "train.yaml").read_text("utf-8"))["defaults"]
    chosen = {g: c for g, c in choices.items() if g not in left and g not in replaced}
    return Settings(
        given,
        chosen,
        {name: value for name, value in values.items() if name not in left},
        [o for o in overrides if not says_where(o) and _group(o) not in anew],
        True,
        [o for o in overrides if says_where(o)],
        place_of(folder, as_recorded=False),
        path,
        cure,
        any(g in chosen and {g: chosen[g]} not in defaults for g in ("data", "model")),
    )


def _choices(found: Any, path: Path) -> dict[str, str]:
    """Return what a run chose of each group, by its bare name."""
    for name in ("hydra", "runtime", "choices"):
        found = found.get(name) if isinstance(found, dict) else None
    known = {g: c for g, c in (found or {}).items() if g in _groups() and c is not None}
    for choice in known.values():
        if not isinstance(choice, str) or not _CHOICE.fullmatch(choice):
            raise InputError("names no choices; the run folder is damaged", path=path)
    return known


def says_where(override: str) -> bool:
    """Return whether an override is about one of `WHERE`."""
    return _group(override) in WHERE or override_key(override) in WHERE


def _group(override: str) -> str:
    return override_key(override).partition(".")[0]


@cache
def _groups() -> frozenset[str]:
    return frozenset(path.name for path in config_folder().iterdir() if path.is_dir())

"""What runs have recorded in their folders, which may come from anybody."""

from __future__ import annotations

import filecmp
import os
import stat
from collections.abc import Callable, Collection, Sequence
from contextlib import chdir
from dataclasses import fields
from pathlib import Path, PurePath
from typing import Any, Final

import yaml

from torchtune_smt.core.errors import InputError
from torchtune_smt.core.recipe import named_errors
from torchtune_smt.core.resources import EXAMPLE, PACKAGE
from torchtune_smt.core.textio import check_plain
from torchtune_smt.data.dataset import Dataset
from torchtune_smt.runs.folder import RECORDS

OVERRIDES: Final = f"{RECORDS}/overrides.yaml"
HYDRA: Final = f"{RECORDS}/hydra.yaml"
CONFIG: Final = "config.yaml"

_SETS: Final = ("train", "dev", "test")


def is_plain(value: Any, of_others: bool = False) -> bool:
    """Return whether a value is a number, a word, null, or a list of them; no path to a device.

    Nobody knows what classes of others do with a path: they get none to just anywhere.
    """
    if isinstance(value, list):
        return all(not isinstance(entry, list) and is_plain(entry, of_others) for entry in value)
    if not isinstance(value, str):
        return value is None or isinstance(value, bool | int | float)
    if "${" in value or not value.isprintable():
        return False
    if of_others and (value.startswith(("/", "~")) or ".." in PurePath(value).parts):
        return False
    try:
        check_plain(value)
    except (InputError, OSError):
        return False
    return True


def merged(
    option: str,
    fresh: Any,
    value: Any,
    given: Collection[str],
    refused: dict[str, Any],
    of_others: bool = False,
) -> Any:
    """Return a value of a run in the place of a fresh one, whose classes are the only ones.

    What is given now stays as it is. What cannot be taken is noted in `refused`.
    """
    if isinstance(value, dict):
        there = fresh if isinstance(fresh, dict) else {}
        if "_target_" in value:
            of_others = not str(value["_target_"]).startswith(f"{PACKAGE.name}.")
        found = dict(there)
        for name, inner in value.items():
            own, within = f"{option}.{name}", there.get(name)
            if str(name).startswith("_"):
                # What Hydra makes of it: a class, above all.
                if within != inner:
                    refused[own] = inner
            elif own not in given:
                found[name] = merged(own, within, inner, given, refused, of_others)
        return found
    if isinstance(value, list) and any(isinstance(entry, dict) for entry in value):
        before: dict[str, Any] = {}
        if isinstance(fresh, list) and len(fresh) == len(value):
            pairs = zip(fresh, value, strict=True)
            found_too = [merged(option, one, other, (), before) for one, other in pairs]
            if not before:
                return found_too
        refused[option] = value
    elif value != fresh and not is_plain(value, of_others):
        refused[option] = value
    return value


def refuse_links(folder: Path, ours: Callable[[str], bool] | None = None) -> None:
    """Raise InputError if a folder that is about to be written to leads elsewhere.

    Only folders and plain files may be in it: whoever writes to a link writes to another place.

    ours: whether something of a name is written here, and not the user's; by default all is.
    """
    for where, folders, files in os.walk(folder):
        if ours is not None and where == str(folder):
            folders[:], files = [list(filter(ours, names)) for names in (folders, files)]
        for name in (*folders, *files):
            path = Path(where, name)
            status = path.lstat()
            plain = stat.S_ISREG(status.st_mode) and status.st_nlink == 1
            if not plain and not stat.S_ISDIR(status.st_mode):
                raise InputError(
                    "is no plain file or folder, and a run's folder may hold no others (nor files "
                    "that have another name, too); put a copy in its place, or remove it",
                    path=path,
                )


def recorded_overrides(folder: Path) -> list[str]:
    """Return the overrides that a run recorded; none without a record."""
    path = folder / OVERRIDES
    recorded: list[str] = read_yaml(path, list, "list of overrides") or []
    if not all(isinstance(o, str) for o in recorded):
        raise InputError("is no list of overrides; the run folder is damaged", path=path)
    return recorded


def recorded_data(folder: Path) -> dict[str, Any] | None:
    """Return the options of the group ``data`` of a finished run; None if it recorded none.

    Where the run was made in another folder than this one, a set whose files have something else
    there is named by those.
    """
    found = _configuration(folder)
    return None if found is None else _data(found, folder)


def lacks_words(folder: Path, split: str) -> bool:
    """Return whether a finished run had lists of a set without words: Moses's features.dat.

    Places in the lists stand then where its translations would.
    """
    decoder = (_configuration(folder) or {}).get("decoder")
    return isinstance(decoder, dict) and decoder.get(f"{split}_scores") is not None


def recorded_tuning(folder: Path) -> tuple[dict[str, Any], str, int | None, int] | None:
    """Return what a finished run was tuned on; None if it did not record it.

    It is so many sentences of a set of the data, drawn with the seed.
    """
    found = _configuration(folder)
    if found is None:
        return None
    try:
        tuner = found["tuner"]
        return _data(found, folder), tuner["tune_on"], tuner["sentences"], found["seed"]
    except (KeyError, TypeError):
        raise InputError(
            "does not say what was tuned on; the run folder is damaged", path=folder / CONFIG
        ) from None


def _configuration(folder: Path) -> Any:
    return read_yaml(folder / CONFIG, dict, "configuration")


def _data(configuration: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Return the options of the group ``data`` of the configuration of a run in a folder."""
    data = configuration.get("data")
    names = {entry.name for entry in fields(Dataset)}
    if (
        not isinstance(data, dict)
        or not data.keys() <= names
        or not all(is_plain(value) for value in data.values())
    ):
        raise InputError(
            "has no plain settings for its data; say what they are: data=NAME", path=folder / CONFIG
        )
    # What has no relative path is the same everywhere.
    folders = data.get("folders") or []
    named = [folders] if isinstance(folders, str) else [*folders]
    named += [path for name in _SETS if isinstance(data.get(name), list) for path in data[name]]
    if all(os.path.isabs(path) or path == EXAMPLE for path in map(str, named)):
        return data
    place = place_of(folder)
    if place is not None:
        sets = {split: _files_of(data, split, place) for split in _SETS}
        for split, there in sets.items():
            here = _files_of(data, split, Path())
            if there is not None and (here is None or not _same_text(here, there)):
                data[split] = there
    return data


def _same_text(here: Sequence[str], there: Sequence[str]) -> bool:
    """Return whether files have what others have, of which they may be copies."""
    return len(here) == len(there) and all(
        os.path.samefile(*pair) or filecmp.cmp(*pair, shallow=False)
        for pair in zip(here, there, strict=True)
    )


def place_of(folder: Path, *, as_recorded: bool = True) -> Path | None:
    """Return the folder in which a run was made; None if it is not there any more, or not known.

    A run may have been moved together with what is around it: its own place then tells.

    as_recorded: believe the record where the place of the run does not tell.
    """
    try:
        runtime = of_hydra(folder)["hydra"]["runtime"]
        place, inside = Path(runtime["cwd"]), PurePath(runtime["output_dir"])
    except (KeyError, TypeError):
        return None
    if inside.is_relative_to(place):
        parts, own = inside.relative_to(place).parts, folder.resolve().parts
        if parts and own[-len(parts) :] == parts:
            place, as_recorded = Path(*own[: -len(parts)]), True
    return place if as_recorded and place.is_dir() else None


def of_hydra(folder: Path) -> Any:
    """Return what Hydra knew of a run; None if nothing was recorded."""
    return read_yaml(folder / HYDRA, dict, "record of Hydra")


def _files_of(data: dict[str, Any], split: str, place: Path) -> list[str] | None:
    """Return the files of a set as they are named in a folder; None if they are not there."""
    try:
        with named_errors("data"), chdir(place):
            dataset = Dataset(**data)
            if getattr(dataset, split) is None:
                return None
            files = [str(path.absolute()) for path in dataset.files(split)]
    except (InputError, OSError):
        return None
    return files if all(os.path.isfile(path) for path in files) else None


def read_yaml(path: Path, kind: type, what: str) -> Any:
    """Return what a record of a run holds, which must be of a type; None if there is none."""
    if not os.path.lexists(path):
        return None
    try:
        check_plain(path)
        recorded = yaml.safe_load(path.read_text("utf-8"))
        if not isinstance(recorded, kind):
            raise ValueError
    except (OSError, ValueError, RecursionError, yaml.YAMLError):
        raise InputError(f"is no {what}; the run folder is damaged", path=path) from None
    return recorded

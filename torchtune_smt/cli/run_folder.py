"""Run folders: not written over, and what an earlier run recorded taken up without trusting it.

A run's folder may come from anybody. The configuration is composed anew from ``conf/``, and of the
overrides that the folder records only plain settings are taken: choices of files by a bare name,
and options with numbers, words, and lists of them. No class, no interpolation, no path but of
what is read, no host and no number of processes.
"""

from __future__ import annotations

import filecmp
import os
import re
import stat
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import chdir
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path, PurePath
from typing import Any, Final, NamedTuple

import yaml
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, OverrideType
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf

from torchtune_smt.cli.command_line import override_key
from torchtune_smt.cli.hydra_main import option_errors
from torchtune_smt.core.errors import InputError
from torchtune_smt.core.resources import EXAMPLE, config_folder
from torchtune_smt.core.textio import atomic_writer, check_plain
from torchtune_smt.data.dataset import Dataset
from torchtune_smt.runs.folder import LONGER, RECORDS

_SETS: Final = ("train", "dev", "test")
# Options whose values are paths; all of them are only read.
_PATHS: Final = frozenset(
    {
        *(f"data.{name}" for name in ("folders", *_SETS)),
        *(f"decoder.{name}{end}" for name in _SETS for end in ("", "_scores")),
        *(f"model.{name}" for name in ("folder", "alignment_file", "grammar", "language_model")),
        *(f"model.{name}" for name in ("ini", "phrase_table", "reordering_table")),
        "init.file",
        "metric.path",
        "parallel.labels",
    }
)
NEEDLESS: Final = frozenset(
    "init sampler loss regularizer optimizer tuner parallel engine callbacks metric".split()
)
"""Groups of a run that have no part in how it decodes; minimum Bayes risk needs the metric."""

WHERE: Final = frozenset({"engine", "threads", "device", "decoder.keep_mb", "parallel.workers"})
"""What says where a command computes, and with how much: its own command line alone, no record."""

_OVERRIDES: Final = f"{RECORDS}/overrides.yaml"

# Of one option, and of the whole record.
_MAX_CHARACTERS = 10_000
_MAX_BYTES = 1_000_000

_NAME = re.compile(r"[A-Za-z]\w*", re.ASCII)
_CHOICE = re.compile(r"\w[\w-]*", re.ASCII)


@dataclass(frozen=True)
class Settings:
    """What a command is told: by its own command line, and by a run that it takes up.

    Attributes
    ----------
    given : sequence of str
        The overrides of the command line.
    recorded : sequence of str
        Those of the run that the command line does not replace.
    has_run : bool
        Whether there is a run that recorded its overrides.
    elsewhere : sequence of str
        Those of the run that are of `WHERE`, and are not taken.
    place : Path, optional
        The folder in which the run was started, by where its own folder lies now.
    """

    given: Sequence[str]
    recorded: Sequence[str] = ()
    has_run: bool = False
    elsewhere: Sequence[str] = ()
    place: Path | None = None

    @property
    def names_model(self) -> bool:
        """Whether it is said which model is meant, and not left to a default."""
        named = ("data", "model", "model.folder")
        return self.has_run or any(override_key(o) in named for o in self.given)

    def gives(self, group: str) -> bool:
        """Return whether it is said, not left to a default, what a group is."""
        return any(_group(override) == group for override in self.given)

    @property
    def may_write_model(self) -> bool:
        """Whether the user chose where the model lies, and not the folder of a run."""
        if "model.folder" in map(override_key, self.given):
            return True
        return not any(_group(override) in ("data", "model") for override in self.recorded)


def record(folder: Path, cfg: DictConfig, *, longer: bool = False) -> None:
    """Write to a run's folder how it was configured, in the files that Hydra would write.

    Hydra writes them before anybody can say whether a run may be there: what it refuses would
    have replaced the record of the run that is.

    Parameters
    ----------
    longer : bool
        A finished run is being made longer: what it has stays as it is until it has ended again,
        and so does its record, beside which there is one to resume from.

    Raises
    ------
    InputError
        The folder cannot be written to.
    """
    hydra = HydraConfig.get()
    parts = {
        "config.yaml": OmegaConf.to_container(cfg, resolve=True),
        f"{RECORDS}/config.yaml": cfg,
        f"{RECORDS}/hydra.yaml": {"hydra": hydra},
        _OVERRIDES: hydra.overrides.task,
    }
    # In a new folder first the one by which it is known for that of a run: of a run that is killed
    # before the others are there, they are nobody else's files.
    if not (folder / _OVERRIDES).exists():
        parts = {_OVERRIDES: parts.pop(_OVERRIDES), **parts}
    for name, part in {LONGER: hydra.overrides.task}.items() if longer else parts.items():
        with atomic_writer(folder / name, own=True) as file:
            file.write(OmegaConf.to_yaml(part))


def take_up(
    folder: Path,
    given: Sequence[str],
    *,
    needless: Collection[str] = (),
    sources: Collection[Path] = (),
    cure: str = "give {these} again",
    resumes: bool = False,
) -> Settings:
    """Return the overrides given now, and those that a run recorded in its folder.

    Parameters
    ----------
    needless : collection of str
        Groups that the command makes no use of. What a run recorded of them is left out as soon as
        it cannot be taken: there is no such choice, or it is more than a plain setting.
    sources : collection of path
        Folders with the configurations that there are.
    cure : str
        What the user can do about an override that is not taken, called ``{these}`` there.
    resumes : bool
        Whether the run goes on, one that was being made longer included.

    Raises
    ------
    InputError
        The record is damaged, or has an override that is not taken from a folder, that is needed,
        and that is not given again.
    """
    path = folder / (LONGER if resumes and os.path.lexists(folder / LONGER) else _OVERRIDES)
    if not os.path.lexists(path):
        return Settings(given)
    replaced = {override_key(override) for override in given}
    # Of use only to the command that they were given to.
    replaced |= {"resume", "overwrite"}
    recorded = [o for o in _read_record(path) if override_key(o) not in replaced]
    elsewhere = [o for o in recorded if says_where(o)]
    recorded = [o for o in recorded if not says_where(o)]
    # A group that is not as it was in one option makes no sense with its others.
    left_out = {
        _group(override)
        for override in recorded
        if _group(override) in needless
        # With a package, it is of another group.
        and "@" not in override.partition("=")[0]
        and not (_is_plain(override) and _is_found(override, sources))
    }
    recorded = [o for o in recorded if _group(o) not in left_out]
    refused = [override for override in recorded if not _is_plain(override)]
    if refused:
        these = "this override" if len(refused) == 1 else "these overrides"
        raise InputError(
            f"the run was given {' '.join(refused)}, and of a folder only plain "
            "settings are taken (no classes, no interpolations, no paths out of place): "
            + cure.format(these=these),
            path=path,
        )
    return Settings(given, recorded, True, elsewhere, _place(folder, as_recorded=False))


def refuse_links(folder: Path, ours: Callable[[str], bool] | None = None) -> None:
    """Raise InputError if a folder that is about to be written to leads elsewhere.

    Only folders and plain files may be in it: whoever writes to a link writes to another place.

    Parameters
    ----------
    folder : path
    ours : callable, optional
        Whether something of a name is written here, and not the user's; by default all is.
    """
    for where, folders, files in os.walk(folder):
        if ours is not None and where == str(folder):
            folders[:], files = [list(filter(ours, names)) for names in (folders, files)]
        for name in (*folders, *files):
            path = Path(where, name)
            mode = path.lstat().st_mode
            if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
                raise InputError(
                    "is no plain file or folder, and a run's folder may hold no others; put what "
                    "it leads to in its place, or remove it",
                    path=path,
                )


def recorded_overrides(folder: Path) -> list[str]:
    """Return the overrides that a run recorded, to be shown and compared; none without a record.

    Raises
    ------
    InputError
        The record is damaged.
    """
    path = folder / _OVERRIDES
    return _read_record(path) if os.path.lexists(path) else []


def recorded_data(folder: Path) -> dict[str, Any] | None:
    """Return the options of the group ``data`` of a finished run; None if it recorded none.

    Where the run was made in another folder than this one, a set whose files have something else
    there is named by those.

    Raises
    ------
    InputError
        The record is damaged, or has a value that is not taken from a folder.
    """
    found = _configuration(folder)
    return None if found is None else _data(found, folder)


def lacks_words(folder: Path, split: str) -> bool:
    """Return whether a finished run had lists of a set without words: Moses's features.dat.

    Places in the lists stand then where its translations would.

    Raises
    ------
    InputError
        The record is damaged.
    """
    decoder = (_configuration(folder) or {}).get("decoder")
    return isinstance(decoder, dict) and decoder.get(f"{split}_scores") is not None


class Tuning(NamedTuple):
    """What a run was tuned on.

    Attributes
    ----------
    data : dict of str to Any
        The options of the group ``data``.
    tune_on : {"dev", "train"}
    sentences : int, optional
        So many of them, drawn with the seed.
    seed : int
    """

    data: dict[str, Any]
    tune_on: str
    sentences: int | None
    seed: int


def recorded_tuning(folder: Path) -> Tuning | None:
    """Return what a finished run was tuned on; None if it did not record it.

    Raises
    ------
    InputError
        As for `recorded_data`.
    """
    found = _configuration(folder)
    if found is None:
        return None
    path = folder / "config.yaml"
    tuner, seed = found.get("tuner"), found.get("seed")
    tuner = tuner if isinstance(tuner, dict) else {}
    tune_on, size = tuner.get("tune_on"), tuner.get("sentences")
    sized = size is None or (type(size) is int and size > 0)
    # What is there instead of a word may be huge when it is written out.
    if not isinstance(tune_on, str) or tune_on not in ("dev", "train") or not sized:
        tune_on = None
    if tune_on is None or type(seed) is not int or seed < 0:
        raise InputError("does not say what was tuned on; the run folder is damaged", path=path)
    return Tuning(_data(found, folder), tune_on, size, seed)


def _configuration(folder: Path) -> dict[str, Any] | None:
    """Return the resolved configuration of a finished run; None if it recorded none."""
    path = folder / "config.yaml"
    found: dict[str, Any] | None = None
    if os.path.lexists(path):
        found = _read_yaml(path, dict, "configuration")
    return found


def _data(configuration: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Return the options of the group ``data`` of the configuration of a run in a folder."""
    data = configuration.get("data")
    names = {entry.name for entry in fields(Dataset)}
    if (
        not isinstance(data, dict)
        or not data.keys() <= names
        or not all(_is_value(f"data.{name}", value) for name, value in data.items())
    ):
        raise InputError(
            "has no plain settings for its data; say what they are: data=NAME",
            path=folder / "config.yaml",
        )
    # What has no relative path is the same everywhere.
    if all(os.path.isabs(path) or path == EXAMPLE for path in _data_paths(data)):
        return data
    place = _place(folder)
    if place is not None:
        sets = {split: _files_of(data, split, place) for split in _SETS}
        for split, there in sets.items():
            here = _files_of(data, split, Path())
            if there is not None and (here is None or not _same_text(here, there)):
                data[split] = there
    return data


def _data_paths(data: dict[str, Any]) -> Iterator[str]:
    """Yield the files and folders that options of the group ``data`` name."""
    folders = data.get("folders") or []
    yield from [folders] if isinstance(folders, str) else map(str, folders)
    for split in _SETS:
        if isinstance(data.get(split), list):
            yield from map(str, data[split])


def _same_text(here: Sequence[str], there: Sequence[str]) -> bool:
    """Return whether files have what others have, of which they may be copies."""
    return len(here) == len(there) and all(
        os.path.samefile(*pair) or filecmp.cmp(*pair, shallow=False)
        for pair in zip(here, there, strict=True)
    )


def _place(folder: Path, *, as_recorded: bool = True) -> Path | None:
    """Return the folder in which a run was made; None if it is not there any more, or not known.

    A run may have been moved together with what is around it: its own place then tells.

    Parameters
    ----------
    as_recorded : bool
        Believe the record where the place of the run does not tell.
    """
    path = folder / RECORDS / "hydra.yaml"
    if not os.path.lexists(path):
        return None
    found = _read_yaml(path, dict, "record of Hydra")
    for name in ("hydra", "runtime"):
        found = found.get(name) if isinstance(found, dict) else None
    found = found if isinstance(found, dict) else {}
    recorded, output = found.get("cwd"), found.get("output_dir")
    if not isinstance(recorded, str) or not isinstance(output, str):
        return None
    place, inside = Path(recorded), PurePath(output)
    if inside.is_relative_to(place):
        parts, own = inside.relative_to(place).parts, folder.resolve().parts
        if parts and own[-len(parts) :] == parts:
            place, as_recorded = Path(*own[: -len(parts)]), True
    return place if as_recorded and place.is_dir() else None


def _files_of(data: dict[str, Any], split: str, place: Path) -> list[str] | None:
    """Return the files of a set as they are named in a folder; None if they are not there."""
    try:
        with option_errors("data", data), chdir(place):
            dataset = Dataset(**data)
            if getattr(dataset, split) is None:
                return None
            files = [str(path.absolute()) for path in dataset.files(split)]
    except (InputError, OSError):
        return None
    return files if all(os.path.isfile(path) for path in files) else None


def _read_record(path: Path) -> list[str]:
    """Return the overrides that Hydra recorded."""
    recorded: list[str] = _read_yaml(path, list, "list of overrides")
    if not all(isinstance(o, str) for o in recorded):
        raise InputError("is no list of overrides; the run folder is damaged", path=path)
    return recorded


def _read_yaml(path: Path, kind: type, what: str) -> Any:
    """Return what a record of a run holds, which must be of a type."""
    try:
        if not path.is_file() or path.stat().st_size > _MAX_BYTES:
            raise ValueError
        recorded = yaml.safe_load(path.read_text("utf-8"))
        if not isinstance(recorded, kind):
            raise ValueError
    except (OSError, ValueError, RecursionError, yaml.YAMLError):
        raise InputError(f"is no {what}; the run folder is damaged", path=path) from None
    return recorded


def says_where(override: str) -> bool:
    """Return whether an override is about one of `WHERE`."""
    return _group(override) in WHERE or override_key(override) in WHERE


def _group(override: str) -> str:
    return override_key(override).partition(".")[0]


def _is_plain(override: str) -> bool:
    """Return whether a recorded override is one that may be taken from a folder."""
    if len(override) > _MAX_CHARACTERS:
        return False
    try:
        parsed = OverridesParser.create().parse_override(override)
        value = parsed.value()
    except (HydraException, ValueError, RecursionError):
        return False
    names = parsed.key_or_group.split(".")
    if parsed.package is not None or parsed.is_sweep_override():
        return False
    if not all(map(_NAME.fullmatch, names)):
        return False
    if len(names) == 1 and names[0] in _groups():
        return _is_choice(parsed, value)
    if names[0] not in _groups() and parsed.key_or_group not in _single_options():
        return False
    if names[:2] == ["init", "values"]:
        # The only names that a configuration does not know beforehand: those of features.
        return not parsed.is_delete() and isinstance(value, int | float)
    return parsed.type == OverrideType.CHANGE and _is_value(parsed.key_or_group, value)


def _is_choice(parsed: Override, value: Any) -> bool:
    """Return whether an override chooses a file of a group by its bare name, or none."""
    if parsed.type not in (OverrideType.CHANGE, OverrideType.ADD):
        return False
    return value is None or (isinstance(value, str) and _CHOICE.fullmatch(value) is not None)


def _is_found(override: str, sources: Collection[Path]) -> bool:
    """Return whether a plain override chooses a file that is there, or chooses none."""
    parsed = OverridesParser.create().parse_override(override)
    group, value = parsed.key_or_group, parsed.value()
    if group not in _groups() or value is None:
        return True
    return any((source / group / f"{value}.yaml").is_file() for source in sources)


def _is_value(option: str, value: Any) -> bool:
    """Return whether a value is plain: a number, a word, null, or a list of them."""
    if isinstance(value, list):
        return all(not isinstance(entry, list) and _is_value(option, entry) for entry in value)
    if not isinstance(value, str):
        return value is None or isinstance(value, bool | int | float)
    if "${" in value or not value.isprintable():
        return False
    if option in _PATHS:
        return _is_plain_path(value)
    return not value.startswith(("/", "~")) and ".." not in PurePath(value).parts


def _is_plain_path(path: str) -> bool:
    """Return whether a path leads to a file or a folder, or nowhere."""
    try:
        check_plain(path)
    except (InputError, OSError):
        return False
    return True


@cache
def _groups() -> frozenset[str]:
    """Return the names of all groups of configurations."""
    return frozenset(path.name for path in config_folder().iterdir() if path.is_dir())


@cache
def _single_options() -> frozenset[str]:
    """Return the names of the options that are in no group."""
    own = yaml.safe_load((config_folder() / "train.yaml").read_text("utf-8"))
    return frozenset(own) - {"defaults", "hydra"}

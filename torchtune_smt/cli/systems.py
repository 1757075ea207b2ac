"""What is compared: systems, each with the outputs of one run or of several seeds."""

from __future__ import annotations

import os
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from hydra.errors import HydraException
from omegaconf import DictConfig, ListConfig

from torchtune_smt.cli.command_line import (
    override_key,
    split_arguments,
    split_paths,
    systems_option,
)
from torchtune_smt.cli.errors import error_line
from torchtune_smt.cli.hydra_main import hydra_main
from torchtune_smt.core.errors import InputError, cure_of, escaped, warn
from torchtune_smt.core.stopping import raise_if_stopped
from torchtune_smt.core.textio import atomic_writer, iterate_lines
from torchtune_smt.runs.folder import LONGER, METRICS, RECORDS, WEIGHTS
from torchtune_smt.runs.outputs import Kind, Output, is_list_line
from torchtune_smt.runs.records import recorded_overrides

WITHOUT_EFFECT: Final = ("resume", "overwrite", "threads", "callbacks", "report")
"""Options that change nothing in what comes out of a run."""

# What commands read in the folder of a run.
_READ: Final = (
    *(WEIGHTS, METRICS, "config.yaml"),
    *(f"{split}.translations.txt" for split in ("train", "dev", "test")),
)

Given = str | Sequence[str] | ListConfig | DictConfig
"""A path, paths, or names with paths."""


def find_systems(
    given: Given, *, group_seeds: bool = True, marker: str = WEIGHTS
) -> dict[str, list[Output]]:
    """Return the outputs of each system by its name.

    Systems that have names keep them, and have all outputs that are found under theirs. Otherwise a
    file is a system of its own, with its path for a name. Runs whose command lines differ in the
    seed alone are one system (unless not `group_seeds`), named after the overrides that others do
    not have. A folder with the `marker` is that of a run; by default of one that is finished.

    Raises
    ------
    InputError
        Nothing is given, something twice, or a folder holds no finished run.
    """
    named = _named_paths(given)
    if not named:
        raise InputError("systems={} names no system; name one at least")
    every = [path for paths in named.values() for path in paths]
    if twice := _repeated(every):
        raise InputError(f"systems names a file twice: {', '.join(twice)}")
    found = {
        name: [output for path in paths for output in _outputs(Path(path), marker)]
        for name, paths in named.items()
    }
    places = [output.path.resolve() for outputs in found.values() for output in outputs]
    if twice := _repeated(places):
        raise InputError(f"a run is named twice: {', '.join(twice)}")
    return found if isinstance(given, DictConfig) else _named(found[""], group_seeds)


def files_read(given: Given) -> Iterator[Path]:
    """Yield the files that `find_systems` may find, and those of runs that commands read."""
    for path in (Path(path) for paths in _named_paths(given).values() for path in paths):
        yield path
        if path.is_dir():
            for name in _READ:
                yield from _below(path, name)


def unused_grouping(given: Given, found: Mapping[str, Sequence[Output]]) -> dict[str, str]:
    """Return ``group_seeds`` with the reason, where it changes nothing of what was `found`."""
    if isinstance(given, DictConfig):
        return {"group_seeds": "systems= says which runs are one system"}
    outputs = [output for some in found.values() for output in some]
    if sum(output.is_recorded for output in outputs) < 2:
        return {"group_seeds": "there are no two runs that could differ in the seed"}
    return {}


def _named_paths(given: Given) -> dict[str, list[str]]:
    if not isinstance(given, DictConfig):
        return {"": paths_of("systems", given)}
    return {str(name): paths_of(f"systems.{name!s}", paths) for name, paths in given.items()}


def _repeated(things: Iterable[object]) -> list[str]:
    return [str(thing) for thing, count in Counter(things).items() if count > 1]


def _named(outputs: Sequence[Output], group_seeds: bool) -> dict[str, list[Output]]:
    """Return systems whose names tell them apart."""
    groups: dict[tuple[str, ...], list[Output]] = {}
    for output in outputs:
        if not output.is_recorded:
            key: tuple[str, ...] = (str(output.path),)
        else:
            # In whatever order they were given.
            key = tuple(sorted(output.overrides, key=override_key))
            if not group_seeds:
                key = (*key, f"seed={output.seed}" if output.seed else "")
        groups.setdefault(key, []).append(output)
    runs = [set(key) for key, group in groups.items() if group[0].is_recorded]
    common = set.intersection(*runs) if runs else set()
    systems: dict[str, list[Output]] = {}
    for key, group in groups.items():
        name = str(group[0].path)
        if group[0].is_recorded:
            given = [o for o in group[0].overrides if o not in common]
            own = " ".join([*given, *(o for o in key if o and o not in (*common, *given))])
            if own:
                name = own
            elif len(groups) == 1:
                # One run, or a sweep over seeds: all overrides are common.
                name = os.path.commonpath([output.path for output in group])
            elif len(group) > 1:
                name = " ".join(key)
            name = name or "default"
            if _repeated(output.seed for output in group):
                warn([f"{name}: two runs have the same seed, and count as two all the same"])
        systems[name] = group
    return systems


def _outputs(path: Path, marker: str) -> Iterator[Output]:
    """Yield what a path leads to: a run, the runs of a sweep, or a file."""
    # Before anything else is said of it.
    if not path.exists():
        raise InputError("no such file; check the path", path=path)
    if not path.is_dir():
        if _is_weights(path):
            yield _of_folder(path, path.parent, "weights")
        else:
            yield Output(path, "lists" if is_list_line(_first_line(path)) else "translations")
        return
    folders = [path]
    if not (path / marker).is_file():
        files = filter(Path.is_file, _below(path, marker))
        folders = sorted((found.parent for found in files), key=_natural)
    if not folders:
        raise InputError(
            f"holds no run with {marker}; give the folder of a run or of a sweep, or a file",
            path=path,
        )
    started = {found.parent for found in _below(path, RECORDS)}.difference(folders)
    warn(f"{folder}: is not finished, and is left out" for folder in sorted(started))
    yield from (_of_folder(folder, folder, "run") for folder in folders)


def _below(path: Path, name: str) -> Iterator[Path]:
    """Yield what has a name below a folder; links to folders are followed, each folder once."""
    seen = set()
    for where, folders, files in os.walk(path, onerror=_refuse_unreadable, followlinks=True):
        place = os.path.realpath(where)
        if place in seen:
            folders.clear()
            continue
        seen.add(place)
        if name in folders or name in files:
            yield Path(where, name)


def _refuse_unreadable(error: OSError) -> None:
    """Raise InputError if a folder cannot be read: a run in it would be missing without a word."""
    # A run that is at work may have removed it meanwhile.
    if not isinstance(error, FileNotFoundError):
        raise InputError(
            f"cannot be read ({error.strerror}), and there may be runs in it; "
            + cure_of(error, "make it readable, or name the folders of the runs themselves"),
            path=error.filename,
        ) from None


def _of_folder(path: Path, folder: Path, kind: Kind) -> Output:
    if (folder / LONGER).exists():
        warn([f"{folder}: is being made longer, and what it has is of the shorter run"])
    # Shown in tables: a run's folder may come from anybody.
    recorded = [escaped(o) for o in recorded_overrides(folder) if not o.startswith("hydra.")]
    # The last one counts.
    last = {override_key(o): o for o in recorded}
    overrides = tuple(o for key, o in last.items() if key not in (*WITHOUT_EFFECT, "seed"))
    return Output(path, kind, overrides, last.get("seed", "").partition("=")[2])


def _is_weights(path: Path) -> bool:
    if path.name in (WEIGHTS, Path(WEIGHTS).stem):
        return True
    return _first_line(path).startswith("# torchtune_smt weights")


def _first_line(path: Path) -> str:
    """Return the first line of a file, if there is one: who reads all of it says what is wrong.

    What is no plain file can be read once, and is left alone.
    """
    return next(iter(iterate_lines(path)), "") if path.is_file() else ""


def _natural(path: Path) -> list[tuple[bool, int, str]]:
    """Return a key that sorts run 10 behind run 9."""
    parts = re.split(r"(\d+)", str(path))
    return [(part.isdecimal(), int(part) if part.isdecimal() else 0, part) for part in parts]


def paths_of(option: str, files: Any) -> list[str]:
    """Return the paths of a list of files, which an option has; one may stand without a list."""
    if isinstance(files, str):
        return [files]
    if not isinstance(files, ListConfig | list):
        raise InputError(f"{option} must be a file or a list of files, not {files}")
    if not files:
        raise InputError(f"{option} is an empty list of files; name one file at least")
    for path in files:
        if not isinstance(path, str | int | float):
            raise InputError(
                f"{option} has {path} in the place of a file; runs of a system are given with "
                "its name, as in systems={base:[a1,a2],new:[b1,b2]}"
            )
    return [str(path) for path in files]


def run_on_systems(
    name: str,
    function: Callable[[DictConfig], None],
    named: Callable[[list[str], list[str], list[str]], list[str]] = lambda _, options, __: options,
) -> int:
    """Run a command with the arguments of the process: those that are no options are systems.

    Parameters
    ----------
    named : callable
        Takes these paths, from which it may take some away, the options and the flags, and returns
        the options.
    """
    try:
        overrides, flags = split_arguments(sys.argv[1:])
        paths, options = split_paths(overrides)
        options = named(paths, options, flags)
        if paths:
            options = [*options, systems_option(paths)]
        return hydra_main(name)(function)(arguments=[*options, *flags])
    except (InputError, HydraException) as error:
        raise_if_stopped()
        print(error_line(error), file=sys.stderr)
        return 1


def write_table(cfg: DictConfig, styled: Callable[[str], str]) -> None:
    """Print a table, or write it to ``output``, in the style that is asked for.

    In a terminal that is ``screen`` where none is, and ``folded`` for text: lines have room there.
    """
    style = cfg.table or "markdown"
    if cfg.output is None and sys.stdout.isatty() and cfg.table in (None, "text"):
        style = "screen" if cfg.table is None else "folded"
    table = styled(style)
    if cfg.output is None:
        print(table, end="")
    else:
        with atomic_writer(cfg.output) as file:
            file.write(table)

"""What is said of errors that end a command."""

from __future__ import annotations

import importlib
import os
import re
import traceback
from collections.abc import Iterable, Mapping
from pathlib import Path

import hydra
from hydra.errors import (
    InstantiationException,
    MissingConfigException,
    OverrideParseException,
)
from omegaconf.errors import MissingMandatoryValue

from torchtune_smt.cli.command_line import typed
from torchtune_smt.cli.help import option_names
from torchtune_smt.core.errors import InputError, cure_of, did_you_mean, escaped


def error_line(error: BaseException) -> str:
    """Return what is said about an error that ends a command, in one line."""
    if isinstance(error, InstantiationException):
        error = error.__cause__ or error
    text = str(error)
    if isinstance(error, OSError) and error.filename is not None:
        text = f"{error.filename}: {error.strerror}"
    if isinstance(error, OSError) and (cure := cure_of(error)):
        text += f"; {cure}"
    if isinstance(error, MissingConfigException) and error.options:
        group, _, choice = str(error.missing_cfg_file).rpartition("/")
        text = f"there is no {group}={choice}; choose of {', '.join(error.options)}"
        text += did_you_mean(choice, error.options)
        text += "; --config-dir=FOLDER names a folder with others"
    elif isinstance(error, OverrideParseException):
        reason = text.removeprefix(f"Error parsing override '{error.override}'").strip()
        text = (
            f"{error.override}: cannot be read as OPTION=VALUE ({reason.splitlines()[0]}); a value "
            "with other characters than those of plain words wants quotes within quotes, as in "
            f"{typed('output', 'a, b.txt')}"
        )
    elif isinstance(error, MissingMandatoryValue) and isinstance(error.full_key, str):
        text = f"{error.full_key} is missing; give it with {error.full_key}=VALUE"
    elif missing := re.search(r"Missing mandatory value: ([\w.]+)", text):
        # What another option is made of.
        text = f"{missing[1]} is missing; give it with {missing[1]}=VALUE"
    elif unknown := re.match(r"Could not override '(.*)'", text):
        name, names = unknown[1], set(option_names())
        cure = did_you_mean(name, names) or "; --help shows all that there are"
        if name in names:
            group, dot, _ = name.partition(".")
            place = f"with the {group} that is chosen here" if dot else "of this command"
            cure = f" {place}, though another one has it"
        text = f"there is no option {name}{cure}"
    return "error: " + escaped(" ".join(text.split("\n")))


def check_written(
    written: Mapping[str, str | None], read: Iterable[str | os.PathLike[str]] = ()
) -> None:
    """Raise InputError where a file that is to be written is read, or is to be written twice.

    written: the value of each option that names a file to write.
    read: files that the command reads; ``-`` is none.
    """
    taken = {os.path.realpath(path): "a file that is read" for path in read if str(path) != "-"}
    for option, path in written.items():
        # A pipe or a device may be written to as often as one likes.
        if path is None or (os.path.exists(path) and not Path(path).is_file()):
            continue
        place = os.path.realpath(path)
        if place in taken:
            raise InputError(f"{option} is {taken[place]}: choose another name for it", path=path)
        taken[place] = f"what {option} names, too"


def why_missing(target: str, error: BaseException) -> str:
    """Return why there is no such class, or why its module fails, in one line.

    target: the module and the class, as in ``_target_``.
    error: what Hydra raised when it looked for them; it says what its cause is.
    """
    cause = error.__cause__ or error
    if isinstance(cause, SyntaxError) and cause.filename is not None:
        return f"{_place(cause.filename, cause.lineno)}: {cause.msg}; correct this line"
    module, says = target.partition(".")[0], one_line(cause)
    frames = _frames_of_modules(error.__cause__)
    if frames:
        place = _place(frames[-1].filename, frames[-1].lineno)
        if isinstance(cause, ModuleNotFoundError):
            return f"{place}: there is no module {cause.name}; is it installed?"
        return f"{place}: {type(cause).__name__}: {says}"
    if isinstance(cause, ModuleNotFoundError) and cause.name == module:
        return f"there is no such class, as there is no module {module}; is it in this folder?"
    if isinstance(cause, ModuleNotFoundError) and cause.name is not None:
        holder, _, name = cause.name.rpartition(".")
        return f"there is no such class, as {holder} has no {name}; is it spelt so?"
    return f"there is no such class: {says}"


def one_line(error: BaseException) -> str:
    """Return what an error says, in one line."""
    return " ".join(str(error).split("\n"))


def _frames_of_modules(error: BaseException | None) -> list[traceback.FrameSummary]:
    """Return where a module was when it failed; nothing if none was there to be run."""
    if error is None:
        return []
    finders = (Path(hydra.__file__).parent, Path(importlib.__file__).parent)
    return [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith("<frozen ")
        and not any(Path(frame.filename).is_relative_to(folder) for folder in finders)
    ]


def _place(filename: str, line: int | None) -> str:
    """Return a line of a file, as it is called from here."""
    path = Path(filename)
    inside = path.is_relative_to(Path.cwd())
    return f"{path.relative_to(Path.cwd()) if inside else path}:{line}"

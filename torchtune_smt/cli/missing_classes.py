"""Why a class that the configuration names cannot be had."""

from __future__ import annotations

import importlib
import traceback
from pathlib import Path

import hydra


def why_missing(target: str, error: BaseException) -> str:
    """Return why there is no such class, or why its module fails, in one line.

    Parameters
    ----------
    target : str
        The module and the class, as in ``_target_``.
    error : BaseException
        What Hydra raised when it looked for them; it says what its cause is.
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

"""The errors that a user is to understand."""

from __future__ import annotations

from os import PathLike
from typing import Final

# The cure for damage to what was built from a bitext.
REBUILD: Final = "remove the model's folder and build it again"


class InputError(ValueError):
    """Bad input from the user: says where it stands, what is wrong and how to cure it.

    Parameters
    ----------
    message : str
        What is wrong, and the cure.
    path : path, optional
        The file at fault.
    line : int, optional
        Its line, counted from 1.
    """

    def __init__(
        self, message: str, *, path: str | PathLike[str] | None = None, line: int | None = None
    ) -> None:
        self.message = message
        self.path = path
        self.line = line
        place = "" if path is None else f"{path}: " if line is None else f"{path}:{line}: "
        super().__init__(place + message)

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (self.message, self.path, self.line)


class DivergenceError(ValueError):
    """Numbers are not finite any more: the learning rate is too large, or feature values are."""


def _rebuild(message: str, path: str | PathLike[str] | None, line: int | None) -> InputError:
    return InputError(message, path=path, line=line)

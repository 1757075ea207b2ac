"""The errors that a user is to understand."""

from __future__ import annotations

import difflib
import errno
import re
import sys
from collections.abc import Iterable
from functools import partial
from os import PathLike
from typing import Final

# The cure for damage to what was built from a bitext.
REBUILD: Final = "remove the model's folder and build it again"
# Characters of one word, and of all, that are shown.
_WORD: Final = 200
_ALL: Final = 2000

_LONG_WORD: Final = re.compile(rf"\S{{{_WORD + 1},}}")


class InputError(ValueError):
    """Bad input from the user: says where it stands, what is wrong and how to cure it.

    path, line: the file at fault, and its line, counted from 1.
    """

    def __init__(
        self, message: str, *, path: str | PathLike[str] | None = None, line: int | None = None
    ) -> None:
        self.message = message
        self.path = path
        self.line = line
        place = "" if path is None else f"{path}: " if line is None else f"{path}:{line}: "
        super().__init__(escaped(place) + shown(message))

    def __reduce__(self) -> tuple[object, ...]:
        return partial(InputError, path=self.path, line=self.line), (self.message,)


class NotWrittenError(InputError):
    """A file cannot be written: there is no room, or no right to."""


class DivergenceError(ValueError):
    """Numbers are not finite any more: the learning rate is too large, or feature values are."""


def cure_of(error: OSError, otherwise: str = "") -> str:
    """Return what helps against an error of the system; `otherwise` where it does not tell."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return "make room on the disk"
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return "let more files be open at a time, as with `ulimit -n 4096` before the command"
    return otherwise


def warn(sentences: Iterable[str]) -> None:
    """Print what a user is told and a command goes on after, a line each, as an error is."""
    for sentence in sentences:
        print(f"warning: {sentence}", file=sys.stderr, flush=True)


class KernelError(RuntimeError):
    """Machine code cannot be loaded or made, which is no fault of the input."""


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """Return a question that names what is spelt like a name that is not there; or nothing."""
    # That of the group alone was forgotten where the rest is the same.
    names = sorted(names)
    found = [other for other in names if other.rpartition(".")[2] == name]
    found = found or difflib.get_close_matches(name, names, 1)
    if not found:
        last = {other.rpartition(".")[2]: other for other in reversed(names)}
        found = [last[near] for near in difflib.get_close_matches(name, last, 1, 0.8)]
    return f"; did you mean {' or '.join(found[:3])}?" if found else ""


def shown(message: str) -> str:
    """Return a message with what it quotes shortened, in one line that any terminal can show."""
    message = _LONG_WORD.sub(lambda word: _shortened(word[0], _WORD), message)
    return escaped(_shortened(message, _ALL))


def escaped(text: str) -> str:
    r"""Return a text with escapes for what is not printable, as in ``\n`` and ``\xa0``."""
    if text.isprintable():
        return text
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode("ascii")
        for letter in text
    )


def _shortened(text: str, length: int) -> str:
    """Return a text of at most about so many characters: more are taken from its middle."""
    if len(text) <= length:
        return text
    return f"{text[: length // 2]}...{text[-length // 4 :]}"

"""The sections of Moses's configuration files."""

from __future__ import annotations

from collections.abc import Container
from pathlib import Path

from torchtune_smt.core.errors import InputError
from torchtune_smt.core.textio import read_lines
from torchtune_smt.models.ini_lines import content, header


class IniSections:
    """The lines of each section with their numbers, without comments.

    Parameters
    ----------
    path : Path
    read : container of str
        The sections that are made use of, and may stand there once.

    Raises
    ------
    InputError
        The file is missing or bad, a section that is read stands there twice, or something stands
        before the first one.
    """

    def __init__(self, path: Path, read: Container[str]) -> None:
        self.path = path
        self._begin: dict[str, int] = {}
        self._lines: dict[str, list[tuple[str, int]]] = {}
        name = None
        for number, line in enumerate(read_lines(path), start=1):
            text, begun = content(line), header(line)
            if not text:
                continue
            if begun is not None:
                name = begun
                if name in self._begin and name in read:
                    message = f"a second [{name}] (the first is in line {self._begin[name]})"
                    raise self.error(f"{message}; leave one of them", number)
                self._begin.setdefault(name, number)
                self._lines.setdefault(name, [])
            elif name is None:
                raise self.error("stands before the first [section]", number)
            else:
                self._lines[name].append((text, number))

    def __contains__(self, name: str) -> bool:
        return name in self._begin

    def error(self, message: str, line: int | None = None) -> InputError:
        """Return an error in this file."""
        return InputError(message, path=self.path, line=line)

    def begin(self, name: str) -> int:
        """Return the line in which a section begins that is there."""
        return self._begin[name]

    def lines(self, name: str) -> list[tuple[str, int]]:
        """Return what a section says; nothing if it is not there."""
        return self._lines.get(name, [])

    def value(self, name: str) -> tuple[str, int]:
        """Return the one value of a section that is there, and its line.

        Raises
        ------
        InputError
            It has none, or several.
        """
        lines = self.lines(name)
        if not lines:
            message = f"[{name}] is empty; write its value in the next line, or remove it"
            raise self.error(message, self._begin[name])
        if len(lines) > 1:
            raise self.error(f"[{name}] has a second value; leave one of them", lines[1][1])
        return lines[0]

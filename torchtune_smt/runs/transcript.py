"""What a run prints, in a file of its folder as well."""

from __future__ import annotations

import io
import re
import shutil
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from torchtune_smt.core.errors import InputError
from torchtune_smt.core.textio import writing


class Transcript:
    """Takes down what goes to the standard output and the standard error output.

    Bars, which are drawn again and again in one line, are left out.
    """

    def __init__(self) -> None:
        self._name = Path()
        # As long as there is no file, and none once the run is over.
        self._file: IO[str] | None = io.StringIO()

    def open(self, path: Path, *, append: bool) -> None:
        """Write to a file, first of all what has been printed so far."""
        assert isinstance(self._file, io.StringIO)
        held = self._file.getvalue()
        with writing(path):
            self._name = path
            self._file = path.open("a" if append else "w", buffering=1, encoding="utf-8")
            self._file.write(held)

    def add(self, text: str) -> None:
        """Write what was printed.

        Nothing is written once the run is over: others may have kept the streams, and print later.
        """
        if self._file is not None:
            with writing(self._name):
                self._file.write(text)

    def close(self) -> None:
        """Close the file, if there is one; raise InputError if the rest cannot be written."""
        if self._file is not None:
            file, self._file = self._file, None
            with writing(self._name):
                file.close()


@contextmanager
def transcript() -> Iterator[Transcript]:
    """Take down what the block prints, and what ended it."""
    taken = Transcript()
    before = sys.stdout, sys.stderr
    streams = [_Copied(stream, taken) for stream in before]
    sys.stdout, sys.stderr = streams
    try:
        yield taken
    except BaseException as error:
        sys.stdout, sys.stderr = before
        for stream in streams:
            stream.end_line()
        # It may be that there is no room for it.
        with suppress(InputError):
            taken.add(f"{type(error).__name__}: {error}\n")
        with suppress(InputError):
            taken.close()
        raise
    finally:
        sys.stdout, sys.stderr = before
    taken.close()


# What is copied from the screen, as commands are, stays a line.
_LONG = re.compile(r"^(?!Now try: |.*torchtune-smt |curves: ).{81,}", re.MULTILINE)


def _at_words(line: re.Match[str]) -> str:
    """Break a line where words end, and not where the terminal does."""
    columns = shutil.get_terminal_size().columns
    return textwrap.fill(
        line[0], columns, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
    )


class _Copied:
    """A stream whose text goes to a transcript, too; all else is the stream's."""

    def __init__(self, stream: Any, taken: Transcript) -> None:
        self._stream = stream
        self._taken = taken
        self._in_bar = False
        self._in_line = False

    def write(self, text: str) -> int:
        """Write a text; one with a carriage return is a bar's, and so is the line end after it."""
        bar = "\r" in text
        if not bar and not (self._in_bar and text == "\n"):
            self._taken.add(text)
        self._in_bar = bar
        self._in_line = not bar and not text.endswith("\n") if text else self._in_line
        seen = not bar and self._stream.isatty()
        self._stream.write(_LONG.sub(_at_words, text) if seen else text)
        return len(text)

    def end_line(self) -> None:
        """End a line that a signal has kept from its end: `print` writes both by themselves."""
        if self._in_line:
            with suppress(InputError, OSError, ValueError):
                self.write("\n")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

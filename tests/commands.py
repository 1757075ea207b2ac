"""Running the commands within the process of the tests."""

from __future__ import annotations

import contextlib
import importlib
import io
import logging
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Outcome:
    """What a command gave back."""

    code: int
    out: str
    err: str

    def check(self) -> Outcome:
        """Return this outcome if all went well."""
        assert self.code == 0, f"exit code {self.code}\n{self.out}\n{self.err}"
        return self


def run_command(name: str, *arguments: str | Path, folder: Path) -> Outcome:
    """Run ``torchtune_smt.cli.<name>`` in a folder, as ``python scripts/<name>.py`` does."""
    main = importlib.import_module(f"torchtune_smt.cli.{name}").main
    out, err = io.StringIO(), io.StringIO()
    code: int | str | None
    with (
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        contextlib.chdir(folder),
        _arguments(name, *map(str, arguments)),
        _logging(),
    ):
        try:
            code = main()
        except SystemExit as error:
            code = error.code  # type: ignore[assignment]
    if isinstance(code, str):
        # As the interpreter does.
        err.write(code + "\n")
        code = 1
    return Outcome(code or 0, out.getvalue(), err.getvalue())


@contextlib.contextmanager
def _arguments(*arguments: str) -> Iterator[None]:
    before = sys.argv
    sys.argv = list(arguments)
    try:
        yield
    finally:
        sys.argv = before


@contextlib.contextmanager
def _logging() -> Iterator[None]:
    """Take back what Hydra does to the root logger."""
    handlers, level = list(logging.root.handlers), logging.root.level
    try:
        yield
    finally:
        logging.root.handlers[:] = handlers
        logging.root.setLevel(level)

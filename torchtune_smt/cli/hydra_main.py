"""What the commands that Hydra configures have in common."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import hydra
from omegaconf import DictConfig

from torchtune_smt.errors import InputError
from torchtune_smt.resources import config_folder


def hydra_main(name: str) -> Callable[[Callable[[DictConfig], Any]], Callable[[], int]]:
    """Return a decorator: a function of a configuration becomes a command.

    Bad input ends the command with one line on the standard error output and exit code 1.
    Classes of the user's own files can be configured: the current folder is importable.
    """

    def decorate(function: Callable[[DictConfig], Any]) -> Callable[[], int]:
        def task(cfg: DictConfig) -> Any:
            try:
                return function(cfg)
            except InputError as error:
                # Hydra would print a stack trace; the user wants the line that names the file.
                print(f"error: {error}", file=sys.stderr)
                raise SystemExit(1) from None

        def main() -> int:
            if "" not in sys.path:
                sys.path.insert(0, "")
            run = hydra.main(
                config_path=str(config_folder()), config_name=name, version_base="1.3"
            )(task)
            try:
                run()
            except OSError as error:
                print(f"error: {error}; choose a folder that you may write to", file=sys.stderr)
                return 1
            return 0

        main.__doc__ = function.__doc__
        return main

    return decorate

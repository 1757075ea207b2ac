"""What the commands that Hydra configures have in common."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import hydra
from hydra.errors import HydraException, InstantiationException
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from torchtune_smt.errors import InputError
from torchtune_smt.resources import config_folder


def hydra_main(name: str) -> Callable[[Callable[[DictConfig], Any]], Callable[[], int]]:
    """Return a decorator: a function of a configuration becomes a command.

    Bad input, and an option that is unknown or out of range, end the command with a message on
    the standard error output and exit code 1. Classes of the user's own files can be configured:
    the current folder is importable.
    """

    def decorate(function: Callable[[DictConfig], Any]) -> Callable[[], int]:
        def task(cfg: DictConfig) -> Any:
            # Hydra prints a stack trace for what leaves this function, but not for SystemExit.
            try:
                return function(cfg)
            except BrokenPipeError:
                # Whoever read the output has closed it, as `head` does.
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
                raise SystemExit(1) from None
            except (InputError, OSError) as error:
                raise SystemExit(_message(error)) from None
            except InstantiationException as error:
                raise SystemExit(_message(error.__cause__ or error)) from None
            except OmegaConfBaseException as error:
                raise SystemExit(_message(error)) from None

        def main() -> int:
            if "" not in sys.path:
                sys.path.insert(0, "")
            # Hydra then raises instead of printing a trace: the message says enough.
            os.environ.setdefault("HYDRA_FULL_ERROR", "1")
            try:
                hydra.main(config_path=str(config_folder()), config_name=name, version_base="1.3")(
                    task
                )()
            except (HydraException, OmegaConfBaseException) as error:
                print(_message(error), file=sys.stderr)
                return 1
            except OSError as error:
                print(f"{_message(error)}: choose a folder that you may write to", file=sys.stderr)
                return 1
            return 0

        main.__doc__ = function.__doc__
        return main

    return decorate


@contextmanager
def option_errors(option: str) -> Iterator[None]:
    """Turn the error of an argument out of range, or of a wrong type, into an InputError that names the option."""
    try:
        yield
    except InputError:
        raise
    except (ValueError, TypeError, InstantiationException) as error:
        raise InputError(f"{option}: {error.__cause__ or error}") from None


def _message(error: BaseException) -> str:
    return f"error: {error}"

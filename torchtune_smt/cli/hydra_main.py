"""What the commands that Hydra configures have in common."""

from __future__ import annotations

import logging
import math
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import hydra
import yaml
from hydra._internal.hydra import Hydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import (
    HydraException,
    InstantiationException,
    MissingConfigException,
    OverrideParseException,
)
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from torchtune_smt.cli.command_line import (
    Arguments,
    brings_options,
    override_key,
    refuse_repeated,
    split_arguments,
    split_paths,
    unreadable,
    with_plus,
)
from torchtune_smt.cli.help import help_text, option_names
from torchtune_smt.cli.options import check_options, missing, refuse_removed
from torchtune_smt.core.errors import (
    DivergenceError,
    InputError,
    KernelError,
    cure_of,
    did_you_mean,
    escaped,
    warn,
)
from torchtune_smt.core.resources import PACKAGE, config_folder
from torchtune_smt.core.stopping import CLOSED, discard_output, raise_if_stopped
from torchtune_smt.runs.folder import RunFolder


@dataclass
class Sweep:
    """What became of the runs of a sweep: the folder, once the first has begun, the number begun,
    the folders of those that ended well, the overrides of those that failed.
    """

    folder: Path | None = None
    runs: int = 0
    done: list[Path] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)

    def do(self, job: Callable[[], Any]) -> Any:
        """Do a run; one of a sweep may fail, and returns NaN, which sweepers take for a failure."""
        config = HydraConfig.get()
        if config.mode != RunMode.MULTIRUN:
            return job()
        self.folder = Path(config.sweep.dir)
        self.runs += 1
        overrides = " ".join(config.overrides.task)
        # What all runs have was typed so.
        own = " ".join(o for o in config.overrides.task if o not in sys.argv) or overrides
        print(f"{'' if self.runs == 1 else chr(10)}run {self.runs}: {own}", flush=True)
        try:
            score = job()
            self.done.append(Path(config.runtime.output_dir))
            return score
        except SystemExit as error:
            # A number is of a broken pipe: nobody listens any more.
            if not isinstance(error.code, str):
                raise
            print(error.code, file=sys.stderr, flush=True)
        except Exception:
            traceback.print_exc()
        self.failed.append(overrides)
        return math.nan

    def summary(self) -> str:
        """Return which runs failed."""
        failed = "; ".join(self.failed)
        return f"error: {len(self.failed)} of {self.runs} runs failed: {failed}"


_BAD_INPUT: Final = (
    InputError,
    KernelError,
    DivergenceError,
    OSError,
    InstantiationException,
    OmegaConfBaseException,
)
# Options of Hydra's that say nothing of its mode, and bring no files that may.
_OF_FOLDERS: Final = ("hydra.run.", "hydra.sweep.")
# What Hydra raises where it reads configurations and command lines.
_OF_HYDRA: Final = (HydraException, OmegaConfBaseException, yaml.MarkedYAMLError, ValueError)


def hydra_main(
    name: str, sweep: Sweep | None = None, take: Callable[[DictConfig], None] | None = None
) -> Callable[[Callable[[DictConfig], Any]], Callable[..., int]]:
    """Return a decorator: a function of a configuration becomes a command.

    It reads its arguments from ``sys.argv``, or is given them, takes overrides besides, and returns
    its exit code. Bad input, and an option that is unknown or out of range, end it with a message
    on the standard error output and exit code 1. Classes of the user's own files can be configured.

    sweep: told what becomes of the runs of a sweep; the caller says which have failed.
    take: puts what else is known into the configuration, once what the user gave has been checked.
    """

    def decorate(function: Callable[[DictConfig], Any]) -> Callable[..., int]:
        def one(cfg: DictConfig) -> Any:
            # Hydra prints a stack trace for what leaves this function, but not for SystemExit.
            try:
                make_classes_importable(cfg)
                if brings_options():
                    # It imports what the parts are made of.
                    from torchtune_smt.cli.spending import refuse_untaken

                    refuse_untaken(name, cfg)
                refuse_removed(HydraConfig.get().overrides.task)
                refuse_repeated(HydraConfig.get().overrides.task)
                if take is not None:
                    take(cfg)
                check_options(cfg)
                with _remarks():
                    return function(cfg)
            except BrokenPipeError:
                discard_output()
                print(f"error: {CLOSED}", file=sys.stderr)
                # A number: it ends a sweep, too.
                raise SystemExit(1) from None
            except KeyboardInterrupt:
                _forget_run()
                raise
            except _BAD_INPUT as error:
                _forget_run()
                raise SystemExit(error_line(error)) from None
            except MemoryError:
                raise SystemExit(
                    "error: there is not enough memory; docs/errors.md says what takes less"
                ) from None
            except Exception:
                # An interrupt may have become any exception, which Hydra would announce as one.
                raise_if_stopped()
                raise

        def main(more: Sequence[str] = (), arguments: Sequence[str] | None = None) -> int:
            told = Sweep() if sweep is None else sweep

            def task(cfg: DictConfig) -> Any:
                return told.do(lambda: one(cfg))

            before = sys.argv
            given = split_arguments(before[1:] if arguments is None else arguments)
            modes = [o for o in given.overrides if o.partition("=")[0] == "hydra.mode"]
            # Hydra then raises instead of printing a trace: the message says enough.
            os.environ["HYDRA_FULL_ERROR"] = "1"
            try:
                if "--help" in given.flags:
                    return _print_help(name, given)
                if sweep is None and ("--multirun" in given.flags or modes):
                    raise InputError(f"{name} has no sweeps; leave -m out")
                sys.argv = [before[0], *map(with_plus, given.overrides), *more, *given.flags]
                with _mode_known(given):
                    hydra.main(
                        config_path=str(config_folder()), config_name=name, version_base="1.3"
                    )(task)()
            except _OF_HYDRA as error:
                line = _hydras_line(error, given)
                if line is None:
                    raise
                raise_if_stopped()
                print(line, file=sys.stderr)
                return 1
            except BrokenPipeError:
                # Of a line that a sweep prints between its runs.
                raise
            except OSError as error:
                if "--help" in given.flags:
                    # Of the standard output.
                    raise
                cure = "; choose a folder that you may write to (hydra.run.dir)"
                print(error_line(error) + ("" if cure_of(error) else cure), file=sys.stderr)
                return 1
            finally:
                sys.argv = before
            return 1 if told.failed else 0

        main.__doc__ = function.__doc__
        return main

    return decorate


@contextmanager
def _mode_known(given: Arguments) -> Iterator[None]:
    """Within, Hydra does not compose twice, first to learn its mode, unless the user says it."""
    keys = map(override_key, given.overrides)
    told = [key for key in keys if key.startswith("hydra") and not key.startswith(_OF_FOLDERS)]
    told += [flag for flag in given.flags if flag != "--multirun"]
    get_mode = Hydra.get_mode
    if not told:
        Hydra.get_mode = lambda *_, **__: None  # type: ignore[method-assign]
    try:
        yield
    finally:
        Hydra.get_mode = get_mode  # type: ignore[method-assign]


def _print_help(name: str, given: Arguments) -> int:
    folders = config_folders(given.flags)
    for folder in folders:
        if not folder.is_dir():
            raise InputError("no such folder of configurations", path=folder)
    program = sys.argv[0] if " " in sys.argv[0] else f"python {sys.argv[0]}"
    # Files and folders, which some commands take without a name, change nothing.
    print(help_text(name, program, split_paths(given.overrides)[1], folders))
    return 0


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
        text = unreadable(error)
    elif named := re.search(r"Missing mandatory value: ([\w.]+)", text):
        text = missing(named[1])
    elif unknown := re.match(r"Could not override '(.*)'", text):
        name, names = unknown[1], set(option_names())
        cure = did_you_mean(name, names) or "; --help shows all that there are"
        if name in names:
            group, dot, _ = name.partition(".")
            place = f"with the {group} that is chosen here" if dot else "of this command"
            cure = f" {place}, though another one has it"
        text = f"there is no option {name}{cure}"
    return "error: " + escaped(" ".join(text.split("\n")))


def _hydras_line(error: Exception, given: Arguments) -> str | None:
    """Return what is said of an error that Hydra has raised; None if it is another's."""
    if isinstance(error, InputError | HydraException | OmegaConfBaseException):
        return error_line(error)
    if isinstance(error, yaml.MarkedYAMLError):
        mark = error.problem_mark
        place = "" if mark is None else f"{mark.name}:{mark.line + 1}: "
        says = f"is no YAML: {error.problem}; see docs/extend.md for what a file looks like"
        return f"error: {place}{says}"
    if not _is_hydras(error):
        return None
    if isinstance(error, UnicodeDecodeError):
        return f"error: {_undecodable(config_folders(given.flags))}"
    # Of flags that do not go together or a group that is null; what bad input of ours is has
    # become another error.
    null = [o for o in given.overrides if o.partition("=")[2] in ("null", "None")]
    cure = f": {', '.join(null)} names no choice; leave it out, or see --help" if null else ""
    return f"error: {error}{cure}"


def _undecodable(folders: Iterable[Path]) -> str:
    for path in (path for folder in folders for path in sorted(folder.rglob("*.yaml"))):
        try:
            path.read_text("utf-8")
        except UnicodeDecodeError:
            return f"{path}: is not valid UTF-8; convert it: iconv -f latin1 -t utf-8"
    return "a configuration file is not valid UTF-8"


class _Remarks(logging.Handler):
    """Says what readers of files remark, as `warn` does: the standard output is for results."""

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno >= logging.WARNING:
            warn([record.getMessage()])
        else:
            print(record.getMessage(), file=sys.stderr, flush=True)


@contextmanager
def _remarks() -> Iterator[None]:
    logger, handler = logging.getLogger(PACKAGE.name), _Remarks()
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)


def _is_hydras(error: Exception) -> bool:
    """Return whether an error was raised in Hydra, or where it reads configurations."""
    files = [Path(frame.filename) for frame in traceback.extract_tb(error.__traceback__)]
    reads = any(path.name == "file_config_source.py" for path in files)
    return reads or (bool(files) and files[-1].is_relative_to(Path(hydra.__file__).parent))


def config_folders(flags: Iterable[str]) -> list[Path]:
    """Return the folders of configurations that ``--config-dir`` names."""
    start = "--config-dir="
    return [Path(flag.removeprefix(start)) for flag in flags if flag.startswith(start)]


def make_classes_importable(cfg: DictConfig) -> None:
    """Let classes that are not of this package come from files in the current folder.

    Nothing else is: a folder of a stranger replaces no installed module.
    """
    plain = str(OmegaConf.to_container(cfg))
    if re.search(r"'_target_': '(?!torchtune_smt\.)", plain) and "" not in sys.path:
        sys.path.insert(0, "")


def _forget_run() -> None:
    """Remove the folder that Hydra has made for a run, if nothing is in it."""
    folder = Path(HydraConfig.get().runtime.output_dir)
    if folder != Path.cwd():
        # Another run may be at work there that has written nothing yet.
        with suppress(InputError, OSError), RunFolder(folder).claimed():
            folder.rmdir()

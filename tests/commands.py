"""Running the commands within the process of the tests."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import logging
import pickle
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

import yaml
from hydra._internal import config_loader_impl as loader
from hydra._internal.defaults_list import DefaultsList, Overrides
from hydra._internal.hydra import Hydra

from torchtune_smt.cli import _main_of
from torchtune_smt.core.errors import InputError
from torchtune_smt.core.resources import EXAMPLE, config_folder, example_folder
from torchtune_smt.core.textio import read_lines
from torchtune_smt.data.dataset import Dataset
from torchtune_smt.data.preprocess import Preprocessor
from torchtune_smt.runs import checkpoint
from torchtune_smt.runs.checkpoint import StepFile


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

    def refused(self, *said: str) -> None:
        """Check that all went wrong with one sentence, which has all of this."""
        errors = [line for line in self.err.splitlines() if line.startswith("error: ")]
        assert self.code == 1 and len(errors) == 1, f"exit code {self.code}\n{self.err}"
        assert all(part in errors[0] for part in said), errors[0]

    def rows(self) -> list[dict[str, str]]:
        """Return the rows of the CSV that came out, if all went well."""
        return list(csv.DictReader(io.StringIO(self.check().out)))


def run_command(name: str, *arguments: str | Path, folder: Path) -> Outcome:
    """Run ``torchtune_smt.cli.<name>`` in a folder, as ``python scripts/<name>.py`` does."""
    main = _main_of(name)
    out, err = io.StringIO(), io.StringIO()
    code: int | str | None
    with (
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        contextlib.chdir(folder),
        _arguments(name, *map(str, arguments)),
        _logging(),
        mock.patch.object(Hydra, "get_mode", _mode),
        mock.patch.object(Preprocessor, "tokens", _tokens),
    ):
        try:
            code = main()
        except SystemExit as error:
            code = error.code  # type: ignore[assignment]
        except InputError as error:
            code = f"error: {error}"
        except KeyboardInterrupt:
            # As `run_stoppable`, in which commands run, does for a signal.
            code = 130
    if isinstance(code, str):
        # As the interpreter does.
        err.write(code + "\n")
        code = 1
    return Outcome(code or 0, out.getvalue(), err.getvalue())


# A command reads and composes much that others have read before: most of the time of hundreds of
# short ones would go into that.
_get_mode, _split, _parse = Hydra.get_mode, Preprocessor.tokens, yaml.load
_list, _merge = (
    loader.create_defaults_list,
    loader.ConfigLoaderImpl._compose_config_from_defaults_list,
)
_parsed: dict[tuple[str | bytes, str], bytes] = {}
_lists: dict[tuple[Any, ...], DefaultsList] = {}
_merged: dict[int, bytes] = {}
_known: dict[tuple[Preprocessor, str], list[str]] = {}


def _mode(self: Hydra, config_name: str | None, overrides: list[str]) -> Any:
    """Compose the configuration once, where nothing asks for another mode than flags do."""
    asked = any("hydra.mode" in override for override in overrides)
    return _get_mode(self, config_name, overrides) if asked else None


def _load(stream: Any, Loader: type) -> Any:
    """Parse each text once; omegaconf makes its class of loaders anew each time."""
    text = stream if isinstance(stream, str | bytes) else stream.read()
    known = text, Loader.__name__
    if known not in _parsed:
        if text is not stream:
            stream.seek(0)
        _parsed[known] = pickle.dumps(_parse(stream, Loader))
    return pickle.loads(_parsed[known])


def _defaults_list(repo: Any, overrides_list: list[Any], **how: Any) -> DefaultsList:
    """Find the files of each choice of groups once, where all of them are the package's own."""
    found = Overrides(repo=repo, overrides_list=overrides_list)
    if not {source.path for source in repo.get_sources()} <= {
        "hydra.conf",
        str(config_folder()),
        "",
    }:
        return _list(repo=repo, overrides_list=overrides_list, **how)
    chosen = [o.input_line for o in overrides_list if o not in found.config_overrides]
    known = *how.values(), *chosen
    if known not in _lists:
        _lists[known] = _list(repo=repo, overrides_list=overrides_list, **how)
    return replace(_lists[known], config_overrides=found.config_overrides)


def _merge_once(self: Any, defaults: list[Any], repo: Any) -> Any:
    """Merge these files once."""
    if not any(defaults is one.defaults for one in _lists.values()):
        return _merge(self, defaults, repo)
    if id(defaults) not in _merged:
        _merged[id(defaults)] = pickle.dumps(_merge(self, defaults, repo))
    return pickle.loads(_merged[id(defaults)])


yaml.load = _load
loader.create_defaults_list = _defaults_list
loader.ConfigLoaderImpl._compose_config_from_defaults_list = _merge_once


def _tokens(self: Preprocessor, line: str) -> list[str]:
    """Split each line of the example once."""
    if self.compounds is not None:
        return _split(self, line)
    if (self, line) not in _known:
        _known[self, line] = _split(self, line)
    return list(_known[self, line])


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


def example() -> Dataset:
    """Return the bundled example, as conf/data/example.yaml has it."""
    steps = {"normalize": True, "tokenize": True, "lowercase": True}
    return Dataset("example", "de", "en", EXAMPLE, **steps)  # type: ignore[arg-type]


def example_source(split: str) -> list[str]:
    """Return the source sentences of a set of the example, their words between blanks."""
    return [" ".join(words) for words in example().require(split).source]


def example_target(split: str, reference: int = 0) -> list[str]:
    """Return their translations, in the same way."""
    return [" ".join(words[reference]) for words in example().require(split).references]


def content(folder: Path, without: str = "/") -> dict[str, bytes]:
    """Return the content of all files below a folder, but for those that a pattern matches."""
    files = (p for p in folder.rglob("*") if p.is_file() and not p.match(without))
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def write_few(folder: Path, lines: int = 15) -> None:
    """Write the first lines of the example's dev to dev.de and dev.en."""
    for name in ("dev.de", "dev.en.0"):
        text = (example_folder() / name).read_text("utf-8").splitlines(keepends=True)[:lines]
        (folder / name.removesuffix(".0")).write_text("".join(text), "utf-8")


MODEL = ["model.order=3", "model.iterations=2", "model.aligner=fast_align"]
SMALL = ["tuner.epochs=2", "tuner.sentences=30", "decoder.k=20", "decoder.pop_limit=10"]
NAMES = ["weights.txt.gz", "dev.translations.txt", "test.translations.txt"]


@dataclass(frozen=True)
class Run:
    """A run of train with `MODEL` and `SMALL`, and what it left behind."""

    place: Path
    name: str
    outcome: Outcome

    @property
    def folder(self) -> Path:
        return self.place / self.name

    @property
    def weights(self) -> Path:
        return self.folder / "weights.txt.gz"

    def bytes(self) -> list[bytes]:
        return [(self.folder / name).read_bytes() for name in NAMES]

    def metrics(self) -> list[dict[str, float]]:
        return metrics(self.folder)

    def mean(self, name: str) -> float:
        values = [line[name] for line in self.metrics() if name in line]
        return sum(values) / len(values)


def metrics(folder: Path) -> list[dict[str, float]]:
    """Return what a run has recorded."""
    return [json.loads(line) for line in read_lines(folder / "metrics.jsonl")]


def train(place: Path, name: str, *options: str) -> Run:
    arguments = [*MODEL, *SMALL, f"hydra.run.dir={name}", *options]
    return Run(place, name, run_command("train", *arguments, folder=place).check())


def train_until_saved(place: Path, *arguments: str, saves: int = 1) -> None:
    """Run train until Ctrl-C after so many checkpoints, or steps that are kept behind one."""
    left = saves

    def stopping(keep: Callable[..., Any]) -> Callable[..., Any]:
        def keep_and_stop(*values: Any) -> Any:
            nonlocal left
            kept = keep(*values)
            left -= bool(kept)
            if left == 0:
                raise KeyboardInterrupt
            return kept

        return keep_and_stop

    with (
        mock.patch.object(checkpoint, "save_checkpoint", stopping(checkpoint.save_checkpoint)),
        mock.patch.object(StepFile, "append", stopping(StepFile.append)),
    ):
        stopped = run_command("train", *arguments, folder=place)
    assert stopped.code == 130, stopped

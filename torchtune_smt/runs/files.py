"""The files that a run reads whole before it begins: what it does depends on their content."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from torchtune_smt.core.archive import file_checksum
from torchtune_smt.core.recipe import leaves
from torchtune_smt.core.resources import PACKAGE
from torchtune_smt.metrics.lists import ExternalScores
from torchtune_smt.runs.parts import Parts

# Of the options of decoders whose lists are stored; with `_scores`, Moses's files of scores.
SETS: Final = ("train", "dev", "test")


def read_files(
    parts: Parts, settings: Mapping[str, Any], sets: Iterable[str]
) -> dict[str, dict[str, str]]:
    """Return the checksums of what a run reads, by path, under the option that names the file.

    Of a class of the user's own they are those that its options name. A model's files and the
    bitext that it is built from are left out: its own digests stand for them. So are weights that
    tuning began with (``init.file``), in whose place a checkpoint has others, and what can be read
    only once, such as a pipe.

    settings: all options of the run.
    sets: the sets of the data that the run has read.
    """
    named = {
        option: [p for p in paths if p.is_file()] for option, paths in _named(parts, settings, sets)
    }
    return {
        option: {str(path): file_checksum(path) for path in paths}
        for option, paths in named.items()
        if paths
    }


def named_files(
    parts: Parts, settings: Mapping[str, Any], sets: Iterable[str]
) -> Iterator[tuple[str, Path]]:
    """Yield every file that a run reads, or may read, and the option that names it.

    Besides those of `read_files` they are the bitext, start weights, files of models, and labels:
    whatever an option says that is a file.

    settings, sets: as for `read_files`.
    """
    for option, paths in _named(parts, settings, sets):
        yield from ((option, path) for path in paths)
    for name in sets:
        yield from ((f"data.{name}", path) for path in parts.dataset.files(name))
    for option, value in leaves("", settings):
        for text in value if isinstance(value, list) else [value]:
            if isinstance(text, str) and os.path.isfile(text):
                yield option, Path(text)


def _named(
    parts: Parts, settings: Mapping[str, Any], sets: Iterable[str]
) -> Iterator[tuple[str, Iterable[Path]]]:
    dataset, stored = parts.dataset, parts.decoder.stored
    for name in sets:
        if name != "train" or stored:
            yield f"data.{name}", dataset.files(name)
    if dataset.split_compounds is not None and not stored:
        # How often words are in it says which compounds are split.
        given = dataset.compounds
        option = "data.train" if given is None else "data.compounds"
        yield option, [dataset.source_file("train") if given is None else Path(given)]
    if stored:
        for option in (f"{name}{end}" for name in SETS for end in ("", "_scores")):
            yield f"decoder.{option}", _paths(parts.decoding.options.get(option))
    if isinstance(parts.metric, ExternalScores):
        yield "metric.path", _paths(os.fspath(parts.metric.path))
    for group, value in settings.items():
        yield from _of_own_classes(str(group), value, own=False)


def _of_own_classes(option: str, value: Any, own: bool) -> Iterator[tuple[str, Iterable[Path]]]:
    """Yield what is a file of the texts that classes of others are given: nobody knows more."""
    if isinstance(value, dict):
        if "_target_" in value:
            own = not str(value["_target_"]).startswith(f"{PACKAGE.name}.")
        for name, inner in value.items():
            yield from _of_own_classes(f"{option}.{name}", inner, own)
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            yield from _of_own_classes(f"{option}[{number}]", inner, own)
    elif own and isinstance(value, str) and os.path.isfile(value):
        yield option, [Path(value)]


def _paths(given: str | Sequence[str] | None) -> list[Path]:
    if given is None:
        return []
    return [Path(str(path)) for path in ([given] if isinstance(given, str) else given)]

"""Rows of a published table: read from its CSV file, and kept where they were not done again."""

from __future__ import annotations

import csv
import json
import types
from collections.abc import Callable, Hashable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

import tables
from tables import NOT_COMPARED

from torchtune_smt.core.errors import InputError

Kind = TypeVar("Kind", bound=tables.Result)
Id = TypeVar("Id", bound=Hashable)


def read_results(path: Path, kind: type[Kind]) -> list[Kind]:
    """Return the rows of a table that `tables.write_csv` wrote; none if there is no file.

    Raises
    ------
    InputError
        A line is none of a row.
    """
    if not path.is_file():
        return []
    hints = get_type_hints(kind)
    columns = {f.name: _reader(hints[f.name]) for f in fields(kind)}
    found = []
    with path.open(encoding="utf-8", newline="") as file:
        lines = csv.DictReader(file)
        for line in lines:
            try:
                found.append(kind(**_values(line, columns)))
            except (KeyError, TypeError, ValueError) as error:
                raise InputError(
                    f"is no row of this table ({error})", path=path, line=lines.line_num
                ) from None
    return found


class Merged(NamedTuple, Generic[Id, Kind]):
    """Results of a corpus, by what they are called, with the published ones not done again.

    Attributes
    ----------
    results, before : dict of Id to Result
        All, and those that are published.
    changed : set of Id
        Those that were done again and have other scores now: comparisons with them are void.
    """

    results: dict[Id, Kind]
    before: dict[Id, Kind]
    changed: set[Id]


def merged(
    done: Mapping[tuple[str, int], Kind], path: Path, kind: type[Kind], corpus: str
) -> Merged[tuple[str, int], Kind]:
    """Return results of a corpus with the published ones that were not done again.

    Parameters
    ----------
    done : mapping of (str, int) to Result
        Those that there are here, by row and seed.
    path : path
        The published table; it need not be there.
    """
    return merged_by(lambda result: (result.row, result.seed), done, path, kind, corpus)


def merged_by(
    identify: Callable[[Kind], Id],
    done: Mapping[Id, Kind],
    path: Path,
    kind: type[Kind],
    corpus: str,
) -> Merged[Id, Kind]:
    """Return what `merged` does, where results are told apart by more than row and seed.

    Parameters
    ----------
    identify : callable
        Returns what a result is called; one that is done again replaces the published one that is
        called so.
    """
    before = {identify(r): r for r in read_results(path, kind) if r.corpus == corpus}
    changed = {key for key in done.keys() & before.keys() if _bleu(done[key]) != _bleu(before[key])}
    return Merged(before | dict(done), before, changed)


def merged_with_p(
    done: Mapping[tuple[str, int], Kind],
    path: Path,
    kind: type[Kind],
    corpus: str,
    baseline_of: Callable[[str], str],
) -> dict[tuple[str, int], Kind]:
    """Return what `merged` does, where rows have a baseline.

    Those that were not done again have no p-value any more where their baseline has other scores.

    Parameters
    ----------
    baseline_of : callable
        Returns the row that another one is compared with, with the same seed.
    """
    found, _, changed = merged(done, path, kind, corpus)
    for row, seed in found.keys() - done.keys():
        if (baseline_of(row), seed) in changed:
            void(found[row, seed])
    return found


def void(result: tables.Result) -> None:
    """Take the p-values of a result away, and say that it was not compared."""
    result.p_devtest = result.p_test = None
    result.significance = NOT_COMPARED


def _bleu(result: tables.Result) -> tuple[float, float]:
    return result.devtest, result.test


def _values(line: Mapping[str, Any], columns: Mapping[str, Callable[[str], Any]]) -> dict[str, Any]:
    if None in line or None in line.values():
        raise ValueError("it has another number of columns than the first line")
    return {name: columns[name](cell) for name, cell in line.items()}


def _reader(kind: Any) -> Callable[[str], Any]:
    """Return what makes a value of a cell."""
    if get_origin(kind) is types.UnionType:
        (given,) = (_reader(one) for one in get_args(kind) if one is not types.NoneType)
        return lambda cell: None if cell == "" else given(cell)
    if get_origin(kind) is list and get_args(kind) == (str,):
        return str.split
    if (empty := get_origin(kind)) in (list, dict):
        return lambda cell: json.loads(cell) if cell else empty()
    read: Callable[[str], Any] = kind
    return read

"""Columns of scores from other files, which join the features of k-best lists."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from torchtune_smt.core.arrays import Float64, Int64
from torchtune_smt.core.errors import InputError, did_you_mean
from torchtune_smt.core.text import finite_number, whole_number
from torchtune_smt.core.textio import read_lines
from torchtune_smt.kbest.lists import KBestLists
from torchtune_smt.kbest.stored_lists import StoredLists, names_in
from torchtune_smt.kbest.tools import FLOOR, SCORE, AnyPath, is_number

_KEY = ("id", "rank")

OWN_SCORE: Final = (
    f"the lists have a feature {SCORE!r} of their own; leave score=true out, or rename it"
)


class _Table(NamedTuple):
    """The fields of a file of columns, from line `first` on."""

    path: Path
    names: list[str]
    rows: list[list[str]]
    first: int


def with_columns(
    stored: StoredLists, columns: Mapping[str, AnyPath], missing: float | None
) -> StoredLists:
    """Return lists that have more features, one of each file.

    A file has a number a line, in the order of the hypotheses. Or its fields are separated by TABs,
    with names in the first line: then the column of the feature's name is taken, and hypotheses are
    found by `id` and `rank` (from 1, as the lists were read) if there are such columns.

    Raises InputError: there are other numbers of lines than of hypotheses, a hypothesis has no
    value, or a value is none.

    columns: files by the names of the features.
    missing: what stands for a value that is not there: an empty field, ``nan``, or no line of its
        id and rank; by default that is an error.
    """
    lists = stored.lists
    assert lists.features is not None
    values: Float64 = np.empty((lists.n_hypotheses, len(columns)))
    tables: dict[Path, _Table] = {}
    for column, (name, file) in enumerate(columns.items()):
        path = Path(file)
        table = tables[path] = tables.get(path) or _read(path)
        if _has(lists, name):
            raise InputError(
                f"the lists have a feature {name!r} already; call it otherwise", path=path
            )
        values[:, column] = _values(stored, table, name, missing)
    return _with_values(stored, list(columns), values)


def with_score(stored: StoredLists) -> StoredLists:
    """Return lists whose score is a feature, `SCORE`."""
    lists = stored.lists
    assert lists.score is not None
    if _has(lists, SCORE):
        raise InputError(OWN_SCORE)
    return _with_values(stored, [SCORE], lists.score[:, None])


def _has(lists: KBestLists, name: str) -> bool:
    """Say whether a hypothesis has a feature."""
    features = lists.features
    return features is not None and bool(np.isin(features.lookup([name]), lists.rows.feature)[0])


def _with_values(stored: StoredLists, names: list[str], values: Float64) -> StoredLists:
    lists = with_dense(stored.lists, names, values)
    return replace(stored, lists=lists, dense_names=[*stored.dense_names, *names])


def with_dense(lists: KBestLists, names: Sequence[str], values: Float64) -> KBestLists:
    """Return lists with more features, that they do not have: float64 [hypotheses, names]."""
    assert lists.features is not None
    owner, column = np.nonzero(values)
    id = lists.features.intern(names)[column]
    return replace(lists, rows=lists.rows.with_entries(owner, id, values[owner, column]))


def scaled(stored: StoredLists, scale: Mapping[str, float], path: AnyPath) -> StoredLists:
    """Return lists with the values of some features times a number, which may be a sign.

    Raises InputError: there is no such feature in `path`.
    """
    features = stored.lists.features
    assert features is not None
    factor: Float64 = np.ones(len(features))
    for given, name in zip(scale, names_in(features, list(scale)), strict=True):
        if name not in features:
            known = features.names(range(len(features)))
            raise InputError(
                f"has no feature {given!r} to be scaled{did_you_mean(given, known)}", path=path
            )
        factor[features.id(name)] = scale[given]
    rows = stored.lists.rows.scaled(factor)
    rows = rows.where(rows.value != 0)
    return replace(stored, lists=replace(stored.lists, rows=rows))


def _read(path: Path) -> _Table:
    """Return the fields of a file."""
    rows = [line.split("\t") for line in read_lines(path)]
    if not rows:
        raise InputError("is empty; a number a line is expected", path=path)
    if any(_number(field) is None and not is_number(field) for field in rows[0]):
        return _Table(path, rows[0], rows[1:], 2)
    return _Table(path, [], rows, 1)


def _number(field: str) -> float | None:
    """Return a number, NaN for what says that there is none; None for anything else."""
    field = field.strip(" ")
    return np.nan if field.lower() in ("", "nan", "na", "none") else finite_number(field)


def _values(stored: StoredLists, table: _Table, name: str, missing: float | None) -> Float64:
    """Return the value of each hypothesis in a column."""
    if table.names and name not in table.names:
        raise InputError(
            f"has no column {name!r}{did_you_mean(name, table.names)}", path=table.path, line=1
        )
    place = table.names.index(name) if table.names else 0
    width = len(table.names) or 1
    found: Float64 = np.empty(len(table.rows))
    for row, fields in enumerate(table.rows):
        value = _number(fields[place]) if len(fields) == width else None
        if value is None or (missing is None and np.isnan(value)):
            cure = FLOOR if value is None else "say what stands for it, with missing=VALUE"
            raise InputError(
                f"has {len(fields)} fields, and {width} are needed, with TABs between"
                if len(fields) != width
                else f"{fields[place]!r} is no finite number; {cure}",
                path=table.path,
                line=table.first + row,
            )
        found[row] = value
    if missing is not None:
        found[np.isnan(found)] = missing
    lists = stored.lists
    if set(_KEY) <= set(table.names):
        return _by_key(stored, table, found, name, missing)
    if len(table.rows) != stored.n_entries:
        raise InputError(
            f"has {len(table.rows)} values, and the lists have {stored.n_entries} hypotheses; give "
            "one for each, or say whose they are in columns `id` and `rank`",
            path=table.path,
        )
    return found[lists.entries() - 1]


def _by_key(
    stored: StoredLists, table: _Table, values: Float64, name: str, missing: float | None
) -> Float64:
    """Return the value of each hypothesis, which rows of a file have by its id and rank."""
    lists = stored.lists
    if stored.n_entries != lists.n_hypotheses:
        raise InputError(
            "finds hypotheses by their rank, and some were left out; mend the lists, or give a "
            "number a line",
            path=table.path,
        )
    known = lists.index.tolist()
    ids = list(map(str, known)) if lists.ids is None else lists.ids.names(known)
    spans = dict(zip(ids, pairwise(lists.begin.tolist()), strict=True))
    id_place, rank_place = (table.names.index(key) for key in _KEY)
    line: Int64 = np.zeros(lists.n_hypotheses, np.int64)
    found: Float64 = np.full(lists.n_hypotheses, np.nan if missing is None else missing, np.float64)
    for row, fields in enumerate(table.rows):
        id, rank, at = fields[id_place], whole_number(fields[rank_place]) or 0, table.first + row
        first, last = spans.get(id, (0, 0))
        h, problem = first + rank - 1, ""
        if not first <= h < last:
            problem = (
                f"the lists have no hypothesis {fields[rank_place]} of {id!r}, counted from 1; are "
                "they of another set?"
            )
        elif line[h]:
            problem = f"id and rank are those of line {line[h]}, too"
        if problem:
            raise InputError(problem, path=table.path, line=at)
        line[h], found[h] = at, values[row]
    lacking = np.flatnonzero(np.isnan(found))
    if lacking.size:
        h = int(lacking[0])
        s = int(np.searchsorted(lists.begin, h, side="right")) - 1
        raise InputError(
            f"has no {name} for hypothesis {h - lists.begin[s] + 1} of {ids[s]!r}; say "
            "what stands for a missing one, with missing=VALUE",
            path=table.path,
        )
    return found

"""Targets of files that are damaged, and of archives that are whole and say what cannot be."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from mutations import mutated
from numpy.typing import NDArray
from targets import Check, Different, Target, Verdict, drawer

from torchtune_smt.core.archive import Archive, Stored
from torchtune_smt.core.errors import DivergenceError

_NUMBERS = (0, 1, -1, 2, 7, -2, 127, 2**31 - 1, -(2**31), 2**31, 2**40, 2**63 - 1, -(2**63))
_REALS = (0.0, -0.0, 1.0, -1.0, 1e-310, 1e308, float("inf"), float("-inf"), float("nan"))
_TYPES = ("|u1", "<i2", "<i4", "<i8", "<f4", "<f8")


def damaged(
    target: str,
    write: Callable[[Path], object],
    result: Callable[[Path, Path], object],
    cases: int = 200,
) -> Target:
    """Return the target of a folder, one of whose files is damaged.

    write: makes the folder.
    result: what comes of the folder, given the file; it must be the same, or an error.
    """

    def open(folder: Path) -> Check:
        whole, place = folder / "whole", folder / "place"
        write(whole)
        found = [path for path in sorted(whole.rglob("*")) if path.is_file()]
        names = [path.relative_to(whole) for path in found]
        contents = [path.read_bytes() for path in found]
        shutil.copytree(whole, place)
        expected = cache(lambda name: result(whole, name))

        def check(case: int) -> Verdict:
            draw = drawer(target, case)
            number = draw.randrange(len(names))
            path = place / names[number]
            path.write_bytes(mutated(contents[number], draw, contents))
            try:
                if result(place, names[number]) != expected(names[number]):
                    raise Different(f"with another {names[number]}")
            finally:
                path.write_bytes(contents[number])
            return "same"

        return check

    return Target(open, cases)


def forged(
    target: str,
    archive: Archive,
    write: Callable[[Path], object],
    use: Callable[[Path, Path], object],
) -> Target:
    """Return the target of a folder, one of whose archives of a kind says something else.

    use: does what can be done with the folder, given the archive; None: it was left alone.
    """

    def open(folder: Path) -> Check:
        write(folder / "place")
        paths = [path for path in sorted(folder.rglob("*")) if archive.is_at(path)]
        wholes = {path: (archive.read(path), path.read_bytes()) for path in paths}

        def check(case: int) -> Verdict:
            draw = drawer(target, case)
            path = draw.choice(paths)
            stored, content = wholes[path]
            write_forged(path, archive, stored, draw)
            try:
                return "refused" if use(folder / "place", path) is None else "taken"
            except DivergenceError:
                return "refused"
            finally:
                path.write_bytes(content)

        return check

    return Target(open)


def write_forged(path: Path, archive: Archive, whole: Stored, draw: random.Random) -> None:
    """Write an archive with one to three changes to its content and arrays."""
    content, arrays = whole.content, dict(whole.arrays)
    for _ in range(draw.choice((1, 1, 1, 2, 3))):
        if arrays and draw.random() < 0.75:
            _change_arrays(arrays, draw)
        else:
            content = changed_json(content, draw)
    archive.write(path, content, arrays)


def changed_json(value: Any, draw: random.Random) -> Any:
    """Return JSON with one place of it changed."""
    kind = draw.random()
    if isinstance(value, dict) and value and draw.random() < 0.9:
        name = draw.choice(list(value))
        if kind < 0.1:
            return {k: v for k, v in value.items() if k != name}
        return value | ({"another": 1} if kind < 0.15 else {name: changed_json(value[name], draw)})
    if isinstance(value, list) and value and draw.random() < 0.9:
        place = draw.randrange(len(value))
        middle = [] if kind < 0.1 else [value[place]] * 2
        if kind >= 0.2:
            middle = [changed_json(value[place], draw)]
        return [*value[:place], *middle, *value[place + 1 :]]
    if isinstance(value, int | float) and draw.random() < 0.6:
        near = (value + 1, value - 1, value * 2, -value, value + 0.5)
        return draw.choice((*near, *_NUMBERS, *_REALS))
    others: list[Any] = [None, True, "", "x", [], {}, [1], {"a": 1}, *_NUMBERS, *_REALS]
    return draw.choice(others)


def _change_arrays(arrays: dict[str, NDArray[Any]], draw: random.Random) -> None:
    name = draw.choice(list(arrays))
    array = arrays[name]
    kind = draw.random()
    if kind < 0.03:
        del arrays[name]
    elif kind < 0.06:
        arrays["another"] = array
    elif kind < 0.1:
        arrays[name] = arrays[draw.choice(list(arrays))]
    elif kind < 0.15:
        arrays[name] = array[: draw.randrange(len(array) + 1)] if array.ndim else array
    elif kind < 0.2 and array.ndim:
        arrays[name] = np.concatenate([array, array[-draw.choice((1, 2, 100)) :]])
    elif kind < 0.23 and array.dtype.names is None:
        with np.errstate(all="ignore"):
            arrays[name] = array.astype(draw.choice(_TYPES))
    elif kind < 0.26:
        arrays[name] = array.reshape(draw.choice(((1, -1), (-1, 1), -1)))
    else:
        arrays[name] = _with_other_numbers(array, draw)


def _with_other_numbers(array: NDArray[Any], draw: random.Random) -> NDArray[Any]:
    """Return an array with some elements changed: by a little, to an extreme, or exchanged."""
    result = array.copy()
    column = result
    if result.dtype.names is not None:
        column = result[draw.choice(result.dtype.names)]
    for _ in range(draw.choice((1, 1, 2, 5, 50)) if column.size else 0):
        place = np.unravel_index(draw.randrange(column.size), column.shape)
        other = np.unravel_index(draw.randrange(column.size), column.shape)
        kind = draw.random()
        if kind < 0.3:
            column[place], column[other] = column[other], column[place]
            continue
        with np.errstate(all="ignore"):
            if column.dtype.kind == "f":
                column[place] = draw.choice((*_REALS, column[place] * 2, -column[place]))
            else:
                near = int(column[place]) + draw.choice((1, -1, 2, -2, 10))
                number = near if kind < 0.7 else draw.choice((*_NUMBERS, column.size, array.size))
                # Whatever does not fit wraps around.
                column[place] = np.array(int(number) % 2**64, np.uint64).astype(column.dtype)
    return result

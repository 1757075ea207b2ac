"""Weights files: text that people, cdec and this package read, exact to the last bit.

One ``name value`` a line; lines that begin with ``#`` are comments. Features that are not named
have weight 0. Comments at the top may say what the weights belong to (`torchtune_smt.core.origin`).
"""

from __future__ import annotations

import os
import re
from itertools import takewhile

import numpy as np

from torchtune_smt.core import weights_io_kernels as kernels
from torchtune_smt.core.arrays import Float64
from torchtune_smt.core.errors import InputError
from torchtune_smt.core.numerals_kernels import POWERS
from torchtune_smt.core.origin import Origin
from torchtune_smt.core.snapshot import NamedWeights
from torchtune_smt.core.text_kernels import count_lines
from torchtune_smt.core.textio import (
    atomic_writer,
    check_plain,
    check_utf8,
    iterate_lines,
    read_text,
)
from torchtune_smt.core.vocabulary import Vocabulary

# Coordinates that are read at a time, which bounds the memory of bringing them up to date.
CHUNK = 1 << 20

_BYTE_ORDER_MARK = "\ufeff"
_WRITABLE = re.compile(r"(?![#\ \t])[^\n\r\0]*[^\n\r\ \t\0](?<![\ \t]=)")

_PROBLEMS = {
    kernels.NO_VALUE: "has no value; write `name value`",
    kernels.NO_NAME: "has no name; write `name value`",
    kernels.NO_NUMBER: "has a value that is no finite number; write `name value`",
}


def save_weights(
    path: str | os.PathLike[str], weights: NamedWeights, origin: Origin | None = None
) -> int:
    """Write the weights that are not 0: dense ones in the order of their ids, then sparse by name.

    Values have as many digits as it takes to read the same numbers back.

    Parameters
    ----------
    path : path
        Packed with gzip if it ends in ``.gz``.
    weights : NamedWeights
        Such as `Weights`, `FrozenWeights`, or the snapshot of a learner.
    origin : Origin, optional
        What they belong to, which comments at the top say.

    Returns
    -------
    int
        The number of weights written.

    Raises
    ------
    ValueError
        A weight is NaN or infinite, or a name cannot be written: it is empty, begins with
        ``#``, or has a line break or a zero byte, or a blank at its begin or end or before a ``=``
        there.
    InputError
        The folder cannot be written to.
    """
    chosen_ids, chosen_values = [], []
    dimension = len(weights.features)
    for begin in range(0, dimension, CHUNK):
        ids = np.arange(begin, min(begin + CHUNK, dimension))
        values = weights.read(None, ids)
        active = values != 0
        chosen_ids.append(ids[active])
        chosen_values.append(values[active])
    ids = np.concatenate(chosen_ids) if chosen_ids else np.zeros(0, np.int64)
    numbers = np.concatenate(chosen_values) if chosen_values else np.zeros(0)
    names = weights.features.names(ids)
    for p in np.flatnonzero(~np.isfinite(numbers)):
        raise ValueError(
            f"the weight of {names[p]!r} is {numbers[p]} and cannot be saved: lower the learning "
            "rate, or check the feature values"
        )
    for name in names:
        if not _WRITABLE.fullmatch(name):
            raise ValueError(f"the feature name {name!r} cannot be written to a weights file")
    entries = list(zip(names, numbers.tolist(), strict=True))
    dense = int(np.searchsorted(ids, weights.n_dense))
    entries[dense:] = sorted(entries[dense:])
    comments = [] if origin is None else origin.comments()
    if not comments and entries and entries[0][0].startswith(_BYTE_ORDER_MARK):
        # Readers drop it where a file begins with it.
        comments = ["The name below begins with a byte order mark."]
    with atomic_writer(path) as file:
        file.writelines(f"# {comment}\n" for comment in comments)
        file.writelines(f"{name} {value!r}\n" for name, value in entries)
    return len(entries)


def read_weights(path: str | os.PathLike[str]) -> tuple[Vocabulary, Float64]:
    """Read a weights file.

    The last blank, tab or ``=`` of a line separates name and value, as in cdec; a ``=`` may stand
    between blanks.

    Returns
    -------
    names : Vocabulary
        In the order of the file: names[i] has the weight values[i].
    values : float64 array

    Raises
    ------
    InputError
        The file is missing or not UTF-8; a line lacks its name or value, has a value that is
        no finite number, or names a feature again.
    """
    text = read_text(path)
    check_utf8(text, path)
    letters = np.frombuffer(text, np.uint8)
    spans, problem, line = kernels.split_weights(letters, min(count_lines(letters)), POWERS)
    # Python's float rounds correctly, so that what was written is read back exactly.
    bounds = zip(spans[:, 2].tolist(), spans[:, 3].tolist(), strict=True)
    values: Float64 = np.array([float(text[begin:end]) for begin, end in bounds], np.float64)
    for i in np.flatnonzero(~np.isfinite(values))[:1]:
        problem, line = kernels.NO_NUMBER, int(spans[i, 4])
    if problem:
        raise InputError(_PROBLEMS[problem], path=path, line=line)
    names = Vocabulary()
    ids = names.intern_spans(letters, spans[:, 0].copy(), spans[:, 1].copy())
    if len(names) < ids.size:
        again = int(np.flatnonzero(ids != np.arange(ids.size))[0])
        first = int(spans[ids[again], 4])
        raise InputError(
            f"{names[ids[again]]!r} has a weight already, in line {first}; remove one of them",
            path=path,
            line=int(spans[again, 4]),
        )
    return names, values


def read_origin(path: str | os.PathLike[str]) -> Origin | None:
    """Return what a weights file says that it belongs to; None if it says nothing, as others do.

    Raises
    ------
    InputError
        The file is missing, no plain file, or not UTF-8; or what it says is not whole.
    """
    check_plain(path)
    top = takewhile(lambda line: line.startswith("#") or not line.strip(), iterate_lines(path))
    return Origin.parse([line[1:].strip() for line in top], path)

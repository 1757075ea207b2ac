"""Word alignments in Pharaoh format: ``0-0 1-2``, source-target, a line for each sentence pair."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from itertools import islice

import numpy as np

from torchtune_smt.core.arrays import Int32
from torchtune_smt.core.errors import InputError
from torchtune_smt.core.text import split_words, whole_number
from torchtune_smt.core.textio import atomic_writer, iterate_lines

Alignment = Int32
"""int32 [links, 2]: (source, target) positions of linked words, from 0."""


def read_alignments(
    path: str | os.PathLike[str],
    sources: Sequence[Sequence[str]] | None = None,
    targets: Sequence[Sequence[str]] | None = None,
) -> list[Alignment]:
    """Read word alignments; an empty line is a sentence pair without links.

    Parameters
    ----------
    path : path
    sources, targets : sequences of sequences of str, optional
        The bitext, to check the alignments against.

    Raises
    ------
    InputError
        A point is not like ``0-1``, or is outside of its sentences; or there are more or fewer
        lines than sentence pairs.
    """
    sides = [("source", sources), ("target", targets)]
    most = max((len(side) for _, side in sides if side is not None), default=None)
    alignments, count = first_alignments(path, most)
    for name, side in sides:
        if side is not None and len(side) != count:
            raise InputError(
                f"has {count} lines, and the {name} text has {len(side)}; align this bitext",
                path=path,
            )
    for i, links in enumerate(alignments):
        for column, (name, side) in enumerate(sides):
            if side is not None and links.size and links[:, column].max() >= len(side[i]):
                source, target = links[links[:, column].argmax()]
                raise InputError(
                    f"{source}-{target} is outside of the {name} sentence, which has "
                    f"{len(side[i])} words; positions count from 0",
                    path=path,
                    line=i + 1,
                )
    return alignments


def first_alignments(path: str | os.PathLike[str], most: int | None) -> tuple[list[Alignment], int]:
    """Return the first alignments of a file, at most so many, and the number of its lines.

    Raises
    ------
    InputError
        A point is not like ``0-1``.
    """
    lines = iterate_lines(path)
    alignments = [
        _links(line, path, number) for number, line in enumerate(islice(lines, most), start=1)
    ]
    return alignments, len(alignments) + sum(1 for _ in lines)


def _links(line: str, path: str | os.PathLike[str], number: int) -> Alignment:
    """Return the alignment that a line holds."""
    points = split_words(line)
    pairs = [[whole_number(end) for end in point.split("-")] for point in points]
    for point, pair in zip(points, pairs, strict=True):
        if len(pair) != 2 or None in pair:
            raise InputError(
                f"{point} is no alignment point; write source-target, as in 0-1",
                path=path,
                line=number,
            )
    return np.array(pairs, np.int32).reshape(-1, 2)


def write_alignments(path: str | os.PathLike[str], alignments: Iterable[Alignment]) -> None:
    """Write word alignments, points ascending (gzip if the name ends in ``.gz``)."""
    with atomic_writer(path) as file:
        for links in alignments:
            file.write(" ".join(f"{s}-{t}" for s, t in sorted(links.tolist())) + "\n")

"""Word alignments in Pharaoh format: ``0-0 1-2``, source-target, a line for each sentence pair."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence

import numpy as np

from torchtune_smt.errors import InputError
from torchtune_smt.kernel_types import Ids
from torchtune_smt.textio import atomic_writer, read_lines

Alignment = Ids
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
    lines = read_lines(path)
    for name, side in (("source", sources), ("target", targets)):
        if side is not None and len(side) != len(lines):
            raise InputError(
                f"has {len(lines)} lines, and the {name} text has {len(side)}; align this bitext",
                path=path,
            )
    alignments: list[Alignment] = []
    for i, line in enumerate(lines):
        points = line.split()
        pairs = [point.split("-") for point in points]
        for point, pair in zip(points, pairs, strict=True):
            if len(pair) != 2 or not all(
                end.isascii() and end.isdigit() and len(end) < 9 for end in pair
            ):
                raise InputError(
                    f"{point} is no alignment point; write source-target, as in 0-1",
                    path=path,
                    line=i + 1,
                )
        links = np.array(pairs, np.int32).reshape(-1, 2)
        for name, side, column in (("source", sources, 0), ("target", targets, 1)):
            if side is not None and links.size and links[:, column].max() >= len(side[i]):
                worst = points[int(links[:, column].argmax())]
                raise InputError(
                    f"{worst} is outside of the {name} sentence, which has {len(side[i])} words; "
                    "positions count from 0",
                    path=path,
                    line=i + 1,
                )
        alignments.append(links)
    return alignments


def write_alignments(path: str | os.PathLike[str], alignments: Iterable[Alignment]) -> None:
    """Write word alignments, points ascending (gzip if the name ends in ``.gz``)."""
    with atomic_writer(path) as file:
        for links in alignments:
            file.write(" ".join(f"{s}-{t}" for s, t in sorted(links.tolist())) + "\n")

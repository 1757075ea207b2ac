"""Word alignments in Pharaoh format: ``0-0 1-2``, source-target, a line for each sentence pair."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Final, Literal, get_args

import numpy as np

from torchtune_smt.core.arrays import Int32
from torchtune_smt.core.errors import InputError
from torchtune_smt.core.text import split_words, whole_number
from torchtune_smt.core.textio import atomic_writer, iterate_lines

Alignment = Int32
"""int32 [links, 2]: (source, target) positions of linked words, from 0."""

Aligner = Literal["fast_align", "hmm", "eflomal"]
ALIGNERS: Final = get_args(Aligner)
"""What `torchtune_smt.grammar.alignment` aligns with; here, where no aligner is imported."""


def read_alignments(
    path: str | os.PathLike[str],
    sources: Sequence[Sequence[str]] | None = None,
    targets: Sequence[Sequence[str]] | None = None,
    lines: Sequence[int] | None = None,
    total: int | None = None,
) -> list[Alignment]:
    """Read word alignments; an empty line is a sentence pair without links.

    Parameters
    ----------
    path : path
    sources, targets : sequences of sequences of str, optional
        The bitext, to check the alignments against.
    lines : sequence of int, optional
        Which lines of the bitext's files its sentences are, from 1, where lines were dropped: the
        alignments may be those of the files, too.
    total : int, optional
        How many lines these files have; needed with `lines`.

    Raises
    ------
    InputError
        A point is not like ``0-1``, or is outside of its sentences; or there are more or fewer
        lines than sentence pairs.
    """
    rows = iterate_lines(path)
    most = None if sources is None else len(sources) if total is None else total
    alignments = [
        _links(row, path, number) for number, row in enumerate(islice(rows, most), start=1)
    ]
    count = len(alignments) + sum(1 for _ in rows)
    if sources is None or targets is None:
        return alignments
    pairs = min(len(sources), len(targets))
    if count == pairs:
        lines = range(1, count + 1)
    elif lines is not None and count == total:
        alignments = [alignments[line - 1] for line in lines]
    else:
        of_files = "" if total in (None, pairs) else f" of {total} lines"
        raise InputError(
            f"has {count} lines, and the bitext {pairs} pairs{of_files}; align this bitext",
            path=path,
        )
    for line, links, *pair in zip(lines, alignments, sources, targets, strict=True):
        lengths = [len(words) for words in pair]
        if links.size and (links >= lengths).any():
            raise InputError(
                f"has a link out of its sentence pair, which has {lengths[0]} and {lengths[1]} "
                "words; align this bitext",
                path=path,
                line=line,
            )
    return alignments


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

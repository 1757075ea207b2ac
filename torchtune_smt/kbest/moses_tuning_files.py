"""The reader of Moses's tuning files: features.dat with its scores.dat."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

import numpy as np

from torchtune_smt.core.arrays import Bool, Int32
from torchtune_smt.core.errors import InputError
from torchtune_smt.core.text import split_words, whole_number
from torchtune_smt.core.textio import NOT_UTF8, read_text
from torchtune_smt.core.vocabulary import Vocabulary
from torchtune_smt.kbest import formats_kernels as kernels
from torchtune_smt.kbest.formats import Layout, ListAssembler, OnError
from torchtune_smt.kbest.formats_kernels import Piece
from torchtune_smt.kbest.stored_lists import StoredLists, merged

_STATISTICS = 9


class _Block(NamedTuple):
    """The lines of one sentence, as the head says, which is line `line` of the file, from 1.

    width: with how many numbers each line begins; `names` is the rest of the head.
    """

    sentence: int
    size: int
    width: int
    names: list[str]
    line: int


def read_tuning_files(
    features_path: str | os.PathLike[str],
    scores_path: str | os.PathLike[str],
    *,
    features: Vocabulary | None = None,
    dense: Sequence[str] | None = None,
    missing: float | None = None,
    on_error: OnError = "error",
    shard: bool = False,
) -> StoredLists:
    """Read k-best lists from Moses's features.dat and scores.dat, plain or ``.gz``.

    They hold no words: the statistics of BLEU (``m1 l1 m2 l2 m3 l3 m4 l4 r``) stand for them.
    Others: see `read_lists`. Damaged heads of blocks are errors in any case.

    Raises InputError: as for `read_lists`; or the files do not belong together.
    """
    features_path, scores_path = Path(features_path), Path(scores_path)
    text, blocks = _read_blocks(features_path, "FEATURES")
    score_text, score_blocks = _read_blocks(scores_path, "SCORES")
    for block, other in zip_longest(blocks, score_blocks):
        if block is None or other is None or block[:2] != other[:2]:
            raise InputError(
                f"has not as many lines of the same sentences as {features_path}; do the files "
                "belong together?",
                path=scores_path,
                line=other and other.line,
            )
    names = blocks[0].names
    for block in blocks:
        if block.names != names:
            raise InputError(
                f"names other dense features than line {blocks[0].line} does; every block needs "
                "the same ones",
                path=features_path,
                line=block.line,
            )
    for block in score_blocks:
        if block.names != ["BLEU"] or block.width != _STATISTICS:
            raise InputError(
                f"holds {block.width} statistics of {' '.join(block.names)}; only BLEU's "
                f"{_STATISTICS} are read, so let the extractor write those",
                path=scores_path,
                line=block.line,
            )
    line = np.concatenate([np.arange(b.size) + b.line + 1 for b in blocks])
    score_line = np.concatenate([np.arange(b.size) + b.line + 1 for b in score_blocks])
    sentence = np.repeat([b.sentence for b in blocks], [b.size for b in blocks])
    statistics: Int32 = np.empty((line.size, 10), np.int32)
    lost: Bool = np.zeros(line.size, np.bool_)
    of_numbers = partial(Layout, kernels.VALUES, roles=(kernels.FEATURES,))
    scores = ListAssembler(scores_path, of_numbers(_STATISTICS), on_error=on_error)
    for piece, _, lines in scores.parsed([score_text]):
        piece.sentence[:] = sentence[lines]
        statistics[lines] = _statistics(piece)
        lost[lines] = piece.fault != kernels.FINE
        scores.check(piece, score_line[lines])
    assembler = ListAssembler(
        features_path, of_numbers(len(names)), None, features, None, on_error, missing
    )
    assembler.set_dense(names)
    for piece, sizes, lines in assembler.parsed([text]):
        piece.sentence[:] = sentence[lines]
        # What one file lacks is left out of the other.
        piece.fault[lost[lines] & (piece.fault == kernels.FINE)] = kernels.NO_STATISTICS
        assembler.add(piece, sizes, line[lines])
    lists = assembler.lists(dense or ())
    lists = replace(
        lists,
        statistics=statistics[np.searchsorted(line, lists.entries())],
        score=None,
        token_begin=None,
        tokens=None,
        words=None,
    )
    names = names if dense is None else list(dense)
    stored = StoredLists(lists, names, True, assembler.n_sentences, assembler.skipped)
    return stored if shard else merged([stored], [features_path], strict=on_error == "error")


def _read_blocks(path: Path, kind: str) -> tuple[bytearray, list[_Block]]:
    """Return the lines of a file without heads and feet, and its blocks."""
    wrong = (
        f"is not {kind.lower()}.dat as Moses's extractor writes it, as text and whole: "
        f"`{kind}_TXT_BEGIN_0 sentence lines values names`, so many lines, `{kind}_TXT_END_0`; "
        "features.dat is given as lists, scores.dat as scores"
    )
    data = read_text(path, refused={kind.encode() + b"_BIN": wrong})
    blocks: list[_Block] = []
    spans: list[memoryview] = []
    line, at, begin, inside = 1, 0, 0, False
    # A match begins with the newline before its line: that is searched for faster than ``^``.
    # With one put in front, it is where the line begins in `data`.
    pattern = rb"\n(FEATURES|SCORES)_([A-Z]*)_(BEGIN|END)_0\b(.*)$"
    for match in re.finditer(pattern, b"\n" + data, re.M):
        line, at = line + data.count(b"\n", at, match.start()), match.start()
        fits = match[1] == kind.encode() and match[2] == b"TXT" and inside == (match[3] == b"END")
        if fits and inside:
            fits = not match[4].strip(b" \t") and blocks[-1].size == line - blocks[-1].line - 1
            spans.append(memoryview(data)[begin:at])
        elif fits:
            head = _head(match[4], line, path)
            named = head is not None and (kind == "SCORES" or len(head.names) == head.width)
            fits = named and not data[begin:at].strip(b" \t\n")
            blocks += [head] if head else []
        if not fits:
            raise InputError(wrong, path=path, line=line)
        begin, inside = match.end(), not inside
    if inside or not blocks or data[begin:].strip(b" \t\n"):
        line = blocks[-1].line if inside else data.count(b"\n", 0, begin) + 1
        raise InputError(wrong, path=path, line=line)
    return bytearray().join(spans), blocks


def _head(text: bytes, line: int, path: Path) -> _Block | None:
    try:
        words = split_words(text.decode("utf-8"))
    except UnicodeDecodeError:
        raise InputError(NOT_UTF8, path=path, line=line) from None
    sentence, size, width, *_ = [*map(whole_number, words[:3]), None, None, None]
    if sentence is None or size is None or width is None:
        return None
    return _Block(sentence, size, width, words[3:], line)


def _statistics(piece: Piece) -> Int32:
    """Return int32 [lines, 10]: m_1..m_4, l_1..l_4, c, r; lines that have none get a fault."""
    piece.fault[np.diff(piece.row_begin) > _STATISTICS] = kernels.NO_STATISTICS
    good = piece.fault == kernels.FINE
    numbers = np.zeros((good.size, _STATISTICS))
    at = piece.row_begin[:-1][good]
    numbers[good] = piece.value[at[:, None] + np.arange(_STATISTICS)]
    whole = (numbers >= 0) & (numbers < 1 << 30) & (numbers == np.floor(numbers))
    piece.fault[good & ~whole.all(axis=1)] = kernels.NO_STATISTICS
    numbers[~whole] = 0
    m, length, r = numbers[:, 0:8:2], numbers[:, 1:8:2], numbers[:, 8:]
    # Such as those of a tool that writes lengths first.
    piece.fault[good & (m > length).any(axis=1)] = kernels.NO_STATISTICS
    return np.concatenate([m, length, length[:, :1], r], axis=1).astype(np.int32)

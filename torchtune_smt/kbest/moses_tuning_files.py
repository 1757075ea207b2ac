"""The reader of Moses's tuning files: features.dat with its scores.dat."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from torchtune_smt.core.arrays import Bool, Int32
from torchtune_smt.core.errors import InputError
from torchtune_smt.core.text import split_words, whole_number
from torchtune_smt.core.textio import not_utf8, read_text
from torchtune_smt.core.vocabulary import Vocabulary
from torchtune_smt.kbest import formats_kernels as kernels
from torchtune_smt.kbest.formats import Layout, ListAssembler, OnError
from torchtune_smt.kbest.formats_kernels import Piece
from torchtune_smt.kbest.stored_lists import StoredLists, merged

_STATISTICS = 9


class _Block(NamedTuple):
    """The lines of one sentence.

    Sentence and size are as the head of the block says, which is line `line` of the file, from 1;
    `names` is the rest of it. Each line begins with `width` numbers.
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

    Raises InputError: as for `read_lists`; or the files do not belong together.

    features_path, scores_path: line by line of the same hypotheses.
    features, dense, missing, on_error, shard: as for `read_lists`. Damaged heads of blocks are
        errors in any case.
    """
    features_path, scores_path = Path(features_path), Path(scores_path)
    text, blocks = _read_blocks(features_path, "FEATURES")
    score_text, score_blocks = _read_blocks(scores_path, "SCORES")
    _check_pair(features_path, blocks, scores_path, score_blocks)
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
    scores = ListAssembler([score_text], scores_path, None, None, on_error, "1")
    for piece, _, lines in scores.parsed(_values(_STATISTICS)):
        piece.sentence[:] = sentence[lines]
        statistics[lines] = _statistics(piece)
        lost[lines] = piece.fault != kernels.FINE
        scores.check(piece, score_line[lines])
    example = "name=0.5 after the dense values"
    assembler = ListAssembler([text], features_path, None, features, on_error, example, missing)
    assembler.set_dense(names)
    for piece, sizes, lines in assembler.parsed(_values(len(names))):
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


def _values(width: int) -> Layout:
    """Return the layout of so many numbers a line."""
    return Layout(kernels.VALUES, width, (kernels.FEATURES,))


def _read_blocks(path: Path, kind: str) -> tuple[bytearray, list[_Block]]:
    """Return the lines of a file without heads and feet, and its blocks."""
    data = read_text(path, refused={kind.encode() + b"_BIN": _binary(kind)})
    blocks, spans = [], []
    for block, begin, end in _blocks(data, path, kind):
        blocks.append(block)
        spans.append(memoryview(data)[begin:end])
    if not blocks:
        raise InputError(
            f"has no line {kind}_TXT_BEGIN_0; it must be {kind.lower()}.dat, as Moses's extractor "
            "writes it (text, not binary)",
            path=path,
        )
    return bytearray().join(spans), blocks


def _binary(kind: str) -> str:
    """Return what is said about a file that is none of text."""
    return (
        f"is not the text form of {kind.lower()}.dat; let Moses's extractor write that, without "
        "--binary"
    )


def _blocks(data: bytearray, path: Path, kind: str) -> Iterator[tuple[_Block, int, int]]:
    """Yield the blocks, and where the lines of each begin and end.

    InputError is raised where heads, feet and lines do not fit together.
    """
    head: tuple[bytes, int] | None = None
    line, at, begin = 1, 0, 0
    # A match begins with the newline before its line: that is searched for faster than ``^``.
    # With one put in front, it is where the line begins in `data`.
    pattern = rb"\n(FEATURES|SCORES)_([A-Z]*)_(BEGIN|END)_0\b(.*)$"
    for match in re.finditer(pattern, b"\n" + data, re.M):
        line, at = line + data.count(b"\n", at, match.start()), match.start()
        file, form, mark, rest = (group.decode(errors="replace") for group in match.groups())
        problem = None
        if head is None and file != kind and form == "TXT":
            problem = (
                f"has the text of {file.lower()}.dat where that of {kind.lower()}.dat is expected; "
                "exchange the files: features.dat is given as lists, scores.dat as scores"
            )
        elif file != kind or form != "TXT":
            problem = _binary(kind)
        elif mark == "BEGIN":
            if head is not None or (line > 1 and data[begin:at].strip(b" \t\n")):
                problem = f"{kind}_TXT_BEGIN_0 where {kind}_TXT_END_0 is expected"
        elif head is None or rest.strip(" \t"):
            problem = f"{kind}_TXT_END_0 without {kind}_TXT_BEGIN_0, or with something behind it"
        if problem is not None:
            damaged = "" if ";" in problem else "; the file is damaged"
            raise InputError(problem + damaged, path=path, line=line)
        if head is None:
            head = match.group(4), line
        else:
            yield _block(*head, line, path, kind), begin, at
            head = None
        begin = match.end()
    if head is not None:
        message = f"{kind}_TXT_END_0 is missing; the file is cut off"
        raise InputError(message, path=path, line=head[1])
    if data[begin:].strip(b" \t\n"):
        raise InputError(
            f"is no line of a block between {kind}_TXT_BEGIN_0 and {kind}_TXT_END_0; is this "
            f"{kind.lower()}.dat, as Moses's extractor writes it (text, not binary)?",
            path=path,
            line=data.count(b"\n", 0, begin) + 1,
        )


def _block(head: bytes, head_line: int, line: int, path: Path, kind: str) -> _Block:
    try:
        words = split_words(head.decode("utf-8"))
    except UnicodeDecodeError:
        raise not_utf8(path, head_line) from None
    numbers = [n for word in words[:3] if (n := whole_number(word)) is not None]
    names = words[3:]
    if len(numbers) < 3 or (kind == "FEATURES" and len(names) != numbers[2]):
        raise InputError(
            f"write `{kind}_TXT_BEGIN_0 sentence lines values "
            f"{'names' if kind == 'FEATURES' else 'BLEU'}`, as many names as values",
            path=path,
            line=head_line,
        )
    sentence, size, width = numbers
    if size != line - head_line - 1:
        raise InputError(
            f"announces {size} lines, and {line - head_line - 1} follow; the file is damaged",
            path=path,
            line=head_line,
        )
    return _Block(sentence, size, width, names, head_line)


def _check_pair(
    path: Path, blocks: list[_Block], scores_path: Path, score_blocks: list[_Block]
) -> None:
    """Raise InputError unless two files have the same sentences with as many hypotheses."""
    for block, scores in zip(blocks, score_blocks, strict=False):
        if (block.sentence, block.size) != (scores.sentence, scores.size):
            raise InputError(
                f"has {scores.size} lines of sentence {scores.sentence}, and line {block.line} of "
                f"{path} has {block.size} of sentence {block.sentence}; do the files belong "
                "together?",
                path=scores_path,
                line=scores.line,
            )
    if len(blocks) != len(score_blocks):
        raise InputError(
            f"has {len(score_blocks)} blocks, and {path} has {len(blocks)}; do the files belong "
            "together?",
            path=scores_path,
        )


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

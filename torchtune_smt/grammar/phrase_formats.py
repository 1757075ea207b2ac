"""Reading of Moses's phrase tables and reordering tables."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import NamedTuple

import numpy as np

from torchtune_smt.core.arrays import Float64, Int32, Int64
from torchtune_smt.core.errors import InputError
from torchtune_smt.core.numerals_kernels import POWERS
from torchtune_smt.core.text_kernels import count_lines
from torchtune_smt.core.textio import check_utf8, read_text
from torchtune_smt.core.vocabulary import SequenceTable, Vocabulary
from torchtune_smt.grammar import formats_kernels as kernels
from torchtune_smt.grammar.base import RULE_COUNT, UNIQUE_RULE
from torchtune_smt.grammar.file_grammar import (
    PhraseTable,
    Side,
    no_count,
)
from torchtune_smt.grammar.formats import checked_probabilities, read_slow_values, token_at
from torchtune_smt.grammar.reordering import ReorderingType, reordering_names

logger = logging.getLogger(__name__)

_PHRASES = "source ||| target ||| probabilities"
_ROLES = [
    kernels.SOURCE,
    kernels.TARGET,
    kernels.VALUES,
    kernels.ALIGNMENT,
    kernels.COUNTS,
]
_PROBLEMS = {
    kernels.MISSING_FIELD: "a field is missing: {fields} are needed",
    kernels.EMPTY_SOURCE: "the source side is empty; remove the line",
    kernels.BAD_ALIGNMENT: "{token} is no alignment point of these sides; write source-target, "
    "counted from 0, as in 0-1",
}
_PHRASES_AGAIN = (
    "`train-model.perl --first-step 6 --last-step 6` writes it as phrase-table.gz; name it with "
    "model.phrase_table"
)
_REORDERING_AGAIN = (
    "`train-model.perl --first-step 7 --last-step 7` writes it; name it with model.reordering_table"
)
# What binary tables are called, and how to get text.
_BINARY = {
    ".minphr": "a compact phrase table (processPhraseTableMin)",
    ".binphr.idx": "a binary phrase table (processPhraseTable)",
    ".minlexr": "a compact reordering table (processLexicalTableMin)",
    ".binlexr.idx": "a binary reordering table (processLexicalTable)",
}
_BINARY_FOLDERS = {
    "Misc.dat": "a binary phrase table (CreateOnDiskPt)",
    "probing_hash.dat": "a binary phrase table (CreateProbingPT)",
}


class _Table(NamedTuple):
    """What a table's lines hold."""

    source: Side
    target: Side
    values: Float64
    counts: Float64
    point_begin: Int64
    points: Int32


def read_phrase_table(
    path: str | os.PathLike[str],
    *,
    name: str = "TranslationModel0",
    scores: int | None = None,
    reordering: str | os.PathLike[str] | None = None,
    reordering_type: str | None = None,
    reordering_name: str = "LexicalReordering0",
    rule_counts: bool = False,
) -> PhraseTable:
    """Read a phrase table of Moses, and its reordering table, plain or ``.gz``.

    Lines are ``source ||| target ||| probabilities ||| alignment ||| counts``, the last two
    optional; further fields are not used. Natural logarithms are taken of probabilities, at least
    -100, as in Moses. Pairs that occur again are dropped, counted and reported as a warning, as
    are lines of the reordering table without a phrase.

    Parameters
    ----------
    path : path
    name : str
        Scores are called ``NAME_0``, ``NAME_1``, ...
    scores : int, optional
        Number of probabilities; by default that of the first line.
    reordering : path, optional
        A reordering table.
    reordering_type : str, optional
        Its type, as `ReorderingType.parse` takes it; needed with `reordering`.
    reordering_name : str
        What its scores are called.
    rule_counts : bool
        Add the features ``LogRuleCount`` (logarithm of how often the pair occurred) and
        ``UniqueRule`` (1 where that is once), from the third of the counts. Source: [G13].

    Raises
    ------
    InputError
        A line is not as described, a phrase has no reordering scores, or two kinds where its source
        alone tells them, or a file is a binary table; file, line and cure are named.
    """
    path = Path(path)
    table = _read(path, _ROLES, Vocabulary(), Vocabulary(), scores)
    names = [f"{name}_{i}" for i in range(table.values.shape[1])]
    columns = [_logarithms(table, path)]
    if rule_counts:
        columns.append(_rule_counts(table, path))
        names += [RULE_COUNT, UNIQUE_RULE]
    kind = None
    if reordering is not None:
        if reordering_type is None:
            raise ValueError("reordering_type is needed with a reordering table")
        kind = ReorderingType.parse(reordering_type)
        columns.append(_reordering_of(table, path, kind, Path(reordering)))
        names += reordering_names(kind, reordering_name)
    uncounted = _uncounted(table)
    result = PhraseTable(
        table.source,
        table.target,
        names,
        np.hstack(columns),
        reordering=kind,
        point_begin=table.point_begin if table.points.size else None,
        points=table.points,
        counts=table.counts if uncounted is None else None,
        uncounted=None if uncounted is None else (path, uncounted),
    )
    if result.n_duplicates:
        logger.warning(
            "%s: %d phrase pairs occur again and were dropped; the first of each counts",
            path,
            result.n_duplicates,
        )
    return result


def _read(
    path: Path,
    roles: list[int],
    source_words: Vocabulary,
    target_words: Vocabulary,
    n_values: int | None,
) -> _Table:
    """Read a table whose lines have `n_values` probabilities, by default those of the first."""
    data = _text_of(path)
    if not data:
        raise InputError("the table is empty", path=path)
    text = np.frombuffer(data, np.uint8)
    lines, tokens = count_lines(text)
    # Memory that is not written to is not taken.
    source_begin, target_begin, value_begin, point_begin = np.empty((4, lines + 1), np.int64)
    source_span, target_span = np.empty((2, tokens, 2), np.int64)
    count_begin = np.empty(lines, np.int64)
    value, slow = np.empty(tokens), np.empty((tokens, 3), np.int64)
    points = np.empty((tokens, 2), np.int32)
    code, line, at, n_slow, n_ignored = kernels.parse_phrases(
        text,
        np.array(roles, np.int32),
        POWERS,
        source_begin,
        source_span,
        target_begin,
        target_span,
        value_begin,
        count_begin,
        value,
        slow,
        point_begin,
        points,
    )
    # The first error of the file is reported, be it one of form or of a number.
    read = lines if code == kernels.FINE else line
    counted = np.diff(np.stack([value_begin[:read], count_begin[:read]]), axis=0)[0]
    wanted = n_values
    if wanted is None:
        wanted = int(counted[0]) if read else 0
    wrong = np.flatnonzero(counted != wanted)
    sound = int(wrong[0]) if wrong.size else read
    read_slow_values(text, slow[:n_slow], value, path, value_begin[: read + 1], sound)
    if wrong.size:
        expected = "as the first line has" if n_values is None else "as its settings say"
        raise InputError(
            f"has {counted[wrong[0]]} scores, and not {wanted}, {expected}",
            path=path,
            line=int(wrong[0]) + 1,
        )
    if code != kernels.FINE:
        needed = _PHRASES if kernels.TARGET in roles else "source ||| probabilities"
        message = _PROBLEMS[code].format(fields=needed, token=token_at(text, at))
        raise InputError(message, path=path, line=line + 1)
    if wanted == 0:
        raise InputError("has no scores between the second and the third |||", path=path, line=1)
    if n_ignored and kernels.ALIGNMENT in roles:
        logger.warning(
            "%s: %d lines have more than source, target, probabilities, alignment and counts; "
            "what stands there is not used",
            path,
            n_ignored,
        )
    source_span, target_span = source_span[: source_begin[-1]], target_span[: target_begin[-1]]
    # Joint counts, 0 where there are none.
    with_counts = value_begin[1:] - count_begin >= 3
    counts = np.zeros(lines)
    counts[with_counts] = value[count_begin[with_counts] + 2]

    def side(words: Vocabulary, begin: Int64, span: Int64) -> Side:
        return Side(words, begin, words.intern_spans(text, *np.ascontiguousarray(span.T)))

    return _Table(
        side(source_words, source_begin, source_span),
        side(target_words, target_begin, target_span),
        value[value_begin[:-1, None] + np.arange(wanted)],
        counts,
        point_begin,
        points[: point_begin[-1]],
    )


def _text_of(path: Path) -> bytearray:
    """Return the text of a table; refuse binary ones by what they are called."""
    for suffix, what in _BINARY.items():
        if path.name.endswith(suffix) or (not path.exists() and _beside(path, suffix).exists()):
            raise InputError(refusal(what), path=path)
    for name, what in _BINARY_FOLDERS.items():
        if (path / name).exists():
            raise InputError(refusal(what), path=path)
    data = read_text(path)
    check_utf8(data, path)
    return data


def refusal(what: str) -> str:
    """Return what to say of a binary table, and how to get its text."""
    again = _REORDERING_AGAIN if "reordering" in what else _PHRASES_AGAIN
    return f"is {what}, and the text that it was made from is read; {again}"


def _beside(path: Path, suffix: str) -> Path:
    return path.with_name(path.name + suffix)


def _logarithms(table: _Table, path: Path) -> Float64:
    """Return natural logarithms of probabilities, at least -100."""
    lines, columns = table.values.shape
    begin = np.arange(lines) * columns
    return np.log(checked_probabilities(table.values.ravel(), begin, path)).reshape(lines, columns)


def _uncounted(table: _Table) -> int | None:
    """Return the first line without a joint count; None if all have one."""
    lacking = np.flatnonzero(table.counts <= 0.0)
    return int(lacking[0]) + 1 if lacking.size else None


def _rule_counts(table: _Table, path: Path) -> Float64:
    """Return the logarithm of each pair's count, and whether it is 1."""
    line = _uncounted(table)
    if line is not None:
        raise no_count(path, line, "rule_counts")
    return np.stack([np.log(table.counts), (table.counts == 1.0).astype(np.float64)], axis=1)


def _reordering_of(
    table: _Table,
    path: Path,
    kind: ReorderingType,
    reordering: Path,
) -> Float64:
    """Return the reordering scores of a table's phrases."""
    roles = _ROLES[:3] if kind.target else [kernels.SOURCE, kernels.VALUES]
    other = _read(reordering, roles, table.source.words, table.target.words, kind.scores)
    phrases = table.source.begin.size
    sides = SequenceTable(np.int32, phrases // 4 + 16)
    targets = SequenceTable(np.int32, phrases)

    def keys(part: _Table) -> Int64:
        _, begin, symbols = part.source
        key = sides.intern_spans(symbols, begin[:-1], begin[1:]).astype(np.int64) << 32
        if kind.target:
            _, begin, symbols = part.target
            key |= targets.intern_spans(symbols, begin[:-1], begin[1:])
        return key

    wanted, given = keys(table), keys(other)
    if kind.target and np.array_equal(wanted, given):
        row = np.arange(wanted.size)
        unused = 0
    else:
        distinct, first, number = np.unique(given, return_index=True, return_inverse=True)
        others = (other.values != other.values[first[number]]).any(axis=1)
        if others.any() and not kind.target:
            line = int(others.argmax())
            raise InputError(
                f"gives this phrase other scores than line {first[number[line]] + 1} does; keep "
                "one of them",
                path=reordering,
                line=line + 1,
            )
        place = np.minimum(np.searchsorted(distinct, wanted), distinct.size - 1)
        missing = np.flatnonzero(distinct[place] != wanted)
        if missing.size:
            raise InputError(
                f"this phrase has no scores in {reordering}; take both tables from one extraction",
                path=path,
                line=int(missing[0]) + 1,
            )
        row = first[place]
        unused = given.size - np.unique(place).size
    if unused:
        logger.warning(
            "%s: %d lines are not used, for they are repeated or belong to no phrase of %s",
            reordering,
            unused,
            path,
        )
    return _logarithms(other, reordering)[row]

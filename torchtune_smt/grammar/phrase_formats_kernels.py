"""The parser of Moses's phrase and reordering tables: from bytes to spans of words and numbers."""

from __future__ import annotations

from torchtune_smt.core import numerals_kernels as numerals
from torchtune_smt.core.arrays import Float64, Int32, Int64, UInt8
from torchtune_smt.core.compiled import inner
from torchtune_smt.grammar.formats_kernels import (
    ALIGNMENT,
    BAD_ALIGNMENT,
    EMPTY_SOURCE,
    FINE,
    IGNORED,
    MISSING_FIELD,
    SOURCE,
    TARGET,
    VALUES,
    digits,
)

COUNTS = 6
"""One more kind of field."""

_SPACE, _TAB, _NEWLINE, _BAR, _MINUS = 32, 9, 10, 124, 45


@inner
def parse_phrases(
    text: UInt8,
    roles: Int32,
    powers: Float64,
    source_begin: Int64,
    source_span: Int64,
    target_begin: Int64,
    target_span: Int64,
    value_begin: Int64,
    count_begin: Int64,
    value: Float64,
    slow: Int64,
    point_begin: Int64,
    point: Int32,
) -> tuple[int, int, int, int, int]:
    r"""Parse a table.

    Parameters
    ----------
    text : uint8
        Ends with ``\n``.
    roles : int32
        What the fields of a line hold, in order; further ones are ignored, and those behind the
        values may be missing.
    powers : float64 [23]
        1, 10, ... 1e22.
    source_begin, target_begin, value_begin, point_begin : int64 [lines + 1], out
    source_span, target_span : int64 [words, 2], out
        Spans in `text`.
    count_begin : int64 [lines], out
        Where a line's values end, and its counts begin, both in `value`.
    value : float64, out
    slow : int64 [values, 3], out
        (value, begin, end) of those that `numerals.number` does not read.
    point : int32 [points, 2], out
        Alignment: places of a source and of a target word.

    Returns
    -------
    code, line, at : int
        `FINE`, or what is wrong, in which line (from 0), and where in `text`.
    n_slow, n_ignored : int
        Numbers of values in `slow`, and of lines with fields that are ignored and not empty.
    """
    line, field, needed = 0, 0, 0
    sources, targets, values, points, n_slow = 0, 0, 0, 0, 0
    n_ignored, ignored = 0, 0
    while roles[needed] != VALUES:
        needed += 1
    source_begin[0], target_begin[0], value_begin[0], point_begin[0] = 0, 0, 0, 0
    count_begin[0] = -1
    i = 0
    while i < text.size:
        c = text[i]
        if c == _SPACE or c == _TAB:
            i += 1
            continue
        if c == _NEWLINE:
            if field < needed:
                return MISSING_FIELD, line, i, n_slow, n_ignored
            if sources == source_begin[line]:
                return EMPTY_SOURCE, line, i, n_slow, n_ignored
            if count_begin[line] < 0:
                count_begin[line] = values
            line += 1
            source_begin[line], target_begin[line] = sources, targets
            value_begin[line], point_begin[line] = values, points
            n_ignored += ignored
            field, ignored = 0, 0
            i += 1
            if i < text.size:
                count_begin[line] = -1
            continue
        begin = i
        while text[i] != _SPACE and text[i] != _TAB and text[i] != _NEWLINE:
            i += 1
        if c == _BAR and i - begin == 3 and text[begin + 1] == _BAR and text[begin + 2] == _BAR:
            if field == needed:
                count_begin[line] = values
            field += 1
            continue
        role = roles[field] if field < roles.size else IGNORED
        if role == SOURCE:
            source_span[sources, 0], source_span[sources, 1] = begin, i
            sources += 1
        elif role == TARGET:
            target_span[targets, 0], target_span[targets, 1] = begin, i
            targets += 1
        elif role == ALIGNMENT:
            split = begin
            while split < i and text[split] != _MINUS:
                split += 1
            s, t = digits(text, begin, split), digits(text, min(split + 1, i), i)
            within = s < sources - source_begin[line] and t < targets - target_begin[line]
            if s < 0 or t < 0 or not within:
                return BAD_ALIGNMENT, line, begin, n_slow, n_ignored
            point[points, 0], point[points, 1] = s, t
            points += 1
        elif role == IGNORED:
            ignored = 1
        else:
            kind, decimal = numerals.number(text, begin, i, powers)
            value[values] = decimal
            if kind != numerals.EXACT:
                slow[n_slow, 0], slow[n_slow, 1], slow[n_slow, 2] = values, begin, i
                n_slow += 1
            values += 1
    return FINE, line, i, n_slow, n_ignored

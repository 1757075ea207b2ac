"""The parser of tables of rules and phrases: from bytes to symbols, spans of words and values."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from torchtune_smt.core import text_kernels as numerals
from torchtune_smt.core.arrays import Float64, Int32, Int64, UInt8
from torchtune_smt.core.compiled import inner, kernel

# How lines are written: rules as cdec has them, or Moses; phrase pairs, which have no gaps.
CDEC, MOSES, PHRASES = range(3)

# What a field of a line holds.
LABEL, SOURCE, TARGET, VALUES, ALIGNMENT, COUNTS, IGNORED = range(7)

# What can be wrong with a line.
(
    FINE,
    MISSING_FIELD,
    BAD_LABEL,
    OTHER_CATEGORY,
    NO_LABEL,
    INNER_LABEL,
    TOO_MANY_GAPS,
    UNKNOWN_GAP,
    REPEATED_GAP,
    UNBALANCED_GAPS,
    UNPAIRED_GAPS,
    EMPTY_SOURCE,
    UNARY_RULE,
    BAD_ALIGNMENT,
    NAMELESS_VALUE,
    TOO_MANY_NAMES,
    LINK_OUTSIDE,
) = range(17)

MAX_NAMES = 1000
# Results of `_gap`: no non-terminal; the next one of a source side, which has no number.
WORD, NEXT = -10, -11

_SPACE, _TAB, _NEWLINE = 32, 9, 10
_OPEN, _CLOSE, _COMMA, _BAR, _EQUALS, _X = 91, 93, 44, 124, 61, 88
_MINUS = 45

# Rows of `Table.room`: numbers (cdec) or places (Moses) of the source's gaps; where the target's
# are in `symbol[1]`, and their places; Moses: which of these belongs to each gap of the source; the
# name at each place of the line before.
_GAPS, _TARGET_GAPS, _TARGET_PLACES, _PAIRS, _NAMES = range(5)


class Table(NamedTuple):
    """What the lines of a table hold.

    side_begin (int64 [2, lines + 1])
    symbol (int32 [2, symbols]): of source and target sides; 0 in place of each word. Not used for
        phrases, which have words alone.
    word (int64 [2, 2, words]): begins and ends in the text of these words.
    n_words (int64 [2]): their number.
    value_begin (int64 [lines + 1])
    count_begin (int64 [lines]): where a line's values end, and its counts begin.
    value_name: row of `names`, or -1 - i for the i-th nameless value of a line. Not used for
        phrases.
    slow (int64 [values, 3]): (value, begin, end) of those that `numerals.number` does not read.
    names (int64 [MAX_NAMES, 2]): spans in the text of the names of features.
    point_begin (int64 [lines + 1])
    point (int32 [points, 2]): alignment of phrases: places of a source and of a target word.
    room (int64 [5, 64]): what the parser remembers of a line.
    """

    side_begin: Int64
    symbol: Int32
    word: Int64
    n_words: Int64
    value_begin: Int64
    count_begin: Int64
    value_name: Int32
    value: Float64
    slow: Int64
    names: Int64
    point_begin: Int64
    point: Int32
    room: Int64

    @classmethod
    def empty(cls, lines: int, tokens: int, names: Int64) -> Table:
        """Return room for so many lines and tokens; what is not written to takes no memory."""
        return cls(
            np.empty((2, lines + 1), np.int64),
            np.empty((2, tokens), np.int32),
            np.empty((2, 2, tokens), np.int64),
            np.zeros(2, np.int64),
            np.empty(lines + 1, np.int64),
            np.empty(lines, np.int64),
            np.empty(tokens, np.int32),
            np.empty(tokens),
            np.empty((tokens, 3), np.int64),
            names,
            np.empty(lines + 1, np.int64),
            np.empty((tokens, 2), np.int32),
            np.zeros((5, 64), np.int64),
        )


@inner
def _gap(text: UInt8, begin: int, end: int, on_target: bool) -> int:
    """Return n of the token ``[X,n]``, or ``[n]`` on a target side.

    `NEXT` for ``[X]`` on a source side, as cdec has it; `WORD` for anything else, -1 for an
    ``[A,n]`` with a category that is not X.
    """
    if end - begin < 3 or text[begin] != _OPEN or text[end - 1] != _CLOSE:
        return WORD
    comma = -1
    for i in range(begin + 1, end - 1):
        if text[i] == _COMMA:
            comma = i
    if comma < 0:
        if not on_target:
            return NEXT if end - begin == 3 and text[begin + 1] == _X else WORD
        number = numerals.digits(text, begin + 1, end - 1)
        return number if number >= 0 else WORD
    number = numerals.digits(text, comma + 1, end - 1)
    if number < 0 or comma == begin + 1:
        return WORD
    return number if comma == begin + 2 and text[begin + 1] == _X else -1


@inner
def _is_label(text: UInt8, begin: int, end: int) -> bool:
    """Whether the token is ``[X]``."""
    return (
        end - begin == 3
        and text[begin] == _OPEN
        and text[begin + 1] == _X
        and text[begin + 2] == _CLOSE
    )


@inner
def _moses_gap(text: UInt8, begin: int, end: int) -> int:
    """Return 0 for the token ``[X][X]``, -1 for such a pair of other labels, `WORD` otherwise."""
    if end - begin < 6 or text[begin] != _OPEN or text[end - 1] != _CLOSE:
        return WORD
    for i in range(begin + 2, end - 3):
        if text[i] == _CLOSE and text[i + 1] == _OPEN:
            both = _is_label(text, begin, i + 1) and _is_label(text, i + 1, end)
            return 0 if both else -1
    return WORD


@inner
def parse(
    text: UInt8,
    start: int,
    n_names: int,
    roles: Int32,
    form: int,
    separator: int,
    powers: Float64,
    table: Table,
) -> tuple[int, int, int, int, int, int]:
    r"""Parse a table, or a piece of one.

    text: ends with ``\n``; lines begin at `start`.
    n_names: how many names of features there are in the table already; they stand before `start`.
    roles: what the fields of a line hold, in order; further ones are ignored, and those behind the
        values may be missing.
    form: `CDEC`; `MOSES`, where non-terminals are ``[X][X]``, sides end with ``[X]``, and the
        alignment pairs non-terminals; or `PHRASES`.
    separator: a byte that separates values, as blanks do; -1: none.
    powers (float64 [23]): 1, 10, ... 1e22.
    table: written to.

    Returns code, line, at: `FINE`, or what is wrong, in which line (from 0), and where in `text`.
    Returns n_names, n_slow, n_ignored: names, values in `slow`, and lines with fields that are
        ignored and not empty.
    """
    side_begin, symbol, word, n_words = table.side_begin, table.symbol, table.word, table.n_words
    value_begin, count_begin, value_name = table.value_begin, table.count_begin, table.value_name
    value, slow, names, room = table.value, table.slow, table.names, table.room
    point_begin, point = table.point_begin, table.point
    line, needed = 0, 0
    while roles[needed] != VALUES:
        needed += 1
    n_values, n_slow, n_points, n_ignored = 0, 0, 0, 0
    sources, targets, source_words, target_words = 0, 0, 0, 0
    gaps, target_gaps, field, place, nameless, ignored = 0, 0, 0, 0, 0, 0
    labels, ended = 0, False  # Moses: the [X] that end the sides
    room[_PAIRS, 0], room[_PAIRS, 1] = -1, -1
    side_begin[0, 0], side_begin[1, 0], value_begin[0], point_begin[0] = 0, 0, 0, 0
    counts = -1
    code, i, begin = FINE, start, start
    while i < text.size:
        c = text[i]
        if c == _SPACE or c == _TAB:
            i += 1
            continue
        role = roles[field] if field < roles.size else IGNORED
        if role == VALUES and c == separator:
            i += 1
            continue
        begin = i
        if c == _NEWLINE:
            if field < needed:
                code = MISSING_FIELD
                break
            if form == MOSES and labels < 2:
                code = NO_LABEL
                break
            length = sources - side_begin[0, line]
            if length == 0:
                code = EMPTY_SOURCE
                break
            if length == 1 and gaps == 1:
                code = UNARY_RULE
                break
            if gaps != target_gaps:
                code = UNBALANCED_GAPS
                break
            if form == MOSES and gaps == 2:
                pair, other = room[_PAIRS, 0], room[_PAIRS, 1]
                if pair < 0 or other < 0 or pair == other:
                    code = UNPAIRED_GAPS
                    break
                symbol[1, room[_TARGET_GAPS, pair]] = -1
                symbol[1, room[_TARGET_GAPS, other]] = -2
            count_begin[line] = counts if counts >= 0 else n_values
            line += 1
            side_begin[0, line], side_begin[1, line] = sources, targets
            value_begin[line], point_begin[line] = n_values, n_points
            n_ignored += ignored
            gaps, target_gaps, field, place, nameless, ignored = 0, 0, 0, 0, 0, 0
            labels, counts = 0, -1
            room[_PAIRS, 0], room[_PAIRS, 1] = -1, -1
            i += 1
            continue
        while text[i] != _SPACE and text[i] != _TAB and text[i] != _NEWLINE:
            i += 1
        end = i
        if numerals.is_bar(text, begin, end):
            if role == LABEL and place != 1:
                code = BAD_LABEL
                break
            if field == needed:
                counts = n_values
            field += 1
            place = 0
            ended = False
            continue

        if role == IGNORED:
            # The rest of the line, but for its end, is of no interest.
            ignored = 1
            while text[i] != _NEWLINE and text[i] != _BAR:
                i += 1
            continue
        if role == VALUES or role == COUNTS:
            first = begin
            if form != PHRASES:
                split = -1
                if form == CDEC:
                    for k in range(begin, end):
                        if text[k] == separator:
                            i = end = k
                            break
                    for k in range(end - 1, begin - 1, -1):
                        if text[k] == _EQUALS:
                            split = k
                            break
                if split == begin:
                    code = NAMELESS_VALUE
                    break
                if split < 0:
                    nameless += 1
                    value_name[n_values] = -nameless
                else:
                    guess = room[_NAMES, place] if place < room.shape[1] else 0
                    found = numerals.row_of(text, begin, split, names, n_names, guess)
                    if found < 0:
                        if n_names == names.shape[0]:
                            code = TOO_MANY_NAMES
                            break
                        found = n_names
                        names[found, 0], names[found, 1] = begin, split
                        n_names += 1
                    if place < room.shape[1]:
                        room[_NAMES, place] = found
                    value_name[n_values] = found
                    first = split + 1
            kind, decimal = numerals.number(text, first, end, powers)
            value[n_values] = decimal
            if kind != numerals.EXACT:
                slow[n_slow, 0], slow[n_slow, 1], slow[n_slow, 2] = n_values, first, end
                n_slow += 1
            n_values += 1
        elif role == SOURCE or role == TARGET:
            number = WORD
            if form == MOSES:
                if ended:
                    code = INNER_LABEL
                    break
                if _is_label(text, begin, end):
                    labels += 1
                    ended = True
                    continue
                number = _moses_gap(text, begin, end)
                if number == 0:
                    number = place
            elif form == CDEC:
                number = _gap(text, begin, end, role == TARGET)
                if number == NEXT:
                    number = gaps + 1
            if number == -1:
                code = OTHER_CATEGORY
                break
            mark = 0
            if number == WORD:
                if role == SOURCE:
                    word[0, 0, source_words], word[0, 1, source_words] = begin, end
                    source_words += 1
                else:
                    word[1, 0, target_words], word[1, 1, target_words] = begin, end
                    target_words += 1
            elif role == SOURCE:
                if gaps == 2:
                    code = TOO_MANY_GAPS
                    break
                if gaps == 1 and room[_GAPS, 0] == number:
                    code = REPEATED_GAP
                    break
                room[_GAPS, gaps] = number
                gaps += 1
                mark = -1
            elif target_gaps == gaps:
                code = UNBALANCED_GAPS if form == MOSES else UNKNOWN_GAP
                break
            else:
                which = 0
                if form == CDEC:
                    which = -1
                    for k in range(gaps):
                        if room[_GAPS, k] == number:
                            which = k
                    if which < 0:
                        code = UNKNOWN_GAP
                        break
                    if target_gaps == 1 and symbol[1, room[_TARGET_GAPS, 0]] == -1 - which:
                        code = REPEATED_GAP
                        break
                room[_TARGET_GAPS, target_gaps] = targets
                room[_TARGET_PLACES, target_gaps] = place
                target_gaps += 1
                mark = -1 - which
            if form != PHRASES:
                symbol[role - SOURCE, sources if role == SOURCE else targets] = mark
            sources += role == SOURCE
            targets += role == TARGET
        elif role == ALIGNMENT:
            split = begin
            while split < end and text[split] != _MINUS:
                split += 1
            s, t = numerals.digits(text, begin, split), numerals.digits(text, split + 1, end)
            if s < 0 or t < 0:
                code = BAD_ALIGNMENT
                break
            if s >= sources - side_begin[0, line] or t >= targets - side_begin[1, line]:
                code = LINK_OUTSIDE
                break
            if form == PHRASES:
                point[n_points, 0], point[n_points, 1] = s, t
                n_points += 1
            for k in range(gaps):
                for j in range(target_gaps):
                    if room[_GAPS, k] == s and room[_TARGET_PLACES, j] == t:
                        room[_PAIRS, k] = j
        elif place > 0 or not _is_label(text, begin, end):
            code = BAD_LABEL
            break
        place += 1
    n_words[0], n_words[1] = source_words, target_words
    return code, line, begin, n_names, n_slow, n_ignored


@kernel
def fill_dense(
    value_begin: Int64, column: Int32, value: Float64, dense: Float64
) -> tuple[int, int]:
    """Write the values to their columns; return (line, column) of one given twice, or (-1, -1)."""
    seen = np.full(dense.shape[1], -1, np.int64)
    for line in range(dense.shape[0]):
        for k in range(value_begin[line], value_begin[line + 1]):
            c = column[k]
            if seen[c] == line:
                return line, c
            seen[c] = line
            dense[line, c] = value[k]
    return -1, -1

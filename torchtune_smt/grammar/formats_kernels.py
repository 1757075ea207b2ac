"""Parsers of rule tables and phrase tables: from bytes to symbols, spans of words and values."""

from __future__ import annotations

import numpy as np

from torchtune_smt.core import numerals_kernels as numerals
from torchtune_smt.core.arrays import Float64, Int32, Int64, UInt8
from torchtune_smt.core.compiled import inner, kernel

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
    NAME_TWICE,
    UNEQUAL_SCORES,
    LINK_OUTSIDE,
) = range(19)

MAX_NAMES = 1000
# Results of `_gap`: no non-terminal; the next one of a source side, which has no number.
WORD, NEXT = -10, -11

_SPACE, _TAB, _NEWLINE = 32, 9, 10
_OPEN, _CLOSE, _COMMA, _BAR, _EQUALS, _X = 91, 93, 44, 124, 61, 88
_ZERO, _NINE, _MINUS = 48, 57, 45


@inner
def digits(text: UInt8, begin: int, end: int) -> int:
    """Return the number ``text[begin:end]``, or -1 where that is none (or has over nine digits)."""
    if begin == end or end - begin > 9:
        return -1
    value = 0
    for i in range(begin, end):
        if text[i] < _ZERO or text[i] > _NINE:
            return -1
        value = 10 * value + (int(text[i]) - _ZERO)
    return value


@kernel
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
        number = digits(text, begin + 1, end - 1)
        return number if number >= 0 else WORD
    number = digits(text, comma + 1, end - 1)
    if number < 0 or comma == begin + 1:
        return WORD
    return number if comma == begin + 2 and text[begin + 1] == _X else -1


@kernel
def _is_label(text: UInt8, begin: int, end: int) -> bool:
    """Whether the token is ``[X]``."""
    return (
        end - begin == 3
        and text[begin] == _OPEN
        and text[begin + 1] == _X
        and text[begin + 2] == _CLOSE
    )


@kernel
def _moses_gap(text: UInt8, begin: int, end: int) -> int:
    """Return 0 for the token ``[X][X]``, -1 for such a pair of other labels, `WORD` otherwise."""
    if end - begin < 6 or text[begin] != _OPEN or text[end - 1] != _CLOSE:
        return WORD
    for i in range(begin + 2, end - 3):
        if text[i] == _CLOSE and text[i + 1] == _OPEN:
            both = _is_label(text, begin, i + 1) and _is_label(text, i + 1, end)
            return 0 if both else -1
    return WORD


@kernel
def parse(
    text: UInt8,
    roles: Int32,
    moses: bool,
    separator: int,
    powers: Float64,
    side_begin: Int64,
    symbol: Int32,
    word: Int64,
    n_words: Int64,
    value_begin: Int64,
    value_name: Int32,
    value: Float64,
    slow: Int64,
    names: Int64,
) -> tuple[int, int, int, int, int, int]:
    r"""Parse a rule table.

    Parameters
    ----------
    text : uint8
        Ends with ``\n``.
    roles : int32
        What the fields of a line hold, in order; further ones are ignored.
    moses : bool
        Non-terminals are ``[X][X]``, sides end with ``[X]``, the alignment pairs non-terminals.
    separator : int
        A byte that separates values, as blanks do; -1: none.
    powers : float64 [23]
        1, 10, ... 1e22.
    side_begin : int64 [2, lines + 1], out
    symbol : int32 [2, symbols], out
        Of source and target sides; 0 in place of each word.
    word : int64 [2, 2, words], out
        Begins and ends in `text` of these words.
    n_words : int64 [2], out
        Their number.
    value_begin : int64 [lines + 1], out
    value_name : int32, out
        Row of `names`, or -1 - i for the i-th nameless value of a line.
    value : float64, out
    slow : int64 [values, 3], out
        (value, begin, end) of those that `numerals.number` does not read.
    names : int64 [MAX_NAMES, 2], out
        Spans in `text` of the names of features.

    Returns
    -------
    code, line, at : int
        `FINE`, or what is wrong, in which line (from 0), and where in `text`.
    n_names, n_slow, n_values : int
    """
    line = 0
    n_symbols = np.zeros(2, np.int64)
    n_words[:] = 0
    n_values, n_slow, n_names = 0, 0, 0
    expected = np.zeros(64, np.int32)  # the name at each place of the line before
    gap = np.zeros(2, np.int64)  # numbers (cdec) or places (Moses) of the source's gaps
    target_gap = np.zeros(2, np.int64)  # where in `symbol[1]`
    target_place = np.zeros(2, np.int64)  # Moses: places of the target's gaps
    gaps, target_gaps = 0, 0
    field, place, nameless = 0, 0, 0
    labels = 0  # Moses: the [X] that end the sides
    ended = False
    pairs = np.full(2, -1, np.int64)
    side_begin[:, 0] = 0
    value_begin[0] = 0
    code = FINE
    i = 0
    size = text.size
    begin = 0
    while i < size:
        c = text[i]
        role = roles[field] if field < roles.size else IGNORED
        if c == _SPACE or c == _TAB or (role == VALUES and c == separator):
            i += 1
            continue
        begin = i
        if c == _NEWLINE:
            if field < roles.size - 1 and roles[field] != VALUES:
                code = MISSING_FIELD
                break
            if moses and labels < 2:
                code = NO_LABEL
                break
            length = n_symbols[0] - side_begin[0, line]
            if length == 0:
                code = EMPTY_SOURCE
                break
            if length == 1 and gaps == 1:
                code = UNARY_RULE
                break
            if gaps != target_gaps:
                code = UNBALANCED_GAPS
                break
            if moses and gaps == 2:
                if pairs[0] < 0 or pairs[1] < 0 or pairs[0] == pairs[1]:
                    code = UNPAIRED_GAPS
                    break
                for k in range(2):
                    symbol[1, target_gap[pairs[k]]] = -1 - k
            if moses and line > 0 and n_values - value_begin[line] != value_begin[1]:
                code = UNEQUAL_SCORES
                break
            line += 1
            side_begin[:, line] = n_symbols
            value_begin[line] = n_values
            gaps, target_gaps, field, place, nameless, labels = 0, 0, 0, 0, 0, 0
            pairs[:] = -1
            i += 1
            continue
        while text[i] != _SPACE and text[i] != _TAB and text[i] != _NEWLINE:
            i += 1
        end = i
        if c == _BAR and end - begin == 3 and text[begin + 1] == _BAR and text[begin + 2] == _BAR:
            if role == LABEL and place != 1:
                code = BAD_LABEL
                break
            field += 1
            place = 0
            ended = False
            continue

        if role == IGNORED:
            # The rest of the line, but for its end, is of no interest.
            while text[i] != _NEWLINE and text[i] != _BAR:
                i += 1
            continue
        if role == VALUES:
            for k in range(begin, end):
                if text[k] == separator:
                    i = end = k
                    break
            split = -1
            # Moses's values are scores alone.
            for k in range(end - 1, begin - 1 if not moses else end - 1, -1):
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
                # Most tables have the same names in the same order in each line.
                found = -1
                first = expected[place] if place < expected.size else 0
                for attempt in range(n_names + 1):
                    k = first if attempt == 0 else attempt - 1
                    if k >= n_names or names[k, 1] - names[k, 0] != split - begin:
                        continue
                    same = True
                    for j in range(split - begin):
                        if text[names[k, 0] + j] != text[begin + j]:
                            same = False
                            break
                    if same:
                        found = k
                        break
                if found < 0:
                    if n_names == names.shape[0]:
                        code = TOO_MANY_NAMES
                        break
                    found = n_names
                    names[found, 0], names[found, 1] = begin, split
                    n_names += 1
                if place < expected.size:
                    expected[place] = found
                value_name[n_values] = found
            kind, decimal = numerals.number(text, split + 1 if split >= 0 else begin, end, powers)
            value[n_values] = decimal
            if kind != numerals.EXACT:
                slow[n_slow, 0] = n_values
                slow[n_slow, 1] = split + 1 if split >= 0 else begin
                slow[n_slow, 2] = end
                n_slow += 1
            n_values += 1
        elif role == SOURCE or role == TARGET:
            if moses:
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
            else:
                number = _gap(text, begin, end, role == TARGET)
                if number == NEXT:
                    number = gaps + 1
            if number == -1:
                code = OTHER_CATEGORY
                break
            side, mark = role - SOURCE, 0
            if number == WORD:
                word[side, 0, n_words[side]], word[side, 1, n_words[side]] = begin, end
                n_words[side] += 1
            elif role == SOURCE:
                if gaps == 2:
                    code = TOO_MANY_GAPS
                    break
                if gaps == 1 and gap[0] == number:
                    code = REPEATED_GAP
                    break
                gap[gaps] = number
                gaps += 1
                mark = -1
            elif target_gaps == gaps:
                code = UNBALANCED_GAPS if moses else UNKNOWN_GAP
                break
            else:
                which = 0
                if not moses:
                    which = -1
                    for k in range(gaps):
                        if gap[k] == number:
                            which = k
                    if which < 0:
                        code = UNKNOWN_GAP
                        break
                    if target_gaps == 1 and symbol[1, target_gap[0]] == -1 - which:
                        code = REPEATED_GAP
                        break
                target_gap[target_gaps] = n_symbols[1]
                target_place[target_gaps] = place
                target_gaps += 1
                mark = -1 - which
            symbol[side, n_symbols[side]] = mark
            n_symbols[side] += 1
        elif role == ALIGNMENT:
            if moses:
                split = -1
                for k in range(begin, end):
                    if text[k] == _MINUS:
                        split = k
                        break
                s, t = -1, -1
                if split >= 0:
                    s, t = digits(text, begin, split), digits(text, split + 1, end)
                if s < 0 or t < 0:
                    code = BAD_ALIGNMENT
                    break
                if (
                    s >= n_symbols[0] - side_begin[0, line]
                    or t >= n_symbols[1] - side_begin[1, line]
                ):
                    code = LINK_OUTSIDE
                    break
                for k in range(gaps):
                    for j in range(target_gaps):
                        if gap[k] == s and target_place[j] == t:
                            pairs[k] = j
        elif role == LABEL and (place > 0 or not _is_label(text, begin, end)):
            code = BAD_LABEL
            break
        place += 1
    return code, line, begin, n_names, n_slow, n_values


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

"""Kernels of text: how much room it takes, fields, names and numbers in it, values of weights."""

from __future__ import annotations

import numpy as np

from torchtune_smt.core.arrays import Float64, Int64, UInt8
from torchtune_smt.core.compiled import inlined, inner, kernel

NEWLINE, TAB, BLANK, HASH, EQUALS, BAR = 10, 9, 32, 35, 61, 124
NO_VALUE, NO_NAME, NO_NUMBER = 1, 2, 3

# What `number` says of a text: its value is exact; it is about that of the number;
# it is no finite decimal number.
EXACT, LONG, NONE = range(3)

# Powers of ten that float64 holds exactly.
POWERS: Float64 = np.array([float(f"1e{i}") for i in range(23)])

_ZERO, _NINE, _MINUS, _PLUS, _POINT, _E, _SMALL_E = 48, 57, 45, 43, 46, 69, 101


@inner
def count_lines(text: UInt8) -> tuple[int, int]:
    """Return the numbers of lines and of words.

    text: whole lines.
    """
    lines, words = 0, 0
    for i in range(text.size):
        c = text[i]
        before = text[i - 1] if i > 0 else BLANK
        lines += c == NEWLINE
        words += (c == BLANK or c == TAB or c == NEWLINE) and not (
            before == BLANK or before == TAB or before == NEWLINE
        )
    return lines, words


@inlined
def is_bar(text: UInt8, begin: int, end: int) -> bool:
    """Say whether a word is ``|||``, which separates fields."""
    return end == begin + 3 and text[begin] == text[begin + 1] == text[begin + 2] == BAR


@inlined
def row_of(text: UInt8, begin: int, end: int, spans: Int64, n: int, first: int) -> int:
    """Return which of the first n spans (int64 [., begin and end, ...]) holds a name; -1: none.

    first: looked at before all others: most lines have the same names in the same order.
    """
    for attempt in range(n + 1):
        k = first if attempt == 0 else attempt - 1
        if k >= n or spans[k, 1] - spans[k, 0] != end - begin:
            continue
        same = True
        for j in range(end - begin):
            if text[spans[k, 0] + j] != text[begin + j]:
                same = False
                break
        if same:
            return k
    return -1


@inner
def digits(text: UInt8, begin: int, end: int) -> int:
    """Return the number ``text[begin:end]``, or -1 where that is none (or has over nine digits)."""
    if begin >= end or end - begin > 9:
        return -1
    value = 0
    for i in range(begin, end):
        if text[i] < _ZERO or text[i] > _NINE:
            return -1
        value = 10 * value + (int(text[i]) - _ZERO)
    return value


@inner
def number(text: UInt8, begin: int, end: int, powers: Float64) -> tuple[int, float]:
    """Return (`EXACT`, value), (`LONG`, about the value) or (`NONE`, 0) for ``text[begin:end]``.

    Where the digits make an integer below 2^53 and the power of ten is at most 22, one division
    or multiplication rounds correctly. Other numbers are off by some 1e-15 of their value, and
    infinite or 0 where that is out of range: who needs more takes Python's `float`. Signs, a point
    and an exponent are allowed; blanks, underscores, ``nan`` and ``inf`` are not.

    powers (float64 [23]): `POWERS`.
    """
    negative = False
    i = begin
    if i < end and (text[i] == _MINUS or text[i] == _PLUS):
        negative = text[i] == _MINUS
        i += 1
    mantissa, exponent = 0, 0
    point = digits = False
    while i < end:
        c = text[i]
        if _ZERO <= c <= _NINE:
            digits = True
            # Beyond 17 digits nothing changes but the magnitude.
            if mantissa < 10**17:
                mantissa = 10 * mantissa + (int(c) - _ZERO)
                exponent -= point
            else:
                exponent += not point
        elif c == _POINT and not point:
            point = True
        else:
            break
        i += 1
    if not digits:
        return NONE, 0.0
    if i < end:
        if text[i] != _SMALL_E and text[i] != _E:
            return NONE, 0.0
        i += 1
        minus = i < end and text[i] == _MINUS
        if i < end and (text[i] == _MINUS or text[i] == _PLUS):
            i += 1
        if i == end:
            return NONE, 0.0
        power = 0
        while i < end:
            if text[i] < _ZERO or text[i] > _NINE:
                return NONE, 0.0
            power = min(10 * power + (int(text[i]) - _ZERO), 1 << 20)
            i += 1
        exponent += -power if minus else power
    if mantissa == 0:
        exponent = 0
    kind = EXACT if mantissa < 1 << 53 and -22 <= exponent <= 22 else LONG
    value = float(mantissa)
    if -22 <= exponent < 0:
        value /= powers[-exponent]
    elif 0 <= exponent <= 22:
        value *= powers[exponent]
    else:
        # In two steps, as a power that is too small for a number may be of one that is not.
        half = exponent // 2
        value = value * 10.0**half * 10.0 ** (exponent - half)
    return kind, -value if negative else value


@kernel
def split_weights(text: UInt8, room: int, powers: Float64) -> tuple[Int64, int, int]:
    r"""Return where names and values lie.

    The last blank, tab or ``=`` of a line separates them, and a ``=`` between blanks is no part of
    the name. Lines that are blank or begin with
    ``#`` are left out.

    text: ends with ``\n``.
    room: no fewer than there are lines with words.
    powers (float64 [23]): those of `number`.

    Returns spans (int64 [lines, 5]): name begin and end, value begin and end, number of the line
        (from 1).
    Returns error: 0, or what is wrong with the line at which it stopped.
    Returns line: the number of that line.
    """
    spans = np.empty((room, 5), np.int64)
    found = 0
    line = 0
    position = 0
    while position < text.size:
        begin = position
        while position < text.size and text[position] != NEWLINE:
            position += 1
        end = position
        position += 1
        line += 1
        while end > begin and text[end - 1] in (BLANK, TAB):
            end -= 1
        while begin < end and text[begin] in (BLANK, TAB):
            begin += 1
        if begin == end or text[begin] == HASH:
            continue
        value = end
        while value > begin and text[value - 1] not in (BLANK, TAB, EQUALS):
            value -= 1
        if value == begin:
            return spans[:found], NO_VALUE, line
        name_end = value - 1
        while name_end > begin and text[name_end - 1] in (BLANK, TAB):
            name_end -= 1
        if name_end - begin > 1 and text[name_end - 1] == EQUALS:
            before = name_end - 1
            while before > begin and text[before - 1] in (BLANK, TAB):
                before -= 1
            if before < name_end - 1:
                name_end = before
        if name_end == begin:
            return spans[:found], NO_NAME, line
        if value == end:
            return spans[:found], NO_VALUE, line
        if number(text, value, end, powers)[0] == NONE:
            return spans[:found], NO_NUMBER, line
        spans[found, 0], spans[found, 1] = begin, name_end
        spans[found, 2], spans[found, 3] = value, end
        spans[found, 4] = line
        found += 1
    return spans[:found], 0, 0

"""Decimal numbers in bytes."""

from __future__ import annotations

import numpy as np

from torchtune_smt.core.arrays import Float64, UInt8
from torchtune_smt.core.compiled import inner

# What `number` says of a text: its value is exact; it is a number, but needs a slower reader;
# it is no finite decimal number.
EXACT, LONG, NONE = range(3)

# Powers of ten that float64 holds exactly.
POWERS: Float64 = np.array([float(f"1e{i}") for i in range(23)])

_ZERO, _NINE, _MINUS, _PLUS, _POINT, _E, _SMALL_E = 48, 57, 45, 43, 46, 69, 101


@inner
def number(text: UInt8, begin: int, end: int, powers: Float64) -> tuple[int, float]:
    """Return (`EXACT`, value), (`LONG`, 0) or (`NONE`, 0) for ``text[begin:end]``.

    Where the digits make an integer below 2^53 and the power of ten is at most 22, one division
    or multiplication rounds correctly. Other numbers are left to the caller (Python's `float`,
    which may find them too large). Signs, a point and an exponent are allowed; blanks,
    underscores, ``nan`` and ``inf`` are not.

    Parameters
    ----------
    powers : float64 [23]
        `POWERS`.
    """
    negative = False
    i = begin
    if i < end and (text[i] == _MINUS or text[i] == _PLUS):
        negative = text[i] == _MINUS
        i += 1
    mantissa = 0
    digits, decimals = 0, 0
    point = False
    while i < end:
        c = text[i]
        if _ZERO <= c <= _NINE:
            if digits < 18:
                mantissa = 10 * mantissa + (int(c) - _ZERO)
            digits += 1
            decimals += point
        elif c == _POINT and not point:
            point = True
        else:
            break
        i += 1
    if digits == 0:
        return NONE, 0.0
    exponent = 0
    if i < end:
        if text[i] != _SMALL_E and text[i] != _E:
            return NONE, 0.0
        i += 1
        minus = i < end and text[i] == _MINUS
        if i < end and (text[i] == _MINUS or text[i] == _PLUS):
            i += 1
        if i == end:
            return NONE, 0.0
        while i < end:
            if text[i] < _ZERO or text[i] > _NINE:
                return NONE, 0.0
            exponent = min(10 * exponent + (int(text[i]) - _ZERO), 1 << 20)
            i += 1
        if minus:
            exponent = -exponent
    exponent -= decimals
    if digits > 18 or mantissa >= 1 << 53 or exponent < -22 or exponent > 22:
        return LONG, 0.0
    value = mantissa / powers[-exponent] if exponent < 0 else mantissa * powers[exponent]
    return EXACT, -value if negative else value

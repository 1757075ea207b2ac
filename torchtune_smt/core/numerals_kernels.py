"""Decimal numbers in bytes."""

from __future__ import annotations

import numpy as np

from torchtune_smt.core.arrays import Float64, UInt8
from torchtune_smt.core.compiled import inner

# What `number` says of a text: its value is exact; it is about that of the number;
# it is no finite decimal number.
EXACT, LONG, NONE = range(3)

# Powers of ten that float64 holds exactly.
POWERS: Float64 = np.array([float(f"1e{i}") for i in range(23)])

_ZERO, _NINE, _MINUS, _PLUS, _POINT, _E, _SMALL_E = 48, 57, 45, 43, 46, 69, 101


@inner
def number(text: UInt8, begin: int, end: int, powers: Float64) -> tuple[int, float]:
    """Return (`EXACT`, value), (`LONG`, about the value) or (`NONE`, 0) for ``text[begin:end]``.

    Where the digits make an integer below 2^53 and the power of ten is at most 22, one division
    or multiplication rounds correctly. Other numbers are off by some 1e-15 of their value, and
    infinite or 0 where that is out of range: who needs more takes Python's `float`. Signs, a point
    and an exponent are allowed; blanks, underscores, ``nan`` and ``inf`` are not.

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

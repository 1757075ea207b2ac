"""Byte-level reading and writing of ARPA lines."""

from __future__ import annotations

import numpy as np

from torchtune_smt.core import text_kernels as numerals
from torchtune_smt.core.arrays import Float32, Float64, Int32, Int64, UInt8
from torchtune_smt.core.compiled import kernel

DONE, ENDS_EARLY, BAD_NUMBER, NO_WORD, EXTRA_FIELD, POSITIVE = 0, 1, 2, 3, 4, 5

_TAB, _NEWLINE, _BLANK, _BACKSLASH = 9, 10, 32, 92
_LESS, _GREATER, _U, _N, _K, _I, _F, _SMALL_S = 60, 62, 85, 78, 75, 73, 70, 115
_MINUS, _POINT, _ZERO = 45, 46, 48

# The log probability of what is never predicted, as SRILM writes it.
NEVER = -99.0
# Digits behind the point in written numbers: the error of 5e-8 is that of a float32 near 1.
DECIMALS = 7


@kernel
def parse_number(text: UInt8, begin: int, end: int, powers: Float64) -> tuple[float, bool]:
    """Return (value, whether it is one) of the decimal number ``text[begin:end]``."""
    kind, value = numerals.number(text, begin, end, powers)
    return value, kind != numerals.NONE and abs(value) < 1e30


@kernel
def _never_begins(text: UInt8, begin: int, end: int) -> bool:
    """Return whether a line is ``-inf <s>``, with ``-inf`` at ``text[begin:end]``."""
    if end - begin != 4 or text[begin] != _MINUS:
        return False
    for k, letter in enumerate((_I, _N, _F)):
        if text[begin + 1 + k] | _BLANK != letter | _BLANK:
            return False
    while end < text.size and text[end] in (_BLANK, _TAB):
        end += 1
    if end + 3 >= text.size or text[end + 3] not in (_BLANK, _TAB, _NEWLINE):
        return False
    return bool(text[end] == _LESS and text[end + 1] == _SMALL_S and text[end + 2] == _GREATER)


@kernel
def _lower_unknown(text: UInt8, begin: int, end: int) -> None:
    """Replace ``<UNK>`` by ``<unk>``."""
    if end - begin != 5 or text[begin] != _LESS or text[begin + 4] != _GREATER:
        return
    if text[begin + 1] == _U and text[begin + 2] == _N and text[begin + 3] == _K:
        for k in range(begin + 1, begin + 4):
            text[k] += _BLANK


@kernel
def parse_section(
    text: UInt8,
    position: int,
    has_backoff: bool,
    prob: Float32,
    backoff: Float32,
    word_begin: Int64,
    word_end: Int64,
    powers: Float64,
) -> tuple[int, int, int]:
    """Read one n-gram a line from `position` on, as many as `prob` has places.

    Row i's words are the spans of `text` number ``i * n .. i * n + n - 1``. Without
    `has_backoff` (highest order) nothing but a 0 may follow the words. ``<UNK>`` becomes ``<unk>``
    in `text`. ``<s>``, which is never predicted, may have the log probability ``-inf``, which is
    read as `NEVER`; `powers` are `numerals.POWERS`. Returns (code, row, position behind the last
    line read or at the start of a bad one).
    """
    count = prob.size
    n = word_begin.size // max(count, 1)
    size = text.size
    for row in range(count):
        start = position
        if position >= size or text[position] in (_NEWLINE, _BACKSLASH):
            return ENDS_EARLY, row, start
        field = 0
        while True:
            while position < size and text[position] in (_BLANK, _TAB):
                position += 1
            if position >= size or text[position] == _NEWLINE:
                position += 1
                break
            begin = position
            while position < size and text[position] not in (_BLANK, _TAB, _NEWLINE):
                position += 1
            if field == 0:
                value, valid = parse_number(text, begin, position, powers)
                if not valid and n == 1 and _never_begins(text, begin, position):
                    value, valid = NEVER, True
                if not valid:
                    return BAD_NUMBER, row, start
                if value > 0:
                    return POSITIVE, row, start
                prob[row] = value
            elif field <= n:
                word_begin[row * n + field - 1] = begin
                word_end[row * n + field - 1] = position
                _lower_unknown(text, begin, position)
            elif field == n + 1:
                value, valid = parse_number(text, begin, position, powers)
                if has_backoff and not valid:
                    return BAD_NUMBER, row, start
                if has_backoff:
                    backoff[row] = value
                elif not valid or value != 0.0:
                    return EXTRA_FIELD, row, start
            else:
                return EXTRA_FIELD, row, start
            field += 1
        if field <= n:
            return NO_WORD, row, start
    return DONE, count, min(position, size)


@kernel
def _put_number(out: UInt8, position: int, value: float) -> int:
    """Write `value` with up to `DECIMALS` digits behind the point; return the position behind."""
    scaled = np.int64(np.rint(abs(value) * 10.0**DECIMALS))
    if value < 0 and scaled > 0:
        out[position] = _MINUS
        position += 1
    whole, rest = scaled // 10**DECIMALS, scaled % 10**DECIMALS
    width = 1
    while whole >= 10**width:
        width += 1
    for k in range(width):
        out[position + width - 1 - k] = _ZERO + whole % 10
        whole //= 10
    position += width
    if rest > 0:
        out[position] = _POINT
        width = DECIMALS
        while rest % 10 == 0:
            rest //= 10
            width -= 1
        for k in range(width):
            out[position + width - k] = _ZERO + rest % 10
            rest //= 10
        position += width + 1
    return position


@kernel
def format_rows(
    out: UInt8,
    rows: Int32,
    prob: Float32,
    backoff: Float32,
    has_backoff: bool,
    letters: UInt8,
    begin: Int64,
    first: int,
) -> tuple[int, int]:
    """Write n-grams from row `first` on to `out` as ARPA lines, while there is room.

    `letters` and `begin` are the words, as `Vocabulary` has them (``symbols``). Returns (next row,
    bytes written).
    """
    position = 0
    n = rows.shape[1]
    for row in range(first, rows.shape[0]):
        # Two numbers of up to 20 bytes and their separators.
        needed = 64 + n
        for k in range(n):
            needed += begin[rows[row, k] + 1] - begin[rows[row, k]]
        if position + needed > out.size:
            return row, position
        position = _put_number(out, position, prob[row])
        for k in range(n):
            out[position] = _TAB if k == 0 else _BLANK
            position += 1
            for c in range(begin[rows[row, k]], begin[rows[row, k] + 1]):
                out[position] = letters[c]
                position += 1
        if has_backoff:
            out[position] = _TAB
            position = _put_number(out, position + 1, backoff[row])
        out[position] = _NEWLINE
        position += 1
    return rows.shape[0], position

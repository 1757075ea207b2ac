"""The kernel that finds names and values in a weights file."""

from __future__ import annotations

import numpy as np

from torchtune_smt.core.arrays import Float64, Int64, UInt8
from torchtune_smt.core.compiled import kernel
from torchtune_smt.core.numerals_kernels import NONE, number

NEWLINE, TAB, BLANK, HASH, EQUALS = 10, 9, 32, 35, 61
NO_VALUE, NO_NAME, NO_NUMBER = 1, 2, 3


@kernel
def split_weights(text: UInt8, room: int, powers: Float64) -> tuple[Int64, int, int]:
    r"""Return where names and values lie.

    The last blank, tab or ``=`` of a line separates them, and a ``=`` between blanks is no part of
    the name. Lines that are blank or begin with
    ``#`` are left out.

    Parameters
    ----------
    text : uint8
        Ends with ``\n``.
    room : int
        No fewer than there are lines with words.
    powers : float64 [23]
        Those of `number`.

    Returns
    -------
    spans : int64 [lines, 5]
        Name begin and end, value begin and end, number of the line (from 1).
    error : int
        0, or what is wrong with the line at which it stopped.
    line : int
        The number of that line.
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

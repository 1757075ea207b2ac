"""Counts that tell how much room a text takes once it is parsed."""

from __future__ import annotations

from torchtune_smt.core.arrays import UInt8
from torchtune_smt.core.compiled import inner

_TAB, _NEWLINE, _BLANK = 9, 10, 32


@inner
def count_lines(text: UInt8) -> tuple[int, int]:
    """Return the numbers of lines and of words.

    Parameters
    ----------
    text : uint8
        Whole lines.
    """
    lines, words = 0, 0
    for i in range(text.size):
        c = text[i]
        before = text[i - 1] if i > 0 else _BLANK
        lines += c == _NEWLINE
        words += (c == _BLANK or c == _TAB or c == _NEWLINE) and not (
            before == _BLANK or before == _TAB or before == _NEWLINE
        )
    return lines, words

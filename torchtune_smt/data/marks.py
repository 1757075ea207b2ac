"""Combining marks and joiners, which Moses's tokeniser takes for words of their own.

It knows letters by a list that lacks most of them. While it works, a letter that is on its list
stands for each mark behind a letter, and one of the private use area, which it sets apart as it
does any sign, for each sign with what combines with it.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from functools import cache
from typing import Final

# Marks (m) and a joiner (j) behind a letter; or a sign (s, and t of a skin tone, which follows a
# sign as marks do and is none) with those behind it, and with signs that are joined to it.
_MARKED: Final = re.compile("(?P<sign>[st]t?[mj]+(?:(?<=j)[st]t?[mj]*)*)|[mj]")
_ZERO_WIDTH_NON_JOINER: Final = "\u200c"
_ZERO_WIDTH_JOINER: Final = "\u200d"
_FLAG_LETTERS: Final = range(0xE0020, 0xE0080)
_SKIN_TONES: Final = range(0x1F3FB, 0x1F400)
# Letters without case: Yi syllables, which are on the list. Others are taken where the line has
# them, and what is left where it has all of them stays as it is.
_LETTERS: Final = range(0xA000, 0xA48D)
_SIGNS: Final = range(0xE000, 0xF900)


def with_stand_ins(line: str, alphanumeric: str) -> tuple[str, dict[str, str]]:
    """Return a line in which marks and joiners do not part words, and what stands for what.

    Parameters
    ----------
    line : str
    alphanumeric : str
        The characters that the tokeniser takes for letters and digits.
    """
    if line.isascii():
        return line, {}
    # One letter for each character.
    kinds = line.translate(_kinds(alphanumeric))
    spans = [(match.span(), bool(match["sign"])) for match in _MARKED.finditer(kinds)]
    if not spans:
        return line, {}
    used = set(line)
    letters, signs = _unused(_LETTERS, used), _unused(_SIGNS, used)
    stand_ins: dict[str, str] = {}
    pieces: list[str] = []
    done = 0
    for (begin, end), is_sign in spans:
        what = line[begin:end]
        if what not in stand_ins:
            stand_ins[what] = next(signs if is_sign else letters, what)
        pieces += line[done:begin], stand_ins[what]
        done = end
    line = "".join([*pieces, line[done:]])
    return line, {one: what for what, one in stand_ins.items() if one != what}


def unused_signs(line: str) -> Iterator[str]:
    """Yield signs that a line lacks, which the tokeniser sets apart as words of their own."""
    return _unused(_SIGNS, set(line))


def _unused(numbers: range, used: set[str]) -> Iterator[str]:
    return (chr(number) for number in numbers if chr(number) not in used)


class _Kinds(dict[int, str]):
    """The kind of each character, found when it is first met."""

    def __init__(self, alphanumeric: str) -> None:
        self._alphanumeric = frozenset(alphanumeric)

    def __missing__(self, number: int) -> str:
        self[number] = kind = self._kind(chr(number))
        return kind

    def _kind(self, character: str) -> str:
        # Those that the tokeniser knows stay as they are, vowel signs of scripts of India, too.
        if character in self._alphanumeric or character.isspace() or character < " ":
            return "a"
        if character == _ZERO_WIDTH_JOINER:
            return "j"
        marks = character == _ZERO_WIDTH_NON_JOINER or ord(character) in _FLAG_LETTERS
        if marks or unicodedata.category(character)[0] == "M":
            return "m"
        return "t" if ord(character) in _SKIN_TONES else "s"


@cache
def _kinds(alphanumeric: str) -> _Kinds:
    return _Kinds(alphanumeric)

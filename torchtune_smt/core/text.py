"""What is a word, a field and a number: one rule for every text file.

Words are separated by blanks and tabs alone, as in Moses, cdec, KenLM and fast_align: any other
character, a no-break space for example, is part of a word. Numbers are written in ASCII.
"""

from __future__ import annotations

import math
import re
from typing import Final

BLANKS: Final = " \t"

RESERVED: Final = frozenset({"|||", "<s>", "</s>"})
"""Words that the formats of grammars, k-best lists and language models keep for themselves."""

UNKNOWN_WORDS: Final = frozenset({"<unk>", "<UNK>"})
"""How language models write what they do not know, which is no word that one learns from."""

_SEPARATOR: Final = re.compile(r"(?<![^ \t])\|\|\|(?![^ \t])")
_WORD: Final = re.compile(r"[^ \t\n\r]+")
# More digits could overflow; kernels have the same limit.
_WHOLE: Final = re.compile(r"[0-9]{1,9}")
_DECIMAL: Final = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")


def split_words(line: str) -> list[str]:
    """Return the words of a line, with or without its end."""
    words = line.replace("\t", " ").replace("\n", " ").replace("\r", " ").split(" ")
    return [word for word in words if word] if "" in words else words


def is_word(text: str) -> bool:
    """Return whether a text is one word."""
    return _WORD.fullmatch(text) is not None


def split_fields(line: str) -> list[str]:
    """Return what stands between the words ``|||`` of a line, blanks included."""
    return _SEPARATOR.split(line)


def whole_number(text: str) -> int | None:
    """Return a number of one to nine digits; None for any other text."""
    return int(text) if _WHOLE.fullmatch(text) else None


def finite_number(text: str) -> float | None:
    """Return a decimal number, with or without an exponent; None where that is none, or infinite.

    Neither blanks, underscores, ``nan`` and ``inf`` nor the digits of other scripts are read, all
    of which Python's `float` takes.
    """
    number = float(text) if _DECIMAL.fullmatch(text) else math.inf
    return number if math.isfinite(number) else None

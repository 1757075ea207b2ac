"""What a tokeniser is not to take apart: one letter stands for it while the text is prepared.

Of two kinds: combining marks and joiners, which Moses's tokeniser takes for words of their own (it
knows letters by a list that lacks most of them), and what is copied as it stands, as Moses's
protected patterns do it: addresses, times, fractions and other numbers with signs, tags. A letter
that is on the tokeniser's list stands for each mark behind a letter, and one of the private use
area, which it sets apart as it does any sign, for each sign with what combines with it, and for
each protected word.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Final

from torchtune_smt.core.text import RESERVED, UNKNOWN_WORDS

# Letters without case: Yi syllables, which are on the list. Others are taken where the line has
# them, and what is left where it has all of them stays as it is.
_LETTERS: Final = range(0xA000, 0xA48D)
_SIGNS: Final = range(0xE000, 0xF900)

# Marks (m) and a joiner (j) behind a letter; or a sign (s, and t of a skin tone, which follows a
# sign as marks do and is none) with those behind it, and with signs that are joined to it.
_MARKED: Final = re.compile("(?P<sign>[st]t?[mj]+(?:(?<=j)[st]t?[mj]*)*)|[mj]")
_ZERO_WIDTH_NON_JOINER: Final = "\u200c"
_ZERO_WIDTH_JOINER: Final = "\u200d"
_FLAG_LETTERS: Final = range(0xE0020, 0xE0080)
_SKIN_TONES: Final = range(0x1F3FB, 0x1F400)

# Each begins where a run of its characters does, so that time stays linear in the line.
_IN_URL: Final = r"[\w!#$%&'()*+,\-./:;=?@\[\]~|^{}\\]"
# Characters that the tokeniser leaves out.
_JUNK: Final = r"\x00-\x1f"
NAME: Final = r"[^\W\d_][\w:.\-]*"
"""The name of a tag."""

_VALUE: Final = rf"(?:\"[^\"<>{_JUNK}]*\"|'[^'<>{_JUNK}]*'|[^\s\"'<>{_JUNK}]+)"
_SCHEME: Final = r"[a-z][a-z0-9]{1,9}(?:\+[a-z]{1,9})?"
_HOST: Final = r"(?:[\w\-]+\.)+[^\W\d_]{2,}"
_NUMBER: Final = r"\d+(?:[.,\-–]\d+)*"
_PATTERNS: Final = {
    "tag": rf"<[/!?]?{NAME}(?:\s+[\w:.\-]+={_VALUE})*\s*/?>|<[^\W\d_][^\s<>{_JUNK}]*>",
    "url": rf"(?<![A-Za-z0-9])(?i:{_SCHEME}://|www\.|mailto:){_IN_URL}+"
    rf"|(?<![\w.@\-]){_HOST}(?::\d+)?/{_IN_URL}*",
    "mail": rf"(?<![\w.+%\-])[\w.+%\-]+@{_HOST}(?![\w\-])",
    "number": rf"(?<!\w)(?:[+±−]\d+(?:[.,:/'’\-–]\d+)*|{_NUMBER}(?:(?:[:/'’]{_NUMBER})+|°[CFK]?))"
    "[A-Za-z]*",
    "name": r"(?<![\w&/.@#])[@#]\w+",
}
_PROTECTED: Final = re.compile("|".join(f"(?P<{k}>{what})" for k, what in _PATTERNS.items()))
# What ends a sentence, and not the address that stands at its end.
_BEHIND_URL: Final = ".,;:!?'*|\\]}"


def with_marks(line: str, alphanumeric: str) -> tuple[str, dict[int, str]]:
    """Return a line in which marks and joiners do not part words, and what stands for what.

    alphanumeric: the characters that the tokeniser takes for letters and digits.
    """
    if line.isascii():
        return line, {}
    # One letter for each character.
    kinds = line.translate(_kinds(alphanumeric))
    return _replaced(line, ((*m.span(), bool(m["sign"])) for m in _MARKED.finditer(kinds)))


def with_protected(line: str) -> tuple[str, dict[int, str]]:
    """Return a line with a letter for each word that is protected, and what each letter is for."""
    return _replaced(
        line,
        (
            (begin + word.start(), begin + word.end(), True)
            for begin, what, _ in protected(line)
            for word in re.finditer(r"\S+", what)
        ),
    )


def _replaced(line: str, spans: Iterable[tuple[int, int, bool]]) -> tuple[str, dict[int, str]]:
    """Return a line with a letter (or a sign: True) in the place of spans, and what it is for."""
    stand_ins: dict[str, str] = {}
    pieces: list[str] = []
    letters: dict[bool, Iterator[str]] = {}
    done = 0
    for begin, end, is_sign in spans:
        if not letters:
            used = set(line)
            for kind, numbers in ((False, _LETTERS), (True, _SIGNS)):
                letters[kind] = (c for c in map(chr, numbers) if c not in used)
        what = line[begin:end]
        if what not in stand_ins:
            stand_ins[what] = next(letters[is_sign], what)
        pieces += line[done:begin], stand_ins[what]
        done = end
    line = "".join([*pieces, line[done:]])
    return line, {ord(one): what for what, one in stand_ins.items() if one != what}


def protected(line: str) -> Iterator[tuple[int, str, bool]]:
    """Yield what is protected in a line: where it begins, the text, and whether it is a tag.

    The text of a tag may have blanks.
    """
    end = 0
    while match := _PROTECTED.search(line, end):
        what = match[0] if match.lastgroup != "url" else _address(match[0])
        end = match.start() + max(1, len(what))
        # Words that formats keep for themselves are none.
        if what and what not in RESERVED | UNKNOWN_WORDS:
            yield match.start(), what, match.lastgroup == "tag"


def is_protected(word: str) -> bool:
    """Return whether all of a word is protected."""
    return any(what == word for _, what, _ in protected(word))


def _address(text: str) -> str:
    """Return an address without what stands behind it: marks, brackets that are not its own."""
    end, opened = len(text), text.count("(") - text.count(")")
    while end and (text[end - 1] in _BEHIND_URL or (text[end - 1] == ")" and opened < 0)):
        opened += text[end - 1] == ")"
        end -= 1
    return text[:end]


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

"""What is copied as it stands: addresses, times, fractions and other numbers with signs, tags.

While a line is normalised, tokenised and lowercased, a letter of the private use area stands for
each of them, as Moses's protected patterns do it; the tokeniser sets it apart.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from torchtune_smt.core.text import RESERVED, UNKNOWN_WORDS
from torchtune_smt.data.marks import unused_signs

# Each begins where a run of its characters does, so that time stays linear in the line.
_IN_URL: Final = r"[\w!#$%&'()*+,\-./:;=?@\[\]~|^{}\\]"
# Characters that the tokeniser leaves out.
_JUNK: Final = r"\x00-\x1f"
_NAME: Final = r"[^\W\d_][\w:.\-]*"
_VALUE: Final = rf"(?:\"[^\"<>{_JUNK}]*\"|'[^'<>{_JUNK}]*'|[^\s\"'<>{_JUNK}]+)"
_SCHEME: Final = r"[a-z][a-z0-9]{1,9}(?:\+[a-z]{1,9})?"
_HOST: Final = r"(?:[\w\-]+\.)+[^\W\d_]{2,}"
_NUMBER: Final = r"\d+(?:[.,\-–]\d+)*"
_PATTERNS: Final = {
    "tag": rf"<[/!?]?{_NAME}(?:\s+[\w:.\-]+={_VALUE})*\s*/?>|<[^\W\d_][^\s<>{_JUNK}]*>",
    "url": rf"(?<![A-Za-z0-9])(?i:{_SCHEME}://|www\.|mailto:){_IN_URL}+"
    rf"|(?<![\w.@\-]){_HOST}(?::\d+)?/{_IN_URL}*",
    "mail": rf"(?<![\w.+%\-])[\w.+%\-]+@{_HOST}(?![\w\-])",
    "number": rf"(?<!\w)(?:[+±−]\d+(?:[.,:/'’\-–]\d+)*|{_NUMBER}(?:(?:[:/'’]{_NUMBER})+|°[CFK]?))"
    "[A-Za-z]*",
    "name": r"(?<![\w&/.@#])[@#]\w+",
}
_PROTECTED: Final = re.compile("|".join(f"(?P<{k}>{what})" for k, what in _PATTERNS.items()))
_TAG: Final = re.compile("<(?P<end>/?)(?P<name>" + _NAME + ")[^<>]*?(?P<alone>/?)>")
# What ends a sentence, and not the address that stands at its end.
_BEHIND_URL: Final = ".,;:!?'*|\\]}"


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


def with_protected(line: str) -> tuple[str, dict[int, str]]:
    """Return a line with a letter for each word that is protected, and what each letter is for."""
    found = list(protected(line))
    if not found:
        return line, {}
    signs = unused_signs(line)
    stand_ins: dict[str, str] = {}
    pieces: list[str] = []
    done = 0
    for begin, what, _ in found:
        for word in what.split():
            if word not in stand_ins:
                stand_ins[word] = next(signs, word)
        pieces += line[done:begin], " ".join(stand_ins[word] for word in what.split())
        done = begin + len(what)
    line = "".join([*pieces, line[done:]])
    return line, {ord(one): what for what, one in stand_ins.items() if one != what}


def tags_attached(text: str) -> str:
    """Return a text with no blank within a tag and its end, as in ``<b> a word </b>``."""
    opened: dict[str, list[int]] = {}
    blanks: set[int] = set()
    for match in _TAG.finditer(text) if "</" in text else ():
        begins = opened.setdefault(match["name"], [])
        if match["end"] and begins:
            blanks |= {begins.pop(), match.start() - 1}
        elif not match["end"] and not match["alone"]:
            begins.append(match.end())
    return "".join(c for i, c in enumerate(text) if c != " " or i not in blanks)


def _address(text: str) -> str:
    """Return an address without what stands behind it: marks, brackets that are not its own."""
    end, opened = len(text), text.count("(") - text.count(")")
    while end and (text[end - 1] in _BEHIND_URL or (text[end - 1] == ")" and opened < 0)):
        opened += text[end - 1] == ")"
        end -= 1
    return text[:end]

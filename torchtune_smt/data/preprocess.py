"""Text to tokens and back: punctuation, tokenisation, lowercasing.

The work is done by sacremoses, a port of Moses's scripts, so that text prepared elsewhere with
those scripts fits.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import cache
from typing import Any, Final

from torchtune_smt.core.text import RESERVED, UNKNOWN_WORDS, split_words
from torchtune_smt.data.compounds import CompoundSplitter

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
    "tag": rf"<[/!?]?{NAME}(?:\s+[\w:.\-]+={_VALUE})*\s*[/?]?>|<[^\W\d_][^\s<>{_JUNK}]*>"
    rf"|<!--[^<>{_JUNK}]*-->",
    "url": rf"(?<![A-Za-z0-9])(?i:{_SCHEME}://|www\.|mailto:){_IN_URL}+"
    rf"|(?<![\w.@\-]){_HOST}(?::\d+)?/{_IN_URL}*",
    "mail": rf"(?<![\w.+%\-])[\w.+%\-]+@{_HOST}(?![\w\-])",
    "time": r"(?<!\w)\d{4}-\d\d-\d\dT\d[\d:]*(?:[.,]\d+)?(?:Z|[+\-]\d\d:?\d*)?(?!\w)",
    "number": rf"(?<!\w)(?:{_NUMBER}[eE][+\-]\d+|[+±−]\d+(?:[.,:/'’\-–]\d+)*"
    rf"|{_NUMBER}(?:(?:[:/'’]{_NUMBER})+|°[CFK]?))"
    "[A-Za-z]*",
    "name": r"(?<![\w&/.@#])[@#]\w+",
}
_PROTECTED: Final = re.compile("|".join(f"(?P<{k}>{what})" for k, what in _PATTERNS.items()))
# What ends a sentence, and not the address that stands at its end.
_BEHIND_URL: Final = ".,;:!?'*|\\]}"


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
    """Yield what is protected in a line: its begin, the text, and whether it is a tag."""
    end = 0
    while match := _PROTECTED.search(line, end):
        what = match[0] if match.lastgroup != "url" else _address(match[0])
        end = match.start() + max(1, len(what))
        # Words that formats keep for themselves are none.
        if what and what not in RESERVED | UNKNOWN_WORDS:
            yield match.start(), what, match.lastgroup == "tag"


def _address(text: str) -> str:
    """Return an address without what stands behind it: marks, brackets that are not its own."""
    end, opened = len(text), text.count("(") - text.count(")")
    while end and (text[end - 1] in _BEHIND_URL or (text[end - 1] == ")" and opened < 0)):
        opened += text[end - 1] == ")"
        end -= 1
    return text[:end]


class _Kinds(dict[int, str]):
    """The kind of each character, found when it is first met; those of the tokeniser's words: a."""

    def __init__(self, alphanumeric: str) -> None:
        self._alphanumeric = frozenset(alphanumeric)

    def __missing__(self, number: int) -> str:
        character, kind = chr(number), "t" if number in _SKIN_TONES else "s"
        mark = character == _ZERO_WIDTH_NON_JOINER or number in _FLAG_LETTERS
        # Those that the tokeniser knows stay as they are, vowel signs of scripts of India, too.
        if character in self._alphanumeric or character.isspace() or character < " ":
            kind = "a"
        elif character == _ZERO_WIDTH_JOINER:
            kind = "j"
        elif mark or unicodedata.category(character)[0] == "M":
            kind = "m"
        self[number] = kind
        return kind


_kinds = cache(_Kinds)


# Characters that nobody sees: controls, formats (Unicode's Cf without the number signs), but not
# the letters of flags that are made of them.
_INVISIBLE: Final = re.compile(
    "(\U0001f3f4[\U000e0020-\U000e007f]+)|[\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f\xad\u061c\u180e\u200b"
    "\u034f\u17b4\u17b5\u200e\u200f\u202a-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\U0001bca0-\U0001bca3"
    "\U0001d173-\U0001d17a\U000e0001-\U000e007f]"
)
# Those that choose how the letter before them looks, where there is none; and letters that fill a
# place, which look like blanks.
_SELECTORS: Final = re.compile(
    "(?<!\\S)[\u115f\u1160\u180b-\u180f\ufe00-\ufe0f\U000e0100-\U000e01ef]+"
)
_FILLERS: Final = re.compile("[\u3164\uffa0]")
# Languages that part words with it, if they do.
_ZERO_WIDTH_SPACE: Final = "\u200b"
_WORDS_WITHOUT_BLANKS: Final = ("km", "lo", "my", "th")
# Letters and signs that joiners (or what keeps them apart) make a difference to.
_JOINED: Final = "[\u0590-\u1cff\u2190-\u2bff\u2e80-\u2fff\u3040-\U0010ffff]"
_JOINERS: Final = re.compile(
    f"(?<={_JOINED})(\u200d|\u200c(?=[\u200c\u200d]*{_JOINED}))|[\u200c\u200d]"
)
# A word of one letter behind an apostrophe begins a line, and the next one has the capital.
_CLIPPED_LANGUAGES: Final = ("nl", "af")
_CLIPPED: Final = re.compile(r"\W*['’]\w(?=\s)")
_TAG: Final = re.compile(f"<(?P<end>/?)(?P<name>{NAME})[^<>]*?(?P<alone>/?)>")

# Rules of Moses's tokenizer.perl that sacremoses lacks: a mark that is part of a word where a small
# letter follows, and apostrophes that end a word where a letter follows, as in French, or do not.
_WITHIN_WORDS: Final = {"fi": ":", "sv": ":", "ca": "·", "tdt": "'"}
_ELISION: Final = ("ca", "ga")
_GLOTTALS: Final = ("so", "tdt")


@cache
def _moses(tool: str, language: str) -> Any:
    """Return the tool of sacremoses with this name for a language."""
    import sacremoses

    if tool == "Detokenizer" and language in _ELISION:
        # That of Italian has no rule but the one for elision.
        language = "it"
    moses = getattr(sacremoses, f"Moses{tool}")(lang=language)
    if tool == "Tokenizer":
        if mark := _WITHIN_WORDS.get(language):
            pattern = rf"([^{moses.IsAlnum}\s.'`,\-{mark}]|{mark}(?![{moses.IsLower}]))"
            moses.PAD_NOT_ISALNUM = re.compile(pattern), r" \1 "
        if language in _ELISION + _GLOTTALS:
            # The language chooses nothing else from here on.
            moses.lang = "fr"
        if language in _GLOTTALS:
            moses.FR_IT_SPECIFIC_APOSTROPHE = moses.FR_IT_SPECIFIC_APOSTROPHE[:3]
    return moses


@dataclass(frozen=True)
class Preprocessor:
    """Turns a line of raw text into tokens separated by single blanks.

    language: two-letter code: it chooses the rules for abbreviations and apostrophes.
    normalize, tokenize, lowercase: the steps, in this order: Moses's tokenizer looks at case.
        `normalize` unifies quotes, dashes and spaces, composes letters with their marks (Unicode's
        NFC), and leaves out characters that nobody sees. `tokenize` leaves combining marks and
        joiners with what they belong to. With none of them the line is only split at its blanks and
        tabs.
    escape: the tokenizer writes ``|``, ``&``, quotes and brackets as entities (``&quot;``), as
        Moses's does by default.
    compounds: splits the tokens.
    """

    language: str = "en"
    _: KW_ONLY
    normalize: bool = True
    tokenize: bool = True
    lowercase: bool = True
    escape: bool = False
    protect: bool = True
    compounds: CompoundSplitter | None = None

    def tokens(self, line: str) -> list[str]:
        """Return the tokens of one line."""
        kept: dict[int, str] = {}
        if self.normalize:
            line = _visible(line, self.language)
        if self.tokenize and self.protect:
            spans = (
                (begin + word.start(), begin + word.end(), True)
                for begin, what, _ in protected(line)
                for word in re.finditer(r"\S+", what)
            )
            line, kept = _replaced(line, spans)
        if self.normalize:
            line = unicodedata.normalize("NFC", line)
            line = _moses("PunctNormalizer", self.language).normalize(line)
        if self.tokenize:
            line = self._tokenized(line)
        if self.lowercase:
            line = lowercased(line)
            # Small letters are composed whose capitals are not, as that of j with a caron.
            line = unicodedata.normalize("NFC", line) if self.normalize else line
        words = split_words(line)
        words = words if self.compounds is None else self.compounds.split(words)
        kept = self._spelt(kept)
        return [word.translate(kept) for word in words] if kept else words

    def _tokenized(self, line: str) -> str:
        """Return a line with blanks between its tokens."""
        moses = _moses("Tokenizer", self.language)
        stand_ins: dict[int, str] = {}
        if not line.isascii():
            # Marks and joiners part no words. One letter for each character:
            kinds = line.translate(_kinds(moses.IsAlnum))
            spans = ((*match.span(), bool(match["sign"])) for match in _MARKED.finditer(kinds))
            line, stand_ins = _replaced(line, spans)
        tokenized: str = moses.tokenize(line, return_str=True, escape=self.escape)
        return tokenized.translate(self._spelt(stand_ins))

    def _spelt(self, stand_ins: dict[int, str]) -> dict[int, str]:
        """Return what letters stand for, as the tokeniser would spell it."""
        if not self.escape or not stand_ins:
            return stand_ins
        moses = _moses("Tokenizer", self.language)
        return {one: moses.escape_xml(what) for one, what in stand_ins.items()}


def lowercased(line: str) -> str:
    """Return a line in lower case, in which I with a dot is one letter, and has no second dot."""
    return line.replace("İ", "i").lower()


def _visible(line: str, language: str) -> str:
    """Return a line without the characters that nobody sees, nor sees the effect of."""
    if line.isprintable() and line.isascii():
        return line
    if language in _WORDS_WITHOUT_BLANKS:
        line = line.replace(_ZERO_WIDTH_SPACE, " ")
    line = _INVISIBLE.sub(lambda match: match[1] or "", line)
    line = _JOINERS.sub(lambda match: match[1] or "", _FILLERS.sub(" ", line))
    return _SELECTORS.sub("", line)


@dataclass(frozen=True)
class Detokenizer:
    """Joins tokens to text as people write it, and resolves Moses's entities.

    language: two-letter code of the text.
    capitalize: the first letter becomes a capital, for text that was lowercased: that behind quotes
        and other marks, too, but none where a digit, a letter without case, or what `Preprocessor`
        protects comes first.
    verbatim: in what `Preprocessor` protects entities stay, which the text itself has there.
    """

    language: str = "en"
    capitalize: bool = False
    verbatim: bool = False

    def line(self, tokens: Sequence[str]) -> str:
        """Return the text of one sentence."""
        words = list(tokens)
        if self.verbatim:
            for i, word in enumerate(words):
                if "&" in word and any(what == word for _, what, _ in protected(word)):
                    words[i] = word.replace("&", "&amp;")
        text = _tags_attached(_moses("Detokenizer", self.language).detokenize(words))
        if self.language == "en":
            # As the Penn Treebank splits it, which Moses does otherwise.
            text = text.replace(" n't", "n't")
        return self._capitalized(text) if self.capitalize else text

    def _capitalized(self, text: str) -> str:
        """Return the text of a sentence with a capital."""
        first = 0
        for begin, what, is_tag in protected(text):
            if any(map(str.isalnum, text[first:begin])):
                break
            if not is_tag:
                return text
            first = begin + len(what)
        clipped = _CLIPPED.match(text) if self.language in _CLIPPED_LANGUAGES else None
        for at in range(clipped.end() if clipped else first, len(text)):
            letter = text[at]
            # The apostrophes of some languages are letters by name.
            if letter.isalnum() and unicodedata.category(letter) != "Lm":
                # In the form for titles: the two letters of ß, and of dž, are not both capitals.
                capital = letter.title() if letter.islower() else letter
                return text[:at] + capital + text[at + 1 :]
        return text


def _tags_attached(text: str) -> str:
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

"""Text to tokens and back: lowercasing, punctuation, tokenisation, a filter by length.

The work is done by sacremoses, a port of Moses's scripts, so that text prepared elsewhere with
those scripts fits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from torchtune_smt.core.text import split_words
from torchtune_smt.data.compounds import CompoundSplitter


@cache
def _moses(tool: str, language: str) -> Any:
    """Return the tool of sacremoses with this name for a language."""
    import sacremoses

    return getattr(sacremoses, f"Moses{tool}")(lang=language)


@dataclass(frozen=True)
class Preprocessor:
    """Turns a line of raw text into tokens separated by single blanks.

    Parameters
    ----------
    language
        Two-letter code: it chooses the rules for abbreviations and apostrophes.
    lowercase, normalize, tokenize
        The steps, in this order; `normalize` unifies quotes, dashes and spaces. With none of
        them the line is only split at its blanks and tabs.
    escape
        The tokenizer writes ``|``, ``&``, quotes and brackets as entities (``&quot;``), as
        Moses's does by default.
    compounds
        Splits the tokens.
    """

    language: str = "en"
    lowercase: bool = True
    normalize: bool = True
    tokenize: bool = True
    escape: bool = False
    compounds: CompoundSplitter | None = None

    def tokens(self, line: str) -> list[str]:
        """Return the tokens of one line."""
        if self.lowercase:
            # Python's small letter of it has a dot besides that of the i, and the tokenizer would
            # split it off.
            line = line.replace("İ", "i").lower()
        if self.normalize:
            line = _moses("PunctNormalizer", self.language).normalize(line)
        if self.tokenize:
            line = _moses("Tokenizer", self.language).tokenize(
                line, return_str=True, escape=self.escape
            )
        words = split_words(line)
        return words if self.compounds is None else self.compounds.split(words)


@dataclass(frozen=True)
class Detokenizer:
    """Joins tokens to text as people write it, and resolves Moses's entities.

    Parameters
    ----------
    language
        Two-letter code of the text.
    capitalize
        The first letter becomes a capital, for text that was lowercased.
    """

    language: str = "en"
    capitalize: bool = False

    def line(self, tokens: Sequence[str]) -> str:
        """Return the text of one sentence."""
        text: str = _moses("Detokenizer", self.language).detokenize(list(tokens))
        return text[:1].upper() + text[1:] if self.capitalize else text


@dataclass(frozen=True)
class LengthFilter:
    """Keeps the sentence pairs that are neither long nor of very different lengths.

    Parameters
    ----------
    max_length
        Tokens on either side.
    max_ratio
        Tokens of the longer side for each of the shorter.
    """

    max_length: int = 80
    max_ratio: float = 9.0

    def __post_init__(self) -> None:
        if self.max_length < 1:
            raise ValueError(f"max_length must be at least 1, not {self.max_length}")
        if not self.max_ratio >= 1:
            raise ValueError(f"max_ratio must be at least 1, not {self.max_ratio}")

    def reason(self, source: int, target: int) -> str | None:
        """Return why a pair of these lengths (tokens, at least 1) is dropped, or None."""
        if max(source, target) > self.max_length:
            return "too long"
        if max(source, target) > self.max_ratio * min(source, target):
            return "of too different lengths"
        return None

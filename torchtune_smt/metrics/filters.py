"""What a metric leaves out of account in words: pieces, case, tokens of punctuation, `<unk>`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Final

from torchtune_smt.core.text import UNKNOWN_WORDS, split_words


def _without_bpe(words: list[str]) -> list[str]:
    """Join pieces: those of subword-nmt end in ``@@``, words of SentencePiece begin with ``▁``."""
    line = " ".join(words)
    if "▁" in line:
        line = line.replace(" ", "").replace("▁", " ")
    return split_words(f"{line} ".replace("@@ ", ""))


def _without_unknown(words: list[str]) -> list[str]:
    return [word for word in words if word not in UNKNOWN_WORDS]


def _lowercase(words: list[str]) -> list[str]:
    return [word.lower() for word in words]


@cache
def _detokenizer() -> Any:
    # It takes long to import.
    from sacremoses import MosesDetokenizer

    return MosesDetokenizer(lang="en")


def _detokenize(words: list[str]) -> list[str]:
    return split_words(_detokenizer().detokenize(words))


FILTERS: Final[dict[str, Callable[[list[str]], list[str]]]] = {
    "unk": _without_unknown,
    "bpe": _without_bpe,
    "detokenize": _detokenize,
    "lowercase": _lowercase,
}


def filtered(words: list[str], names: Sequence[str]) -> list[str]:
    """Return words as some filters leave them, in the order of their names."""
    for name in names:
        words = FILTERS[name](words)
    return words

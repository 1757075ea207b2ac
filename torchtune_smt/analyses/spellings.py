"""Words where models were tuned, and in their features (Green et al. 2013, Table 7)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from torchtune_smt.features.templates import escape


class Spelling(NamedTuple):
    """How often a word occurs.

    Attributes
    ----------
    word : str
    tokens : int
        In the references of the sentences that were tuned on, all of them.
    features : int
        Sparse features that translate something by it.
    """

    word: str
    tokens: int
    features: int


def spellings(
    words: Sequence[str], references: Iterable[Sequence[Sequence[str]]], names: Iterable[str]
) -> list[Spelling]:
    """Count words in references, and in the names of features.

    A feature translates by what stands behind the ``~`` of its name, words with ``_`` between them.

    Parameters
    ----------
    words : sequence of str
    references : iterable of (sequence of (sequence of str))
        The words of each reference of each sentence.
    names : iterable of str
        Of features.
    """
    tokens = Counter(word for sentence in references for one in sentence for word in one)
    features: Counter[str] = Counter()
    for name in names:
        features.update(set(name.partition("~")[2].split("_")))
    return [Spelling(word, tokens[word], features[escape(word)]) for word in words]

"""Where systems differ: words by frequency, sentences by length, n-grams, single sentences.

What compare-mt shows (Neubig et al. 2019), for any number of references.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from difflib import SequenceMatcher
from itertools import chain
from typing import Final, NamedTuple

import numpy as np

from torchtune_smt.core.arrays import Float64, Int64
from torchtune_smt.metrics.bleu import BleuPlusOne
from torchtune_smt.metrics.corpus import StatisticsExtractor, bleu_scores

Text = Sequence[Sequence[str]]
"""Sentences as words."""

References = Sequence[Text]
"""The references of each sentence, as words."""

Ngram = tuple[str, ...]

# The least frequency, or length, of each bucket.
FREQUENCIES: Final = (1, 2, 3, 4, 5, 10, 100, 1000)
LENGTHS: Final = (0, 10, 20, 30, 40, 50, 60)
ORDER: Final = 4


class Bucket(NamedTuple):
    """Words or sentences of a kind, and how well each system does on them.

    Attributes
    ----------
    name : str
        Such as ``5-9``.
    size : int
        Words of the references, or sentences.
    scores : list of float
        0..100, one a system.
    """

    name: str
    size: int
    scores: list[float]


class NgramDifference(NamedTuple):
    """An n-gram that one system gets right more often than another.

    Attributes
    ----------
    words : str
    first, second : int
        Matches of the two systems, of an n-gram in a sentence at most as many as its references
        have.
    """

    words: str
    first: int
    second: int


def word_f1(systems: Sequence[Text], references: References) -> list[Bucket]:
    """Return the F1 of words by their frequency in the references; others do not count.

    Of several references of a sentence, each system is measured against the one that it shares the
    most words with (the first of ties).
    """
    frequency = Counter(word for row in references for word in chain.from_iterable(row))
    empty = [[0, 0, 0] for _ in FREQUENCIES]
    counts = [[list(row) for row in empty] for _ in systems]
    sizes = [[0] for _ in FREQUENCIES]

    def add(words: Counter[str], found: list[list[int]], place: int) -> None:
        for word, number in words.items():
            if frequency[word]:
                found[bisect_right(FREQUENCIES, frequency[word]) - 1][place] += number

    for i, row in enumerate(references):
        bags = [Counter(reference) for reference in row]
        add(bags[0], sizes, 0)
        for system, found in zip(systems, counts, strict=True):
            bag = Counter(system[i])
            nearest = max(bags, key=lambda other: (bag & other).total())
            for place, words in enumerate((bag & nearest, bag, nearest)):
                add(words, found, place)
    return [
        Bucket(_range(FREQUENCIES, b), sizes[b][0], [_f1(*found[b]) for found in counts])
        for b in range(len(FREQUENCIES))
        if sizes[b][0] or any(found[b][1] for found in counts)
    ]


def _f1(matches: int, output: int, reference: int) -> float:
    return 200 * matches / (output + reference) if output + reference else 0.0


def _range(begins: Sequence[int], b: int) -> str:
    if b + 1 == len(begins):
        return f"{begins[b]} or more"
    last = begins[b + 1] - 1
    return str(last) if begins[b] == last else f"{begins[b]}-{last}"


class SentenceScores:
    """BLEU's statistics of each sentence of some systems.

    Parameters
    ----------
    systems : mapping of str to sequence of str
        Translations, one a sentence.
    references : sequence of sequence of str
        ``references[i]``: those of sentence i.
    tokenize, lowercase
        As for `torchtune_smt.metrics.corpus.corpus_bleu`.
    """

    def __init__(
        self,
        systems: Mapping[str, Sequence[str]],
        references: Sequence[Sequence[str]],
        *,
        tokenize: str = "none",
        lowercase: bool = False,
    ) -> None:
        extractor = StatisticsExtractor("bleu", references, tokenize=tokenize, lowercase=lowercase)
        self._rows = {name: extractor.extract(lines).rows for name, lines in systems.items()}

    def gains(self, system: str) -> Float64:
        """Return BLEU+1 of each sentence (float64 [n], 0..100)."""
        rows = self._rows[system]
        # As `BleuReferences.statistics` has them.
        counts = rows[:, [*range(2, 10), 0, 1]].astype(np.int64)
        return 100 * BleuPlusOne().score(counts)

    def by_length(self, lengths: Sequence[int]) -> list[Bucket]:
        """Return corpus BLEU of the sentences whose lengths are alike.

        Parameters
        ----------
        lengths : sequence of int
            Of each sentence, such as of its first reference.
        """
        bucket = np.searchsorted(LENGTHS, lengths, side="right") - 1
        found = []
        for b in np.unique(bucket).tolist():
            inside = bucket == b
            sums = [rows[inside].sum(axis=0) for rows in self._rows.values()]
            scores = [float(bleu_scores(s)) for s in sums]
            found.append(Bucket(_range(LENGTHS, b), int(inside.sum()), scores))
        return found


def extremes(differences: Float64, number: int) -> tuple[list[int], list[int]]:
    """Return the sentences with the largest and with the smallest differences, none of them 0."""
    order: Int64 = np.argsort(-differences, kind="stable")
    best = [i for i in order[:number].tolist() if differences[i] > 0]
    worst = [i for i in order[::-1][:number].tolist() if differences[i] < 0]
    return best, worst


def ngram_differences(
    first: Text, second: Text, references: References, number: int = 15
) -> tuple[list[NgramDifference], list[NgramDifference]]:
    """Return the n-grams (n = 1..4) that the first system gets more often, and those the second.

    They are ranked by the ratio of matches, one added to each (as compare-mt does), then by their
    number and length.
    """
    ours, theirs = _matches(first, references), _matches(second, references)

    def ranked(a: Counter[Ngram], b: Counter[Ngram]) -> list[Ngram]:
        more = [ngram for ngram in a if a[ngram] > b[ngram]]
        more.sort(key=lambda g: (-(a[g] + 1) / (a[g] + b[g] + 2), -a[g], -len(g), g))
        return more[:number]

    def described(ngrams: list[Ngram]) -> list[NgramDifference]:
        return [NgramDifference(" ".join(g), ours[g], theirs[g]) for g in ngrams]

    return described(ranked(ours, theirs)), described(ranked(theirs, ours))


def _matches(system: Text, references: References) -> Counter[Ngram]:
    found: Counter[Ngram] = Counter()
    for words, row in zip(system, references, strict=True):
        allowed: Counter[Ngram] = Counter()
        for reference in row:
            allowed |= _ngrams(reference)
        found.update(_ngrams(words) & allowed)
    return found


def _ngrams(words: Sequence[str]) -> Counter[Ngram]:
    return Counter(
        tuple(words[i : i + n]) for n in range(1, ORDER + 1) for i in range(len(words) - n + 1)
    )


class Piece(NamedTuple):
    """A part of two sentences that are aligned with each other: the same words, or others."""

    same: bool
    first: list[str]
    second: list[str]


def align(first: Sequence[str], second: Sequence[str]) -> list[Piece]:
    """Return two sentences in pieces that are equal in turn and differ."""
    matcher = SequenceMatcher(None, first, second, autojunk=False)
    return [
        Piece(tag == "equal", list(first[a:b]), list(second[c:d]))
        for tag, a, b, c, d in matcher.get_opcodes()
    ]

"""Where translations differ: words by frequency, sentences by length, n-grams, single sentences.

What compare-mt shows (Neubig et al. 2019), for any number of references; and the order of words
(Green et al. 2013, section 5.3).
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from difflib import SequenceMatcher
from itertools import chain
from typing import Final, Literal, NamedTuple

import numpy as np

from torchtune_smt.core.arrays import Float64, Int64
from torchtune_smt.metrics.bleu import BleuPlusOne
from torchtune_smt.metrics.corpus import StatisticsExtractor, bleu_scores

Text = Sequence[Sequence[str]]
"""Sentences as words."""

References = Sequence[Text]
"""The references of each sentence, as words."""

Words = Sequence[str]
Ngram = tuple[str, ...]
Segment = tuple[list[str], list[str]]
"""The same words, as one translation has them, and the other in another order."""
Order = Literal["first", "second", "both", "neither"]
ORDERS: Final[tuple[Order, ...]] = ("first", "second", "both", "neither")

# The least frequency, or length, of each bucket.
FREQUENCIES: Final = (1, 2, 3, 4, 5, 10, 100, 1000)
LENGTHS: Final = (0, 10, 20, 30, 40, 50, 60)
ORDER: Final = 4


class Bucket(NamedTuple):
    """Words of the references, or sentences, of a kind (such as ``5-9``); scores are 0..100."""

    name: str
    size: int
    scores: list[float]


class NgramDifference(NamedTuple):
    """An n-gram and its matches in two systems, in a sentence as many as its references have."""

    words: str
    first: int
    second: int


def word_f1(systems: Sequence[Text], references: References) -> list[Bucket]:
    """Return the F1 of words by their frequency in the references; others do not count.

    Of several references of a sentence, each system is measured against the one that it shares the
    most words with (the first of ties).
    """
    frequency = Counter(word for row in references for word in chain.from_iterable(row))
    bucket = {word: bisect_right(FREQUENCIES, n) - 1 for word, n in frequency.items()}

    def by_bucket(words: Counter[str]) -> Int64:
        known = [(bucket[word], number) for word, number in words.items() if word in bucket]
        places, numbers = zip(*known, strict=True) if known else ((), ())
        return np.bincount(places, numbers, len(FREQUENCIES)).astype(np.int64)

    # Matches, words of the output, and of the reference.
    counts = np.zeros((len(systems), 3, len(FREQUENCIES)), np.int64)
    sizes = np.zeros(len(FREQUENCIES), np.int64)
    for i, row in enumerate(references):
        bags = [Counter(reference) for reference in row]
        sizes += by_bucket(bags[0])
        for system, found in zip(systems, counts, strict=True):
            bag = Counter(system[i])
            nearest = max(bags, key=lambda other: (bag & other).total())
            found += [by_bucket(words) for words in (bag & nearest, bag, nearest)]
    scores = 200 * counts[:, 0] / np.maximum(counts[:, 1] + counts[:, 2], 1)
    return [
        Bucket(_range(FREQUENCIES, b), int(sizes[b]), scores[:, b].tolist())
        for b in np.flatnonzero(sizes + counts[:, 1].sum(axis=0)).tolist()
    ]


def _range(begins: Sequence[int], b: int) -> str:
    if b + 1 == len(begins):
        return f"{begins[b]} or more"
    last = begins[b + 1] - 1
    return str(last) if begins[b] == last else f"{begins[b]}-{last}"


class SentenceScores:
    """BLEU's statistics of each sentence of some systems; arguments are those of `corpus_bleu`."""

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
        return 100 * BleuPlusOne().score(self._rows[system].astype(np.int64))

    def by_length(self, lengths: Sequence[int]) -> list[Bucket]:
        """Return corpus BLEU of the sentences whose lengths (of first references) are alike."""
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

    They are ranked by the ratio of matches, one added to each (compare-mt), number and length.
    """
    ours, theirs = _matches(first, references), _matches(second, references)

    def ranked(a: Counter[Ngram], b: Counter[Ngram]) -> list[NgramDifference]:
        more = [ngram for ngram in a if a[ngram] > b[ngram]]
        more.sort(key=lambda g: (-(a[g] + 1) / (a[g] + b[g] + 2), -a[g], -len(g), g))
        return [NgramDifference(" ".join(g), ours[g], theirs[g]) for g in more[:number]]

    return ranked(ours, theirs), ranked(theirs, ours)


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


def align(first: Words, second: Words) -> list[tuple[bool, list[str], list[str]]]:
    """Return two sentences in pieces: whether they are equal there, and the words of either."""
    matcher = SequenceMatcher(None, first, second, autojunk=False)
    return [
        (tag == "equal", list(first[a:b]), list(second[c:d]))
        for tag, a, b, c, d in matcher.get_opcodes()
    ]


def segments(first: Words, second: Words) -> list[Segment]:
    """Return where two translations have the same words in another order.

    Words are linked with their likes: first those of a longest common subsequence, then those that
    are left, in their order. A segment is the shortest stretch that holds all words from which, and
    into which, a link crosses another; words without a link are left out of it.

    There is a segment if and only if the translations share more words than a longest common
    subsequence of theirs has.
    """
    links = _links(first, second)
    # The place of each linked word of the first among those of the second.
    place = {j: n for n, (_, j) in enumerate(sorted(links, key=lambda link: link[1]))}
    found = []
    begin, furthest = 0, -1
    for n, (_, j) in enumerate(links):
        furthest = max(furthest, place[j])
        # All links so far lead to the words so far.
        if furthest == n:
            if n > begin:
                inside = links[begin : n + 1]
                ours = [first[i] for i, _ in inside]
                theirs = [second[j] for j in sorted(j for _, j in inside)]
                found.append((ours, theirs))
            begin = n + 1
    return found


def _links(first: Words, second: Words) -> list[tuple[int, int]]:
    links = _common_subsequence(first, second)
    free: dict[str, list[int]] = {}
    taken = {j for _, j in links}
    for j in range(len(second) - 1, -1, -1):
        if j not in taken:
            free.setdefault(second[j], []).append(j)
    ours = {i for i, _ in links}
    for i, word in enumerate(first):
        if i not in ours and free.get(word):
            links.append((i, free[word].pop()))
    return sorted(links)


def _common_subsequence(first: Words, second: Words) -> list[tuple[int, int]]:
    """Return the positions of a longest common subsequence; O(nm) for n and m words."""
    # length[i][j]: of the words from i and from j on.
    length = [[0] * (len(second) + 1) for _ in range(len(first) + 1)]
    for i in range(len(first) - 1, -1, -1):
        row, below = length[i], length[i + 1]
        for j in range(len(second) - 1, -1, -1):
            same = first[i] == second[j]
            row[j] = below[j + 1] + 1 if same else max(below[j], row[j + 1])
    links = []
    i = j = 0
    while i < len(first) and j < len(second):
        if first[i] == second[j]:
            links.append((i, j))
            i, j = i + 1, j + 1
        elif length[i + 1][j] >= length[i][j + 1]:
            i += 1
        else:
            j += 1
    return links


def reference_order(segment: Segment, references: Sequence[Words]) -> Order:
    """Return whose order a reference has.

    A reference has an order of words if these stand in it, with or without others between them.
    Words that it does not have at all do not count; without them the orders must still differ.
    Of several references, each may have another one.
    """
    has = {"first": False, "second": False}
    for reference in references:
        known = set(reference)
        ours, theirs = ([word for word in side if word in known] for side in segment)
        if ours != theirs:
            has["first"] |= _within(ours, reference)
            has["second"] |= _within(theirs, reference)
    if has["first"]:
        return "both" if has["second"] else "first"
    return "second" if has["second"] else "neither"


def _within(words: Words, sentence: Words) -> bool:
    rest = iter(sentence)
    return all(word in rest for word in words)

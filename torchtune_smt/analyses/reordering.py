"""Where two translations have the same words in another order (Green et al. 2013, section 5.3)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, NamedTuple

Words = Sequence[str]
Order = Literal["first", "second", "both", "neither"]
ORDERS: Final[tuple[Order, ...]] = ("first", "second", "both", "neither")


class Segment(NamedTuple):
    """The same words in two translations, in another order.

    Attributes
    ----------
    first, second : list of str
        The words, as the one translation has them and as the other.
    """

    first: list[str]
    second: list[str]


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
                found.append(Segment(ours, theirs))
            begin = n + 1
    return found


def _links(first: Words, second: Words) -> list[tuple[int, int]]:
    """Return the positions of words that are linked, ascending in the first translation."""
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
    """Return whether words stand in a sentence in their order."""
    rest = iter(sentence)
    return all(word in rest for word in words)

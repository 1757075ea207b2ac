"""Translation edit rate: edit distance with shifts of blocks, as sacrebleu and Tercom find them.

The greedy search of Snover et al. (2006), "A study of translation edit rate with targeted human
annotation", within sacrebleu's bounds: each round makes the shift of words that the reference has
elsewhere which lowers the edit distance most, until none does.
"""

from __future__ import annotations

import math

import numpy as np

from torchtune_smt.core.arrays import Int32, Int64
from torchtune_smt.core.compiled import inner, kernel

SIZE, DISTANCE, BEAM, CANDIDATES = 10, 50, 25, 1000
INFINITE = 1 << 30
NONE, SAME, SUBSTITUTE, DELETE, INSERT = 0, 1, 2, 3, 4


@inner
def fill(cost: Int32, operation: Int32, first: int, hypothesis: Int32, reference: Int32) -> int:
    """Fill the rows from `first` on of the matrix of edit distances; return the last entry.

    Only entries near the diagonal are looked at. Of equal operations, the first of same or
    substitute, delete (a word of the hypothesis), insert is taken.

    cost, operation (int32 [len(hypothesis) + 1, len(reference) + 1]): row 0 is filled.
    """
    n, m = hypothesis.size, reference.size
    ratio = m / n if n > 0 else 1.0
    beam = math.ceil(ratio / 2 + BEAM) if BEAM < ratio / 2 else BEAM
    for i in range(first, n + 1):
        diagonal = math.floor(i * ratio)
        low, high = max(0, diagonal - beam), min(m + 1, diagonal + beam)
        if i == n:
            high = m + 1
        cost[i, :] = INFINITE
        operation[i, :] = NONE
        for j in range(low, high):
            if j == 0:
                cost[i, j], operation[i, j] = cost[i - 1, j] + 1, DELETE
                continue
            best, what = INFINITE, NONE
            same = hypothesis[i - 1] == reference[j - 1]
            value = cost[i - 1, j - 1] + (0 if same else 1)
            if value < best:
                best, what = value, SAME if same else SUBSTITUTE
            value = cost[i - 1, j] + 1
            if value < best:
                best, what = value, DELETE
            value = cost[i, j - 1] + 1
            if value < best:
                best, what = value, INSERT
            cost[i, j], operation[i, j] = best, what
    return int(cost[n, m])


@inner
def trace(operation: Int32, align: Int64, wrong_reference: Int32, wrong_hypothesis: Int32) -> None:
    """Write which word of the hypothesis each of the reference belongs to, and which are wrong.

    align (int64 [len(reference)]): the last word of the hypothesis at or before it, -1 for none.
    wrong_reference, wrong_hypothesis (int32 [length + 1]): the number of wrong words before each.
    """
    i, j = operation.shape[0] - 1, operation.shape[1] - 1
    wrong_reference[:] = 0
    wrong_hypothesis[:] = 0
    while i > 0 or j > 0:
        what = operation[i, j]
        wrong = 0 if what == SAME else 1
        if what == DELETE:
            wrong_hypothesis[i] = wrong
            i -= 1
            continue
        align[j - 1] = i - 1
        wrong_reference[j] = wrong
        if what != INSERT:
            wrong_hypothesis[i] = wrong
            i -= 1
        j -= 1
    for k in range(1, wrong_reference.size):
        wrong_reference[k] += wrong_reference[k - 1]
    for k in range(1, wrong_hypothesis.size):
        wrong_hypothesis[k] += wrong_hypothesis[k - 1]


@inner
def shift(words: Int32, start: int, length: int, target: int, out: Int32) -> int:
    """Write the words with a block moved before another word; return the first that is another.

    A target within the block is so many words behind it.
    """
    place = target if target < start else max(target - length, start)
    if start <= target <= start + length:
        place = min(target, words.size - length)
    k = 0
    for i in range(words.size):
        if i < start or i >= start + length:
            if k == place:
                k += length
            out[k] = words[i]
            k += 1
    for i in range(length):
        out[place + i] = words[start + i]
    return min(start, place)


@kernel
def edits(hypothesis: Int32, reference: Int32) -> int:
    """Return the least number of edits and shifts that is found."""
    n, m = hypothesis.size, reference.size
    if m == 0:
        return n
    cost, operation = np.empty((n + 1, m + 1), np.int32), np.empty((n + 1, m + 1), np.int32)
    for j in range(m + 1):
        cost[0, j], operation[0, j] = j, INSERT
    other, unused = cost.copy(), operation.copy()
    align = np.empty(m, np.int64)
    wrong_reference, wrong_hypothesis = np.empty(m + 1, np.int32), np.empty(n + 1, np.int32)
    words, tried, best_words = hypothesis.copy(), np.empty(n, np.int32), np.empty(n, np.int32)
    shifts, candidates = 0, 0
    while True:
        before = fill(cost, operation, 1, words, reference)
        trace(operation, align, wrong_reference, wrong_hypothesis)
        found, best = False, (0, 0, 0, 0)
        for start in range(n):
            for at in range(m):
                if abs(at - start) > DISTANCE:
                    continue
                length = 0
                while (
                    length < SIZE
                    and start + length < n
                    and at + length < m
                    and words[start + length] == reference[at + length]
                ):
                    length += 1
                    # The block must be wrong where it is, and what it goes to, too.
                    if (
                        wrong_hypothesis[start + length] == wrong_hypothesis[start]
                        or wrong_reference[at + length] == wrong_reference[at]
                        or start <= align[at] < start + length
                    ):
                        continue
                    previous = -1
                    for offset in range(-1, length):
                        target = 0 if at + offset == -1 else align[at + offset] + 1
                        if target == previous:
                            continue
                        previous = target
                        first = shift(words, start, length, target, tried)
                        # Rows of the words before are those of the words as they were.
                        other[: first + 1] = cost[: first + 1]
                        after = fill(other, unused, first + 1, tried, reference)
                        rank = (before - after, length, -start, -target)
                        candidates += 1
                        if not found or rank > best:
                            found, best = True, rank
                            best_words[:] = tried
                    if candidates >= CANDIDATES:
                        break
                if candidates >= CANDIDATES:
                    break
            if candidates >= CANDIDATES:
                break
        if candidates >= CANDIDATES or not found or best[0] <= 0:
            break
        shifts += 1
        words[:] = best_words
    return shifts + before


@kernel
def least_edits(reference_begin: Int64, references: Int32, begin: Int64, tokens: Int32) -> Int64:
    """Return for each hypothesis [k] the fewest edits to any reference."""
    found = np.empty(begin.size - 1, np.int64)
    for h in range(begin.size - 1):
        least = INFINITE
        for r in range(reference_begin.size - 1):
            reference = references[reference_begin[r] : reference_begin[r + 1]]
            least = min(least, edits(tokens[begin[h] : begin[h + 1]], reference))
        found[h] = least
    return found

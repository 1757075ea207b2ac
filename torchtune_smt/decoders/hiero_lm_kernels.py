"""The language model in a chart: scores of strings whose left context is not known yet.

A string under construction is described by (left, full, right, log10 score):

left
    Node of its first words: of as many as would be scored anew if words stood before them.
full
    1 if the string goes on behind `left`, or no longer n-gram can begin with more words before
    `left`: behind it only back-offs of longer contexts are still to be paid.
right
    Right-minimised context after its last word, as the nodes' ``state`` has it.

All three are nodes of the model or one bit, so two strings with equal (left, full, right) can
never be told apart by words around them: recombination on this triple is exact.
"""

from __future__ import annotations

from torchtune_smt.core.arrays import Int32, Records
from torchtune_smt.core.compiled import inner
from torchtune_smt.lm.kernels import match

LEFT, FULL, RIGHT = 0, 1, 2  # columns of an array of strings


@inner
def add_word(
    table: Records, nodes: Records, left: int, full: int, right: int, score: float, word: int
) -> tuple[int, int, int, float]:
    """Append a word to a string (left, full, right, score)."""
    p, node = match(table, nodes, right, word)
    if full == 0:
        if nodes[node].length == nodes[left].length + 1 and nodes[node].extends_left:
            left = node
        else:
            full = 1
    right = nodes[node].state
    if full == 0 and right != left:
        full = 1
    return left, full, right, score + p


@inner
def add_string(
    table: Records,
    nodes: Records,
    left: int,
    full: int,
    right: int,
    score: float,
    strings: Int32,
    which: int,
) -> tuple[int, int, int, float]:
    """Append row `which` of `strings` to a string; `score` takes the change of its own score.

    The first words of the second string are scored again in the context of the first, until
    that context no longer reaches across the seam.
    """
    next_left, next_full = strings[which, LEFT], strings[which, FULL]
    next_right = strings[which, RIGHT]
    if right == 0:
        # Nothing before the seam matters to what stands behind it.
        if full == 0 and left == 0:
            return next_left, next_full, next_right, score
        if next_left == 0 and next_full == 0:
            return left, full, right, score
        return left, 1, next_right, score
    n = nodes[next_left].length
    for k in range(1, n + 1):
        node = next_left
        for _ in range(n - k):
            node = nodes[node].prefix
        word = nodes[node].word
        left, full, right, p = add_word(table, nodes, left, full, right, 0.0, word)
        score += p - nodes[node].prob
        if nodes[right].length <= k:
            return left, 1, next_right, score
    if next_full == 1:
        score += nodes[right].backoff_sum - nodes[next_left].backoff_sum
        return left, 1, next_right, score
    return left, full, right, score

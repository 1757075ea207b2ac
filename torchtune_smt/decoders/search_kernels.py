"""What both searches do alike: the language model of strings, the hypergraph, cube pruning's queue.

A string whose left context is not known yet is described by (left, full, right, log10 score):

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

from typing import NamedTuple

import numpy as np

from torchtune_smt.core.arrays import Float64, Int32, Int64
from torchtune_smt.core.compiled import inlined, inner, kernel
from torchtune_smt.core.sequences_kernels import table_size
from torchtune_smt.lm.kernels import Asked, recall


@inner
def heap_push(keys: Float64, values: Int32, first: int, size: int, key: float, value: int) -> None:
    """Add (key, value) to the heap of `size` entries that begins at `first`; there is room."""
    k = size
    while k > 0:
        parent = (k - 1) >> 1
        if keys[first + parent] >= key:
            break
        keys[first + k] = keys[first + parent]
        values[first + k] = values[first + parent]
        k = parent
    keys[first + k] = key
    values[first + k] = value


@inner
def heap_pop(keys: Float64, values: Int32, first: int, size: int) -> int:
    """Take the greatest entry out of a heap of `size` entries and return its value."""
    top: int = values[first]
    last = size - 1
    key = keys[first + last]
    value = values[first + last]
    k = 0
    while True:
        child = 2 * k + 1
        if child >= last:
            break
        if child + 1 < last and keys[first + child + 1] > keys[first + child]:
            child += 1
        if keys[first + child] <= key:
            break
        keys[first + k] = keys[first + child]
        values[first + k] = values[first + child]
        k = child
    keys[first + k] = key
    values[first + k] = value
    return top


LEFT, FULL, RIGHT = 0, 1, 2  # columns of an array of strings


@inlined
def _left_of(lm: Asked, place: np.uint64, left: int, full: int) -> tuple[int, int]:
    """Return (left, full) of a string behind which a word stands that was recalled."""
    word = lm.memo[place]
    if full == 0:
        if word.length == lm.nodes[left].length + 1 and word.extends_left:
            left = word.node
        else:
            full = 1
        if word.state != left:
            full = 1
    return left, full


@inner
def add_word(
    lm: Asked, left: int, full: int, right: int, score: float, word: int
) -> tuple[int, int, int, float]:
    """Append a word to a string (left, full, right, score)."""
    place = recall(lm, right, word)
    left, full = _left_of(lm, place, left, full)
    return left, full, lm.memo[place].state, score + lm.memo[place].logp


@inner
def add_string(
    lm: Asked, left: int, full: int, right: int, score: float, strings: Int32, which: int
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
    nodes, memo = lm.nodes, lm.memo
    n = nodes[next_left].length
    for k in range(1, n + 1):
        node = next_left
        for _ in range(n - k):
            node = nodes[node].prefix
        place = recall(lm, right, nodes[node].word)
        left, full = _left_of(lm, place, left, full)
        score += memo[place].logp - nodes[node].prob
        right = memo[place].state
        if memo[place].reach <= k:
            return left, 1, next_right, score
    if next_full == 1:
        score += nodes[right].backoff_sum - nodes[next_left].backoff_sum
        return left, 1, next_right, score
    return left, full, right, score


# Rules of the glue grammar, as an edge's rule.
GLUE_FIRST = -1  # S -> X
GLUE_NEXT = -2  # S -> S X
GOAL = -3  # the sentence between <s> and </s>

# Columns of `Chart.item` and of `Chart.edge`.
EDGE = 3  # behind LEFT, FULL and RIGHT
RULE, CHILD1, CHILD2, NEXT = 0, 1, 2, 3


class Rules(NamedTuple):
    """The scored rules of one sentence.

    order (int32 [rules]): the rules of trie node v, best first: ``order[rule_begin[v]:rule_begin[v
        + 1]]``.
    state (int32 [rules, 4]): the string before the first gap (left, full, right), and where it ends
        in the target side.
    score (float64 [rules, 2]): W·features of the rule, the language model left out; log10
        probability of the string before the first gap.
    lm_weight: of log10 probabilities.
    """

    order: Int32
    state: Int32
    score: Float64
    lm_weight: float


class Chart(NamedTuple):
    """A hypergraph: items (partial translations of equal language model state) and their edges.

    item (int32 [items, 4]): state of an item (left, full, right; see the module) and its latest
        edge.
    best (float64 [items]): score of its best derivation.
    edge (int32 [edges, 4]): rule of the sentence or of the glue grammar, two children (items, -1
        where there is none), and the item's next edge (-1 ends the list).
    edge_score (float64 [edges, 2]): score that the edge adds to its children's, and the log10
        probability in it.
    goal: the item of the whole sentence, the last one.
    """

    item: Int32
    best: Float64
    edge: Int32
    edge_score: Float64
    goal: int


class Queue(NamedTuple):
    """The candidates of one cell or stack, and the heap of those that wait.

    cand (int32 [room, columns])
    score (float64 [room, scores]): what a search keeps of a candidate.
    key (float64 [room])
    value (int32 [room]): the heap; see `heap_push`.
    slots (int64 [slots, 2]): a hash table of (stamp, item); a slot is free unless it has the stamp
        of the cell or stack.
    """

    cand: Int32
    score: Float64
    key: Float64
    value: Int32
    slots: Int64


@kernel
def new_chart(items: int, edges: int) -> Chart:
    """Return a chart with room for so much."""
    return Chart(
        np.empty((items, 4), np.int32),
        np.empty(items, np.float64),
        np.empty((edges, 4), np.int32),
        np.empty((edges, 2), np.float64),
        -1,
    )


@kernel
def new_queue(room: int, columns: int, scores: int, items: int) -> Queue:
    """Return an empty queue with room for so many candidates and items."""
    return Queue(
        np.empty((room, columns), np.int32),
        np.empty((room, scores), np.float64),
        np.empty(room, np.float64),
        np.empty(room, np.int32),
        np.zeros((table_size(items), 2), np.int64),
    )


@inner
def recombined(slots: Int64, stamp: int, rows: Int32, columns: int, new: int) -> int:
    """Return the row that has the first columns of row `new`: it is put in where none is alike.

    slots, stamp: see `Queue`.
    """
    code = np.uint64(0)
    for c in range(columns):
        code = (code ^ np.uint64(rows[new, c])) * np.uint64(0x9E3779B97F4A7C15)
        code ^= code >> np.uint64(32)
    mask = np.uint64(slots.shape[0] - 1)
    slot = code & mask
    while slots[slot, 0] == stamp:
        row: int = slots[slot, 1]
        c = 0
        while c < columns and rows[row, c] == rows[new, c]:
            c += 1
        if c == columns:
            return row
        slot = (slot + np.uint64(1)) & mask
    slots[slot, 0], slots[slot, 1] = stamp, new
    return new


@inlined
def push(queue: Queue, waiting: int, score: float, candidate: int) -> int:
    """Queue a candidate; return how many wait then."""
    heap_push(queue.key, queue.value, 0, waiting, score, candidate)
    return waiting + 1


@inlined
def add_edge(
    chart: Chart, edges: int, z: int, rule: int, child1: int, child2: int, score: float, p: float
) -> int:
    """Write an edge of item `z`; return the new number of edges."""
    item, edge, edge_score = chart.item, chart.edge, chart.edge_score
    edge[edges, RULE], edge[edges, CHILD1], edge[edges, CHILD2] = rule, child1, child2
    edge[edges, NEXT] = item[z, EDGE]
    edge_score[edges, 0], edge_score[edges, 1] = score, p
    item[z, EDGE] = edges
    return edges + 1

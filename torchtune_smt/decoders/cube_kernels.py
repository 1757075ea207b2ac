"""What both searches do alike: the hypergraph that they write, and the queue of cube pruning."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from torchtune_smt.core.arrays import Float64, Int32, Int64
from torchtune_smt.core.compiled import inlined, kernel
from torchtune_smt.core.sequences_kernels import table_size
from torchtune_smt.decoders.heap_kernels import heap_push

# Rules of the glue grammar, as an edge's rule.
GLUE_FIRST = -1  # S -> X
GLUE_NEXT = -2  # S -> S X
GOAL = -3  # the sentence between <s> and </s>

# Columns of `Chart.item` and of `Chart.edge`.
EDGE = 3  # behind LEFT, FULL and RIGHT
RULE, CHILD1, CHILD2, NEXT = 0, 1, 2, 3


class Chart(NamedTuple):
    """A hypergraph: items (partial translations of equal language model state) and their edges.

    Attributes
    ----------
    item : int32 [items, 4]
        State of an item (left, full, right; see `hiero_lm_kernels`) and its latest edge.
    best : float64 [items]
        Score of its best derivation.
    edge : int32 [edges, 4]
        Rule of the sentence or of the glue grammar, two children (items, -1 where there is none),
        and the item's next edge (-1 ends the list).
    edge_score : float64 [edges, 2]
        Score that the edge adds to its children's, and the log10 probability in it.
    goal : int
        The item of the whole sentence, the last one.
    """

    item: Int32
    best: Float64
    edge: Int32
    edge_score: Float64
    goal: int


class Queue(NamedTuple):
    """The candidates of one cell or stack, and the heap of those that wait.

    Attributes
    ----------
    cand : int32 [room, columns]
    score : float64 [room, scores]
        What a search keeps of a candidate.
    key : float64 [room]
    value : int32 [room]
        The heap; see `heap_kernels`.
    """

    cand: Int32
    score: Float64
    key: Float64
    value: Int32


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
def new_queue(room: int, columns: int, scores: int) -> Queue:
    """Return an empty queue with room for so many candidates."""
    return Queue(
        np.empty((room, columns), np.int32),
        np.empty((room, scores), np.float64),
        np.empty(room, np.float64),
        np.empty(room, np.int32),
    )


@kernel
def new_slots(items: int) -> Int64:
    """Return a hash table for the items of a cell or stack: int64 (stamp, item) [slots, 2].

    A slot is free unless it has the stamp of the cell or stack.
    """
    return np.zeros((table_size(items), 2), np.int64)


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

"""Kernels of lazy k-best derivations of a hypergraph, and of their features.

Huang & Chiang (2005), algorithm 3. A derivation of an item is (edge, rank 1, rank 2): the ranks
say which derivation of each child it takes.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from torchtune_smt.core.arrays import Float64, Int32, Int64, UInt64
from torchtune_smt.core.compiled import inner, kernel
from torchtune_smt.core.sequences_kernels import longer
from torchtune_smt.decoders.search_kernels import (
    CHILD1,
    CHILD2,
    EDGE,
    GLUE_NEXT,
    NEXT,
    RULE,
    Chart,
    heap_pop,
    heap_push,
)
from torchtune_smt.decoders.target_kernels import Targets
from torchtune_smt.features.rule_kernels import SentenceFeatures

RANK1, RANK2 = 1, 2  # columns of `Derivations.derivation`, behind the edge

# What the search keeps of an item: its list of derivations and its queue of candidates, each a
# span of a common pool (-1: not opened), the candidate taken off the queue last, and what is
# still to be done with it.
FIRST, COUNT, _ROOM, _QUEUE, _QUEUED, _QUEUE_ROOM, _CURRENT, _TASK = 0, 1, 2, 3, 4, 5, 6, 7
_LIST, _SUCCEED_FIRST, _SUCCEED_SECOND, _EXHAUSTED = 0, 1, 2, 3


class Derivations(NamedTuple):
    """Derivations of the items that the search has looked at.

    derivation (int32 [derivations, 3]): edge, rank 1, rank 2.
    score (float64 [derivations])
    pool: the derivation of rank k of item v is ``pool[item[v, 0] + k]``.
    item (int32 [items, ...]): first place in the pool, number of derivations, and more that the
        search needs.
    """

    derivation: Int32
    score: Float64
    pool: Int32
    item: Int32


class Columns(NamedTuple):
    """Where the dense features stand in a row that depend on more than a rule.

    first_orientation: the first of those of reordering, which end at `own`.
    backward, forward: the first of a direction's orientations; -1 where there is no such direction.
    own: the first of the decoder's own.
    language_model_unit: what one of log10 counts.
    glue, distortion: in decoders that have such a thing.
    """

    first_orientation: int
    backward: int
    forward: int
    own: int
    language_model: int
    language_model_unit: float
    glue: int
    distortion: int


class _Room(NamedTuple):
    """Arrays of the search that may become too short: derivations, lists, queues, and the stack.

    The stack holds pairs (item, rank) that somebody waits for.
    """

    derivation: Int32
    score: Float64
    code: UInt64
    pool: Int32
    queue_key: Float64
    queue_value: Int32
    stack: Int32


@inner
def _search(
    chart: Chart, targets: Targets, unique: bool, room: _Room, item: Int32, used: Int64
) -> bool:
    """Go on with the search until it is finished, or an array is full; return whether it is.

    `used` counts what is used of the derivations, the pool, the queue and the stack. An array that
    is full is found out before anything is changed, so the search can go on with a longer one.
    """
    target_begin, target = targets.begin, targets.target
    chart_item, best, edge, edge_score = chart.item, chart.best, chart.edge, chart.edge_score
    derivation, score, code, pool = room.derivation, room.score, room.code, room.pool
    queue_key, queue_value, stack = room.queue_key, room.queue_value, room.stack
    multiplier = np.uint64(0x9E3779B97F4A7C15)
    while used[3] > 0:
        if used[3] + 2 > stack.shape[0]:
            return False
        top = used[3] - 1
        v = stack[top, 0]
        if item[v, COUNT] > stack[top, 1] or item[v, _TASK] == _EXHAUSTED:
            used[3] -= 1
            continue

        if item[v, FIRST] < 0:
            # Open the item: queue every edge with its children's best derivations.
            d, first, queued, e = used[0], used[2], 0, chart_item[v, EDGE]
            if used[1] + 4 > pool.size:
                return False
            while e >= 0:
                if d == derivation.shape[0] or first + queued + 4 >= queue_key.size:
                    return False
                derivation[d, 0], derivation[d, RANK1], derivation[d, RANK2] = e, 0, 0
                total = edge_score[e, 0]
                if edge[e, CHILD1] >= 0:
                    total += best[edge[e, CHILD1]]
                if edge[e, CHILD2] >= 0:
                    total += best[edge[e, CHILD2]]
                score[d] = total
                heap_push(queue_key, queue_value, first, queued, total, d)
                d += 1
                queued += 1
                e = edge[e, NEXT]
            item[v, FIRST], item[v, _ROOM] = used[1], 4
            item[v, _QUEUE], item[v, _QUEUED], item[v, _QUEUE_ROOM] = first, queued, queued + 4
            used[0], used[1], used[2] = d, used[1] + 4, first + queued + 4

        if item[v, _CURRENT] < 0:
            if item[v, _QUEUED] == 0:
                item[v, _TASK] = _EXHAUSTED
                continue
            item[v, _CURRENT] = heap_pop(queue_key, queue_value, item[v, _QUEUE], item[v, _QUEUED])
            item[v, _QUEUED] -= 1
            item[v, _TASK] = _LIST
        d = item[v, _CURRENT]
        e, rank1, rank2 = derivation[d, 0], derivation[d, RANK1], derivation[d, RANK2]
        rule, c1, c2 = edge[e, RULE], edge[e, CHILD1], edge[e, CHILD2]

        if item[v, _TASK] == _LIST:
            if c1 >= 0 and item[c1, COUNT] <= rank1:
                stack[top + 1, 0], stack[top + 1, 1] = c1, rank1
                used[3] += 1
                continue
            if c2 >= 0 and item[c2, COUNT] <= rank2:
                stack[top + 1, 0], stack[top + 1, 1] = c2, rank2
                used[3] += 1
                continue
            if item[v, COUNT] == item[v, _ROOM]:
                if used[1] + 2 * item[v, _ROOM] > pool.size:
                    return False
                old, first = item[v, FIRST], used[1]
                for m in range(item[v, COUNT]):
                    pool[first + m] = pool[old + m]
                item[v, FIRST] = first
                item[v, _ROOM] *= 2
                used[1] += item[v, _ROOM]
            # The hash of its words tells whether the item has this string already:
            # (hash, multiplier ** length), as strings are put together.
            x = pool[item[c1, FIRST] + rank1] if c1 >= 0 else -1
            y = pool[item[c2, FIRST] + rank2] if c2 >= 0 else -1
            h, power = np.uint64(0), np.uint64(1)
            if rule >= 0:
                for q in range(target_begin[rule], target_begin[rule + 1]):
                    symbol = target[q]
                    if symbol >= 0:
                        letter = np.uint64(symbol + 1) * np.uint64(0xD6E8FEB86659FD93)
                        h = h * multiplier + (letter ^ (letter >> np.uint64(29)))
                        power *= multiplier
                    else:
                        z = x if symbol == -1 else y
                        h = h * code[z, 1] + code[z, 0]
                        power *= code[z, 1]
            else:
                for z in (x, y):
                    if z >= 0:
                        h = h * code[z, 1] + code[z, 0]
                        power *= code[z, 1]
            code[d, 0], code[d, 1] = h, power
            fresh = True
            if unique:
                first = item[v, FIRST]
                for m in range(item[v, COUNT]):
                    z = pool[first + m]
                    if code[z, 0] == h and code[z, 1] == power:
                        fresh = False
                        break
            if fresh:
                pool[item[v, FIRST] + item[v, COUNT]] = d
                item[v, COUNT] += 1
            item[v, _TASK] = _SUCCEED_FIRST
            # What succeeds it, which asks its children for more, waits until the next is wanted.
            continue

        # Queue its successors. Every derivation succeeds one other, so none is queued twice:
        # (rank 1, 0) is followed by the next rank 1, each one by the next rank 2.
        while item[v, _CURRENT] >= 0:
            first_child = item[v, _TASK] == _SUCCEED_FIRST
            c = c1 if first_child else c2
            rank = 1 + (rank1 if first_child else rank2)
            if c >= 0 and (rank2 == 0 or not first_child):
                if item[c, COUNT] <= rank and item[c, _TASK] != _EXHAUSTED:
                    stack[top + 1, 0], stack[top + 1, 1] = c, rank
                    used[3] += 1
                    break
                if item[c, COUNT] > rank:
                    if used[0] == derivation.shape[0]:
                        return False
                    queued, room = item[v, _QUEUED], item[v, _QUEUE_ROOM]
                    if queued == room:
                        if used[2] + 2 * room > queue_key.size:
                            return False
                        old, first = item[v, _QUEUE], used[2]
                        for m in range(queued):
                            queue_key[first + m] = queue_key[old + m]
                            queue_value[first + m] = queue_value[old + m]
                        item[v, _QUEUE], item[v, _QUEUE_ROOM] = first, 2 * room
                        used[2] += 2 * room
                    new = used[0]
                    used[0] += 1
                    derivation[new, 0] = e
                    derivation[new, RANK1] = rank if first_child else rank1
                    derivation[new, RANK2] = 0 if first_child else rank
                    changed = score[pool[item[c, FIRST] + rank]]
                    changed -= score[pool[item[c, FIRST] + rank - 1]]
                    score[new] = score[d] + changed
                    heap_push(queue_key, queue_value, item[v, _QUEUE], queued, score[new], new)
                    item[v, _QUEUED] += 1
            if first_child:
                item[v, _TASK] = _SUCCEED_SECOND
            else:
                item[v, _CURRENT] = -1
    return True


@kernel
def best_derivations(chart: Chart, targets: Targets, k: int, unique: bool) -> Derivations:
    """Return the `k` best derivations of the goal, and those of other items which they use.

    With `unique`, of derivations with equal words every item keeps the best alone, which keeps
    the k best strings exact: a string's best derivation is made of its parts' best ones.
    """
    room = _Room(
        np.empty((4096, 3), np.int32),
        np.empty(4096),
        np.empty((4096, 2), np.uint64),
        np.empty(4096, np.int32),
        np.empty(8192),
        np.empty(8192, np.int32),
        np.empty((256, 2), np.int32),
    )
    item = np.zeros((chart.goal + 1, 8), np.int32)
    item[:, FIRST] = -1
    item[:, _CURRENT] = -1
    room.stack[0, 0], room.stack[0, 1] = chart.goal, k - 1
    used = np.zeros(4, np.int64)
    used[3] = 1
    while not _search(chart, targets, unique, room, item, used):
        room = _Room(
            longer(room.derivation, room.derivation.shape[0] + 1),
            longer(room.score, room.score.size + 1),
            longer(room.code, room.code.shape[0] + 1),
            longer(room.pool, room.pool.size + 1),
            longer(room.queue_key, room.queue_key.size + 1),
            longer(room.queue_value, room.queue_value.size + 1),
            longer(room.stack, room.stack.shape[0] + 1),
        )
    return Derivations(room.derivation, room.score, room.pool, item)


@inner
def _add_row(feature: Int32, begin: int, end: int, fired: Int32, firings: int) -> int:
    """Append a row of sparse features to those that fired; return how many did."""
    for k in range(begin, end):
        fired[firings] = feature[k]
        firings += 1
    return firings


@kernel
def read_off(
    chart: Chart,
    span: Int32,
    derivations: Derivations,
    source_length: int,
    targets: Targets,
    sparse: SentenceFeatures,
    columns: Columns,
) -> tuple[Int64, Int32, Int64, Int32, Float64, Float64]:
    """Return words, features and scores of the goal's derivations, in the form of `KBest`.

    span: of a phrase-based search, see `phrase_search_kernels.search`; else without rows.
    targets: column f of ``dense`` is feature f; what depends on more than a rule is added here.
    """
    edge, edge_score, derivation = chart.edge, chart.edge_score, derivations.derivation
    pool, item = derivations.pool, derivations.item
    target_begin, target, dense = targets.begin, targets.target, targets.dense
    sparse_begin, sparse_feature, rows, sparse_id = sparse
    backward, forward = columns.backward, columns.forward
    by_phrases, orientations = span.shape[0] > 0, (rows - 1) // 2
    first, k = item[chart.goal, FIRST], item[chart.goal, COUNT]
    # Pairs (derivation, next symbol). Every level of a derivation covers fewer words than the one
    # above, or is the glue rule's.
    stack = np.empty((3 * source_length + 8, 2), np.int32)
    token_begin, row_begin = np.zeros(k + 1, np.int64), np.zeros(k + 1, np.int64)
    tokens, fired = np.empty(1024, np.int32), np.empty(64, np.int32)
    feature, value = np.empty(1024, np.int32), np.empty(1024, np.float64)
    score = np.empty(k, np.float64)
    row = np.empty(dense.shape[1], np.float64)
    words, room, entries = 0, 0, 0
    for h in range(k):
        goal = pool[first + h]
        score[h] = derivations.score[goal]
        row[:] = 0.0
        firings, firings_room, end, before = 0, 0, -1, -1
        stack[0, 0], stack[0, 1] = goal, -1
        depth = 1
        while depth > 0:
            d, q = stack[depth - 1, 0], stack[depth - 1, 1]
            e = derivation[d, 0]
            rule = edge[e, RULE]
            opened = q < 0
            if opened:
                q = target_begin[rule] if rule >= 0 else 0
                if rule >= 0:
                    room += target_begin[rule + 1] - target_begin[rule]
                    tokens = longer(tokens, room)
            child = -1
            if rule < 0:
                if q < 2 and edge[e, CHILD1 + q] >= 0:
                    child = q
                q += 1
            else:
                while child < 0 and q < target_begin[rule + 1]:
                    if target[q] >= 0:
                        tokens[words] = target[q]
                        words += 1
                    else:
                        child = -1 - target[q]
                    q += 1
            # Phrases in the order of the translation, others before their parts.
            if child < 0 if by_phrases else opened:
                row[columns.language_model] += columns.language_model_unit * edge_score[e, 1]
                if rule == GLUE_NEXT:
                    row[columns.glue] += 1.0
                if rule >= 0:
                    at = rule * rows
                    firings_room += sparse_begin[at + rows] - sparse_begin[at]
                    fired = longer(fired, firings_room)
                    for f in range(row.size):
                        if not columns.first_orientation <= f < columns.own:
                            row[f] += dense[rule, f]
                    at, to = sparse_begin[at], sparse_begin[at + 1]
                    firings = _add_row(sparse_feature, at, to, fired, firings)
                if rule >= 0 and by_phrases:
                    o, o_before = span[e, 2], span[e, 3]
                    row[columns.distortion] -= abs(span[e, 0] - end - 1)
                    if backward >= 0:
                        row[backward + o] += dense[rule, backward + o]
                    if forward >= 0 and before >= 0:
                        row[forward + o_before] += dense[before, forward + o_before]
                    if rows > 1:
                        at = rule * rows + 1 + o
                        at, to = sparse_begin[at], sparse_begin[at + 1]
                        firings = _add_row(sparse_feature, at, to, fired, firings)
                    if rows > 1 and before >= 0:
                        at = before * rows + 1 + orientations + o_before
                        at, to = sparse_begin[at], sparse_begin[at + 1]
                        firings = _add_row(sparse_feature, at, to, fired, firings)
                    end, before = span[e, 1], rule
            if child < 0:
                depth -= 1
                continue
            stack[depth - 1, 1] = q
            c = edge[e, CHILD1 + child]
            stack[depth, 0] = pool[item[c, FIRST] + derivation[d, RANK1 + child]]
            stack[depth, 1] = -1
            depth += 1
        token_begin[h + 1] = words
        feature = longer(feature, entries + row.size + firings)
        value = longer(value, entries + row.size + firings)
        for f in range(row.size):
            if row[f] != 0.0:
                feature[entries], value[entries] = f, row[f]
                entries += 1
        fired[:firings].sort()
        for s in range(firings):
            if s > 0 and fired[s] == fired[s - 1]:
                value[entries - 1] += 1.0
            else:
                feature[entries], value[entries] = sparse_id[fired[s]], 1.0
                entries += 1
        row_begin[h + 1] = entries
    tokens, feature, value = tokens[:words].copy(), feature[:entries].copy(), value[:entries].copy()
    return token_begin, tokens, row_begin, feature, value, score

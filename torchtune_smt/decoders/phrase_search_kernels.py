"""Kernels of the phrase-based decoder: options, and multi-stack beam search with cube pruning.

An option's sparse features lie in rows (CSR): row ``rule * (1 + 2 c)`` holds those of each use, the
c rows behind it those of its orientations towards what is before it, then as many for its
orientations towards what is behind it; c is 0 where no feature looks at orientations.

Hypotheses of stack t cover t words of the source. The first `GAP` words are all covered, and bit i
of the mask says whether word ``GAP + i`` is: since nothing further than the distortion limit from
the first gap may be covered, 64 bits are enough for sentences of any length.

Inner functions never put another array in the place of one; see `hiero_kernels`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from torchtune_smt.core.arrays import Float64, Int32, Int64, Records, UInt8, UInt64
from torchtune_smt.core.compiled import inlined, inner, kernel
from torchtune_smt.core.sequences_kernels import longer, number_equal, table_size
from torchtune_smt.decoders.search_kernels import (
    EDGE,
    GLUE_FIRST,
    GOAL,
    Chart,
    Queue,
    Rules,
    add_edge,
    add_string,
    add_word,
    heap_pop,
    new_chart,
    new_queue,
    push,
    recombined,
)
from torchtune_smt.features.rule_kernels import SentenceFeatures
from torchtune_smt.grammar.matching_kernels import SentenceGrammar, place
from torchtune_smt.lm.kernels import Asked, asked

WIDEST = 63
"""The largest distortion limit; a larger one, or none, counts as this."""

# Which orientations there are (Moses's names of model types), in the order of a table's columns.
MSD, MSLR, MONOTONICITY, LEFT_RIGHT = range(4)

# Columns of a hypothesis: first gap, what is covered behind it (32 bits each), end of its last
# phrase, its begin where the next phrase may be swapped with it (else `_NO_SWAP`), state of the
# language model, class of the last phrase's forward scores, block on top of its stack (see
# `_push_block`); and, beside that, a rule with such forward scores. Groups have the first four.
_GAP, _LOW, _HIGH, _END, _START, _STATE, _CLASS, _BLOCK, _LAST = range(9)
_FIRST, _BEHIND = 4, 5  # behind them, those of a group's hypotheses: begin, end
_NO_SWAP = -2

# Columns of a cube: hypotheses (begin, end) and options (begin, end), as positions in the orders
# best first, span of the phrase, first gap behind it.
_HYP, _HYP_END, _OPTION, _OPTION_END, _FROM, _TO, _NEXT_GAP = range(7)


class Reordering(NamedTuple):
    """Lexicalised reordering of one sentence's options, under the current weights.

    kind: `MSD` and so on.
    hierarchical: orientation towards blocks of phrases (Galley & Manning 2008), instead of single
        phrases.
    backward, forward (float64 [rules, orientations]): weighted scores of a phrase's orientation
        towards what comes before and behind it; no columns where the model has no such direction.
    forward_class (int32 [rules]): rules of equal forward scores are of one class.
    """

    kind: int
    hierarchical: bool
    backward: Float64
    forward: Float64
    forward_class: Int32


class Options(NamedTuple):
    """What a phrase-based search knows of a sentence's rules beside `Targets`.

    option (int32 [n, longest + 1, 2]): options of `length` words from i on are rules ``option[i,
        length, 0]`` to ``option[i, length, 1] - 1``, best first, once they are sorted.
    forward_class (int32 [rules]): rules are of one class if their orientations towards what is
        behind them have equal scores and sparse features.
    """

    option: Int32
    forward_class: Int32


@kernel
def options_of(
    source: Int32,
    grammar: SentenceGrammar,
    dense: Float64,
    forward: int,
    orientations: int,
    sparse: SentenceFeatures,
    limit: int,
) -> Options:
    """Return the options of a sentence.

    source (int32 [n]): words of the table, -1 where unknown.
    grammar: the sentence's phrases; behind them one rule copies each word.
    dense: of `Targets`.
    forward: the first column of the orientations towards what is behind; -1 if there is none.
    limit: phrases of a source side, at most.
    """
    row_begin, feature, rows, _ = sparse
    child_begin, rule_begin = grammar.child_begin, grammar.rule_begin
    n, all_rules = source.size, dense.shape[0]
    option, longest = np.zeros((n, 8, 2), np.int32), 1
    for i in range(n):
        v = 0
        for j in range(i, n):
            if source[j] < 0:
                break
            at = place(grammar.child_symbol, child_begin[v], child_begin[v + 1], source[j])
            if at < 0:
                break
            v, length = grammar.child_node[at], j - i + 1
            if length >= option.shape[1]:
                more = np.zeros((n, 2 * length, 2), np.int32)
                more[:, :length] = option
                option = more
            longest = max(longest, length)
            first, last = rule_begin[v], rule_begin[v + 1]
            option[i, length, 0], option[i, length, 1] = first, min(last, first + limit)
        if option[i, 1, 0] == option[i, 1, 1]:
            copy = all_rules - n + i
            option[i, 1, 0], option[i, 1, 1] = copy, copy + 1
    option = option[:, : longest + 1].copy()
    # Scores and sparse features of the orientations towards what is behind an option.
    c, most = (rows - 1) // 2, 0
    for k in range(all_rules):
        for row in range(k * rows + 1 + c, (k + 1) * rows):
            most = max(most, row_begin[row + 1] - row_begin[row])
    known = orientations if forward >= 0 else 0
    behind = np.full((all_rules, known + c * most), -1, np.int64)
    if known > 0:
        bits = dense[:, forward : forward + known].copy().view(np.int64)
        for k in range(all_rules):
            for o in range(known):
                behind[k, o] = bits[k, o]
    for k in range(all_rules):
        for o in range(c):
            row = k * rows + 1 + c + o
            for q in range(row_begin[row + 1] - row_begin[row]):
                behind[k, known + o * most + q] = feature[row_begin[row] + q]
    row_ends = np.arange(all_rules + 1) * behind.shape[1]
    return Options(option, number_equal(row_ends, behind.ravel()).astype(np.int32))


@kernel
def weigh_orientations(
    dense: Float64,
    dense_weight: Float64,
    sparse: SentenceFeatures,
    weight: Float64,
    first: int,
    orientations: int,
    offset: int,
) -> Float64:
    """Return what the orientations of each rule in one direction score, float64 [rules, c].

    first: the direction's first dense column, -1 if it has none.
    sparse, weight: sparse features of options; see the module.
    offset: which row of an option is the direction's first one. No sparse features look at
        orientations if an option has one row.
    """
    row_begin, feature, rows, _ = sparse
    n = dense.shape[0]
    score = np.zeros((n, orientations if first >= 0 or rows > 1 else 0))
    for r in range(n):
        for o in range(score.shape[1]):
            if first >= 0:
                score[r, o] = dense[r, first + o] * dense_weight[first + o]
            if rows > 1:
                row = r * rows + offset + o
                for k in range(row_begin[row], row_begin[row + 1]):
                    score[r, o] += weight[feature[k]]
    return score


class _Table(NamedTuple):
    """Groups of hypotheses, or cubes: their columns, what they cover, and scores.

    Those of groups are the estimate of what is not covered, those of cubes (float64 [cubes, 2]) the
    distortion's and that estimate behind the phrase.
    """

    column: Int32
    mask: UInt64
    score: Float64


class _Hypotheses(NamedTuple):
    """Hypotheses: columns, what they cover, the estimate of what they do not, and their order.

    span (int32 [edges, 4]): see `search`.
    block, block_slots: stacks of blocks, and their hash table; see `_push_block`.
    """

    column: Int32
    mask: UInt64
    future: Float64
    ranked: Int32
    span: Int32
    block: Int32
    block_slots: Int64


@inlined
def _bits(length: int) -> np.uint64:
    """Return a mask of as many ones."""
    if length >= 64:
        return ~np.uint64(0)
    return (np.uint64(1) << np.uint64(length)) - np.uint64(1)


@inlined
def _covered(gap: int, mask: np.uint64, position: int) -> bool:
    """Return whether a word of the source is covered."""
    if position < gap:
        return True
    if position - gap >= 64:
        return False
    bit: bool = (mask >> np.uint64(position - gap)) & np.uint64(1) != np.uint64(0)
    return bit


@inlined
def _orientation(kind: int, monotone: bool, swap: bool, right: bool) -> int:
    """Return the column of an orientation; `right` where the phrase stands right of the last."""
    if kind == LEFT_RIGHT:
        return 0 if right else 1
    if monotone:
        return 0
    if kind == MONOTONICITY:
        return 1
    if swap:
        return 1
    return 3 if kind == MSLR and right else 2


@inner
def _towards_before(
    kind: int, hierarchical: bool, block: Int32, hyp: Int32, h: int, first: int, last: int
) -> int:
    """Return the orientation of a phrase towards what was translated just before it.

    block: blocks, for the one on top of the hypothesis' stack.
    hyp, h: the hypothesis, whose `_START` may be `_NO_SWAP`.
    first, last: first and last word of the phrase.
    """
    start, end = hyp[h, _START], hyp[h, _END]
    if hierarchical:
        start, end = block[hyp[h, _BLOCK], 1], block[hyp[h, _BLOCK], 2]
    return _orientation(kind, first == end + 1, last + 1 == start, first > end)


@inner
def _towards_behind(
    kind: int, hierarchical: bool, hyp: Int32, hyp_mask: UInt64, h: int, first: int, last: int
) -> int:
    """Return the orientation of the last phrase of a hypothesis towards what comes behind it.

    The hierarchical one is that of Moses: what lies right behind the phrase in the source and is
    not covered yet belongs to the block that comes next, if that begins on this side.
    """
    start, end, gap, mask = hyp[h, _START], hyp[h, _END], hyp[h, _GAP], hyp_mask[h]
    monotone, swap = first == end + 1, last + 1 == start
    if hierarchical:
        monotone |= first > end and not _covered(gap, mask, end + 1)
        swap |= last < start and not _covered(gap, mask, start - 1)
    return _orientation(kind, monotone, swap, first > end)


@inner
def _push_block(
    block: Int32, blocks: int, slots: Int64, top: int, first: int, last: int
) -> tuple[int, int]:
    """Push a phrase onto a stack of blocks; return the new top and the number of blocks.

    A block is (the one below it, first word, last word): neighbours on the target side that cover
    a span of the source. As in the shift-reduce parser of Galley & Manning (2008), the two on top
    become one as long as one follows the other in the source; four words in the order 2 4 1 3 stay
    apart. Equal stacks have equal tops.
    """
    while top >= 0 and (block[top, 2] + 1 == first or last + 1 == block[top, 1]):
        first, last = min(first, block[top, 1]), max(last, block[top, 2])
        top = block[top, 0]
    block[blocks, 0], block[blocks, 1], block[blocks, 2] = top, first, last
    found = recombined(slots, 1, block, 3, blocks)
    return found, blocks + (found == blocks)


@inner
def _future_between(future: Float64, rest: Float64, begin: int, end: int) -> float:
    """Return the estimated score of the words ``begin..end - 1``."""
    if begin == end:
        return 0.0
    value: float = rest[begin] if end == rest.size - 1 else future[begin, end - begin]
    return value


@inner
def _find_cubes(
    groups: _Table,
    first: int,
    last: int,
    length: int,
    limit: int,
    option: Int32,
    future: Float64,
    rest: Float64,
    distortion_weight: float,
    cubes: _Table,
    n_cubes: int,
) -> int:
    """Write the cubes of phrases of one length on one stack's groups; return the number of cubes.

    Any phrase may begin at the first gap; others must end so near to it that the next phrase can.
    """
    group, group_mask, group_future = groups.column, groups.mask, groups.score
    cube, cube_mask, cube_score = cubes.column, cubes.mask, cubes.score
    n = rest.size - 1
    ones = _bits(length)
    for q in range(first, last):
        gap, mask, end = group[q, _GAP], group_mask[q], group[q, _END]
        for s in range(gap, min(n - length, gap + max(limit - length, 0)) + 1):
            if option[s, length, 0] == option[s, length, 1]:
                continue
            if s > gap and abs(s - end - 1) > limit:
                continue
            if (mask >> np.uint64(s - gap)) & ones != np.uint64(0):
                continue
            # The gap that the phrase goes into.
            a, b = s, s + length
            while a > gap and not _covered(gap, mask, a - 1):
                a -= 1
            if b - gap < 64 and mask >> np.uint64(b - gap) != np.uint64(0):
                while not _covered(gap, mask, b):
                    b += 1
            else:
                b = n
            left = group_future[q] - _future_between(future, rest, a, b)
            left += _future_between(future, rest, a, s)
            left += _future_between(future, rest, s + length, b)
            if s > gap:
                after, gap_after = mask | (ones << np.uint64(s - gap)), gap
            else:
                after = mask >> np.uint64(length) if length < 64 else np.uint64(0)
                gap_after = gap + length
                while after & np.uint64(1) != np.uint64(0):
                    after >>= np.uint64(1)
                    gap_after += 1
            cube[n_cubes, _HYP], cube[n_cubes, _HYP_END] = group[q, _FIRST], group[q, _BEHIND]
            cube[n_cubes, _OPTION] = option[s, length, 0]
            cube[n_cubes, _OPTION_END] = option[s, length, 1]
            cube[n_cubes, _FROM], cube[n_cubes, _TO] = s, s + length - 1
            cube[n_cubes, _NEXT_GAP] = gap_after
            cube_mask[n_cubes] = after
            cube_score[n_cubes, 0] = -distortion_weight * abs(s - end - 1)
            cube_score[n_cubes, 1] = left
            n_cubes += 1
    return n_cubes


@inner
def _fill_stack(
    lm: Asked,
    end_word: int,
    rules: Rules,
    reordering: Reordering,
    pop_limit: int,
    cubes: _Table,
    n_cubes: int,
    queue: Queue,
    stamp: int,
    hyps: _Hypotheses,
    chart: Chart,
    items: int,
    edges: int,
    blocks: int,
) -> tuple[int, int, int]:
    """Fill one stack, the last one with `end_word`, others with -1.

    Returns the new numbers of items, edges and blocks.

    A candidate is (cube, hypothesis, option), the last two as positions in the orders best first.
    Every one has one parent, so none is queued twice: (h, 0) is followed by h + 1, every one by
    the next option. A candidate is queued with the score that its words have by themselves, and,
    when it comes to the top, once more with that which they have where they stand.
    """
    order, rule_state, rule_score, lm_weight = rules
    kind, hierarchical = reordering.kind, reordering.hierarchical
    hyp, hyp_mask, hyp_future, ranked, edge_span, block, block_slots = hyps
    complete = end_word >= 0
    cube, cube_mask, cube_score = cubes.column, cubes.mask, cubes.score
    item, best, cand, cand_score = chart.item, chart.best, queue.cand, queue.score
    backward, forward = reordering.backward, reordering.forward
    backwards, forwards = backward.shape[1] > 0, forward.shape[1] > 0
    cands, heap, pops, parent = 0, 0, -1, -1
    while True:
        # The first round queues the corners of all cubes, the others successors.
        for way in range(n_cubes if pops < 0 else 2):
            if pops < 0:
                u = way
                a, b = cube[u, _HYP], cube[u, _OPTION]
            else:
                u, a, b = cand[parent, 0], cand[parent, 1], cand[parent, 2]
                if way == 0:
                    a += 1
                    if b != cube[u, _OPTION] or a == cube[u, _HYP_END]:
                        continue
                else:
                    b += 1
                    if b == cube[u, _OPTION_END]:
                        continue
            h, r = ranked[a], order[b]
            own = rule_score[r, 0] + cube_score[u, 0]
            before, behind, first, last = 0, 0, cube[u, _FROM], cube[u, _TO]
            if backwards:
                before = _towards_before(kind, hierarchical, block, hyp, h, first, last)
                own += backward[r, before]
            if forwards and hyp[h, _LAST] >= 0:
                behind = _towards_behind(kind, hierarchical, hyp, hyp_mask, h, first, last)
                own += forward[hyp[h, _LAST], behind]
            total = best[h] + own + lm_weight * rule_score[r, 1] + cube_score[u, 1]
            cand[cands, 0], cand[cands, 1], cand[cands, 2] = u, a, b
            cand[cands, 3], cand[cands, 4], cand[cands, 5] = -1, before, behind
            cand_score[cands, 0] = own
            heap = push(queue, heap, total, cands)
            cands += 1
        pops = max(pops, 0)
        if pops == pop_limit:
            return items, edges, blocks

        # The best candidate whose words have been scored where they stand.
        parent = -1
        while heap > 0:
            c = heap_pop(queue.key, queue.value, 0, heap)
            heap -= 1
            if cand[c, 3] >= 0:
                parent = c
                break
            h, r = ranked[cand[c, 1]], order[cand[c, 2]]
            right, p = hyp[h, _STATE], rule_score[r, 1]
            _, _, right, p = add_string(lm, 0, 1, right, p, rule_state, r)
            if complete:
                _, _, right, p = add_word(lm, 0, 1, right, p, end_word)
                right = 0
            cand[c, 3] = right
            cand_score[c, 0] += lm_weight * p
            cand_score[c, 1] = p
            total = best[h] + cand_score[c, 0] + cube_score[cand[c, 0], 1]
            if heap == 0 or total >= queue.key[0]:
                parent = c
                break
            heap = push(queue, heap, total, c)
        if parent < 0:
            return items, edges, blocks
        pops += 1

        # Recombine with the hypothesis of equal state, or make a new one.
        u = cand[parent, 0]
        h, r = ranked[cand[parent, 1]], order[cand[parent, 2]]
        first, last, gap, after = cube[u, _FROM], cube[u, _TO], cube[u, _NEXT_GAP], cube_mask[u]
        right, top, cls, start, end = cand[parent, 3], 0, 0, _NO_SWAP, last
        if complete:
            end = 0
        else:
            if hierarchical and backwards:
                top, blocks = _push_block(block, blocks, block_slots, hyp[h, _BLOCK], first, last)
            if forwards:
                cls = reordering.forward_class[r]
            if (forwards or (backwards and not hierarchical)) and not _covered(
                gap, after, first - 1
            ):
                start = first
        score = best[h] + cand_score[parent, 0]
        hyp[items, _GAP], hyp[items, _END], hyp[items, _START] = gap, end, start
        hyp[items, _LOW], hyp[items, _HIGH] = np.int32(after), np.int32(after >> np.uint64(32))
        hyp[items, _STATE], hyp[items, _CLASS], hyp[items, _BLOCK] = right, cls, top
        z = recombined(queue.slots, stamp, hyp, _LAST, items)
        if z == items:
            items += 1
            hyp[z, _LAST], hyp_mask[z], hyp_future[z] = r, after, cube_score[u, 1]
            item[z, EDGE] = -1
            best[z] = score
        elif score > best[z]:
            best[z] = score
        edge_span[edges, 0], edge_span[edges, 1] = first, last
        edge_span[edges, 2], edge_span[edges, 3] = cand[parent, 4], cand[parent, 5]
        own, p = cand_score[parent, 0], cand_score[parent, 1]
        edges = add_edge(chart, edges, z, r, h, -1, own, p)


@inner
def _group_stack(
    begin: int,
    end: int,
    stack_size: int,
    best: Float64,
    hyps: _Hypotheses,
    sorted_: Int32,
    member: Int32,
    slots: Int64,
    stamp: int,
    groups: _Table,
    n_groups: int,
) -> int:
    """Group the best hypotheses of a stack by what they cover and where their last phrase ends.

    Writes the groups behind the others, and to `ranked` their hypotheses, best first; returns the
    number of groups.
    """
    hyp, hyp_mask, hyp_future, ranked = hyps.column, hyps.mask, hyps.future, hyps.ranked
    group, group_mask, group_future = groups.column, groups.mask, groups.score
    count = end - begin
    # They were made best first, but for those that recombination has made better.
    for i in range(count):
        key = best[begin + i] + hyp_future[begin + i]
        k = i
        while k > 0:
            other = sorted_[k - 1]
            if best[other] + hyp_future[other] >= key:
                break
            sorted_[k] = other
            k -= 1
        sorted_[k] = begin + i
    count = min(count, stack_size)
    first_group = n_groups
    for i in range(count):
        z, q = sorted_[i], n_groups
        for c in range(_FIRST):
            group[q, c] = hyp[z, c]
        q = recombined(slots, stamp, group, _FIRST, n_groups)
        if q == n_groups:
            n_groups += 1
            group[q, _BEHIND] = 0
            group_mask[q], group_future[q] = hyp_mask[z], hyp_future[z]
        group[q, _BEHIND] += 1
        member[i] = q
    at = begin
    for q in range(first_group, n_groups):
        size = group[q, _BEHIND]
        group[q, _FIRST], group[q, _BEHIND] = at, at
        at += size
    for i in range(count):
        q = member[i]
        ranked[group[q, _BEHIND]] = sorted_[i]
        group[q, _BEHIND] += 1
    return n_groups


@kernel
def _estimate(rules: Rules, option: Int32) -> tuple[Float64, Float64]:
    """Return estimated scores of what is not covered yet.

    Returns future (float64 [n, WIDEST + 1]): the best score of `length` words from i on, each
        phrase by itself.
    Returns rest (float64 [n + 1]): that of all words from i on.
    """
    n, longest = option.shape[0], option.shape[1] - 1
    one = np.full((n, longest + 1), -np.inf)
    for i in range(n):
        for length in range(1, min(longest, n - i) + 1):
            if option[i, length, 0] < option[i, length, 1]:
                r = rules.order[option[i, length, 0]]
                one[i, length] = rules.score[r, 0] + rules.lm_weight * rules.score[r, 1]
    widest = min(n, WIDEST)
    future = np.full((n, widest + 1), -np.inf)
    rest = np.full(n + 1, -np.inf)
    rest[n] = 0.0
    for i in range(n - 1, -1, -1):
        for length in range(1, min(longest, n - i) + 1):
            value = one[i, length]
            if value == -np.inf:
                continue
            j = i + length
            rest[i] = max(rest[i], value + rest[j])
            if length <= widest:
                future[i, length] = max(future[i, length], value)
            for more in range(1, min(widest - length, n - j) + 1):
                future[i, length + more] = max(future[i, length + more], value + future[j, more])
    return future, rest


@kernel
def search(
    table: Records,
    nodes: Records,
    begin_state: int,
    end_word: int,
    rules: Rules,
    option: Int32,
    reordering: Reordering,
    distortion_weight: float,
    distortion_limit: int,
    pop_limit: int,
    stack_size: int,
    stop: UInt8,
) -> tuple[Chart, Int32]:
    """Translate a sentence; return the graph of what was found.

    table, nodes: `LmTables`; `begin_state` is the state after <s>, `end_word` is </s>.
    rules: the options of the sentence, scored.
    option (int32 [n, longest + 1, 2]): options of the `length` words from i on:
        ``rules.order[option[i, length, 0]:...]``. Each word has one.
    distortion_limit: words that may lie between a phrase and the next one in the source; from 0 to
        `WIDEST`.
    pop_limit: candidates that a stack takes.
    stack_size: hypotheses of a stack that go on.
    stop (uint8 [1]): where another thread sets it, the graph is left as it is, without a goal.

    Returns chart: items are hypotheses, the first one empty; an edge is an option behind `CHILD1`.
    Returns span (int32 [edges, 4]): first and last word of the edge's phrase, its orientation
        towards what is before it, and that of the phrase before towards it.
    """
    n, longest = option.shape[0], option.shape[1] - 1
    room = n * pop_limit + 2
    hyp = np.empty((room, 9), np.int32)
    hyp_mask = np.empty(room, np.uint64)
    hyp_future = np.empty(room, np.float64)
    edge_span = np.empty((room, 4), np.int32)
    ranked = np.empty(room, np.int32)
    chart = new_chart(room, room)
    item, best = chart.item, chart.best
    sorted_ = np.empty(pop_limit, np.int32)
    member = np.empty(pop_limit, np.int32)
    group, group_mask = np.empty((room, 6), np.int32), np.empty(room, np.uint64)
    groups = _Table(group, group_mask, np.empty(room, np.float64))
    # Groups of each stack, and the first one's number.
    group_begin = np.zeros(n + 2, np.int64)
    cubes = _Table(
        np.empty((1024, 7), np.int32), np.empty(1024, np.uint64), np.empty((1024, 2), np.float64)
    )
    queue, stamp, lm = new_queue(4096, 6, 2, pop_limit), 0, asked(table, nodes)
    blocks_room = room if reordering.hierarchical else 2
    block = np.empty((blocks_room, 3), np.int32)
    block_slots = np.zeros((table_size(blocks_room), 2), np.int64)
    hyps = _Hypotheses(hyp, hyp_mask, hyp_future, ranked, edge_span, block, block_slots)

    future, rest = _estimate(rules, option)
    # The empty hypothesis, behind a phrase <s>.
    hyp[0] = 0
    hyp[0, _END], hyp[0, _START], hyp[0, _STATE], hyp[0, _LAST] = -1, _NO_SWAP, begin_state, -1
    hyp_mask[0], hyp_future[0], best[0] = 0, rest[0], 0.0
    item[0, EDGE] = -1
    add_edge(chart, 0, 0, GLUE_FIRST, -1, -1, 0.0, 0.0)
    block[0, 0], block[0, 1], block[0, 2] = -1, -1, -1
    ranked[0] = 0
    group[0] = hyp[0, :6]
    group[0, _FIRST], group[0, _BEHIND] = 0, 1
    group_mask[0], groups.score[0] = 0, rest[0]
    group_begin[1] = 1
    items, edges, n_groups, blocks = 1, 1, 1, 1

    for t in range(1, n + 1):
        if stop[0]:
            return chart, edge_span
        n_cubes = 0
        for length in range(1, min(longest, t) + 1):
            first, last = group_begin[t - length], group_begin[t - length + 1]
            needed = n_cubes + (last - first) * (distortion_limit + 1)
            cubes = _Table(
                longer(cubes.column, needed),
                longer(cubes.mask, needed),
                longer(cubes.score, needed),
            )
            n_cubes = _find_cubes(
                groups,
                first,
                last,
                length,
                distortion_limit,
                option,
                future,
                rest,
                distortion_weight,
                cubes,
                n_cubes,
            )
        if n_cubes + 2 * pop_limit > queue.key.size:
            queue = new_queue(2 * (n_cubes + 2 * pop_limit), 6, 2, pop_limit)
        before = items
        stamp += 1
        items, edges, blocks = _fill_stack(
            lm,
            end_word if t == n else -1,
            rules,
            reordering,
            pop_limit,
            cubes,
            n_cubes,
            queue,
            stamp,
            hyps,
            chart,
            items,
            edges,
            blocks,
        )
        stamp += 1
        n_groups = _group_stack(
            before,
            items,
            stack_size,
            best,
            hyps,
            sorted_,
            member,
            queue.slots,
            stamp,
            groups,
            n_groups,
        )
        group_begin[t + 1] = n_groups

    if n == 0:
        # </s> follows <s>.
        _, _, _, p = add_word(lm, 0, 1, begin_state, 0.0, end_word)
        item[1, EDGE] = -1
        best[1] = rules.lm_weight * p
        add_edge(chart, 1, 1, GOAL, 0, -1, best[1], p)
        items = 2
    return Chart(item, best, chart.edge, chart.edge_score, items - 1), edge_span

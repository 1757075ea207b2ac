"""Kernels of the hierarchical decoder: the chart of a sentence.

Inner functions take arrays, or named tuples of them which they take apart at once, and never put
another array in the place of one: numba counts references to arrays, atomically, wherever a loop
does.
"""

from __future__ import annotations

import numpy as np

from torchtune_smt.core.arrays import Float64, Int32, Records, UInt8
from torchtune_smt.core.compiled import inner, kernel
from torchtune_smt.core.sequences_kernels import longer
from torchtune_smt.decoders.search_kernels import (
    EDGE,
    FULL,
    GLUE_FIRST,
    GLUE_NEXT,
    GOAL,
    LEFT,
    RIGHT,
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
from torchtune_smt.decoders.target_kernels import Targets
from torchtune_smt.grammar.matching_kernels import SentenceGrammar, place
from torchtune_smt.lm.kernels import Asked, asked

_FEW = 500  # sorted by insertion


@inner
def _extend_dots(
    i: int,
    j: int,
    word: int,
    grammar: SentenceGrammar,
    gap_child: Int32,
    x_cell: Int32,
    dot: Int32,
    dots: int,
    cube: Int32,
) -> tuple[int, int]:
    """Extend the dotted rules that begin at i up to j; return the numbers of dots and cubes.

    A dotted rule is (trie node, its end, cell of gap 1, cell of gap 2). It goes on with the word
    before j, or with a gap that ends at j. Those with rules make a cube for cell (i, j): rules
    (begin, end), items of gap 1 (begin, end), of gap 2 (begin, end). There is room for all.
    """
    child_begin, child_symbol = grammar.child_begin, grammar.child_symbol
    child_node, rule_begin = grammar.child_node, grammar.rule_begin
    cubes = 0
    width = x_cell.shape[1]
    for d in range(dots):
        for gap in range(2):
            v, middle = dot[d, 0], dot[d, 1]
            w = -1
            if gap == 1:
                if middle > i and x_cell[middle, j, 0] < x_cell[middle, j, 1]:
                    w = gap_child[v]
            elif middle == j - 1 and word >= 0:
                k = place(child_symbol, child_begin[v], child_begin[v + 1], word)
                w = child_node[k] if k >= 0 else -1
            if w < 0:
                continue
            dot[dots, 0], dot[dots, 1] = w, j
            dot[dots, 2], dot[dots, 3] = dot[d, 2], dot[d, 3]
            if gap == 1:
                dot[dots, 2 if dot[d, 2] < 0 else 3] = middle * width + j
            if rule_begin[w] < rule_begin[w + 1]:
                cube[cubes, 0], cube[cubes, 1] = rule_begin[w], rule_begin[w + 1]
                for g in range(2):
                    cell = dot[dots, 2 + g]
                    cube[cubes, 2 + 2 * g], cube[cubes, 3 + 2 * g] = -1, -1
                    if cell >= 0:
                        a, b = cell // width, cell % width
                        cube[cubes, 2 + 2 * g] = x_cell[a, b, 0]
                        cube[cubes, 3 + 2 * g] = x_cell[a, b, 1]
                cubes += 1
            dots += 1
    return dots, cubes


@inner
def _glue_cubes(j: int, span: int, x_cell: Int32, s_cell: Int32, cube: Int32) -> int:
    """Write the cubes of the glue grammar for S over the first j words; return their number."""
    cubes = 0
    for k in range(max(0, j - span), j):
        if x_cell[k, j, 0] == x_cell[k, j, 1]:
            continue
        if k == 0:
            cube[cubes, 0], cube[cubes, 1] = GLUE_FIRST, GLUE_FIRST + 1
            cube[cubes, 2], cube[cubes, 3] = x_cell[k, j, 0], x_cell[k, j, 1]
            cube[cubes, 4], cube[cubes, 5] = -1, -1
        else:
            cube[cubes, 0], cube[cubes, 1] = GLUE_NEXT, GLUE_NEXT + 1
            cube[cubes, 2], cube[cubes, 3] = s_cell[k, 0], s_cell[k, 1]
            cube[cubes, 4], cube[cubes, 5] = x_cell[k, j, 0], x_cell[k, j, 1]
        cubes += 1
    return cubes


@inner
def _prune_cell(
    lm: Asked,
    begin_state: int,
    rules: Rules,
    targets: Targets,
    glue_weight: float,
    pop_limit: int,
    cube: Int32,
    cubes: int,
    queue: Queue,
    stamp: int,
    ranked: Int32,
    chart: Chart,
    items: int,
    edges: int,
) -> tuple[int, int]:
    """Fill one cell: pop the best candidates off one queue; return the new item and edge counts.

    A candidate is (cube, rule, item 1, item 2), the last three as positions in the orders best
    first. Every one has one parent, so none is queued twice: (r, 0, 0) is followed by r + 1,
    (r, a, 0) by a + 1, and every one by b + 1. With it stands where the last gap of its target
    side is, -1 in the glue grammar, and the string before that.
    """
    order, rule_state, rule_score, lm_weight = rules
    target_begin, target = targets.begin, targets.target_lm
    item, best, cand, cand_score = chart.item, chart.best, queue.cand, queue.score
    cands, heap, pops, parent = 0, 0, -1, -1
    while True:
        # The first round queues the corners of all cubes, the others successors.
        for way in range(cubes if pops < 0 else 3):
            if pops < 0:
                u, r, a, b = way, cube[way, 0], cube[way, 2], cube[way, 4]
            else:
                u, r, a, b = cand[parent, 0], cand[parent, 1], cand[parent, 2], cand[parent, 3]
                if way == 0:
                    r += 1
                    if a != cube[u, 2] or b != cube[u, 4] or r >= cube[u, 1]:
                        continue
                elif way == 1:
                    a += 1
                    if a == 0 or b != cube[u, 4] or a >= cube[u, 3]:
                        continue
                else:
                    b += 1
                    if b == 0 or b >= cube[u, 5]:
                        continue
            x = ranked[a] if a >= 0 else -1
            y = ranked[b] if b >= 0 else -1
            if r >= 0:
                rule = order[r]
                own, end = rule_score[rule, 0], target_begin[rule + 1]
                # What stands before its last gap is as in the parent, if only that gap's item is
                # another one.
                q = cand[parent, 7] if pops >= 0 and way > 0 else -1
                if q >= 0 and target[q] == -way:
                    left, full = cand[parent, 8], cand[parent, 9]
                    right, p = cand[parent, 10], cand_score[parent, 3]
                else:
                    left, full = rule_state[rule, 0], rule_state[rule, 1]
                    right, q = rule_state[rule, 2], rule_state[rule, 3]
                    p = rule_score[rule, 1]
                    if y >= 0:
                        z = x if target[q] == -1 else y
                        left, full, right, p = add_string(lm, left, full, right, p, item, z)
                        q += 1
                        while target[q] >= 0:
                            left, full, right, p = add_word(lm, left, full, right, p, target[q])
                            q += 1
                cand[cands, 7], cand[cands, 8], cand[cands, 9] = q, left, full
                cand[cands, 10], cand_score[cands, 3] = right, p
                if q < end:
                    z = x if target[q] == -1 else y
                    left, full, right, p = add_string(lm, left, full, right, p, item, z)
                    for k in range(q + 1, end):
                        left, full, right, p = add_word(lm, left, full, right, p, target[k])
            else:
                # Sentences begin here, so S is scored behind <s> from the start.
                cand[cands, 7] = -1
                own = 0.0 if r == GLUE_FIRST else glue_weight
                before = begin_state if r == GLUE_FIRST else item[x, RIGHT]
                z = x if r == GLUE_FIRST else y
                left, full, right, p = add_string(lm, 0, 1, before, 0.0, item, z)
            own += lm_weight * p
            total = own
            if x >= 0:
                total += best[x]
            if y >= 0:
                total += best[y]
            cand[cands, 0], cand[cands, 1], cand[cands, 2], cand[cands, 3] = u, r, a, b
            cand[cands, 4], cand[cands, 5], cand[cands, 6] = left, full, right
            cand_score[cands, 0], cand_score[cands, 1], cand_score[cands, 2] = total, own, p
            heap = push(queue, heap, total, cands)
            cands += 1
        pops = max(pops, 0)
        if heap == 0:
            return items, edges
        parent = heap_pop(queue.key, queue.value, 0, heap)
        heap -= 1
        pops += 1
        total = cand_score[parent, 0]

        # Recombine with the item of equal state, or make a new one.
        item[items, LEFT], item[items, FULL] = cand[parent, 4], cand[parent, 5]
        item[items, RIGHT], item[items, EDGE] = cand[parent, 6], -1
        z = recombined(queue.slots, stamp, item, EDGE, items)
        if z == items:
            items += 1
            best[z] = total
        elif total > best[z]:
            best[z] = total
        r, a, b = cand[parent, 1], cand[parent, 2], cand[parent, 3]
        rule = order[r] if r >= 0 else r
        x = ranked[a] if a >= 0 else -1
        y = ranked[b] if b >= 0 else -1
        own, p = cand_score[parent, 1], cand_score[parent, 2]
        edges = add_edge(chart, edges, z, rule, x, y, own, p)
        if pops == pop_limit:
            return items, edges


@inner
def _rank(best: Float64, first: int, end: int, ranked: Int32) -> None:
    """Write the items of a cell, best first, equal ones in their order; most were made in it."""
    for z in range(first, end):
        k, score = z, best[z]
        while k > first and best[ranked[k - 1]] < score:
            ranked[k] = ranked[k - 1]
            k -= 1
        ranked[k] = z


@kernel
def fill_chart(
    table: Records,
    nodes: Records,
    begin_state: int,
    end_word: int,
    source: Int32,
    grammar: SentenceGrammar,
    rules: Rules,
    targets: Targets,
    max_span: int,
    pop_limit: int,
    glue_weight: float,
    stop: UInt8,
) -> Chart:
    """Parse a sentence and return its chart (cube pruning, Chiang 2007).

    table, nodes: `LmTables`; `begin_state` is the state after <s>, `end_word` is </s>.
    source (int32 [n]): words of the grammar, -1 where unknown.
    rules: scored; the last n are the pass-through rules of the source's words.
    stop (uint8 [1]): where another thread sets it, the chart is left as it is, without a goal.
    """
    child_begin, child_symbol = grammar.child_begin, grammar.child_symbol
    child_node = grammar.child_node
    n = source.size
    span = min(max_span, n)
    cells = n
    for width in range(1, span + 1):
        cells += n - width + 1
    room = cells * pop_limit + 1
    chart = new_chart(room, room + pop_limit)
    item, best = chart.item, chart.best
    items, edges = 0, 0
    # Items of a cell, best first: ranked[cell[..., 0]:cell[..., 1]]. S always begins at 0.
    ranked = np.empty(room, np.int32)
    x_cell = np.zeros((n + 1, n + 1, 2), np.int32)
    s_cell = np.zeros((n + 1, 2), np.int32)
    dot = np.empty((256, 4), np.int32)
    cube = np.empty((256, 6), np.int32)
    queue, stamp, lm = new_queue(1024, 11, 4, pop_limit), 0, asked(table, nodes)
    gap_child = np.full(child_begin.size - 1, -1, np.int32)
    for v in range(gap_child.size):
        if child_begin[v] < child_begin[v + 1] and child_symbol[child_begin[v]] == -1:
            gap_child[v] = child_node[child_begin[v]]
    first_copy = rules.order.size - n

    # The cells of X from the last position to the first, then the cells of S.
    for i in range(n - 1, -2, -1):
        dots = 1
        dot[0, 0], dot[0, 1], dot[0, 2], dot[0, 3] = 0, i, -1, -1
        for j in range(max(i, 0) + 1, min(n, i + span) + 1 if i >= 0 else n + 1):
            if stop[0]:
                return chart
            if 3 * dots + 1 > dot.shape[0]:
                dot = longer(dot, 3 * dots + 1)
            if max(2 * dots + 1, n) > cube.shape[0]:
                cube = longer(cube, max(2 * dots + 1, n))
            if i < 0:
                cubes = _glue_cubes(j, span, x_cell, s_cell, cube)
            else:
                word = source[j - 1]
                dots, cubes = _extend_dots(i, j, word, grammar, gap_child, x_cell, dot, dots, cube)
                if j == i + 1:
                    cube[cubes, 0], cube[cubes, 1] = first_copy + i, first_copy + j
                    cube[cubes, 2:] = -1
                    cubes += 1
            if cubes + 3 * pop_limit > queue.key.size:
                queue = new_queue(2 * (cubes + 3 * pop_limit), 11, 4, pop_limit)
            first = items
            stamp += 1
            items, edges = _prune_cell(
                lm,
                begin_state,
                rules,
                targets,
                glue_weight,
                pop_limit,
                cube,
                cubes,
                queue,
                stamp,
                ranked,
                chart,
                items,
                edges,
            )
            if items - first > _FEW:
                ranked[first:items] = first + np.argsort(-best[first:items], kind="mergesort")
            else:
                _rank(best, first, items, ranked)
            if i < 0:
                s_cell[j, 0], s_cell[j, 1] = first, items
            else:
                x_cell[i, j, 0], x_cell[i, j, 1] = first, items
                # Rules that begin with a gap go on from here.
                if gap_child[0] >= 0 and items > first:
                    dot[dots, 0], dot[dots, 1] = gap_child[0], j
                    dot[dots, 2], dot[dots, 3] = i * (n + 1) + j, -1
                    dots += 1

    goal, lm_weight = items, rules.lm_weight
    item[goal, LEFT], item[goal, FULL], item[goal, RIGHT], item[goal, EDGE] = 0, 1, 0, -1
    best[goal] = -np.inf
    # The empty sentence has no S: </s> follows <s>.
    for k in range(s_cell[n, 0], s_cell[n, 1] if n > 0 else 1):
        x = ranked[k] if n > 0 else -1
        before = item[x, RIGHT] if n > 0 else begin_state
        _, _, _, p = add_word(lm, 0, 1, before, 0.0, end_word)
        edges = add_edge(chart, edges, goal, GOAL, x, -1, lm_weight * p, p)
        best[goal] = max(best[goal], lm_weight * p + (best[x] if n > 0 else 0.0))
    return Chart(item, best, chart.edge, chart.edge_score, goal)

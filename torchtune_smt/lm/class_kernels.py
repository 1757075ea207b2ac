"""Kernel of the exchange algorithm."""

from __future__ import annotations

import math

import numpy as np

from torchtune_smt.core.arrays import Int32, Int64
from torchtune_smt.core.compiled import inner, kernel

# A move has to raise the log likelihood by more: equal classes may differ by rounding.
_GAIN = 1e-6


@inner
def _entropy(n: int) -> float:
    return n * math.log(n) if n > 0 else 0.0


@kernel
def exchange(
    order: Int64,
    count: Int64,
    begin: Int64,
    right: Int64,
    often: Int64,
    left_begin: Int64,
    left: Int64,
    left_often: Int64,
    group: Int32,
    classes: int,
    rounds: int,
) -> None:
    """Move words to better classes, one after the other, until none moves or there were `rounds`.

    What rises is the sum of h(N(g, g')) over pairs of classes less twice that of h(N(g)), with
    h(n) = n log n: the log likelihood of the text under p(g' | g) p(w' | g'), but for a constant
    (Martin, Liermann and Ney 1998, Eq. 6). A move costs the classes next to the word times all
    classes.

    order: words in the order in which they move.
    count (int64 [words]): how often each occurs.
    begin, right, often: the words behind each (CSR), and how often each is there.
    left_begin, left, left_often: those before each.
    group (int32 [words]): the class of each, which is changed; who is in class `classes` stays.
    """
    total = np.zeros(classes + 1, np.int64)
    # Of a class and the one behind it, and the other way round: rows are read along candidates.
    behind = np.zeros((classes + 1, classes + 1), np.int64)
    for v in range(group.size):
        total[group[v]] += count[v]
        for p in range(begin[v], begin[v + 1]):
            behind[group[right[p]], group[v]] += often[p]
    before = behind.T.copy()
    # N(g, w) and N(w, g) of the word that moves; gains of candidates.
    to = np.zeros(classes + 1, np.int64)
    of = np.zeros(classes + 1, np.int64)
    near = np.empty(classes + 1, np.int64)
    gain = np.empty(classes, np.float64)
    for _ in range(rounds):
        moved = False
        for w in order:
            c, n, own, found = group[w], count[w], 0, 0
            for side in range(2):
                first = (begin if side == 0 else left_begin)[w]
                last = (begin if side == 0 else left_begin)[w + 1]
                for p in range(first, last):
                    u = right[p] if side == 0 else left[p]
                    k = often[p] if side == 0 else left_often[p]
                    if u == w:
                        own = k
                        continue
                    g = group[u]
                    if to[g] == 0 and of[g] == 0:
                        near[found] = g
                        found += 1
                    if side == 0:
                        to[g] += k
                    else:
                        of[g] += k
            total[c] -= n
            for i in range(found):
                g = near[i]
                behind[g, c] -= to[g]
                before[c, g] -= to[g]
                before[g, c] -= of[g]
                behind[c, g] -= of[g]
            behind[c, c] -= own
            before[c, c] -= own
            for k in range(classes):
                gain[k] = 2 * (_entropy(total[k]) - _entropy(total[k] + n))
                with_own = own + to[k] + of[k]
                if with_own:
                    gain[k] += _entropy(before[k, k] + with_own) - _entropy(before[k, k])
            for i in range(found):
                g = near[i]
                for k in range(classes):
                    if k == g:
                        continue
                    if to[g]:
                        gain[k] += _entropy(behind[g, k] + to[g]) - _entropy(behind[g, k])
                    if of[g]:
                        gain[k] += _entropy(before[g, k] + of[g]) - _entropy(before[g, k])
            best = c
            for k in range(classes):
                if gain[k] > gain[best] + _GAIN:
                    best = k
            moved |= best != c
            group[w] = best
            total[best] += n
            for i in range(found):
                g = near[i]
                behind[g, best] += to[g]
                before[best, g] += to[g]
                before[g, best] += of[g]
                behind[best, g] += of[g]
                to[g] = of[g] = 0
            behind[best, best] += own
            before[best, best] += own
        if not moved:
            return

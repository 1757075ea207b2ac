"""Kernels of k-best MIRA: background scores, hope and fear, and the steps of a pass."""

from __future__ import annotations

import math
from typing import Any

from numpy.typing import NDArray

from torchtune_smt.core.arrays import Float64, Int32, Int64
from torchtune_smt.core.compiled import inlined, inner
from torchtune_smt.core.rows_kernels import difference, dot_row
from torchtune_smt.kbest.measure_kernels import BLEU, KIND, ORDER, corpus_score, length

# The pseudo-document's statistics of long n-grams must not vanish where all hypotheses are short.
LEAST = 1e-60


@inlined
def background_score(
    statistics: NDArray[Any],
    h: int,
    code: Float64,
    background: Float64,
    both: Float64,
    by_reference: bool,
) -> float:
    """Return the score of a pseudo-document with hypothesis `h` added.

    background (float64 [width]): statistics of the pseudo-document; `both` is room for as many.
    by_reference: multiply by the length of the reference, of hypothesis and document together.
    """
    if code.shape[0] == 1 and code[0, KIND] == BLEU:
        return background_bleu(statistics, h, background, by_reference)
    for i in range(both.size):
        both[i] = statistics[h, i] + background[i]
    score = corpus_score(both, code)
    return score * length(both, code) if by_reference else score


@inlined
def background_bleu(
    statistics: NDArray[Any], h: int, background: Float64, by_reference: bool
) -> float:
    """Return BLEU of a pseudo-document with hypothesis `h` added; its statistics are above 0."""
    matches, counts = 1.0, 1.0
    for n in range(ORDER):
        matches *= statistics[h, n] + background[n]
        counts *= statistics[h, ORDER + n] + background[ORDER + n]
    c = statistics[h, 2 * ORDER] + background[2 * ORDER]
    r = statistics[h, 2 * ORDER + 1] + background[2 * ORDER + 1]
    bleu = math.sqrt(math.sqrt(matches / counts))
    if c < r:
        bleu *= math.exp(1.0 - r / c)
    return bleu * r if by_reference else bleu


@inlined
def hope_and_fear(
    first: int,
    last: int,
    row_begin: Int64,
    feature: Int32,
    value: Float64,
    statistics: NDArray[Any],
    code: Float64,
    background: Float64,
    both: Float64,
    by_reference: bool,
    weight: Float64,
) -> tuple[int, int, float, float]:
    """Return hope and fear of the list ``first .. last - 1``, and what gain and score differ by.

    The hope has the largest score + gain, the fear the largest score - gain; of equal ones the
    first.
    """
    hope, fear = first, first
    hope_gain, hope_score, fear_gain, fear_score = 0.0, -math.inf, 0.0, -math.inf
    for h in range(first, last):
        score = dot_row(h, row_begin, feature, value, weight)
        gain = background_score(statistics, h, code, background, both, by_reference)
        if score + gain > hope_score + hope_gain:
            hope, hope_gain, hope_score = h, gain, score
        if score - gain > fear_score - fear_gain:
            fear, fear_gain, fear_score = h, gain, score
    return hope, fear, hope_gain - fear_gain, hope_score - fear_score


@inner
def one_pass(
    order: Int64,
    list_begin: Int64,
    row_begin: Int64,
    feature: Int32,
    value: Float64,
    statistics: NDArray[Any],
    code: Float64,
    background: Float64,
    both: Float64,
    decay: float,
    by_reference: bool,
    C: float,
    weight: Float64,
    late: Float64,
    step: int,
    x_feature: Int32,
    x_value: Float64,
) -> tuple[int, float]:
    """Take a step for each list in this order; return the steps with a loss, and its sum.

    list_begin, row_begin, feature, value, statistics, code: of `KBestLists`, and of its measure.
    background (float64 [width]): statistics of the pseudo-document; written to.
    weight, late (float64 [D]): written to. `late` is the sum of all changes, each times the steps
        before it: the mean of the weights after the steps 1..T is ``weight - late / T``.
    step: steps taken before.
    both, x_feature, x_value: room for statistics, and for two rows.
    """
    violations, total = 0, 0.0
    for s in order:
        hope, fear, gap, margin = hope_and_fear(
            list_begin[s], list_begin[s + 1], row_begin, feature, value, statistics, code,
            background, both, by_reference, weight,
        )  # fmt: skip
        if gap > 0.0:
            loss = gap - margin
            if loss > 0.0:
                violations += 1
                total += loss
                n = difference(hope, fear, row_begin, feature, value, 0.0, x_feature, x_value, 0)
                square = 0.0
                for k in range(n):
                    square += x_value[k] * x_value[k]
                if square > 0.0:
                    rate = min(C, loss / square)
                    for k in range(n):
                        change = rate * x_value[k]
                        weight[x_feature[k]] += change
                        late[x_feature[k]] += step * change
            for k in range(background.size):
                background[k] = max(decay * background[k], LEAST) + statistics[hope, k]
        step += 1
    return violations, total

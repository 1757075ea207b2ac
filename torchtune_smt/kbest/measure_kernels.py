"""Corpus scores of summed statistics, one corpus at a time; see `torchtune_smt.kbest.measure`.

Arguments that functions share:

    sums : [statistics]
    code : float64 [parts, 4]
        A row (kind, width, weight, beta) for each part of a measure.
"""

from __future__ import annotations

import math
from typing import Any

from numpy.typing import NDArray

from torchtune_smt.core.arrays import Float64, Int64
from torchtune_smt.core.compiled import inner, kernel

ORDER = 4
BLEU, RATIO, CHRF = 0, 1, 2
KIND, WIDTH, WEIGHT, BETA = 0, 1, 2, 3


@inner
def bleu(sums: Float64, at: int) -> float:
    """Return sacrebleu's corpus BLEU (0..1) of m_1..m_4, l_1..l_4, c, r, without smoothing.

    0 as soon as one order has no match.
    """
    product = 1.0
    for n in range(ORDER):
        if sums[at + n] == 0:
            return 0.0
        product *= sums[at + n] / sums[at + ORDER + n]
    result = math.sqrt(math.sqrt(product))
    c, r = sums[at + 2 * ORDER], sums[at + 2 * ORDER + 1]
    return result if c >= r else result * math.exp(1.0 - r / c)


@inner
def ratio(sums: Float64, at: int) -> float:
    """Return a sum as a part of another; where that is 0, one at most."""
    if sums[at + 1] > 0:
        return float(sums[at] / sums[at + 1])
    return min(float(sums[at]), 1.0)


@inner
def chrf(sums: Float64, at: int, width: int, beta: float) -> float:
    """Return chrF (0..1) of n-grams in the hypothesis, in the reference and in both, by orders."""
    orders, precision, recall = 0, 0.0, 0.0
    for i in range(at, at + width, 3):
        if sums[i] > 0 and sums[i + 1] > 0:
            orders += 1
            precision += sums[i + 2] / sums[i]
            recall += sums[i + 2] / sums[i + 1]
    weighted = beta * beta * precision + recall
    if weighted == 0.0:
        return 0.0
    return (1.0 + beta * beta) * precision * recall / weighted / orders


@inner
def corpus_score(sums: Float64, code: Float64) -> float:
    """Return the score; larger is better."""
    total, at = 0.0, 0
    for p in range(code.shape[0]):
        width = int(code[p, WIDTH])
        if code[p, KIND] == BLEU:
            value = bleu(sums, at)
        elif code[p, KIND] == RATIO:
            value = ratio(sums, at)
        else:
            value = chrf(sums, at, width, code[p, BETA])
        total += code[p, WEIGHT] * value
        at += width
    return total


@inner
def length(sums: Float64, code: Float64) -> float:
    """Return the length of the reference in the units of the first part.

    Words for BLEU, the denominator of a ratio, characters for chrF.
    """
    return float(sums[2 * ORDER + 1] if code[0, KIND] == BLEU else sums[1])


@kernel
def add_chosen(statistics: NDArray[Any], chosen: Int64, sums: Float64) -> None:
    """Add the statistics ([n, width]) of some hypotheses."""
    for h in chosen:
        for i in range(sums.size):
            sums[i] += statistics[h, i]

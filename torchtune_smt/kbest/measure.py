"""What a metric is of a corpus: a function of statistics that are summed over its sentences."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from torchtune_smt.core.arrays import Float64
from torchtune_smt.kbest import measure_kernels as kernels


class Part(NamedTuple):
    """One term of a measure, of some statistics of its own.

    kind: `BLEU`: of m_1..m_4, l_1..l_4, c, r (see `BleuReferences.statistics`). `RATIO`: a sum
        divided by another; where that is 0 it is 1 at most. `CHRF`: of three numbers for each
        order: n-grams in the hypothesis, in the reference, and in both (Popović 2015).
    width: how many statistics it takes.
    weight: below 0 where less is better.
    beta: what recall counts beside precision in chrF.
    """

    kind: int
    width: int
    weight: float = 1.0
    beta: float = 0.0


BLEU_PART: Final = Part(kernels.BLEU, 10)


@dataclass(frozen=True)
class Measure:
    """What a metric is of a corpus: a sum of parts, whose statistics stand behind each other.

    Inside, a score is as the parts add up, and larger is better. For people it is `unit` times
    that: 3.47 of a word error rate of 0.0347, whose part has the weight -1, with the unit -100.

    name: as the field has it: BLEU, WER.
    digits: shown behind the point.
    """

    name: str
    parts: tuple[Part, ...]
    unit: float = 100.0
    digits: int = 2

    @property
    def width(self) -> int:
        """The number of statistics."""
        return sum(part.width for part in self.parts)

    @property
    def code(self) -> Float64:
        """The parts as kernels take them, float64 [parts, 4]."""
        return np.array(self.parts, np.float64)

    def scores(self, sums: NDArray[Any]) -> Float64:
        """Return scores [...] of sums [..., width], BLEU smoothed (``exp``); larger is better."""
        total, at = np.zeros(sums.shape[:-1]), 0
        for part in self.parts:
            own = sums[..., at : at + part.width]
            total += part.weight * _SCORES[part.kind](own, part)
            at += part.width
        return total

    def of_people(self, scores: NDArray[Any]) -> Float64:
        """Return scores as people read them; 0 has no sign."""
        shown: Float64 = self.unit * scores + 0.0
        return shown

    def better(self, score: float) -> float:
        """Return a score that people read as one of which larger is better, or the reverse."""
        return score if self.unit > 0 else 0.0 - score

    def shown(self, score: float) -> str:
        """Return a score of which larger is better as it is written for people."""
        return f"{self.better(score):.{self.digits}f}"


def _bleu(sums: NDArray[Any], part: Part) -> Float64:
    correct, total = sums[..., :4], sums[..., 4:8]
    length, reference = sums[..., 8], sums[..., 9]
    none = correct == 0
    # Each order without a match counts half a match less than the one before.
    smoothed = np.where(none, 0.5 ** np.cumsum(none, axis=-1), correct)
    defined = ~none.all(axis=-1) & (total > 0).all(axis=-1)
    precision = 100 * smoothed / np.maximum(total, 1)
    penalty = np.exp(np.minimum(0, 1 - reference / np.maximum(length, 1)))
    scores: Float64 = penalty * np.exp(np.log(precision).mean(axis=-1))
    return np.where(defined, scores, 0) / 100


def _ratio(sums: NDArray[Any], part: Part) -> Float64:
    number, of = sums[..., 0], sums[..., 1]
    return np.where(of > 0, number / np.where(of > 0, of, 1), np.minimum(number, 1))


def _chrf(sums: NDArray[Any], part: Part) -> Float64:
    hypothesis, reference, match = sums[..., 0::3], sums[..., 1::3], sums[..., 2::3]
    counts = (hypothesis > 0) & (reference > 0)
    orders = np.maximum(counts.sum(axis=-1), 1)
    precision = np.where(counts, match / np.maximum(hypothesis, 1), 0).sum(axis=-1) / orders
    recall = np.where(counts, match / np.maximum(reference, 1), 0).sum(axis=-1) / orders
    factor = part.beta**2
    weighted = factor * precision + recall
    some = weighted > 0
    return np.where(some, (1 + factor) * precision * recall / np.where(some, weighted, 1), 0)


_SCORES: Final = {kernels.BLEU: _bleu, kernels.RATIO: _ratio, kernels.CHRF: _chrf}

BLEU: Final = Measure("BLEU", (BLEU_PART,))


def mean(name: str) -> Measure:
    """Return the mean of numbers, whose statistics are each of them and 1."""
    return Measure(name, (Part(kernels.RATIO, 2),), unit=1.0, digits=4)


def error_rate(name: str, digits: int = 2) -> Measure:
    """Return errors in percent of the length of the references."""
    return Measure(name, (Part(kernels.RATIO, 2, -1.0),), unit=-100.0, digits=digits)

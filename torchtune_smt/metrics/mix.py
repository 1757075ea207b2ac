"""Weighted sums of metrics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, Final, Literal

import numpy as np
from numpy.typing import NDArray

from torchtune_smt.core.accepts import FINITE, accepting, one_of
from torchtune_smt.core.arrays import Float64
from torchtune_smt.core.vocabulary import Vocabulary
from torchtune_smt.kbest.lists import KBest
from torchtune_smt.kbest.measure import BLEU, Measure, mean
from torchtune_smt.kbest.sentences import ELSEWHERE
from torchtune_smt.metrics.base import BoundCorpusMetric, CorpusMetric, References
from torchtune_smt.metrics.bleu import BleuPlusOne, BleuReferences
from torchtune_smt.metrics.chrf import ChrF
from torchtune_smt.metrics.errors import CharacterErrorRate, TranslationEditRate, WordErrorRate
from torchtune_smt.metrics.lists import ExternalScores


@dataclass(frozen=True)
class CorpusBleu(CorpusMetric):
    """Corpus BLEU as a part of a `MetricMix`; the gain of a hypothesis is BLEU+1."""

    measure: ClassVar[Measure] = BLEU

    def prepared(self, references: References, words: Vocabulary) -> BleuReferences:
        """Return the references, which may be without words."""
        return BleuReferences([row if any(row) else ELSEWHERE for row in references], words)

    def count(self, references: BleuReferences, kbest: KBest, words: Vocabulary) -> NDArray[Any]:
        """Return BLEU's statistics of each hypothesis."""
        return references.statistics(kbest)

    def gains(self, statistics: NDArray[Any]) -> Float64:
        """Return BLEU+1 of statistics [k, 10]."""
        return BleuPlusOne().score(statistics.astype(np.int64))


KINDS: Final[dict[str, type[CorpusMetric]]] = {
    "bleu": CorpusBleu,
    "chrf": ChrF,
    "ter": TranslationEditRate,
    "wer": WordErrorRate,
    "cer": CharacterErrorRate,
}


@dataclass(frozen=True)
class MetricMix(CorpusMetric):
    """A weighted sum of corpus scores: Σ w_i · score_i, where error rates count below 0.

    All scores are in 0..1 but for those of a file. A gain is the same sum over the hypothesis by
    itself, with BLEU+1 for BLEU, and errors by the length of the reference.

    weights: by names of `KINDS`, and ``external`` for the mean of the scores of a file.
    path, missing: as for `ExternalScores`.
    """

    accepts = accepting(missing=one_of("error", "worst"))

    weights: Mapping[str, float]
    path: str | None = None
    missing: Literal["error", "worst"] = "error"
    column: ExternalScores | None = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.weights:
            raise ValueError("weights must name one metric or more, as in {bleu: 0.5, ter: 0.5}")
        for name, weight in self.weights.items():
            one_of(*KINDS, "external").check("weights", name)
            FINITE.check(f"weights.{name}", weight)
        if (self.path is None) == ("external" in self.weights):
            raise ValueError("weights.external and path must be given both, or neither")
        column = None if self.path is None else ExternalScores(self.path, self.missing)
        object.__setattr__(self, "column", column)

    @property
    def by_number(self) -> bool:
        """Whether it knows more of the sentences than their references."""
        return self.path is not None

    @property
    def measure(self) -> Measure:
        """What it is of a corpus."""
        parts, names = [], []
        for weight, (_, own, _) in zip(self.weights.values(), self._parts.values(), strict=True):
            parts += [part._replace(weight=weight * part.weight) for part in own.parts]
            names.append(own.name if weight == 1 else f"{weight:g} {own.name}")
        return Measure(f"mix({', '.join(names)})", tuple(parts))

    @cached_property
    def _parts(self) -> dict[str, tuple[CorpusMetric | None, Measure, slice]]:
        """By name: the metric (None: a file), its measure, and where its statistics are."""
        found, at = {}, 0
        for name in self.weights:
            metric = None if name == "external" else KINDS[name]()
            own = mean(name) if metric is None else metric.measure
            found[name] = metric, own, slice(at, at + own.width)
            at += own.width
        return found

    def bind(self, references: References, words: Vocabulary) -> BoundMix:
        """See `CorpusMetric.bind`."""
        return BoundMix(self, references, words)

    def prepared(self, references: References, words: Vocabulary) -> dict[str, Any]:
        """Return what each part takes of the references."""
        return {
            name: metric.prepared(references, words)
            for name, (metric, *_) in self._parts.items()
            if metric
        }

    def count(self, references: dict[str, Any], kbest: KBest, words: Vocabulary) -> Float64:
        """Return the statistics of all parts, with nothing in the place of those of a file."""
        rows = np.zeros((len(kbest), sum(own.width for _, own, _ in self._parts.values())))
        for name, (metric, _, place) in self._parts.items():
            if metric:
                rows[:, place] = metric.count(references[name], kbest, words)
        return rows

    def gains(self, statistics: NDArray[Any]) -> Float64:
        """Return the weighted sum of what each part says of each hypothesis by itself."""
        total = np.zeros(len(statistics))
        for name, (_, own, place) in self._parts.items():
            score = CorpusBleu().gains if name == "bleu" else own.scores
            total += self.weights[name] * score(statistics[:, place])
        return total


class BoundMix(BoundCorpusMetric):
    """A mix for one set of references."""

    def __init__(self, metric: MetricMix, references: References, words: Vocabulary) -> None:
        super().__init__(metric, references, words)
        self._place = metric._parts["external"][2] if metric.column else slice(0)
        self._column = metric.column and metric.column.bind(references, words)

    def statistics(self, kbest: KBest) -> Float64:
        """Return the statistics of all parts; those of a file are found by unfiltered words."""
        rows: Float64 = super().statistics(kbest)
        if self._column:
            gains = self._column.gains(kbest)
            rows[:, self._place] = np.column_stack([gains, np.ones(gains.size)])
        return rows

"""Weighted sums of metrics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
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
from torchtune_smt.metrics.errors import CharacterErrorRate, WordErrorRate
from torchtune_smt.metrics.lists import ExternalScores
from torchtune_smt.metrics.ter import TranslationEditRate


@dataclass(frozen=True)
class CorpusBleu(CorpusMetric):
    """Corpus BLEU as a part of a `MetricMix`; the gain of a hypothesis is BLEU+1."""

    measure: ClassVar[Measure] = BLEU

    def bound(self, references: References, words: Vocabulary) -> BoundBleu:
        """See `CorpusMetric.bound`."""
        return BoundBleu(self, references, words)


class BoundBleu(BoundCorpusMetric):
    """Corpus BLEU for one set of references."""

    def __init__(self, metric: CorpusBleu, references: References, words: Vocabulary) -> None:
        super().__init__(metric, words)
        # Which may be without words.
        given = [row if any(row) else ELSEWHERE for row in references]
        self._references = BleuReferences(given, words)

    def count(self, kbest: KBest) -> NDArray[np.int64]:
        """Return BLEU's statistics of each hypothesis."""
        return self._references.statistics(kbest)

    def gains_of_statistics(self, statistics: NDArray[Any]) -> Float64:
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
        object.__setattr__(self, "_column", column)

    @property
    def by_number(self) -> bool:
        """Whether it knows more of the sentences than their references."""
        return self.path is not None

    @property
    def measure(self) -> Measure:
        """What it is of a corpus."""
        parts, names = [], []
        for name, weight in self.weights.items():
            own = mean("external") if name == "external" else KINDS[name]().measure
            parts += [part._replace(weight=weight * part.weight) for part in own.parts]
            names.append(own.name if weight == 1 else f"{weight:g} {own.name}")
        return Measure(f"mix({', '.join(names)})", tuple(parts))

    def bound(self, references: References, words: Vocabulary) -> BoundMix:
        """See `CorpusMetric.bound`."""
        return BoundMix(self, references, words)


class BoundMix(BoundCorpusMetric):
    """A mix for one set of references."""

    def __init__(self, metric: MetricMix, references: References, words: Vocabulary) -> None:
        super().__init__(metric, words)
        self._weights = metric.weights
        column: ExternalScores | None = getattr(metric, "_column", None)
        self._column = None if column is None else column.bind(references, words)
        self._parts = {
            name: KINDS[name]().bind(references, words)
            for name in metric.weights
            if name != "external"
        }

    def statistics(self, kbest: KBest) -> Float64:
        """Return the statistics of all parts; those of a file are found by unfiltered words."""
        gains = None if self._column is None else self._column.gains(kbest)
        rows: Float64 = super().statistics(kbest).astype(np.float64)
        if gains is not None:
            rows[:, self._place("external")] = np.column_stack([gains, np.ones(gains.size)])
        return rows

    def count(self, kbest: KBest) -> Float64:
        """Return the statistics of all parts, with nothing in the place of those of a file."""
        none = np.zeros((len(kbest), 2))
        return np.column_stack(
            [none if n == "external" else self._parts[n].count(kbest) for n in self._weights]
        )

    def gains_of_statistics(self, statistics: NDArray[Any]) -> Float64:
        """Return the weighted sum of what each part says of each hypothesis by itself."""
        total = np.zeros(len(statistics))
        for name, weight in self._weights.items():
            rows = statistics[:, self._place(name)]
            if name == "bleu":
                total += weight * self._parts[name].gains_of_statistics(rows)
            elif name == "external":
                total += weight * rows[:, 0]
            else:
                total += weight * self._parts[name].measure.scores(rows)
        return total

    def _place(self, name: str) -> slice:
        """Return which statistics are those of a part."""
        at = 0
        for other in self._weights:
            width = 2 if other == "external" else self._parts[other].measure.width
            if other == name:
                return slice(at, at + width)
            at += width
        raise KeyError(name)

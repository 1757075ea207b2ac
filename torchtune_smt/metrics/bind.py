"""The metric for a set of sentences, be it with references or with statistics in their place."""

from __future__ import annotations

from typing import cast

import numpy as np

from torchtune_smt.core.arrays import Float64
from torchtune_smt.core.errors import InputError
from torchtune_smt.core.shortcuts import behaves_as
from torchtune_smt.core.vocabulary import Vocabulary
from torchtune_smt.kbest.lists import KBest
from torchtune_smt.kbest.sentences import Sentences
from torchtune_smt.metrics.base import BoundMetric, Metric
from torchtune_smt.metrics.bleu import SentenceBleu


class StatisticsGains:
    """Gains of hypotheses that come with BLEU's statistics.

    Parameters
    ----------
    metric : SentenceBleu
    """

    def __init__(self, metric: SentenceBleu) -> None:
        self._metric = metric

    def gains(self, kbest: KBest) -> Float64:
        """Return the gain (float64 [k]) of each hypothesis."""
        if kbest.statistics is None:
            raise ValueError(f"the list of sentence {kbest.index} has no statistics")
        return self._metric.score(kbest.statistics.astype(np.int64))


def bind(metric: Metric, sentences: Sentences, words: Vocabulary) -> BoundMetric:
    """Return the gains of hypotheses of some sentences.

    Parameters
    ----------
    metric : Metric
        Without references it must be one that is computed from BLEU's statistics.
    sentences : Sentences
    words : Vocabulary
        In whose ids hypotheses are written.

    Raises
    ------
    InputError
        There are no references, and the metric is computed from something else.
    """
    if sentences.has_references:
        return metric.bind(sentences.references, words)
    if not behaves_as(metric, SentenceBleu, "bind"):
        raise InputError(
            f"metric: {type(metric).__name__} needs the words of the hypotheses, and scores.dat "
            "has only BLEU's statistics; choose a metric of BLEU's family, or give n-best lists"
        )
    return StatisticsGains(cast(SentenceBleu, metric))

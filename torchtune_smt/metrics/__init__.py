"""Sentence-level gains, and corpus scores."""

from torchtune_smt.metrics.base import (
    BoundMetric,
    CorpusMetric,
    Metric,
    References,
    bind_metric,
    with_gains,
)
from torchtune_smt.metrics.bleu import (
    BleuPlusOne,
    BleuReferences,
    LiangBleu,
    MosesBleu,
    NakovBleu,
    PhrasalBleu,
    SacreBleu,
    SentenceBleu,
)
from torchtune_smt.metrics.chrf import ChrF
from torchtune_smt.metrics.errors import CharacterErrorRate, TranslationEditRate, WordErrorRate
from torchtune_smt.metrics.lists import ExternalScores
from torchtune_smt.metrics.mix import MetricMix

__all__ = [
    "BleuPlusOne",
    "BleuReferences",
    "BoundMetric",
    "CharacterErrorRate",
    "ChrF",
    "CorpusMetric",
    "ExternalScores",
    "LiangBleu",
    "Metric",
    "MetricMix",
    "MosesBleu",
    "NakovBleu",
    "PhrasalBleu",
    "References",
    "SacreBleu",
    "SentenceBleu",
    "TranslationEditRate",
    "WordErrorRate",
    "bind_metric",
    "with_gains",
]

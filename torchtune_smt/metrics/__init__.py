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
from torchtune_smt.metrics.errors import CharacterErrorRate, WordErrorRate
from torchtune_smt.metrics.lists import ExternalScores

__all__ = [
    "BleuPlusOne",
    "BleuReferences",
    "BoundMetric",
    "CharacterErrorRate",
    "CorpusMetric",
    "ExternalScores",
    "LiangBleu",
    "Metric",
    "MosesBleu",
    "NakovBleu",
    "PhrasalBleu",
    "References",
    "SacreBleu",
    "SentenceBleu",
    "WordErrorRate",
    "bind_metric",
    "with_gains",
]

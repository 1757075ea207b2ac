"""Sentence-level gains, and corpus scores."""

from torchtune_smt.metrics.base import (
    BoundMetric,
    Metric,
    References,
    bind_metric,
    with_gains,
)
from torchtune_smt.metrics.bleu import BleuReferences, SentenceBleu
from torchtune_smt.metrics.external import ExternalScores
from torchtune_smt.metrics.variants import (
    BleuPlusOne,
    LiangBleu,
    MosesBleu,
    NakovBleu,
    PhrasalBleu,
    SacreBleu,
)

__all__ = [
    "BleuPlusOne",
    "BleuReferences",
    "BoundMetric",
    "ExternalScores",
    "LiangBleu",
    "Metric",
    "MosesBleu",
    "NakovBleu",
    "PhrasalBleu",
    "References",
    "SacreBleu",
    "SentenceBleu",
    "bind_metric",
    "with_gains",
]

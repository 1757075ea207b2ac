"""Sentence-level gains, one file each, and corpus scores."""

from torchtune_smt.metrics.base import (
    BoundMetric,
    Metric,
    References,
    bind_metric,
    with_gains,
)
from torchtune_smt.metrics.bleu import BleuPlusOne, BleuReferences, SentenceBleu
from torchtune_smt.metrics.external import ExternalScores
from torchtune_smt.metrics.liang import LiangBleu
from torchtune_smt.metrics.moses import MosesBleu
from torchtune_smt.metrics.nakov import NakovBleu
from torchtune_smt.metrics.phrasal import PhrasalBleu
from torchtune_smt.metrics.sentence_bleu import SacreBleu

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

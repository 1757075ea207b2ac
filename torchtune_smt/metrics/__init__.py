"""Sentence-level gains, one file each, and corpus scores."""

from torchtune_smt.metrics.base import BoundMetric, Metric, References
from torchtune_smt.metrics.bleu import BleuPlusOne, BleuReferences

__all__ = ["BleuPlusOne", "BleuReferences", "BoundMetric", "Metric", "References"]

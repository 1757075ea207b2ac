"""Tuning of translation models, and of any log-linear reranker, with many sparse features."""

__version__ = "0.1.0"

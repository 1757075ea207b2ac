"""The template ``source_ngram``."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from torchtune_smt.features.template import is_gap


class SourceNgram:
    """Bigrams of a rule's source side, gaps as X: ``source_ngram:[X]_hat``. Source: [S12]."""

    name = "source_ngram"

    def features(self, source: Sequence[str], target: Sequence[str]) -> list[str]:
        """Return one feature for each pair of neighbours."""
        symbols = ["[X]" if is_gap(symbol) else symbol for symbol in source]
        return [f"source_ngram:{a}_{b}" for a, b in pairwise(symbols)]

"""The templates of sparse features that a configuration can name."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from torchtune_smt.features.template import is_gap


class RuleId:
    """One feature a rule, fired by each use of it: ``rule_id:ein_[1]~a_[1]``.

    Source: all three papers ([L13] §3: rule identifiers; [G13]: discriminative phrase table).
    """

    name = "rule_id"

    def features(self, source: Sequence[str], target: Sequence[str]) -> list[str]:
        """Return the rule's own feature."""
        return [f"rule_id:{'_'.join(source)}~{'_'.join(target)}"]


class SourceNgram:
    """Bigrams of a rule's source side, gaps as X: ``source_ngram:[X]_hat``. Source: [S12]."""

    name = "source_ngram"

    def features(self, source: Sequence[str], target: Sequence[str]) -> list[str]:
        """Return one feature for each pair of neighbours."""
        symbols = ["[X]" if is_gap(symbol) else symbol for symbol in source]
        return [f"source_ngram:{a}_{b}" for a, b in pairwise(symbols)]


class RuleShape:
    """Both sides of a rule, runs of words as one T: ``rule_shape:T_[1]~[1]_T``. Source: [S12]."""

    name = "rule_shape"

    def features(self, source: Sequence[str], target: Sequence[str]) -> list[str]:
        """Return the rule's shape."""
        return [f"rule_shape:{_shape(source)}~{_shape(target)}"]


def _shape(symbols: Sequence[str]) -> str:
    runs: list[str] = []
    for symbol in symbols:
        if is_gap(symbol):
            runs.append(symbol)
        elif not runs or runs[-1] != "T":
            runs.append("T")
    return "_".join(runs)

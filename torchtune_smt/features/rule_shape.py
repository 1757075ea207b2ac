"""The template ``rule_shape``."""

from __future__ import annotations

from collections.abc import Sequence

from torchtune_smt.features.template import is_gap


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

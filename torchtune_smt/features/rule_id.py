"""The template ``rule_id``."""

from __future__ import annotations

from collections.abc import Sequence


class RuleId:
    """One feature a rule, fired by each use of it: ``rule_id:ein_[1]~a_[1]``.

    Source: all three papers ([L13] §3: rule identifiers; [G13]: discriminative phrase table).
    """

    name = "rule_id"

    def features(self, source: Sequence[str], target: Sequence[str]) -> list[str]:
        """Return the rule's own feature."""
        return [f"rule_id:{'_'.join(source)}~{'_'.join(target)}"]

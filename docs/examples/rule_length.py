"""A template of sparse features: how many words a rule has on either side."""


class RuleLength:
    """One feature a rule, such as ``rule_length:2~3``. Gaps are not counted."""

    name = "rule_length"

    def features(self, source, target):
        """Return the names of the features that fire when a rule is used."""
        words = [sum(not symbol.startswith("[") for symbol in side) for side in (source, target)]
        return [f"{self.name}:{words[0]}~{words[1]}"]

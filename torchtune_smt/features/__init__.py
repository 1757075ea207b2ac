"""Templates of sparse features."""

from torchtune_smt.features.templates import (
    LexReordering,
    RuleId,
    RuleShape,
    RuleTemplate,
    SourceNgram,
    TargetNgram,
    TranslationTemplate,
    WordAlignment,
)

__all__ = [
    "LexReordering",
    "RuleId",
    "RuleShape",
    "RuleTemplate",
    "SourceNgram",
    "TargetNgram",
    "TranslationTemplate",
    "WordAlignment",
]

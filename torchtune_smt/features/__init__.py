"""Templates of sparse features."""

from torchtune_smt.features.template import RuleTemplate
from torchtune_smt.features.templates import RuleId, RuleShape, SourceNgram

__all__ = ["RuleId", "RuleShape", "RuleTemplate", "SourceNgram"]

"""Templates of sparse features."""

from torchtune_smt.features.rule_id import RuleId
from torchtune_smt.features.rule_shape import RuleShape
from torchtune_smt.features.source_ngram import SourceNgram
from torchtune_smt.features.template import RuleTemplate

__all__ = ["RuleId", "RuleShape", "RuleTemplate", "SourceNgram"]

"""A phrase-based model that is built from a bitext."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torchtune_smt.grammar.alignment_files import Alignment
from torchtune_smt.grammar.extracted_grammar import ExtractedGrammar
from torchtune_smt.grammar.reordering import ReorderingType
from torchtune_smt.models.built import BuiltModel


@dataclass(frozen=True)
class PhraseModel(BuiltModel):
    """A phrase table with reordering scores and a language model of a bitext; see `ModelSource`.

    Parameters
    ----------
    folder, aligner, iterations, alignment_file, order, discount_fallback, folds
        See `BuiltModel`.
    max_phrase_length, reordering, table_limit
        As `extract_phrases` takes them.

    Raises
    ------
    ValueError
        A value is out of range.
    """

    phrases: ClassVar[bool] = True

    max_phrase_length: int = 7
    table_limit: int = 100
    reordering: str = "hier-mslr-bidirectional-fe"

    def __post_init__(self) -> None:
        super().__post_init__()
        ReorderingType.parse(self.reordering).check_target()

    def _extract(
        self,
        sources: Sequence[Sequence[str]],
        targets: Sequence[Sequence[str]],
        alignments: Sequence[Alignment],
    ) -> ExtractedGrammar:
        # Imported only by those who build.
        from torchtune_smt.grammar.phrase_extraction import extract_phrases

        return extract_phrases(
            sources,
            targets,
            alignments,
            max_phrase_length=self.max_phrase_length,
            reordering=self.reordering,
            table_limit=self.table_limit,
        )

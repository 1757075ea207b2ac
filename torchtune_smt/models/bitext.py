"""A hierarchical model that is built from a bitext."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from torchtune_smt.data.bitext import Corpus
from torchtune_smt.grammar.alignment_files import Alignment
from torchtune_smt.grammar.extracted_grammar import ExtractedGrammar
from torchtune_smt.models.base import Model
from torchtune_smt.models.built import BuiltModel


@dataclass(frozen=True)
class BitextModel(BuiltModel):
    """A hierarchical grammar and a language model of a bitext; see `ModelSource`.

    Parameters
    ----------
    folder, aligner, iterations, alignment_file, order, discount_fallback, folds
        See `BuiltModel`.
    max_phrase_length, max_symbols, unaligned_edges, counts, table_limit
        As `extract_grammar` takes them.
    rule_counts : bool
        Add features of how often a rule occurred (`ExtractedGrammar`); the model that is kept is
        the same.

    Raises
    ------
    ValueError
        A value is out of range.
    """

    max_symbols: int = 5
    unaligned_edges: bool | Literal["phrases"] = "phrases"
    counts: Literal["shared", "occurrences"] = "shared"
    rule_counts: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.counts not in ("shared", "occurrences"):
            raise ValueError(f"counts must be shared or occurrences, not {self.counts}")
        if not (isinstance(self.unaligned_edges, bool) or self.unaligned_edges == "phrases"):
            raise ValueError(
                f"unaligned_edges must be false, true or phrases, not {self.unaligned_edges}"
            )
        if not 1 <= self.max_symbols <= 100:
            bound = "at least 1" if self.max_symbols < 1 else "at most 100"
            raise ValueError(f"max_symbols must be {bound}, not {self.max_symbols}")

    def open(self, bitext: Callable[[], Corpus], **options: Any) -> Model:
        """Load the model, built if need be; see `ModelSource`."""
        model = super().open(bitext, **options)
        if not self.rule_counts:
            return model
        assert isinstance(model.grammar, ExtractedGrammar)
        return replace(model, grammar=model.grammar.with_rule_counts())

    def _settings(self) -> dict[str, Any]:
        """Return what a model is built with: nothing that is added when it is open."""
        settings = super()._settings()
        del settings["rule_counts"]
        return settings

    def _extract(
        self,
        sources: Sequence[Sequence[str]],
        targets: Sequence[Sequence[str]],
        alignments: Sequence[Alignment],
    ) -> ExtractedGrammar:
        # Imported only by those who build.
        from torchtune_smt.grammar.extraction import extract_grammar

        return extract_grammar(
            sources,
            targets,
            alignments,
            max_phrase_length=self.max_phrase_length,
            max_symbols=self.max_symbols,
            unaligned_edges=self.unaligned_edges,
            counts=self.counts,
            table_limit=self.table_limit,
        )

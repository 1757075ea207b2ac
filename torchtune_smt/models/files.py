"""A model of the user's own: a grammar and a language model from files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torchtune_smt.core.container import file_checksum
from torchtune_smt.core.origin import Part, short
from torchtune_smt.data.bitext import Corpus
from torchtune_smt.grammar.formats import Format, read_grammar
from torchtune_smt.lm.model import NgramModel
from torchtune_smt.models.base import Model, ModelSource


@dataclass(frozen=True)
class FileModel(ModelSource):
    """A rule table and an ARPA file; see `ModelSource`.

    Parameters
    ----------
    grammar, language_model : str
        Their files.
    format : {"cdec", "joshua", "moses"}, optional
        Of the grammar; told from its looks by default.

    Raises
    ------
    ValueError
        There is no language model.
    """

    grammar: str
    language_model: str
    format: Format | None = None

    def __post_init__(self) -> None:
        if not self.language_model:
            raise ValueError("language_model must be an ARPA file")

    def open(
        self,
        bitext: Callable[[], Corpus],
        *,
        folds: bool = False,
        report: Callable[[str], None] = print,
        compare_bitext: bool = True,
        may_write: bool = True,
    ) -> Model:
        """Read both files; see `ModelSource`."""
        grammar = read_grammar(self.grammar, self.format)
        language_model = NgramModel.load(self.language_model, may_write=may_write)
        return Model(
            grammar,
            language_model,
            grammar_part=Part(self.grammar, short(file_checksum(self.grammar))),
            language_model_part=Part(self.language_model, short(language_model.checksum)),
        )

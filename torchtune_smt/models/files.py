"""Models of other tools' files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, get_args

import numpy as np

from torchtune_smt.core.accepts import TEXT, Checked, accepting, one_of
from torchtune_smt.core.archive import file_checksum
from torchtune_smt.core.errors import InputError
from torchtune_smt.core.snapshot import NamedWeights
from torchtune_smt.core.weights_io import Part, digest_of, short
from torchtune_smt.data.bitext import Corpus
from torchtune_smt.grammar.formats import Format, read_grammar, read_phrase_table
from torchtune_smt.grammar.reordering import ReorderingType
from torchtune_smt.lm.classes import WordClasses
from torchtune_smt.lm.model import NgramModel
from torchtune_smt.models.base import Model, ModelSource
from torchtune_smt.models.moses_ini import PENALTIES, Feature, MosesIni, read_moses_ini
from torchtune_smt.models.moses_ini_writing import INI, write_moses_ini


@dataclass(frozen=True)
class FileModel(Checked, ModelSource):
    """A rule table and an ARPA file; see `ModelSource`.

    grammar, language_model: their files.
    format ("cdec", "joshua", "moses"): of the grammar; told from its looks by default.
    source_classes, target_classes: both or none, files of the classes of words; see `read_classes`.
    class_language_model: an ARPA file of the classes of the target side, if there are any.
    """

    accepts = accepting(language_model=TEXT, format=one_of(*get_args(Format)).or_null())

    grammar: str
    language_model: str
    format: Format | None = None
    source_classes: str | None = None
    target_classes: str | None = None
    class_language_model: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_classes(self)

    def open(
        self, bitext: Callable[[], Corpus], *, may_write: bool = True, **options: Any
    ) -> Model:
        """Read both files."""
        grammar = read_grammar(self.grammar, self.format, cache=True, may_write=may_write)
        language_model = NgramModel.load(self.language_model, may_write=may_write)
        model = Model(
            grammar,
            language_model,
            grammar_part=Part(self.grammar, short(file_checksum(self.grammar))),
            language_model_part=Part(self.language_model, short(language_model.checksum)),
        )
        return _with_classes(self, model, may_write)


@dataclass(frozen=True)
class MosesModel(ModelSource):
    """What a ``moses.ini`` names: phrase table, reordering table, language model.

    Its limits are those of a decoder whose own options are None. Its weights belong to tuning: see
    `torchtune_smt.models.moses_ini`.

    phrase_table, reordering_table, language_model: files to take in place of those that it names:
        an ARPA file, for example, where it names a binary one.
    rule_counts: add features of how often a phrase pair occurred (`read_phrase_table`).
    source_classes, target_classes, class_language_model: as `FileModel` has them.
    """

    phrases: ClassVar[bool] = True

    ini: str
    phrase_table: str | None = None
    reordering_table: str | None = None
    language_model: str | None = None
    rule_counts: bool = False
    source_classes: str | None = None
    target_classes: str | None = None
    class_language_model: str | None = None

    def __post_init__(self) -> None:
        _check_classes(self)

    def open(
        self,
        bitext: Callable[[], Corpus],
        *,
        may_write: bool = True,
        report: Callable[[str], None] = print,
        **options: Any,
    ) -> Model:
        """Read the files."""
        ini = read_moses_ini(self.ini)
        if ini.fixed:
            report(
                f"{self.ini}: tuneable=false is not heeded: tuning changes {', '.join(ini.fixed)}"
            )
        phrases = self._file(ini, ini.phrases, self.phrase_table)
        arpa = self._file(ini, ini.language_model, self.language_model)
        reordering, settings, name = None, dict[str, str](), ""
        if ini.reordering is not None:
            reordering = self._file(ini, ini.reordering, self.reordering_table)
            settings, name = {**ini.reordering.settings}, ini.reordering.name
        elif self.reordering_table is not None:
            raise InputError(
                "has no line LexicalReordering for model.reordering_table; add one, with its type=",
                path=self.ini,
            )
        table = read_phrase_table(
            phrases,
            name=ini.phrases.name,
            reordering=reordering,
            reordering_type=settings.get("type"),
            reordering_name=name,
            rule_counts=self.rule_counts,
        )
        ini.check_scores(table.dense_names, phrases)
        language_model = NgramModel.load(arpa, may_write=may_write)
        model = Model(
            table,
            language_model,
            grammar_part=_part(phrases, reordering, table.reordering),
            language_model_part=Part(str(arpa), short(language_model.checksum)),
            limits=ini.limits,
        )
        return _with_classes(self, model, may_write)

    def export(self, folder: Path, weights: NamedWeights) -> str | None:
        """Write ``moses.ini``: the model's, with tuned weights, also of penalties that got one."""
        ini = read_moses_ini(self.ini)
        values = weights.read(None, np.arange(len(weights.features)))
        active = np.flatnonzero(values)
        tuned = dict(zip(weights.features.names(active), values[active].tolist(), strict=True))
        more = [name for name in tuned if name not in ini.weights and name not in PENALTIES]
        if more:
            return (
                f"no {INI} is written: {len(more):,} features with a weight, such as {more[0]}, "
                "are none of Moses's"
            )
        if (folder / INI).exists() and (folder / INI).samefile(self.ini):
            return f"no {INI} is written: the model's own is in this folder"
        write_moses_ini(folder / INI, ini, tuned)
        return None

    def _file(self, ini: MosesIni, feature: Feature, given: str | None) -> Path:
        """Return the file of a feature, or the one given in its place."""
        if given is not None:
            return Path(given)
        path = ini.file_of(feature)
        if not path.exists() and path.with_name(path.name + ".gz").exists():
            path = path.with_name(path.name + ".gz")
        return path


def _check_classes(model: FileModel | MosesModel) -> None:
    if (model.source_classes is None) != (model.target_classes is None):
        raise ValueError("source_classes and target_classes go together; give both, or none")
    if model.class_language_model is not None and model.target_classes is None:
        raise ValueError("class_language_model needs source_classes and target_classes")


def _with_classes(source: FileModel | MosesModel, model: Model, may_write: bool) -> Model:
    """Return a model with the classes of the files, if there are any, and their language model."""
    if source.source_classes is None or source.target_classes is None:
        return model
    model = replace(model, classes=WordClasses.read(source.source_classes, source.target_classes))
    assert model.classes is not None
    words = model.grammar.source_words
    own, other = (
        sum(word in words for word in known)
        for known in (model.classes.source, model.classes.target)
    )
    if own < other:
        raise InputError(
            f"has {own:,} words of the model's source side, and model.target_classes {other:,}: "
            "are the two swapped?",
            path=source.source_classes,
        )
    if source.class_language_model is None:
        return model
    model = model.with_class_model(source.class_language_model, may_write=may_write)
    assert model.classes is not None and model.class_model is not None
    if not model.class_model.word_ids([*model.classes.target.values()]).any():
        raise InputError(
            "knows none of the classes of model.target_classes; is it of words, or other classes?",
            path=source.class_language_model,
        )
    return model


def _part(phrases: Path, reordering: Path | None, kind: ReorderingType | None) -> Part:
    """Return what weights belong to: the tables, and what the scores of reordering mean."""
    content = file_checksum(phrases)
    if reordering is None or kind is None:
        return Part(str(phrases), short(content))
    # Types that are all the same to a decoder are one.
    meaning = [kind.kind, kind.hierarchical, kind.backward, kind.forward, kind.target]
    return Part(
        f"{phrases} with {reordering} as {kind.name}",
        digest_of([content, file_checksum(reordering), meaning]),
    )

"""What a model is to decoders, and to those who open one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from os import PathLike
from pathlib import Path
from typing import Any, ClassVar, Final, Protocol, Self

from torchtune_smt.core.errors import InputError
from torchtune_smt.core.recipe import leaves
from torchtune_smt.core.snapshot import NamedWeights
from torchtune_smt.core.weights_io import Origin, Part, digest_of
from torchtune_smt.data.bitext import Corpus
from torchtune_smt.features.templates import of_classes
from torchtune_smt.grammar.base import Grammar
from torchtune_smt.lm.classes import WordClasses
from torchtune_smt.lm.model import NgramModel

NO_PART: Final = Part("")
CLASS_MODEL_OPTIONS: Final = ("class_order", "class_language_model")
"""Options of models that give them a language model of classes."""


@dataclass(frozen=True)
class Model:
    """A model that is open.

    folds: cross-fitted language models, if wanted.
    grammar_part, language_model_part: name and digest of the first two.
    limits: limits of the search that it brings along, by the names of a decoder's options: what a
        decoder takes whose own option is None.
    classes: those of words, if there are any.
    class_model: language model of the classes of the target side, if there is one.
    """

    grammar: Grammar
    language_model: NgramModel
    folds: Sequence[NgramModel] = ()
    grammar_part: Part = NO_PART
    language_model_part: Part = NO_PART
    limits: Mapping[str, int] = field(default_factory=dict)
    classes: WordClasses | None = None
    class_model: NgramModel | None = None

    def with_class_model(
        self,
        path: str | PathLike[str],
        expected: str | None = None,
        digest: str | None = None,
        *,
        may_write: bool = True,
    ) -> Self:
        """Return the model with a language model of classes of a file; see `NgramModel.load`.

        digest: what weights know it by; by default that of the file and of the classes.
        """
        class_model = NgramModel.load(path, expected=expected, may_write=may_write)
        part = self.language_model_part
        known = [] if self.classes is None else [self.classes.digest]
        own = [class_model.checksum, *known] if digest is None else [digest]
        part = part._replace(digest=digest_of([part.digest, *own]))
        return replace(self, class_model=class_model, language_model_part=part)


class ModelSource(Protocol):
    """Where a model comes from: a class of the group ``model``, made from its options alone.

    What is here already is right for models that are read from files.

    from_bitext: whether it is made from the training bitext.
    phrases: whether its rules are phrase pairs, without gaps.
    parts: what the names of options begin with of each model that it has.
    """

    parts: ClassVar[Sequence[str]] = ("",)
    from_bitext: ClassVar[bool] = False
    phrases: ClassVar[bool] = False

    def unused(self) -> Mapping[str, str]:
        """Return the options that others of its options cancel, each with the reason."""
        return {}

    def check_training(self, folds: bool) -> None:
        """Raise InputError if sentences of the bitext cannot be decoded, with folds if wanted."""
        # It has memorised each sentence of its bitext.
        raise InputError(
            "tuner.tune_on=train needs a grammar that can leave a sentence out again, and one that "
            "is read from a file cannot: use model=hiero or model=phrase, or tuner.tune_on=dev"
        )

    def export(self, folder: Path, weights: NamedWeights) -> str | None:
        """Write tuned weights to a run's folder as another decoder of this model takes them.

        Returns str, optional: why nothing is written, although there is such a decoder.
        """
        return None

    def open(
        self,
        bitext: Callable[[], Corpus],
        *,
        folds: bool = False,
        report: Callable[[str], None] = print,
        compare_bitext: bool = True,
        may_write: bool = True,
    ) -> Model:
        """Return the model, building what is missing.

        bitext: reads the training bitext; asked only if the model is made from it.
        folds: whether cross-fitted language models are wanted.
        compare_bitext: whether a model of another bitext is built anew; if not, the bitext is only
            read to build a model that is missing.
        may_write: whether a model may be built, and binary copies be left beside it. If not, one
            that is missing is refused.
        """


def model_size(options: Mapping[str, Any]) -> int:
    """Return the bytes of all files that options of a model name; 0 where it is not built yet."""
    options = dict(leaves("", dict(options)))
    values = [v for o, v in options.items() if o.split(".")[-1] not in _NO_FILES and v != ""]
    named = [Path(value) for value in values if isinstance(value, str | Path)]
    files = [file for path in named for file in (path, *path.rglob("*")) if file.is_file()]
    return sum(file.stat().st_size for file in files)


_NO_FILES: Final = ("_target_", "alignment_file")
# A model of so many bytes takes a while to open, and memory: it is announced.
LARGE: Final = 10**9


def announcement(options: Mapping[str, Any]) -> str | None:
    """Return what is said before a large model is opened."""
    size = model_size(options)
    return None if size < LARGE else f"opening a model of {size / 1e9:.1f} GB"


def model_origin(
    text: str, model: Model, templates: Sequence[Any], options: Sequence[Mapping[str, Any]]
) -> Origin:
    """Return what weights belong to that are tuned with a model.

    text: `Dataset.description` of the text that is decoded.
    options: the arguments of each.
    """
    described = [
        f"{one.name} {type(one).__qualname__} "
        f"{digest_of({name: value for name, value in given.items() if name != '_target_'})}"
        + (model.classes.digest if model.classes and of_classes(one) else "")
        for one, given in zip(templates, options, strict=True)
    ]
    features = Part(
        " ".join(["dense", *sorted(one.name for one in templates)]), digest_of(sorted(described))
    )
    grammar, language_model = (
        part._replace(name=f"{part.name} ({text.split()[0]})")
        for part in (model.grammar_part, model.language_model_part)
    )
    return Origin.of_model(grammar, language_model, features, text)

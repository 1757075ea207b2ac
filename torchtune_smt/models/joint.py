"""Two models of one bitext, for decoders whose lists are pooled."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from torchtune_smt.core.weights_io import Part, digest_of
from torchtune_smt.data.bitext import Corpus
from torchtune_smt.models.base import Model, ModelSource
from torchtune_smt.models.built import BuiltModel


@dataclass(frozen=True)
class PooledModels(Model):
    """Models that are open, by whose they are; what else there is of a model is the first one's.

    models: by the name of the part of a decoder that each is for.
    """

    models: Mapping[str, Model] = field(default_factory=dict)


@dataclass(frozen=True)
class JointModel(ModelSource):
    """The models of a hierarchical and of a phrase-based decoder; see `ModelSource`.

    Each is what it is by itself: it lies in a folder of its own, which others may use.
    """

    parts: ClassVar[tuple[str, ...]] = ("hiero.", "phrase.")
    from_bitext: ClassVar[bool] = True
    # Neither the one nor the other: it is no single decoder's.
    phrases: ClassVar[None] = None  # type: ignore[assignment]

    hiero: BuiltModel
    phrase: BuiltModel

    @property
    def folder(self) -> str:
        """Where they are kept."""
        return " and ".join(model.folder for model in self._models.values())

    @property
    def _models(self) -> dict[str, BuiltModel]:
        return {"hiero": self.hiero, "phrase": self.phrase}

    def unused(self) -> Mapping[str, str]:
        """Return the options that others cancel; see `ModelSource`."""
        parts = {name: model.unused() for name, model in self._models.items()}
        return {f"{name}.{o}": why for name, part in parts.items() for o, why in part.items()}

    def check_training(self, folds: bool) -> None:
        """Raise InputError if one of them has no folds, and they are wanted."""
        for model in self._models.values():
            model.check_training(folds)

    def is_there(self) -> bool:
        """Return whether a folder holds a model, this one or another."""
        return any(model.is_there() for model in self._models.values())

    def why_not_built(self, bitext: Corpus | None, *, folds: bool = True) -> str | None:
        """Return why a folder is not the model of this bitext; see `BuiltModel.why_not_built`."""
        reasons = (m.why_not_built(bitext, folds=folds) for m in self._models.values())
        return next((reason for reason in reasons if reason is not None), None)

    def build(
        self, bitext: Corpus, report: Callable[[str], None] = print, *, folds: bool = True
    ) -> None:
        """Build those that are not there; see `BuiltModel.build`."""
        for model in self._models.values():
            if model.why_not_built(bitext, folds=folds) is not None:
                model.build(bitext, report, folds=folds)

    def open(
        self,
        bitext: Callable[[], Corpus],
        *,
        folds: bool = False,
        report: Callable[[str], None] = print,
        compare_bitext: bool = True,
        may_write: bool = True,
    ) -> PooledModels:
        """Load both, built if need be; see `ModelSource`."""
        models = {
            name: model.open(
                bitext,
                folds=folds,
                report=report,
                compare_bitext=compare_bitext,
                may_write=may_write,
            )
            for name, model in self._models.items()
        }
        first, *_ = models.values()
        grammars, lms = (
            Part(" + ".join(p.name for p in parts), digest_of([p.digest for p in parts]))
            for parts in (
                [model.grammar_part for model in models.values()],
                [model.language_model_part for model in models.values()],
            )
        )
        return PooledModels(
            first.grammar,
            first.language_model,
            grammar_part=grammars,
            language_model_part=lms,
            classes=first.classes,
            models=models,
        )

"""A decoder with tuned weights: those of a run, or of a file, and the model that they belong to."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import numpy as np

from torchtune_smt.core.errors import InputError
from torchtune_smt.core.recipe import Recipe
from torchtune_smt.core.resources import PACKAGE
from torchtune_smt.core.snapshot import FrozenWeights
from torchtune_smt.core.weights_io import Origin, read_origin
from torchtune_smt.data.bitext import Corpus
from torchtune_smt.data.dataset import Dataset
from torchtune_smt.decoders.base import Decoder, features_in_use
from torchtune_smt.models.base import Model, announcement, model_origin
from torchtune_smt.models.moses_ini import read_any_weights
from torchtune_smt.parallel.engine import usable_cores


class Tuned(NamedTuple):
    """A decoder and weights that belong to it.

    train_index: by the number of a sentence in the set that was given: its number in the bitext
        that the model was built from.
    """

    decoder: Decoder
    weights: FrozenWeights
    train_index: Mapping[int, int] = MappingProxyType({})


@dataclass(frozen=True, kw_only=True)
class TunedSystem:
    """What a decoder with tuned weights is opened from.

    path: the weights.
    mean_with: files of others of the same model; weights are the mean of all.
    decoding: of the decoder, which is offered ``model``, ``templates`` and ``threads``.
    source: returns the `ModelSource`; asked for a decoder that takes a model.
    templates, template_options: as for `torchtune_smt.runs.parts.Parts`.
    folds: whether sentences of the bitext are decoded with cross-fitted language models.
    may_build: whether a model that is missing is built.
    names_model, names_decoder, names_data: whether it was said which these are, and not left to a
        default.
    """

    path: str
    decoding: Recipe
    dataset: Dataset
    source: Callable[[], Any]
    mean_with: Sequence[str] = ()
    templates: Sequence[Any] = ()
    template_options: Sequence[Mapping[str, Any]] = ()
    threads: int | None = None
    folds: bool = False
    may_build: bool = False
    names_model: bool = True
    names_decoder: bool = True
    names_data: bool = True

    def open(self, more: Sequence[Any] = (), train: Corpus | None = None) -> Tuned:
        """Return the decoder and the weights.

        How many weights are of features that the decoder does not have is said: they have no
        effect.

        more: templates whose features the decoder is to have besides; they have no weight here.
        train: a training set that is to be decoded. As in tuning, the model must not have seen
            those of its sentences that it was built from: with `folds` it has cross-fitted language
            models.
        """
        named = self._check_named()
        train_index: dict[int, int] = {}

        @cache
        def bitext() -> Corpus:
            found = self.dataset.require("train", training=True)
            tell(f"training bitext: {found.summary()}")
            return found

        def model() -> Model:
            source = self.source()
            said = announcement(getattr(source, "__dict__", {}))
            if said is not None:
                tell(said)
            if train is not None and source.from_bitext:
                train_index.update(train.places_in(bitext()))
            if self.may_build and source.from_bitext:
                _keep_another(source)
            folds = bool(train_index) and self.folds
            found: Model = source.open(
                bitext, folds=folds, report=tell, compare_bitext=False, may_write=self.may_build
            )
            if train_index:
                _check_bitext(source, bitext(), folds)
                if not found.folds:
                    tell("sentences of train are scored by a language model that has seen them")
            text, options = self.dataset.description(), self.template_options
            self._check_belongs(named, model_origin(text, found, self.templates, options))
            return found

        decoder: Decoder = self.decoding(
            model=model,
            templates=lambda: [*self.templates, *more],
            threads=lambda: usable_cores() if self.threads is None else self.threads,
        )
        phrases = bool(decoder.phrases)
        found = read_any_weights(self.path, *self.mean_with, phrase_decoder=phrases)
        weights = FrozenWeights(*found)
        dense = np.arange(len(decoder.dense_names))
        if dense.size and not weights.read(decoder.features, dense).any():
            raise InputError(
                "has no weight for any dense feature of this model; was it made with another one?",
                path=self.path,
            )
        features_in_use(self.path, weights.features, decoder, tell)
        # Rows of features are written in this order.
        decoder.features.intern(weights.features.names(range(len(weights))))
        return Tuned(decoder, weights, train_index)

    def _check_named(self) -> Origin | None:
        """Return what the weights say that they belong to, before any model is opened for them."""
        origin = read_origin(self.path)
        for path in self.mean_with:
            other = read_origin(path)
            if origin and other and (difference := other.difference(origin)):
                raise InputError(f"belongs to {difference}, as {self.path} does", path=path)
        of_lists = origin is not None and not origin.is_model
        if self.decoding.kind.stored or (of_lists and not self.names_decoder):  # type: ignore[attr-defined]
            raise InputError(
                "these weights are of a run with decoder=kbest_files, which translates "
                "nothing: apply them to a list with torchtune-smt rerank, or translate with "
                "decoder=hiero",
                path=self.path,
            )
        if self.names_model:
            return origin
        model = "" if origin is None else f": they belong to the grammar {origin.parts['grammar']}"
        raise InputError(
            "lies in no run's folder, which would say how to open the model of these weights; give "
            "the options that they were tuned with, above all data=... and model=..." + model,
            path=self.path,
        )

    def _check_belongs(self, named: Origin | None, here: Origin) -> None:
        """Raise InputError if weights are of another model, or of text prepared in another way."""
        if named is None or not named.is_model:
            return
        difference = named.difference(here)
        if difference is not None:
            raise InputError(
                f"belongs to {difference}; give its own (data=..., model=..., features=...), or "
                "tune with what is here (init=file init.file=...)",
                path=self.path,
            )
        if named.text != here.text and not self.names_data:
            raise InputError(
                f"belongs to text that is prepared as {named.text}, and not as {here.text}; say "
                "how it is to be (data=..., data.lowercase=..., data.tokenize=...)",
                path=self.path,
            )


def tell(line: str) -> None:
    """Print what a user is told: the standard output is for results."""
    print(line, file=sys.stderr, flush=True)


def _check_bitext(source: Any, bitext: Corpus, folds: bool) -> None:
    """Check that a model was built from this bitext: its sentences are numbered as there."""
    reason = source.why_not_built(bitext, folds=folds)
    if reason is not None:
        raise InputError(
            f"sentences of train cannot be left out of the model: {reason}; put back the text that "
            "it was built from, or tune anew",
            path=source.folder,
        )


def _keep_another(source: Any) -> None:
    """Raise InputError if the model would be built where another one lies, which may be needed."""
    reason = source.why_not_built(None, folds=False)
    if reason is not None and source.is_there():
        raise InputError(
            f"{reason}, and translating replaces no model; leave model.folder out, name the folder "
            "of this model or one that is not there yet, or build the model anew with build_model",
            path=source.folder,
        )


_ONE_MODEL: Final = "only derivations of one model have features in common"


def other_model(
    paths: Sequence[Path], decoder_of: Callable[[Path], Mapping[str, Any]]
) -> InputError | None:
    """Return why derivations of some runs, given by their weights, cannot be compared by features.

    decoder_of: returns the options of a run's decoder, with its class.
    """
    first, *others = paths
    origins = {path: read_origin(path) for path in paths}
    for path in others:
        for kind in ("grammar", "language model"):
            pair = origins[first], origins[path]
            parts = [origin.parts[kind] for origin in pair if origin and origin.is_model]
            if len({part.digest for part in parts}) > 1:
                return InputError(
                    f"belongs to the {kind} {parts[1]}, and {first} to {parts[0]}; {_ONE_MODEL}",
                    path=path,
                )
    # Decoders of the user's own may have no model that weights could say they belong to.
    decoders = {path: decoder_of(path) for path in paths} if others else {}
    for path in others:
        own, other = decoders[path], decoders[first]
        target = str(own["_target_"])
        ours = target.startswith(f"{PACKAGE.name}.")
        if target != other["_target_"] or (not ours and own != other):
            return InputError(
                f"is of a run with another decoder than {first}, or other options of it; "
                f"{_ONE_MODEL}",
                path=path,
            )
    return None


def templates_of_others(
    paths: Sequence[Path], templates_of: Callable[[Path], Sequence[tuple[Any, Any]]]
) -> list[list[Any]]:
    """Return for each run, given by its weights, the templates of the others that it lacks itself.

    With them a model can score what another one has chosen.

    templates_of: returns the templates of a run, each with its options.
    """
    every: dict[str, tuple[Any, Any]] = {}
    own: list[set[str]] = []
    for path in paths:
        made = templates_of(path)
        own.append({template.name for template, _ in made})
        for template, given in made:
            if every.setdefault(template.name, (template, given))[1] != given:
                raise InputError(
                    f"has other options of the features {template.name} than another run; only "
                    "derivations with the same features can be compared",
                    path=path,
                )
    return [[every[name][0] for name in every if name not in names] for names in own]

"""A decoder and tuned weights for it, as a command or a run's folder describes them."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import numpy as np
from hydra import compose
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from torchtune_smt.cli.belonging import check_belongs, check_named, model_origin
from torchtune_smt.cli.command_line import override_key, quoted
from torchtune_smt.cli.hydra_main import make_classes_importable
from torchtune_smt.cli.model_size import announcement
from torchtune_smt.cli.options import is_ours
from torchtune_smt.cli.run_folder import NEEDLESS, Settings, take_up
from torchtune_smt.cli.wire import (
    decoder_class,
    make,
    make_dataset,
    make_templates,
    thread_count,
)
from torchtune_smt.core.errors import InputError
from torchtune_smt.core.snapshot import FrozenWeights
from torchtune_smt.core.weights_io import read_origin
from torchtune_smt.data.bitext import Corpus
from torchtune_smt.data.dataset import Dataset
from torchtune_smt.decoders.base import Decoder, features_in_use
from torchtune_smt.models.base import Model, ModelSource
from torchtune_smt.models.moses_ini import read_any_weights
from torchtune_smt.runs.folder import COMPOUNDS

_ONE_MODEL: Final = "only derivations of one model have features in common"


def dataset_of_run(cfg: DictConfig) -> Dataset:
    """Return the configured data; compounds are split as in the run that made the weights."""
    dataset = make_dataset(cfg)
    counts = Path(cfg.weights).parent / COMPOUNDS
    if dataset.split_compounds is None or not counts.is_file():
        return dataset
    return replace(dataset, compounds=counts)


class Tuned(NamedTuple):
    """A decoder and weights that belong to it.

    Attributes
    ----------
    decoder : Decoder
    weights : FrozenWeights
    train_index : mapping of int to int
        By the number of a sentence in the set that was given: its number in the bitext that the
        model was built from.
    """

    decoder: Decoder
    weights: FrozenWeights
    train_index: Mapping[int, int] = MappingProxyType({})


def open_tuned(
    cfg: DictConfig,
    settings: Settings,
    dataset: Dataset,
    more: Sequence[Any] = (),
    train: Corpus | None = None,
) -> Tuned:
    """Return the decoder and the weights that ``translate`` is configured with.

    How many weights are of features that the decoder does not have is said: they have no effect.

    Parameters
    ----------
    more : sequence of RuleTemplate
        Templates whose features the decoder is to have besides; they have no weight here.
    train : Corpus, optional
        A training set that is to be decoded. As in tuning, the model must not have seen those of
        its sentences that it was built from: with ``lm=folds`` it has cross-fitted language models.

    Raises
    ------
    InputError
        The weights belong to another model, or nobody says to which; or the training bitext is no
        longer that of the model.
    """
    named = check_named(cfg, settings)
    _find_from_place(cfg, settings)
    templates = make_templates(cfg)
    train_index: dict[int, int] = {}
    # Where a run says which model it is, none is built.
    typed = "model.folder" in map(override_key, settings.given)
    may_write = typed or (settings.may_write_model and not settings.has_run)

    @cache
    def bitext() -> Corpus:
        found = dataset.require("train", training=True)
        _tell(f"training bitext: {found.summary()}")
        return found

    def model() -> Model:
        source: ModelSource = make(cfg, "model", "open")
        said = announcement(cfg)
        if said is not None:
            _tell(said)
        if train is not None and source.from_bitext:
            train_index.update(train.places_in(bitext()))
        if may_write and source.from_bitext:
            _keep_another(source)
        folds = bool(train_index) and cfg.lm == "folds" and cfg.model.get("folds") != 0
        found = source.open(
            bitext,
            folds=folds,
            report=_tell,
            compare_bitext=False,
            may_write=may_write,
        )
        if train_index:
            _check_bitext(cfg, source, bitext(), folds)
            if not found.folds:
                _tell("sentences of train are scored by a language model that has seen them")
        check_belongs(cfg, settings, named, model_origin(cfg, dataset, found, templates))
        return found

    decoder: Decoder = make(
        cfg,
        "decoder",
        "decode",
        offered={
            "model": model,
            "templates": lambda: [*templates, *more],
            "threads": lambda: thread_count(cfg.threads),
        },
    )
    found = read_any_weights(cfg.weights, phrase_decoder=bool(decoder.phrases))
    weights = FrozenWeights(*found)
    dense = np.arange(len(decoder.dense_names))
    if dense.size and not weights.read(decoder.features, dense).any():
        raise InputError(
            "has no weight for any dense feature of this model; was it made with another one?",
            path=cfg.weights,
        )
    features_in_use(cfg.weights, weights.features, decoder, _tell)
    # Rows of features are written in this order.
    decoder.features.intern(weights.features.names(range(len(weights))))
    return Tuned(decoder, weights, train_index)


def _find_from_place(cfg: DictConfig, settings: Settings) -> None:
    """Let paths of the model that are not here be found from where the run was started."""
    given = set(map(override_key, settings.given))
    if settings.place is None or "model" in given:
        return
    for name, path in cfg.model.items():
        here = not isinstance(path, str) or path == "" or os.path.lexists(path)
        if not here and f"model.{name}" not in given and (settings.place / path).exists():
            cfg.model[name] = str(settings.place / path)


def _check_bitext(cfg: DictConfig, source: Any, bitext: Corpus, folds: bool) -> None:
    """Check that a model was built from this bitext: its sentences are numbered as there."""
    reason = source.why_not_built(bitext, folds=folds)
    if reason is not None:
        raise InputError(
            f"sentences of train cannot be left out of the model: {reason}; put back the text that "
            "it was built from, or tune anew",
            path=cfg.model.folder,
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


def _tell(line: str) -> None:
    """Print what a user is told: the standard output is for results."""
    print(line, file=sys.stderr, flush=True)


def tuned_of(weights: Path, more: Sequence[Any] = (), train: Corpus | None = None) -> Tuned:
    """Return the decoder of the run in whose folder some weights lie, and these weights.

    To be called within a command that Hydra configures.

    Parameters
    ----------
    more : sequence of RuleTemplate
    train : Corpus, optional
        As for `open_tuned`.
    """
    return open_tuned(*_taken_up(weights), more, train)


def longest_source(weights: Path) -> int | None:
    """Return how many words a source may have that a run, given by its weights, decodes.

    To be called as `tuned_of`. None: any number.
    """
    cfg, *_ = _taken_up(weights)
    most = decoder_class(cfg).longest_source(cfg.decoder)
    # What else it may be in a damaged record is refused where the decoder is made.
    return most if isinstance(most, int) else None


def other_model(paths: Sequence[Path]) -> InputError | None:
    """Return why derivations of some runs, given by their weights, cannot be compared by features.

    They have different models; None if they have one, as far as anybody can say.
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
    decoders = {path: _taken_up(path)[0].decoder for path in paths} if others else {}
    for path in others:
        own, other = decoders[path], decoders[first]
        if own["_target_"] != other["_target_"]:
            return InputError(
                f"is of a run with the decoder {own['_target_']}, and {first} of one with "
                f"{other['_target_']}; {_ONE_MODEL}",
                path=path,
            )
        if not is_ours(own) and own != other:
            return InputError(
                f"is of a run with other options of the decoder {own['_target_']} than {first}; "
                f"{_ONE_MODEL}",
                path=path,
            )
    return None


def templates_of_others(paths: Sequence[Path]) -> list[list[Any]]:
    """Return for each run, given by its weights, the templates of the others that it lacks itself.

    With them (`tuned_of`) all that any of the models looks at is known of every derivation, and a
    model can score what another one has chosen.

    Raises
    ------
    InputError
        The weights belong to different models, or templates of one name have other options.
    """
    error = other_model(paths)
    if error is not None:
        raise error
    every: dict[str, tuple[Any, Any]] = {}
    own: list[set[str]] = []
    for path in paths:
        cfg, *_ = _taken_up(path)
        options = [OmegaConf.to_container(t, resolve=True) for t in cfg.features.templates]
        made = make_templates(cfg)
        own.append({template.name for template in made})
        for template, given in zip(made, options, strict=True):
            if every.setdefault(template.name, (template, given))[1] != given:
                raise InputError(
                    f"has other options of the features {template.name} than another run; only "
                    "derivations with the same features can be compared",
                    path=path,
                )
    return [[every[name][0] for name in every if name not in names] for names in own]


def _taken_up(weights: Path) -> tuple[DictConfig, Settings, Dataset]:
    """Return how ``translate`` is configured by the folder that some weights lie in.

    The folder chooses among the configurations of this package and of the user's ``--config-dir``,
    and these alone name classes.
    """
    sources = HydraConfig.get().runtime.config_sources
    settings = take_up(
        weights.parent,
        (),
        needless=NEEDLESS,
        sources=[Path(source.path) for source in sources if source.schema == "file"],
        cure="this command cannot be given {these}; have `translate` translate with {these}, and "
        "name the file that it writes, or tune with a file of --config-dir that says the same",
    )
    cfg = compose(
        "translate", [*settings.recorded, f"weights={quoted(str(weights))}", "input=none"]
    )
    make_classes_importable(cfg)
    return cfg, settings, dataset_of_run(cfg)

"""A decoder and tuned weights for it, as a command or a run's folder describes them."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np
from hydra import compose
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from torchtune_smt.cli.command_line import override_key, quoted
from torchtune_smt.cli.help import NEEDLESS
from torchtune_smt.cli.hydra_main import make_classes_importable
from torchtune_smt.cli.options import is_ours
from torchtune_smt.cli.record import Settings, take_up
from torchtune_smt.cli.wire import decoder_class, make, make_dataset, make_templates, recipe
from torchtune_smt.core.errors import InputError
from torchtune_smt.core.recipe import leaves
from torchtune_smt.core.snapshot import FrozenWeights
from torchtune_smt.core.weights_io import Origin, read_origin
from torchtune_smt.data.bitext import Corpus
from torchtune_smt.data.dataset import Dataset
from torchtune_smt.decoders.base import Decoder, features_in_use
from torchtune_smt.models.base import Model, announcement, model_origin
from torchtune_smt.models.moses_ini import read_any_weights
from torchtune_smt.parallel.engine import usable_cores
from torchtune_smt.runs.folder import COMPOUNDS

# By weights, with the configuration of the command that asked.
_KEPT: Final[dict[Path, tuple[object, tuple[DictConfig, Settings, Dataset]]]] = {}


def dataset_of_run(cfg: DictConfig) -> Dataset:
    """Return the configured data; compounds are split as in the run that made the weights."""
    dataset = make_dataset(cfg)
    counts = Path(cfg.weights).parent / COMPOUNDS
    if dataset.split_compounds is None or not counts.is_file():
        return dataset
    return replace(dataset, compounds=counts)


def open_tuned(
    cfg: DictConfig,
    settings: Settings,
    dataset: Dataset,
    more: Sequence[Any] = (),
    train: Corpus | None = None,
) -> tuple[Decoder, FrozenWeights, dict[int, int]]:
    """Return the decoder that ``translate`` is configured with, and the weights.

    How many weights are of features that the decoder does not have is said: they have no effect.

    more: templates whose features the decoder is to have besides; they have no weight here.
    train: a training set that is to be decoded. As in tuning, the model must not have seen those of
        its sentences that it was built from: with ``lm=folds`` it has cross-fitted language models.

    Returns train_index: by the number of a sentence of `train`: its number in the bitext that the
        model was built from.
    """
    _find_from_place(cfg, settings)
    decoder_class(cfg)
    decoding, templates = recipe(cfg, "decoder", "decode"), make_templates(cfg)
    options: Any = OmegaConf.to_container(cfg.features.templates, resolve=True)
    # Where a run says which model it is, none is built.
    typed = "model.folder" in map(override_key, settings.given)
    may_build = typed or (settings.may_write_model and not settings.has_run)
    named = _check_named(cfg, settings)
    train_index: dict[int, int] = {}

    @cache
    def bitext() -> Corpus:
        found = dataset.require("train", training=True)
        tell(f"training bitext: {found.summary()}")
        return found

    def model() -> Model:
        source = make(cfg, "model", "open")
        said = announcement(getattr(source, "__dict__", {}))
        if said is not None:
            tell(said)
        if train is not None and source.from_bitext:
            train_index.update(train.places_in(bitext()))
        if may_build and source.from_bitext:
            _keep_another(source)
        folds = bool(train_index) and cfg.lm == "folds" and cfg.model.get("folds") != 0
        found: Model = source.open(
            bitext, folds=folds, report=tell, compare_bitext=False, may_write=may_build
        )
        if train_index:
            # Its sentences are numbered as in the bitext that the model was built from.
            reason = source.why_not_built(bitext(), folds=folds)
            if reason is not None:
                raise InputError(
                    f"sentences of train cannot be left out of the model: {reason}; put back the "
                    "text that it was built from, or tune anew",
                    path=source.folder,
                )
            if not found.folds:
                tell("sentences of train are scored by a language model that has seen them")
        here = model_origin(dataset.description(), found, templates, options)
        _check_belongs(cfg, settings, named, here)
        return found

    decoder: Decoder = decoding(
        model=model,
        templates=lambda: [*templates, *more],
        threads=lambda: usable_cores() if cfg.threads is None else cfg.threads,
    )
    phrases = bool(decoder.phrases)
    weights = FrozenWeights(*read_any_weights(cfg.weights, *cfg.mean_with, phrase_decoder=phrases))
    dense = np.arange(len(decoder.dense_names))
    if dense.size and not weights.read(decoder.features, dense).any():
        raise InputError(
            "has no weight for any dense feature of this model; was it made with another one?",
            path=cfg.weights,
        )
    features_in_use(cfg.weights, weights.features, decoder, tell)
    # Rows of features are written in this order.
    decoder.features.intern(weights.features.names(range(len(weights))))
    return decoder, weights, train_index


def _check_named(cfg: DictConfig, settings: Settings) -> Origin | None:
    """Return what the weights say that they belong to, before any model is opened for them."""
    origin = read_origin(cfg.weights)
    for path in cfg.mean_with:
        other = read_origin(path)
        if origin and other and (difference := other.difference(origin)):
            raise InputError(f"belongs to {difference}, as {cfg.weights} does", path=path)
    of_lists = origin is not None and not origin.is_model
    if decoder_class(cfg).stored or (of_lists and not settings.gives("decoder")):
        raise InputError(
            "these weights are of a run with decoder=kbest_files, which translates nothing: apply "
            "them to a list with torchtune-smt rerank, or translate with decoder=hiero",
            path=cfg.weights,
        )
    if settings.names_model:
        return origin
    model = "" if origin is None else f": they belong to the grammar {origin.parts['grammar']}"
    raise InputError(
        "lies in no run's folder, which would say how to open the model of these weights; give the "
        "options that they were tuned with, above all data=... and model=..." + model,
        path=cfg.weights,
    )


def _check_belongs(cfg: DictConfig, settings: Settings, named: Origin | None, here: Origin) -> None:
    """Raise InputError if weights are of another model, or of text prepared in another way."""
    if named is None or not named.is_model:
        return
    difference = named.difference(here)
    if difference is not None:
        raise InputError(
            f"belongs to {difference}; give its own (data=..., model=..., features=...), or tune "
            "with what is here (init=file init.file=...)",
            path=cfg.weights,
        )
    # What is typed of it is meant to be another.
    typed = {override_key(override).removeprefix("data.") for override in settings.given}
    odd = set(named.text.split()) ^ set(here.text.split())
    if {part.partition("=")[0] for part in odd} - typed:
        raise InputError(
            f"belongs to text that is prepared as {named.text}, and not as {here.text}; say how it "
            "is to be (data=..., data.lowercase=..., data.tokenize=...)",
            path=cfg.weights,
        )


def tell(line: str) -> None:
    """Print what a user is told: the standard output is for results."""
    print(line, file=sys.stderr, flush=True)


def _keep_another(source: Any) -> None:
    """Raise InputError if the model would be built where another one lies, which may be needed."""
    reason = source.why_not_built(None, folds=False)
    if reason is not None and source.is_there():
        raise InputError(
            f"{reason}, and translating replaces no model; leave model.folder out, name the folder "
            "of this model or one that is not there yet, or build the model anew with build_model",
            path=source.folder,
        )


def _find_from_place(cfg: DictConfig, settings: Settings) -> None:
    """Let paths of the model that are not here be found from where the run was started."""
    given = set(map(override_key, settings.given))
    if settings.place is None or "model" in given:
        return
    for name, path in leaves("model", OmegaConf.to_container(cfg.model, resolve=True)):
        here = not isinstance(path, str) or path == "" or os.path.lexists(path)
        if not here and name not in given and (settings.place / path).exists():
            OmegaConf.update(cfg, name, str(settings.place / path))


_ONE_MODEL: Final = "only derivations of one model have features in common"


def other_model(paths: Sequence[Path]) -> InputError | None:
    """Return why derivations of some runs, given by their weights, cannot be compared."""
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
    decoders = {path: taken_up(path)[0].decoder for path in paths} if others else {}
    for path in others:
        own, other = decoders[path], decoders[first]
        if own["_target_"] != other["_target_"] or (not is_ours(own) and own != other):
            return InputError(
                f"is of a run with another decoder than {first}, or other options of it; "
                f"{_ONE_MODEL}",
                path=path,
            )
    return None


def templates_of_others(paths: Sequence[Path]) -> list[list[Any]]:
    """Return for each run, given by its weights, the templates of the others that it lacks itself.

    With them a model can score what another one has chosen.
    """
    if error := other_model(paths):
        raise error
    every: dict[str, tuple[Any, Any]] = {}
    own: list[set[str]] = []
    for path in paths:
        cfg, *_ = taken_up(path)
        made = make_templates(cfg)
        own.append({template.name for template in made})
        for template, given in zip(made, cfg.features.templates, strict=True):
            options = OmegaConf.to_container(given, resolve=True)
            if every.setdefault(template.name, (template, options))[1] != options:
                raise InputError(
                    f"has other options of the features {template.name} than another run; only "
                    "derivations with the same features can be compared",
                    path=path,
                )
    return [[every[name][0] for name in every if name not in names] for names in own]


def taken_up(weights: Path) -> tuple[DictConfig, Settings, Dataset]:
    """Return how ``translate`` is configured by the folder that some weights lie in.

    The folder chooses among the configurations of this package and of the user's ``--config-dir``,
    and these alone name classes. Composing takes a while: it is kept for the command.
    """
    command = HydraConfig.get()
    kept = _KEPT.get(weights)
    if kept is None or kept[0] is not command:
        kept = command, _compose(weights)
        _KEPT[weights] = kept
    return kept[1]


def _compose(weights: Path) -> tuple[DictConfig, Settings, Dataset]:
    settings = take_up(
        weights.parent,
        (),
        needless=NEEDLESS,
        cure="this command cannot be given them; have `translate` translate with these overrides, "
        "and name the file that it writes, or tune with a file of --config-dir that says the same",
    )
    cfg = compose(
        "translate", [*settings.recorded, f"weights={quoted(str(weights))}", "input=none"]
    )
    make_classes_importable(cfg)
    settings.apply(cfg)
    return cfg, settings, dataset_of_run(cfg)

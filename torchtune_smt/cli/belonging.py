"""Whether weights belong to the model that they are used with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from omegaconf import DictConfig, OmegaConf

from torchtune_smt.cli.run_folder import Settings
from torchtune_smt.cli.wire import decoder_class
from torchtune_smt.core.errors import InputError
from torchtune_smt.core.weights_io import Origin, Part, digest_of, read_origin
from torchtune_smt.data.dataset import Dataset
from torchtune_smt.models.base import Model


def model_origin(
    cfg: DictConfig, dataset: Dataset, model: Model, templates: Sequence[Any]
) -> Origin:
    """Return what weights belong to that are tuned with a model."""
    text = dataset.description()
    features = Part(
        " ".join(["dense", *sorted(template.name for template in templates)]),
        digest_of(sorted(map(_described, templates, cfg.features.templates))),
    )
    grammar, language_model = (
        part._replace(name=f"{part.name} ({text.split()[0]})")
        for part in (model.grammar_part, model.language_model_part)
    )
    return Origin.of_model(grammar, language_model, features, text)


def check_named(cfg: DictConfig, settings: Settings) -> Origin | None:
    """Return what the weights say that they belong to, before any model is opened for them.

    Raises
    ------
    InputError
        They are of k-best lists; or nobody says which model is meant.
    """
    origin = read_origin(cfg.weights)
    of_lists = origin is not None and not origin.is_model
    if decoder_class(cfg).stored or (of_lists and not settings.gives("decoder")):
        raise InputError(
            "these weights are of a run with decoder=kbest_files, which translates "
            "nothing: apply them to a list with scripts/rerank.py, or translate with decoder=hiero",
            path=cfg.weights,
        )
    if settings.names_model:
        return origin
    if origin is None:
        raise InputError(
            "does not say which model the weights belong to, and lies in no run's folder; give the "
            "model, as in data=NAME model=hiero, or data=NAME model=files model.grammar=FILE "
            "model.language_model=FILE",
            path=cfg.weights,
        )
    raise InputError(
        f"lies in no run's folder, which would say how to open its model; give the options that "
        f"it was tuned with, above all data=... and model=...: it belongs to the grammar "
        f"{origin.parts['grammar']}",
        path=cfg.weights,
    )


def check_belongs(
    cfg: DictConfig, settings: Settings, named: Origin | None, here: Origin | None
) -> None:
    """Check that weights belong to the model that is here.

    Raises
    ------
    InputError
        They are of another model, or of text that is prepared in another way.
    """
    if named is None or here is None or not named.is_model:
        return
    # What is split in other places has a model of its own, too, by which nobody would know why.
    if named.lowercased_first and "lowercase" in here.text.split():
        raise InputError(
            f"belongs to text that was prepared as {named.text}, in an order that splits it in "
            f"other places than {here.text}; tune anew, or translate text that is lowercased "
            "already, with data.lowercase=false",
            path=cfg.weights,
        )
    difference = named.difference(here)
    if difference is not None:
        raise InputError(
            f"belongs to {difference}; give its own (data=..., model=..., features=...), or tune "
            "with what is here (init=file init.file=...)",
            path=cfg.weights,
        )
    if named.text != here.text and not settings.gives("data"):
        raise InputError(
            f"belongs to text that is prepared as {named.text}, and not as {here.text}; say how "
            "it is to be (data=..., data.lowercase=..., data.tokenize=...)",
            path=cfg.weights,
        )


def other_origin(path: str | None, here: Origin | None) -> str | None:
    """Return a notice if the weights that tuning starts from belong to another model."""
    named = None if path is None or here is None else read_origin(path)
    difference = None if named is None or here is None else named.difference(here)
    return None if difference is None else f"{path}: belongs to {difference}; tuning starts from it"


def _described(template: Any, given: Any) -> str:
    """Return a text that differs for templates that differ."""
    arguments = OmegaConf.to_container(given, resolve=True) if OmegaConf.is_config(given) else {}
    assert isinstance(arguments, dict)
    arguments.pop("_target_", None)
    return f"{template.name} {type(template).__qualname__} {digest_of(arguments)}"

"""A decoder and tuned weights for it, as a command or a run's folder describes them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from hydra import compose
from omegaconf import DictConfig, OmegaConf

from torchtune_smt.cli.command_line import override_key, quoted
from torchtune_smt.cli.hydra_main import make_classes_importable
from torchtune_smt.cli.options import is_ours
from torchtune_smt.cli.record import NEEDLESS, Settings, take_up
from torchtune_smt.cli.wire import decoder_class, make, make_dataset, make_templates, recipe
from torchtune_smt.core.errors import InputError
from torchtune_smt.core.weights_io import read_origin
from torchtune_smt.data.bitext import Corpus
from torchtune_smt.data.dataset import Dataset
from torchtune_smt.runs.folder import COMPOUNDS
from torchtune_smt.runs.tuned import Tuned, TunedSystem

_ONE_MODEL: Final = "only derivations of one model have features in common"


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
) -> Tuned:
    """Return the decoder and the weights that ``translate`` is configured with.

    `more` and `train` are as for `TunedSystem.open`.
    """
    _find_from_place(cfg, settings)
    decoder_class(cfg)
    # Where a run says which model it is, none is built.
    typed = "model.folder" in map(override_key, settings.given)
    options: Any = OmegaConf.to_container(cfg.features.templates, resolve=True)
    system = TunedSystem(
        path=cfg.weights,
        decoding=recipe(cfg, "decoder", "decode"),
        dataset=dataset,
        source=lambda: make(cfg, "model", "open"),
        templates=make_templates(cfg),
        template_options=options,
        threads=cfg.threads,
        folds=cfg.lm == "folds" and cfg.model.get("folds") != 0,
        may_build=typed or (settings.may_write_model and not settings.has_run),
        names_model=settings.names_model,
        names_decoder=settings.gives("decoder"),
        names_data=settings.gives("data"),
    )
    return system.open(more, train)


def _find_from_place(cfg: DictConfig, settings: Settings) -> None:
    """Let paths of the model that are not here be found from where the run was started."""
    given = set(map(override_key, settings.given))
    if settings.place is None or "model" in given:
        return
    for name, path in cfg.model.items():
        here = not isinstance(path, str) or path == "" or os.path.lexists(path)
        if not here and f"model.{name}" not in given and (settings.place / path).exists():
            cfg.model[name] = str(settings.place / path)


def tuned_of(weights: Path, more: Sequence[Any] = (), train: Corpus | None = None) -> Tuned:
    """Return the decoder of the run in whose folder some weights lie, and these weights.

    To be called within a command that Hydra configures.

    train: as for `open_tuned`.
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

    Raises InputError: the weights belong to different models, or templates of one name have other
        options.
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
    settings = take_up(
        weights.parent,
        (),
        needless=NEEDLESS,
        cure="this command cannot be given {these}; have `translate` translate with {these}, and "
        "name the file that it writes, or tune with a file of --config-dir that says the same",
    )
    cfg = compose(
        "translate", [*settings.recorded, f"weights={quoted(str(weights))}", "input=none"]
    )
    make_classes_importable(cfg)
    settings.apply(cfg)
    return cfg, settings, dataset_of_run(cfg)

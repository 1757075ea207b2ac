"""A decoder and tuned weights for it, as a command or a run's folder describes them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from hydra import compose
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from torchtune_smt.cli.command_line import override_key, quoted
from torchtune_smt.cli.help import NEEDLESS
from torchtune_smt.cli.hydra_main import make_classes_importable
from torchtune_smt.cli.record import Settings, take_up
from torchtune_smt.cli.wire import decoder_class, make, make_dataset, make_templates, recipe
from torchtune_smt.core.errors import InputError
from torchtune_smt.core.recipe import leaves
from torchtune_smt.data.bitext import Corpus
from torchtune_smt.data.dataset import Dataset
from torchtune_smt.runs import tuned
from torchtune_smt.runs.folder import COMPOUNDS
from torchtune_smt.runs.tuned import Tuned, TunedSystem

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
) -> Tuned:
    """Return what ``translate`` is configured with; see `TunedSystem.open`."""
    _find_from_place(cfg, settings)
    decoder_class(cfg)
    # Where a run says which model it is, none is built.
    typed = "model.folder" in map(override_key, settings.given)
    options: Any = OmegaConf.to_container(cfg.features.templates, resolve=True)
    system = TunedSystem(
        path=cfg.weights,
        mean_with=cfg.mean_with,
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
    for name, path in leaves("model", OmegaConf.to_container(cfg.model, resolve=True)):
        here = not isinstance(path, str) or path == "" or os.path.lexists(path)
        if not here and name not in given and (settings.place / path).exists():
            OmegaConf.update(cfg, name, str(settings.place / path))


def other_model(paths: Sequence[Path]) -> InputError | None:
    """Return why derivations of some runs cannot be compared; see `runs.tuned.other_model`."""
    return tuned.other_model(paths, lambda path: taken_up(path)[0].decoder)


def templates_of_others(paths: Sequence[Path]) -> list[list[Any]]:
    """Return for each run the templates that it lacks; see `runs.tuned.templates_of_others`."""
    if error := other_model(paths):
        raise error

    def templates(path: Path) -> list[tuple[Any, Any]]:
        cfg, *_ = taken_up(path)
        options = [OmegaConf.to_container(t, resolve=True) for t in cfg.features.templates]
        return list(zip(make_templates(cfg), options, strict=True))

    return tuned.templates_of_others(paths, templates)


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
        cure="this command cannot be given {these}; have `translate` translate with {these}, and "
        "name the file that it writes, or tune with a file of --config-dir that says the same",
    )
    cfg = compose(
        "translate", [*settings.recorded, f"weights={quoted(str(weights))}", "input=none"]
    )
    make_classes_importable(cfg)
    settings.apply(cfg)
    return cfg, settings, dataset_of_run(cfg)

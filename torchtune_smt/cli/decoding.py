"""A decoder and tuned weights for it, as a command or a run's folder describes them."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from hydra import compose
from omegaconf import DictConfig, OmegaConf

from torchtune_smt.cli.belonging import check_belongs, check_named, model_origin
from torchtune_smt.cli.command_line import quoted
from torchtune_smt.cli.model_size import announcement
from torchtune_smt.cli.objects import make, make_dataset, make_templates, thread_count
from torchtune_smt.cli.run_folder import Settings, take_up
from torchtune_smt.core.errors import InputError
from torchtune_smt.core.snapshot import FrozenWeights
from torchtune_smt.core.weights_io import read_origin
from torchtune_smt.data.dataset import Dataset
from torchtune_smt.decoders.base import Decoder
from torchtune_smt.models.base import Model, ModelSource
from torchtune_smt.models.weight_files import read_any_weights
from torchtune_smt.runs.folder import COMPOUNDS


def dataset_of_run(cfg: DictConfig) -> Dataset:
    """Return the configured data; compounds are split as in the run that made the weights."""
    dataset = make_dataset(cfg)
    counts = Path(cfg.weights).parent / COMPOUNDS
    if dataset.split_compounds is None or not counts.is_file():
        return dataset
    return replace(dataset, compounds=counts)


class Tuned(NamedTuple):
    """A decoder and weights that belong to it."""

    decoder: Decoder
    weights: FrozenWeights


def open_tuned(
    cfg: DictConfig, settings: Settings, dataset: Dataset, more: Sequence[Any] = ()
) -> Tuned:
    """Return the decoder and the weights that ``translate`` is configured with.

    Parameters
    ----------
    more : sequence of RuleTemplate
        Templates whose features the decoder is to have besides; they have no weight here.

    Raises
    ------
    InputError
        The weights belong to another model, or nobody says to which.
    """
    named = check_named(cfg, settings)
    templates = make_templates(cfg)

    def model() -> Model:
        source: ModelSource = make(cfg, "model", "open")
        said = announcement(cfg)
        if said is not None:
            print(said, file=sys.stderr, flush=True)
        found = source.open(
            lambda: dataset.require("train", training=True),
            report=lambda line: print(line, file=sys.stderr),
            compare_bitext=False,
            may_write=settings.may_write_model,
        )
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
    weights = FrozenWeights(*read_any_weights(cfg.weights))
    dense = np.arange(len(decoder.dense_names))
    if dense.size and not weights.read(decoder.features, dense).any():
        raise InputError(
            "has no weight for any dense feature of this model; was it made with another one?",
            path=cfg.weights,
        )
    # Rows of features are written in this order.
    decoder.features.intern(weights.features.names(range(len(weights))))
    return Tuned(decoder, weights)


def tuned_of(weights: Path) -> Tuned:
    """Return the decoder of the run in whose folder some weights lie, and these weights.

    To be called within a command that Hydra configures.
    """
    return open_tuned(*_taken_up(weights))


def tuned_alike(first: Path, second: Path) -> tuple[Tuned, Tuned]:
    """Return decoders and weights of two runs, as `tuned_of` does; both have the features of both.

    So all that either model looks at is known of either's derivations.

    Raises
    ------
    InputError
        The weights belong to different models, or templates of one name have other options.
    """
    origins = [read_origin(path) for path in (first, second)]
    for kind in ("grammar", "language model"):
        parts = [o.parts[kind] for o in origins if o is not None and o.is_model]
        if len({part.digest for part in parts}) > 1:
            raise InputError(
                f"belongs to the {kind} {parts[1]}, and {first} to {parts[0]}; only derivations of "
                "one model have features in common",
                path=second,
            )
    taken = [_taken_up(path) for path in (first, second)]
    own = [
        {template.name: (template, given) for template, given in _templates(cfg)}
        for cfg, *_ in taken
    ]
    for name in own[0].keys() & own[1].keys():
        if own[0][name][1] != own[1][name][1]:
            raise InputError(
                f"has other options of the features {name} than the run of {first}; only "
                "derivations with the same features are compared",
                path=second,
            )
    more = [[own[b][n][0] for n in own[b] if n not in own[a]] for a, b in ((0, 1), (1, 0))]
    a, b = (open_tuned(*parts, others) for parts, others in zip(taken, more, strict=True))
    return a, b


def _taken_up(weights: Path) -> tuple[DictConfig, Settings, Dataset]:
    """Return how ``translate`` is configured by the folder that some weights lie in."""
    settings = take_up(weights.parent, ())
    cfg = compose(
        "translate", [*settings.recorded, f"weights={quoted(str(weights))}", "input=none"]
    )
    return cfg, settings, dataset_of_run(cfg)


def _templates(cfg: DictConfig) -> Iterator[tuple[Any, Any]]:
    """Yield the configured templates, each with its options."""
    for template, given in zip(make_templates(cfg), cfg.features.templates, strict=True):
        yield template, OmegaConf.to_container(given, resolve=True)

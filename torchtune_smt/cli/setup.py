"""From a composed configuration to the objects that it describes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import compress
from typing import Any

import numpy as np
from omegaconf import DictConfig

from torchtune_smt.cli.hydra_main import option_errors
from torchtune_smt.cli.objects import thread_count
from torchtune_smt.core.errors import InputError
from torchtune_smt.core.weights import Weights
from torchtune_smt.core.weights_io import read_weights
from torchtune_smt.decoders.hiero import HieroDecoder
from torchtune_smt.features.template import template_of
from torchtune_smt.models.base import Model


def make_decoder(cfg: DictConfig, model: Model, templates: Sequence[Any]) -> HieroDecoder:
    """Return the configured decoder."""
    with option_errors("decoder"):
        return HieroDecoder(
            model,
            templates=templates,
            k=cfg.decoder.k,
            pop_limit=cfg.decoder.pop_limit,
            max_span=cfg.decoder.max_span,
            max_words=cfg.decoder.max_words,
            unique=cfg.decoder.unique,
            threads=thread_count(cfg.threads),
        )


def initial_weights(
    init: DictConfig, decoder: HieroDecoder, report: Callable[[str], None] = print
) -> Weights:
    """Return the weights that tuning starts from.

    Raises
    ------
    InputError
        The weights file is bad, or no dense feature has a weight in it.
    """
    dense = decoder.dense_names
    if init.file is not None:
        templates = {template.name for template in decoder.templates}
        weights = weights_of_file(
            init.file, dense, lambda name: name in dense or template_of(name) in templates, report
        )
        if not weights.parameter[: weights.n_dense].any():
            raise InputError(
                f"has no weight for any of this model's dense features ({', '.join(dense)}); is it "
                "the weights file of another model?",
                path=init.file,
            )
        return weights
    weights = Weights(dense)
    values = dict(init["values"])
    known = {name: value for name, value in values.items() if name in weights.features}
    weights.set(list(known), list(known.values()))
    if values and not known:
        raise InputError(
            "init.values has none of this model's dense features "
            f"({', '.join(dense)}); give init=file init.file=WEIGHTS"
        )
    return weights


def weights_of_file(
    path: str, dense: Sequence[str], exists: Callable[[str], bool], report: Callable[[str], None]
) -> Weights:
    """Return the weights that a file has for features that exist.

    Weights of other features would have no effect: they are left out, and their number is reported.

    Parameters
    ----------
    dense : sequence of str
        The dense features.
    exists : callable
        Says whether there is such a feature.
    report : callable
        Told what is left out.
    """
    names, values = read_weights(path)
    named = names.names(range(len(names)))
    there = np.array([exists(name) for name in named], np.bool_)
    if there.any() and not there.all():
        others = np.flatnonzero(~there)
        report(
            f"{path}: {others.size:,} of {len(names):,} weights are left out, as their features, "
            f"such as {named[others[0]]}, are not in use here"
        )
    weights = Weights(dense)
    weights.set(list(compress(named, there)), values[there])
    return weights

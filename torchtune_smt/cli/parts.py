"""The parts of a run, as the configuration names them."""

from __future__ import annotations

from collections.abc import Callable, Collection
from copy import deepcopy
from functools import partial
from typing import Any

import torch
from hydra.core.hydra_config import HydraConfig
from hydra.utils import get_class
from omegaconf import DictConfig, OmegaConf

from torchtune_smt.cli.command_line import refuse_given
from torchtune_smt.cli.options import check_values, chosen_name
from torchtune_smt.cli.spending import OF_RUNS, learner_class, taken_by_others, tuner_takes
from torchtune_smt.cli.wire import (
    arguments,
    class_of,
    decoder_class,
    make,
    make_dataset,
    make_templates,
    recipe,
)
from torchtune_smt.core.errors import InputError
from torchtune_smt.core.recipe import Recipe, named_errors
from torchtune_smt.data.dataset import Dataset
from torchtune_smt.losses import check_loss
from torchtune_smt.runs.parts import Optimizers, Parts, SolverOnLists
from torchtune_smt.tuners.batch import BatchTuner
from torchtune_smt.tuners.grouping.tuner import group_learner, option_rules


def make_parts(cfg: DictConfig) -> Parts:
    """Return the parts of a run, made before all else, so that bad options are found at once."""
    takes, options = tuner_takes(cfg), cfg.tuner
    check_values(cfg, option_rules(class_of(cfg, "tuner")))
    dataset, templates = make_dataset(cfg), make_templates(cfg)
    learning = _learning(cfg)
    regularizer, optimizer = learning["regularizer"], learning["optimizer"]
    decoder_class(cfg)
    decoding = recipe(cfg, "decoder", "decode")
    model, file = None, cfg.init.get("file")
    if "model" in decoding.names:
        model = make(cfg, "model", "open", "from_bitext", "phrases")
    parts = Parts(
        dataset=dataset,
        decoding=decoding,
        model=model,
        templates=templates,
        template_options=OmegaConf.to_container(cfg.features.templates, resolve=True),  # type: ignore[arg-type]
        **learning,
        tuning=recipe(cfg, "tuner", "round", without=taken_by_others(cfg)),
        solving=recipe(cfg, "tuner.solver", "solve") if takes & {"solver", "dev"} else None,
        strategy=lambda: make(cfg, "parallel", "tuner", "shards_data"),
        engine=lambda: make(cfg, "engine", "serve", "map", "close"),
        dimension=cfg.regularizer.get("dimension"),
        init_file=dict(file) if OmegaConf.is_dict(file) else file,
        init_values=dict(cfg.init.get("values") or {}),
        init_scale=cfg.init.scale,
        seed=cfg.seed,
        threads=cfg.threads,
        folds=cfg.lm == "folds",
        device=cfg.device,
        rounds=options[f"{class_of(cfg, 'tuner').unit}s"],
        scales=options.get("sparse") == "scale",
        on_dev=OmegaConf.to_container(options.get("dev") or OmegaConf.create()),  # type: ignore[arg-type]
        **{name: options[name] for name in OF_RUNS if name in options},
    )
    if "learning" in takes:
        # As an optimizer, its options have been checked.
        algorithm = optimizer([torch.nn.Parameter(torch.zeros(1).double())]).param_groups[0]
        strength = {name: cfg.regularizer.get(name) for name in ("fraction", "noise")}
        parts.learner = lambda compute: group_learner(
            options, regularizer, strength, algorithm, compute, cfg.device
        )
    return parts


def _learning(cfg: DictConfig) -> dict[str, Any]:
    parts = {"metric": make(cfg, "metric", "bind"), "sampler": make(cfg, "sampler", "sample")}
    loss = make(cfg, "loss", "__call__", "reduction")
    with named_errors("loss"):
        check_loss(loss)
    # OSCAR's d may be a word, and is counted later.
    words = cfg.regularizer.get("dimension") in ("charts", "lists")
    changed: dict[str, Any] = {"dimension": None} if words else {}
    later = getattr(class_of(cfg, "regularizer"), "later", ())
    regularizer = make(cfg, "regularizer", "prox", without=later, **changed)
    chosen = recipe(cfg, "optimizer", without=["regularize_dense"])
    dense = bool(cfg.optimizer.get("regularize_dense", False))
    with named_errors("optimizer", arguments(cfg, "optimizer")):
        optimizer = Optimizers(chosen, regularizer, regularizes_dense=dense)
    return parts | {"loss": loss, "regularizer": regularizer, "optimizer": optimizer}


def solver_on_lists(
    cfg: DictConfig, solving: Recipe, dense: Callable[[], Collection[str]]
) -> SolverOnLists:
    """Return the configured solver of `tune`, which takes some of the groups."""
    parts = Parts(
        dataset=Dataset("lists", "", ""),
        decoding=Recipe.of(get_class("torchtune_smt.decoders.kbest_files.KBestFiles")),
        tuning=Recipe.of(BatchTuner),
        solving=solving,
        **_learning(cfg),
    )
    hydra = HydraConfig.get()
    unused = parts.unused_groups(partial(chosen_name, cfg, hydra.runtime.choices))
    unused.pop("metric", None)
    refuse_given(unused, hydra.overrides.task)
    return SolverOnLists(parts, dense)


def parts_elsewhere(cfg: DictConfig) -> Callable[[], Parts]:
    """Return what makes the parts of the run that Hydra has begun in another process."""
    return partial(_make_again, deepcopy(cfg), HydraConfig.instance().cfg)


def _make_again(cfg: DictConfig, hydra: Any) -> Parts:
    HydraConfig.instance().cfg = hydra
    return make_parts(cfg)


def check_grouping(cfg: DictConfig) -> None:
    """Raise InputError where the configuration of a tuner that learns groups makes no sense."""
    learner = learner_class(cfg)
    if learner is None:
        return
    online = "optimizer" in learner.needs
    for group, (choice, kind) in learner.needs.items():
        if class_of(cfg, group) is not kind:
            raise InputError(
                f"tuner=grouping learns groups {'by FOBOS ' if online else ''}with OSCAR, and "
                f"{group} is {cfg[group]['_target_']}: set {group}={choice}, or leave {group} out"
            )
    if online and cfg.optimizer.get("regularize_dense"):
        raise InputError(
            "optimizer.regularize_dense=true: with tuner=grouping each dense feature is a group of "
            "its own, which OSCAR does not pull at; leave it out"
        )
    if cfg.tuner.control != "none" and cfg.tuner.merge_identical:
        raise InputError(
            f"tuner.control={cfg.tuner.control} takes features out of their groups, where "
            "tuner.merge_identical=true gives each a part of its value: leave one of them out"
        )
    if not decoder_class(cfg).stored and not cfg.features.templates:
        raise InputError(
            "tuner=grouping groups sparse features, and there are none: set features=rule_id or "
            "features=sparse, or tune dense features with tuner=pro"
        )

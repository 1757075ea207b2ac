"""How groups of features are learnt, as ``tuner.learning`` and its options have it."""

from __future__ import annotations

from typing import Final

import torch
from omegaconf import DictConfig

from torchtune_smt.cli.hydra_main import option_errors
from torchtune_smt.cli.parts import Parts
from torchtune_smt.cli.spending import learner_class
from torchtune_smt.cli.wire import decoder_class
from torchtune_smt.core.checks import check_device
from torchtune_smt.core.errors import InputError
from torchtune_smt.minimizer import Accuracy
from torchtune_smt.tuners.grouping.base import GroupLearner
from torchtune_smt.tuners.grouping.controls import ClusteredWeights, RandomPairs
from torchtune_smt.tuners.grouping.minimum import BatchLearning, minimizer_loss
from torchtune_smt.tuners.grouping.prepared import PreparedLearning
from torchtune_smt.tuners.grouping.steps import Compute, GroupLearning, MixedLearning, StepLearning

# What Algorithm 2 is made of.
_ALGORITHM: Final = {
    "regularizer": ("oscar", "torchtune_smt.regularizers.Oscar"),
    "optimizer": ("fobos_oscar", "torchtune_smt.optim.FobosOscar"),
}


def group_learner(cfg: DictConfig, parts: Parts, compute: Compute) -> GroupLearner:
    """Return what learns groups.

    Parameters
    ----------
    compute : callable
        Takes the steps of shards; see `torchtune_smt.tuners.grouping.steps`.

    Raises
    ------
    InputError
        An option is out of range.
    """
    learner, options = _learner(cfg, parts, compute), cfg.tuner
    if options.scaling == "none" and not options.merge_identical:
        return learner
    return PreparedLearning(learner.regularizer, learner, options.scaling, options.merge_identical)


def _learner(cfg: DictConfig, parts: Parts, compute: Compute) -> GroupLearner:
    options = cfg.tuner
    if options.learning == "batch":
        chosen = options.minimizer
        with option_errors("tuner.minimizer"):
            loss = minimizer_loss(chosen.loss, chosen.mu)
            seconds = float("inf") if chosen.seconds is None else chosen.seconds
            accuracy = Accuracy(chosen.residual, chosen.gap, seconds)
            check_device(cfg.device)
        with option_errors("regularizer"):
            fraction, noise = (cfg.regularizer.get(name) for name in ("fraction", "noise"))
            if fraction is not None:
                noise = None
            return BatchLearning(
                parts.regularizer, loss, fraction, accuracy, cfg.device, chosen.path, noise
            )
    if options.learning == "random_pairs":
        return RandomPairs(parts.regularizer)
    if options.learning == "clusters":
        with option_errors("tuner.clusters"):
            return ClusteredWeights(parts.regularizer, **options.clusters, passes=options.passes)
    # As an optimizer, its options have been checked.
    group = parts.optimizer([torch.nn.Parameter(torch.zeros(1).double())]).param_groups[0]
    steps = group["regularizer"], group["lr"], group["schedule"], options.passes
    with option_errors("tuner"):
        if options.learning == "mix":
            return MixedLearning(*steps, options.shards, compute)
        return GroupLearning(*steps)


def check_grouping(cfg: DictConfig) -> None:
    """Raise InputError where the configuration of a tuner that learns groups makes no sense."""
    learner = learner_class(cfg)
    if learner is None:
        return
    online = issubclass(learner, StepLearning)
    for group, (choice, kind) in _ALGORITHM.items():
        if cfg[group]["_target_"] != kind and (online or group == "regularizer"):
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

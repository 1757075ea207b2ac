"""The replaceable parts of a tuning run, as the configuration names them."""

from __future__ import annotations

from typing import Any

import torch
from hydra.core.hydra_config import HydraConfig
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf

from torchtune_smt.cli.hydra_main import option_errors
from torchtune_smt.cli.run_folder import override_key
from torchtune_smt.cli.setup import check_part, make_templates
from torchtune_smt.errors import InputError
from torchtune_smt.losses import check_loss


class Parts:
    """The replaceable parts, made before anything else, so that bad options are found at once."""

    def __init__(self, cfg: DictConfig) -> None:
        self.templates = make_templates(cfg.features)
        self.metric = _make(cfg, "metric", "bind")
        self.sampler = _make(cfg, "sampler", "sample")
        self.loss = _make(cfg, "loss", "__call__", "reduction")
        with option_errors("loss"):
            check_loss(self.loss)
        regularizer = _make(cfg, "regularizer", "prox")
        settings = arguments(cfg, "optimizer")
        settings.pop("regularize_dense", None)
        self.optimizer = instantiate(
            settings, _partial_=True, _convert_="object", regularizer=regularizer
        )
        with option_errors("optimizer", cfg.optimizer):
            self.optimizer([torch.nn.Parameter(torch.zeros(1, dtype=torch.float64))])


def averages(cfg: DictConfig) -> bool:
    """Return whether the optimizer keeps an average of the weights."""
    return bool(cfg.optimizer.get("average", "none") != "none")


def refuse_device(cfg: DictConfig) -> None:
    """Raise InputError if a device was chosen for a tuner that has no use for one."""
    if cfg.device != "cpu":
        raise InputError(
            f"device={cfg.device}: this tuner works on the CPU alone; leave it out, or take "
            "tuner=pro or tuner=stochastic"
        )


def _make(cfg: DictConfig, group: str, *methods: str) -> Any:
    """Return the part that a group of the configuration describes."""
    with option_errors(group, cfg[group]):
        part = instantiate(arguments(cfg, group))
    check_part(group, part, *methods)
    return part


def arguments(cfg: DictConfig, group: str) -> dict[str, Any]:
    """Return a group's class and arguments.

    Where an override names another class, the arguments that the group's file has for its own one
    are left out: the other takes those given beside it.
    """
    found: dict[str, Any] = {
        str(name): value for name, value in OmegaConf.select(cfg, group).items()
    }
    if not HydraConfig.initialized():
        return found
    given = {override_key(override) for override in HydraConfig.get().overrides.task}
    if f"{group}._target_" not in given:
        return found
    return {
        name: value
        for name, value in found.items()
        if name == "_target_" or f"{group}.{name}" in given
    }

"""The class and the arguments that a group of the configuration names."""

from __future__ import annotations

from typing import Any

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from torchtune_smt.cli.command_line import override_key


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

"""The solver of a batch tuner, and the groups of the configuration that a tuner takes."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Final

from omegaconf import DictConfig
from torch import Tensor

from torchtune_smt.cli.objects import argument_names, class_of, make
from torchtune_smt.cli.parts import Parts, refuse_device
from torchtune_smt.core.errors import InputError
from torchtune_smt.tuners.base import Tuner
from torchtune_smt.tuners.batch import Solver

PART_GROUPS: Final = ("metric", "sampler", "loss", "regularizer", "optimizer")

# What an argument of a tuner's or solver's class stands for in the configuration.
_GROUPS: Final = {
    "metric": ("metric",),
    "sampler": ("sampler", "metric"),
    "loss": ("loss", "metric"),
    "optimizer": ("optimizer", "regularizer"),
    "learning": ("optimizer", "regularizer"),
}


def tuner_takes(cfg: DictConfig) -> set[str]:
    """Return the names of the arguments of the configured tuner's class.

    Raises
    ------
    InputError
        There is no such class of tuners.
    """
    kind = class_of(cfg, "tuner")
    if not inspect.isclass(kind) or not issubclass(kind, Tuner):
        raise InputError(
            f"tuner._target_={cfg.tuner['_target_']} is no tuner; see docs/extending.md"
        )
    return argument_names(kind)


def has_solver(cfg: DictConfig) -> bool:
    """Return whether the configured tuner has a solver, of its own or in its run on dev."""
    return not tuner_takes(cfg).isdisjoint(("solver", "dev"))


def tunes_while_decoding(cfg: DictConfig) -> bool:
    """Return whether the configured tuner decodes itself, and no lists are collected for it."""
    return "decoder" in tuner_takes(cfg)


def groups_taken(cfg: DictConfig) -> set[str]:
    """Return which of the groups `PART_GROUPS` the configured tuner takes.

    Raises
    ------
    InputError
        There is no such class of tuners or solvers.
    """
    names = tuner_takes(cfg)
    if has_solver(cfg):
        names |= argument_names(class_of(cfg, "tuner.solver"))
    return {group for name in names for group in _GROUPS.get(name, ())}


def make_solver(
    cfg: DictConfig, parts: Parts, arguments_now: Callable[[], dict[str, Any]]
) -> Solver:
    """Return the solver that ``tuner.solver`` names.

    Arguments of its class with the name of a group (sampler, loss, optimizer) get what that group
    describes, ``device`` the device, and ``average`` whether the optimizer averages.

    Parameters
    ----------
    arguments_now : callable
        Returns arguments of the optimizer; asked whenever one is made.

    Raises
    ------
    InputError
        An option is out of range, or there is no such class.
    """

    def optimizer(parameters: list[Tensor]) -> Any:
        return parts.optimizer(parameters, **arguments_now())

    if "device" not in argument_names(class_of(cfg, "tuner.solver")):
        refuse_device(cfg)
    solver: Solver = make(
        cfg,
        "tuner.solver",
        "solve",
        offered={
            "sampler": lambda: parts.sampler,
            "loss": lambda: parts.loss,
            "optimizer": lambda: optimizer,
            "device": lambda: cfg.device,
            "average": lambda: parts.optimizer.averages,
        },
    )
    return solver

"""The solver of a batch tuner, and the groups of the configuration that a tuner takes."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Final

from hydra.utils import get_object
from omegaconf import DictConfig
from torch import Tensor

from torchtune_smt.cli.arguments import arguments
from torchtune_smt.cli.hydra_main import option_errors
from torchtune_smt.cli.parts import Parts, refuse_device
from torchtune_smt.cli.setup import check_part
from torchtune_smt.core.errors import InputError
from torchtune_smt.tuners.batch import Solver

PART_GROUPS: Final = ("metric", "sampler", "loss", "regularizer", "optimizer")

# What an argument of a solver's class stands for in the configuration.
_GROUPS: Final = {
    "sampler": ("sampler", "metric"),
    "loss": ("loss", "metric"),
    "optimizer": ("optimizer", "regularizer"),
}


def groups_taken(cfg: DictConfig) -> set[str]:
    """Return which of the groups `PART_GROUPS` the configured tuner takes.

    Raises
    ------
    InputError
        There is no such class of solvers.
    """
    if cfg.tuner.kind == "online":
        return set(PART_GROUPS)
    names = _parameters(_solver_class(cfg))
    groups = {group for name in names for group in _GROUPS.get(name, ())}
    if cfg.tuner.kind == "grouping":
        groups |= {"metric", "sampler", "regularizer", "optimizer"}
    return groups


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
    given = arguments(cfg, "tuner.solver")
    del given["_target_"]
    kind = _solver_class(cfg)
    names = _parameters(kind)

    def optimizer(parameters: list[Tensor]) -> Any:
        return parts.optimizer(parameters, **arguments_now())

    offered = {
        "sampler": parts.sampler,
        "loss": parts.loss,
        "optimizer": optimizer,
        "device": cfg.device,
        "average": parts.optimizer.averages,
    }
    if "device" not in names:
        refuse_device(cfg)
    with option_errors("tuner.solver", given):
        solver = kind(**given, **{name: offered[name] for name in offered.keys() & names})
    check_part("tuner.solver", solver, "solve")
    made: Solver = solver
    return made


def _solver_class(cfg: DictConfig) -> Any:
    """Return the class that ``tuner.solver`` names."""
    target = cfg.tuner.solver["_target_"]
    try:
        kind = get_object(target)
        inspect.signature(kind)
    except (ImportError, TypeError, ValueError):
        raise InputError(
            f"tuner.solver._target_={target}: there is no such class; is its module in this folder?"
        ) from None
    return kind


def _parameters(kind: Any) -> set[str]:
    """Return the names of the arguments of a class."""
    return set(inspect.signature(kind).parameters)

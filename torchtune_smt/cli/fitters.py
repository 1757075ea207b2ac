"""The fitter of a batch tuner, with the groups of the configuration that it takes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection
from typing import Any, Final, NamedTuple

from hydra.core.hydra_config import HydraConfig
from hydra.utils import get_object
from omegaconf import DictConfig
from torch import Tensor

from torchtune_smt.cli.hydra_main import option_errors
from torchtune_smt.cli.parts import Parts, arguments, averages, refuse_device
from torchtune_smt.cli.run_folder import override_key
from torchtune_smt.cli.setup import check_part
from torchtune_smt.errors import InputError
from torchtune_smt.losses import is_listwise
from torchtune_smt.tuners.batch import Fitter

# What an argument of a fitter's class stands for in the configuration.
_GROUPS: Final = {
    "sampler": ("sampler", "metric"),
    "loss": ("loss", "metric"),
    "optimizer": ("optimizer", "regularizer"),
}


class ChosenFitter(NamedTuple):
    """A fitter, and the groups that it takes.

    Attributes
    ----------
    fitter : Fitter
    groups : set of str
        Of metric, sampler, loss, regularizer and optimizer.
    """

    fitter: Fitter
    groups: set[str]


def make_fitter(
    cfg: DictConfig,
    parts: Parts,
    n_dense: Callable[[], int],
    also: Collection[str] = (),
) -> ChosenFitter:
    """Return the fitter that ``tuner.fitter`` names.

    Arguments of its class with the name of a group (sampler, loss, optimizer) get what that group
    describes, ``device`` the device, and ``average`` whether the optimizer averages.

    Parameters
    ----------
    n_dense : callable
        Returns the number of dense features; asked when the optimizer is made.
    also : collection of str
        Groups that the tuner takes for something else.

    Raises
    ------
    InputError
        An option is out of range; one was given on the command line that the fitter does not take.
    """
    given = arguments(cfg, "tuner.fitter")
    target = given.pop("_target_")
    try:
        kind = get_object(target)
        names = set(inspect.signature(kind).parameters)
    except (ImportError, TypeError, ValueError):
        raise InputError(
            f"tuner.fitter._target_={target}: there is no such class; is its module in this folder?"
        ) from None

    def optimizer(parameters: list[Tensor]) -> Any:
        return parts.optimizer(
            parameters, unregularized=0 if cfg.optimizer.regularize_dense else n_dense()
        )

    offered = {
        "sampler": parts.sampler,
        "loss": parts.loss,
        "optimizer": optimizer,
        "device": cfg.device,
        "average": averages(cfg),
    }
    if "device" not in names:
        refuse_device(cfg)
    groups = {group for name in names for group in _GROUPS.get(name, ())}
    if "loss" in names and is_listwise(parts.loss):
        groups.discard("sampler")
    refuse_unused(cfg, groups.union(also))
    if "loss" in names and parts.loss.reduction == "each" and _was_given("tuner.fitter.batch_size"):
        raise InputError(
            "tuner.fitter.batch_size has no effect where a step is taken after each pair or list: "
            "leave it out, or set loss.reduction=sum"
        )
    with option_errors("tuner.fitter", given):
        fitter = kind(**given, **{name: offered[name] for name in offered.keys() & names})
    check_part("tuner.fitter", fitter, "fit")
    return ChosenFitter(fitter, groups)


def refuse_unused(cfg: DictConfig, used: set[str]) -> None:
    """Raise InputError if the command line sets a group that the tuner does not take.

    Parameters
    ----------
    used : set of str
        Groups that it takes, of metric, sampler, loss, regularizer and optimizer.
    """
    hydra = HydraConfig.get()
    for override in hydra.overrides.task:
        group = override_key(override).partition(".")[0]
        if group in ("metric", "sampler", "loss", "regularizer", "optimizer") and group not in used:
            what = "loss" if group == "sampler" and "loss" in used else "tuner"
            raise InputError(
                f"{what}={hydra.runtime.choices[what]} takes no {group}, and {override} would "
                "change nothing; leave it out"
            )


def _was_given(option: str) -> bool:
    """Return whether an option is on the command line."""
    return any(override_key(o) == option for o in HydraConfig.get().overrides.task)

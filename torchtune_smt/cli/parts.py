"""The replaceable parts of a tuning run, as the configuration names them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from omegaconf import DictConfig
from torch import Tensor

from torchtune_smt.cli.hydra_main import option_errors
from torchtune_smt.cli.optimizers import ChosenOptimizer
from torchtune_smt.cli.spending import check_tuner
from torchtune_smt.cli.wire import (
    argument_names,
    class_of,
    decoder_class,
    make,
    make_dataset,
    make_templates,
)
from torchtune_smt.core.errors import InputError
from torchtune_smt.losses import check_loss
from torchtune_smt.models.base import ModelSource
from torchtune_smt.tuners.batch import Solver


class Parts:
    """The replaceable parts, made before anything else, so that bad options are found at once."""

    def __init__(self, cfg: DictConfig) -> None:
        check_tuner(cfg)
        self.dataset = make_dataset(cfg)
        self.templates = make_templates(cfg)
        self.metric = make(cfg, "metric", "bind")
        self.sampler = make(cfg, "sampler", "sample")
        self.loss = make(cfg, "loss", "__call__", "reduction")
        with option_errors("loss"):
            check_loss(self.loss)
        # OSCAR's d may be a word, and is counted later (see `Dimension`).
        counted = cfg.regularizer.get("dimension") in ("charts", "lists")
        changed: dict[str, Any] = {"dimension": None} if counted else {}
        later = getattr(class_of(cfg, "regularizer"), "later", ())
        self.regularizer = make(cfg, "regularizer", "prox", without=later, **changed)
        self.optimizer = ChosenOptimizer(cfg, self.regularizer)
        self.decoder = decoder_class(cfg)
        # What the decoder is given besides its own options.
        self.decoder_takes = argument_names(self.decoder)
        self.model: ModelSource | None = None
        if "model" in self.decoder_takes:
            self.model = make(cfg, "model", "open", "from_bitext", "phrases")
            if self.decoder.phrases not in (None, self.model.phrases):
                raise InputError(
                    "this decoder takes phrase pairs, and this model has rules with gaps; take "
                    "model=phrase or model=moses"
                    if self.decoder.phrases
                    else "this decoder takes rules with gaps, and this model has phrase pairs "
                    "alone; take model=hiero, or decoder=phrase"
                )


def refuse_device(cfg: DictConfig) -> None:
    """Raise InputError if a device was chosen for a tuner that has no use for one."""
    if cfg.device != "cpu":
        raise InputError(
            f"device={cfg.device}: this tuner works on the CPU alone; leave it out, or take "
            "tuner=pro or tuner=stochastic"
        )


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

"""The optimizer that the configuration names, with the regulariser that it takes."""

from __future__ import annotations

import torch
from hydra.utils import instantiate
from omegaconf import DictConfig
from torch import Tensor

from torchtune_smt.cli.hydra_main import option_errors
from torchtune_smt.cli.wire import argument_names, arguments, check_scalars
from torchtune_smt.core.errors import InputError
from torchtune_smt.core.resources import PACKAGE
from torchtune_smt.optim.adapter import check_optimizer
from torchtune_smt.regularizers import Regularizer


class ChosenOptimizer:
    """Makes optimizers as the group ``optimizer`` describes them.

    Parameters
    ----------
    cfg : DictConfig
    regularizer : Regularizer
        Given to a class that has an argument of this name.

    Attributes
    ----------
    name : str
        Of the class.
    regularizes_dense : bool
        Whether dense features are not left alone.
    regularizes : bool
        Whether it takes a regulariser.
    forgets : bool
        Whether the weights that it begins with do not matter to it.
    averages : bool
        Whether it is to keep an average of the weights.

    Raises
    ------
    InputError
        An option is out of range, or the optimizer cannot tune.
    """

    def __init__(self, cfg: DictConfig, regularizer: Regularizer) -> None:
        options = arguments(cfg, "optimizer")
        self.regularizes_dense = bool(options.pop("regularize_dense", False))
        self._options = options
        self._regularizer = regularizer
        with option_errors("optimizer", options):
            self._make = instantiate(options, _partial_=True, _convert_="object")
            check_scalars("optimizer", self._make)
        kind = self._make.func
        self.name = getattr(kind, "__name__", str(kind))
        self._names = argument_names(kind)
        self.forgets = bool(getattr(kind, "forgets", False))
        self.regularizes = "regularizer" in self._names
        if self.regularizes and not self.regularizes_dense and "unregularized" not in self._names:
            raise InputError(
                f"optimizer: {self.name} takes a regularizer and no `unregularized`, the number of "
                "dense features, which come first and are to be left alone: let it take that, or "
                "have dense features regularised, too (+optimizer.regularize_dense=true)"
            )
        optimizer = self([torch.nn.Parameter(torch.zeros(1, dtype=torch.float64))])
        # Those of this package are tested, and have kernels that take long to compile.
        if not type(optimizer).__module__.startswith(f"{PACKAGE.name}."):
            with option_errors("optimizer"):
                check_optimizer(self)
        self.averages = options.get("average", "none") != "none" and hasattr(optimizer, "averaged")

    def __call__(
        self, parameters: list[Tensor], n_dense: int = 0, regularizer: Regularizer | None = None
    ) -> torch.optim.Optimizer:
        """Return a new optimizer.

        Parameters
        ----------
        parameters : list of tensors
        n_dense : int
            Their first coordinates are so many dense features.
        regularizer : Regularizer, optional
            In the place of the usual one.
        """
        offered = {
            "regularizer": self._regularizer if regularizer is None else regularizer,
            "unregularized": 0 if self.regularizes_dense else n_dense,
        }
        taken = {name: value for name, value in offered.items() if name in self._names}
        with option_errors("optimizer", self._options):
            optimizer: torch.optim.Optimizer = self._make(parameters, **taken)
        return optimizer

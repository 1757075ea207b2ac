"""Optimizers as a recipe describes them, with the regulariser that they take."""

from __future__ import annotations

import torch
from torch import Tensor

from torchtune_smt.core.errors import InputError
from torchtune_smt.core.recipe import Recipe
from torchtune_smt.core.resources import PACKAGE
from torchtune_smt.optim.adapter import check_optimizer
from torchtune_smt.regularizers import Regularizer


class Optimizers:
    """Makes optimizers.

    recipe: of the class, but for the parameters.
    regularizer: given to a class that has an argument of this name.
    regularizes_dense: whether dense features are not left alone.

    As attributes:
    name: of the class.
    regularizes: whether it takes a regulariser.
    forgets: whether the weights that it begins with do not matter to it.
    averages: whether it is to keep an average of the weights.

    Raises InputError, ValueError, TypeError: an option is out of range, or the optimizer cannot
        tune.
    """

    def __init__(
        self, recipe: Recipe, regularizer: Regularizer, *, regularizes_dense: bool = False
    ) -> None:
        self.regularizes_dense = regularizes_dense
        self._recipe = recipe
        self._regularizer = regularizer
        kind = recipe.kind
        self.name = getattr(kind, "__name__", str(kind))
        self.forgets = bool(getattr(kind, "forgets", False))
        self.regularizes = "regularizer" in recipe.names
        if self.regularizes and not regularizes_dense and "unregularized" not in recipe.names:
            raise InputError(
                f"optimizer: {self.name} takes a regularizer and no `unregularized`, the number of "
                "dense features, which come first and are to be left alone: let it take that, or "
                "have dense features regularised, too (+optimizer.regularize_dense=true)"
            )
        optimizer = self([torch.nn.Parameter(torch.zeros(1, dtype=torch.float64))])
        # Those of this package are tested, and have kernels that take long to compile.
        if not type(optimizer).__module__.startswith(f"{PACKAGE.name}."):
            check_optimizer(self)
        self.average = recipe.options.get("average", "none")
        self.averages = self.average != "none" and hasattr(optimizer, "averaged")

    def __call__(
        self, parameters: list[Tensor], n_dense: int = 0, regularizer: Regularizer | None = None
    ) -> torch.optim.Optimizer:
        """Return a new optimizer.

        n_dense: their first coordinates are so many dense features.
        regularizer: in the place of the usual one.
        """
        offered = {
            "regularizer": self._regularizer if regularizer is None else regularizer,
            "unregularized": 0 if self.regularizes_dense else n_dense,
        }
        taken = {name: value for name, value in offered.items() if name in self._recipe.names}
        optimizer: torch.optim.Optimizer = self._recipe.make(parameters, **taken)
        return optimizer

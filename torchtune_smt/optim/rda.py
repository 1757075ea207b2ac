"""Regularised dual averaging: steps from the mean of all gradients, with any regulariser."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from torchtune_smt.core.scoring import sparse_vector
from torchtune_smt.optim.fobos import merged
from torchtune_smt.optim.sparse import SparseOptimizer
from torchtune_smt.optim.state import (
    Group,
    Kept,
    State,
    Vector,
    add_rows,
    nonzero_rows,
    regularized_rows,
)
from torchtune_smt.regularizers.base import Regularizer, is_separable_by_rows, proximal


class RDA(SparseOptimizer):
    """Regularised dual averaging (Xiao 2010, Algorithm 1 with h(w) = ½‖w‖²).

    After step t = 1, 2, ..., with ḡ the mean of all gradients so far and c = lr · √t,

        w = prox_{cΩ}(-c ḡ),  and  w = w¹ - c ḡ  for the coordinates that are exempt.

    Where the last iterate of stochastic gradient steps has what its last gradients had by chance,
    a mean of all of them does not: weights that nothing supports on average are 0. The first
    step forgets the weights that regularised coordinates begin with.

    Where Ω is separable, a weight is computed from the sum of its gradients when it is touched or
    read: steps are lazy, exactly. For any other, such as OSCAR, each step is a proximal one on
    all coordinates touched so far, O(u log u) for u of them; take mini-batches there.

    params: of any shape, a vector where Ω is not separable.
    lr: 1/γ.
    unregularized: this many first coordinates (the dense features) are exempt.
    options: `lazy`, `maximize` and `wait`; see `SparseOptimizer`.
    """

    # The weights that it begins with, where they are regularised.
    forgets: ClassVar[bool] = True
    fixed: ClassVar[tuple[str, ...]] = SparseOptimizer.settings

    def __init__(
        self,
        params: ParamsT,
        lr: float = 1.0,
        regularizer: Regularizer | None = None,
        *,
        unregularized: int = 0,
        **options: bool,
    ) -> None:
        given = {"regularizer": regularizer, "unregularized": unregularized}
        super().__init__(params, {"lr": lr, **given}, **options)

    def _puts_off(self, group: Group) -> bool:
        regularizer = group["regularizer"]
        return regularizer is None or is_separable_by_rows(regularizer)

    def _kept(self, group: Group) -> Kept:
        # The last c; the sums of all gradients; w¹ of coordinates that are exempt.
        return {"step": 0, "size": 0.0, "total": Vector(), "start": Vector()}

    def _update(
        self, group: Group, parameter: Tensor, state: State, indices: Tensor, gradient: Tensor
    ) -> None:
        first, regularizer = group["unregularized"], group["regularizer"]
        if state["step"] == 0:
            state["start"][:first] = parameter[:first]
            parameter[first:] = 0.0
        t = state["step"] = state["step"] + 1
        size = state["size"] = float(group["lr"] * t**0.5)
        total = state["total"]
        add_rows(total, indices, gradient, once=not self._later(parameter))
        parameter[:first] = state["start"][:first] - size / t * total[:first]
        if self._puts_off(group):
            self._catch_up(group, parameter, state, indices)
        elif regularizer.separable:
            # Its parent's prox takes single weights, and whether its own may is not said.
            parameter[first:] = proximal(regularizer, -size / t * total[first:], size)
        else:
            indices = indices[indices >= first]
            # The regularised coordinates touched so far, ascending.
            touched = self._places.get(parameter)
            if touched is None:
                touched = total[first:].nonzero()[:, 0] + first
            # A sum of gradients may have just become 0.
            touched = self._places[parameter] = merged(touched, indices)
            # What is not given is 0, and stays so.
            length = max(parameter.numel() - first, 0)
            values = -size / t * total.index_select(0, touched)
            point = sparse_vector(touched - first, values, length)
            parameter.index_copy_(0, touched, proximal(regularizer, point, size))

    def _moving(self, parameter: Tensor, state: State) -> Tensor:
        # A weight may be 0 because lr was, and not the sum of its gradients; or another one, taken
        # back by a user.
        total: Tensor = state["total"]
        return torch.where(total != 0, total, parameter.detach())

    def _late(self, weight: Tensor, state: State, indices: Tensor) -> Tensor:
        some = (tensor.index_select(0, indices) for tensor in (state["total"], weight))
        return nonzero_rows(next(some)) | nonzero_rows(next(some))

    def _catch_up(self, settings: Group, parameter: Tensor, state: State, indices: Tensor) -> None:
        if not self._puts_off(settings) or state["step"] == 0:
            return
        size, checked = state["size"], self._later(parameter) is None
        weight = -size / state["step"] * state["total"].index_select(0, indices)
        if settings["regularizer"] is not None:
            weight = proximal(settings["regularizer"], weight, size, checked)
        old = parameter.index_select(0, indices)
        parameter.index_copy_(0, indices, regularized_rows(weight, old, indices, settings))

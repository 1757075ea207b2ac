"""Follow the regularised leader, with a rate for each weight."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from torchtune_smt.core.accepts import SWITCH, accepting, least
from torchtune_smt.optim.adagrad import regularized, with_squares
from torchtune_smt.optim.sparse import SparseOptimizer
from torchtune_smt.optim.state import Count, Group, Kept, State, Vector, beside
from torchtune_smt.regularizers.base import Regularizer, is_separable, is_separable_by_rows


class FTRL(SparseOptimizer):
    """FTRL-Proximal (McMahan et al., 2013, Algorithm 1), for any separable Ω.

    At step t, for each coordinate, with Q = beta + √n: n += g²; y += lr · g - (Q_t - Q_{t-1}) w;
    w = prox of Ω with step lr / Q at -y / Q. Their z is y / lr; here lr may change between steps.
    With `L1` (their λ1), `L2` (λ2) or `ElasticNet` w is 0 where |y| is at most lr · λ1, and else
    -(y - sign(y) lr · λ1) / (Q + lr · λ2): the whole sum of the gradients says whether a weight is
    0, and not the last step alone. Without Ω steps are those of `AdaGrad`, with √G + beta.

    A coordinate without a gradient so far stays as it is, and the first one moves it from there.
    Nothing is put off: weights are always up to date.

    State per coordinate: y and n (dtype of the parameter; with `rowwise` n is one for each row).

    params: of any shape.
    lr: α > 0.
    regularizer: separable; or separable by rows (`GroupLasso`), with `rowwise`.
    beta: β, 0 or more; 1 in McMahan et al.
    unregularized: this many first rows are exempt.
    initial_accumulator: n at the start, 0 or more.
    rowwise: whether n is the sum of the mean squares of the gradients of a row.
    options: `lazy` (which changes nothing) and `maximize`; see `SparseOptimizer`.

    Raises ValueError: an argument is out of range, or the regulariser is not separable.
    """

    accepts = accepting(beta=least(0), initial_accumulator=least(0), rowwise=SWITCH)
    settings: ClassVar[tuple[str, ...]] = ("rowwise", "initial_accumulator")

    def __init__(
        self,
        params: ParamsT,
        lr: float = 0.1,
        regularizer: Regularizer | None = None,
        *,
        beta: float = 1.0,
        unregularized: int = 0,
        initial_accumulator: float = 0.0,
        rowwise: bool = False,
        **options: bool,
    ) -> None:
        given = {"regularizer": regularizer, "unregularized": unregularized, "beta": beta}
        sums = {"initial_accumulator": initial_accumulator, "rowwise": rowwise}
        super().__init__(params, {"lr": lr, **given, **sums}, **options)

    def _check_group(self, group: Group) -> None:
        regularizer = group["regularizer"]
        if regularizer is None or is_separable(regularizer):
            return
        name = type(regularizer).__name__
        if not is_separable_by_rows(regularizer):
            raise ValueError(
                f"{self._name} has a step of its own for each coordinate, and {name} is not "
                f"separable: use FOBOS (optimizer=fobos) instead of {self._name}, or L1, L2 or "
                "ElasticNet as regularizer"
            )
        if not group["rowwise"]:
            raise ValueError(f"{name} has one step for all numbers of a row: give rowwise=True")

    def puts_off(self, group: Group) -> bool:
        """Say whether weights of a group can be out of date."""
        return False

    def _kept(self, group: Group) -> Kept:
        sums = Vector(group["initial_accumulator"], least=0.0, of_rows=group["rowwise"])
        return {"step": Count(), "sum": sums, "dual": Vector()}

    def _changed(self, group: Group, parameter: Tensor, state: State) -> None:
        raise ValueError("rowwise and initial_accumulator cannot change between steps of FTRL")

    def _update(
        self, group: Group, parameter: Tensor, state: State, indices: Tensor, gradient: Tensor
    ) -> None:
        weight = parameter.index_select(0, indices)
        before = state["sum"].index_select(0, indices)
        later = self._later(parameter)
        after = with_squares(before, gradient, indices, later)
        Q = beside(after.sqrt().add_(group["beta"]), weight)
        old = beside(before.sqrt().add_(group["beta"]), weight)
        dual = state["dual"].index_select(0, indices)
        # One that has had no gradient yet is at the point that it begins with.
        fresh = beside(before == group["initial_accumulator"], weight) & _zero(dual, before)
        begun = later is None and not bool(fresh.any())
        if not begun:
            dual = torch.where(fresh, -old * weight, dual)
        dual.addcmul_(Q - old, weight, value=-1).add_(gradient, alpha=group["lr"])
        point = (dual / Q).neg_()
        step = Q.reciprocal().mul_(group["lr"])
        if not begun:
            # Where Q = 0, g is 0, too.
            still = fresh & (_zero(gradient, before) | (Q == 0))
            point = torch.where(still, weight, point)
            step = step.masked_fill(still, 0)
            dual = dual.masked_fill(still, 0)
        point = regularized(point, step, None, indices, group, later is None)
        state["step"] += 1
        parameter.index_copy_(0, indices, point)
        state["sum"].index_copy_(0, indices, after)
        state["dual"].index_copy_(0, indices, dual)

    def _catch_up(self, settings: Group, parameter: Tensor, state: State, indices: Tensor) -> None:
        """Do nothing: weights are always up to date."""


def _zero(rows: Tensor, sums: Tensor) -> Tensor:
    """Say which numbers are 0; where `sums` has one for each row, which rows are."""
    zero = rows == 0
    return zero if zero.dim() == sums.dim() else beside(zero.flatten(1).all(1), rows)

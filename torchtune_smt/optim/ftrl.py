"""Follow the regularised leader, with a rate for each weight."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from torchtune_smt.core.accepts import SWITCH, accepting, least
from torchtune_smt.optim.adagrad import check_steps, regularized, with_squares
from torchtune_smt.optim.sparse import SparseOptimizer
from torchtune_smt.optim.state import Group, Kept, State, Vector, beside
from torchtune_smt.regularizers.base import Regularizer


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

    lr: α.
    regularizer: separable; or separable by rows (`GroupLasso`), with `rowwise`.
    beta: β; 1 in McMahan et al.
    unregularized: this many first rows are exempt.
    initial_accumulator: n at the start.
    rowwise: whether n is the sum of the mean squares of the gradients of a row.
    options: `lazy` (which changes nothing), `maximize` and `wait`; see `SparseOptimizer`.
    """

    accepts = accepting(beta=least(0), initial_accumulator=least(0), rowwise=SWITCH)
    settings: ClassVar[tuple[str, ...]] = ("regularizer", "rowwise", "initial_accumulator")
    fixed: ClassVar[tuple[str, ...]] = ("rowwise", "initial_accumulator")

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
        if group["regularizer"] is not None:
            check_steps(group["regularizer"], self._name, group["rowwise"])

    def _puts_off(self, group: Group) -> bool:
        return False

    def _kept(self, group: Group) -> Kept:
        sums = Vector(group["initial_accumulator"], of_rows=group["rowwise"])
        return {"step": 0, "sum": sums, "dual": Vector()}

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


def _zero(rows: Tensor, sums: Tensor) -> Tensor:
    """Say which numbers are 0; where `sums` has one for each row, which rows are."""
    zero = rows == 0
    return zero if zero.dim() == sums.dim() else beside(zero.flatten(1).all(1), rows)

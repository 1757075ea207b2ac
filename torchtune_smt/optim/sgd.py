"""Stochastic gradient descent, plain and with a cumulative l1 penalty."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from torchtune_smt.core.accepts import accepting, behaves_as
from torchtune_smt.core.arrays import Float64
from torchtune_smt.optim import row_kernels
from torchtune_smt.optim.fobos import FOBOS
from torchtune_smt.optim.row_kernels import RowSteps
from torchtune_smt.optim.sparse import SCHEDULE, SCHEDULES, SparseOptimizer, rate
from torchtune_smt.optim.state import Group, Kept, State, Vector, add_rows, regularized_rows
from torchtune_smt.regularizers.base import Regularizer, elastic_strengths
from torchtune_smt.regularizers.norms import L1


class SGD(FOBOS):
    """w -= lr · g: the perceptron's optimizer (Simianer et al., 2012).

    It is `FOBOS` at a constant rate and without a penalty. `averaged` gives the mean of the weights
    at the ends of the epochs (the result of their Algorithm 1), or after each step.

    State per coordinate, unless `average` is "none": the sum (float64), and with "step" when it was
    last added to (int32).

    lr: η, constant.
    regularizer: none, or one that does nothing: this optimizer has no proximal step.
    unregularized: without meaning here; all optimizers take it.
    average: what `averaged` is the mean of.
    options: `lazy`, `maximize` and `wait`; see `SparseOptimizer`.
    """

    accepts = accepting()

    def __init__(
        self,
        params: ParamsT,
        lr: float = 0.001,
        regularizer: Regularizer | None = None,
        *,
        unregularized: int = 0,
        average: str = "epoch",
        **options: bool,
    ) -> None:
        super().__init__(
            params,
            lr,
            regularizer,
            schedule="constant",
            unregularized=unregularized,
            average=average,
            **options,
        )

    def _check_group(self, group: Group) -> None:
        if elastic_strengths(group["regularizer"]) != (0, 0):
            raise ValueError(
                f"SGD takes gradient steps alone and {type(group['regularizer']).__name__} would "
                "have no effect: use regularizer=none, or FOBOS (optimizer=fobos "
                "optimizer.schedule=constant) instead of SGD, for L1 also CumulativeL1 "
                "(optimizer=cumulative_l1)"
            )


class CumulativeL1(SparseOptimizer):
    """SGD whose l1 penalty accumulates for each weight (Tsuruoka et al., 2009).

    At step t: w -= η_t · g and u += η_t · strength, where η_t = lr · t^-p. Each weight then
    receives what it has not yet received of the total penalty u: with q the sum of what it got,
    w > 0 becomes max(0, w - (u + q)), w < 0 becomes min(0, w + (u - q)), and q grows by the
    change. A weight clipped at 0 owes the rest, unlike in FOBOS, where it is forgiven.

    Only touched weights are penalised at a step, the others when they are touched or read. This
    is exact, since the penalty leaves w - q as it is: w is always w - q moved towards 0 by u.

    State per coordinate: q, in float64.

    lr: η0.
    regularizer: `L1`.
    unregularized: this many first coordinates (the dense features) are exempt.
    options: `lazy`, `maximize` and `wait`; see `SparseOptimizer`.
    """

    accepts = accepting(schedule=SCHEDULE)

    def __init__(
        self,
        params: ParamsT,
        lr: float = 0.01,
        regularizer: Regularizer | None = None,
        *,
        schedule: str = "constant",
        unregularized: int = 0,
        **options: bool,
    ) -> None:
        given = {"regularizer": regularizer, "unregularized": unregularized}
        super().__init__(params, {"lr": lr, **given, "schedule": schedule}, **options)

    def _check_group(self, group: Group) -> None:
        if not behaves_as(group["regularizer"], L1, "value", "prox"):
            given = group["regularizer"]
            name = "no regularizer" if given is None else type(given).__name__
            raise ValueError(
                "CumulativeL1 accumulates the penalty of the l1 norm, which has one rate for all "
                f"weights, and got {name}: use regularizer=l1, or FOBOS "
                "(optimizer=fobos) instead of CumulativeL1"
            )

    def _kept(self, group: Group) -> Kept:
        # Of many small steps a sum in less precision would stand still.
        return {"step": 0, "penalty": 0.0, "received": Vector(0.0, torch.float64)}

    def _update(
        self, group: Group, parameter: Tensor, state: State, indices: Tensor, gradient: Tensor
    ) -> None:
        state["step"] += 1
        lr = rate(group["lr"], group["schedule"], state["step"])
        state["penalty"] += lr * group["regularizer"].strength
        add_rows(parameter, indices, gradient, alpha=-lr, once=not self._later(parameter))
        self._catch_up(group, parameter, state, indices)

    def _settle(self, before: Group, group: Group, parameter: Tensor, state: State) -> None:
        super()._settle(before, group, parameter, state)
        # Weights that were exempt owe nothing of the penalty so far.
        newly = slice(group["unregularized"], before["unregularized"])
        state["received"][newly] = -state["penalty"] * parameter[newly].sign().double()

    def _catch_up(self, settings: Group, parameter: Tensor, state: State, indices: Tensor) -> None:
        old = parameter.index_select(0, indices)
        before = state["received"].index_select(0, indices)
        free = old - before
        weight = free.sign() * (free.abs() - state["penalty"]).clamp_min_(0)
        weight = weight.to(parameter.dtype)
        received = regularized_rows(weight - free, before, indices, settings)
        parameter.index_copy_(0, indices, regularized_rows(weight, old, indices, settings))
        state["received"].index_copy_(0, indices, received)

    def _update_rows(
        self, group: Group, weight: Float64, state: State, steps: RowSteps, first: int
    ) -> int:
        strength = float(group["regularizer"].strength)
        done, penalty = row_kernels.cumulative_l1(
            weight,
            state["received"].numpy(),
            state["penalty"],
            state["step"],
            steps,
            (float(group["lr"]), SCHEDULES[group["schedule"]], strength),
            group["unregularized"],
            first,
        )
        state["penalty"] = penalty
        return int(done)

"""Plain stochastic gradient descent, and the average of its weights."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from torchtune_smt.core.arrays import Float64
from torchtune_smt.optim import row_kernels
from torchtune_smt.optim.averaging import AveragingOptimizer, check_average
from torchtune_smt.optim.row_kernels import RowSteps
from torchtune_smt.optim.sparse import Group, State
from torchtune_smt.regularizers.base import Regularizer, elastic_strengths


class SGD(AveragingOptimizer):
    """w -= lr · g, with lazy averaging: the perceptron's optimizer (Simianer et al., 2012).

    `averaged` gives the mean of the weights at the ends of the epochs (the result of their
    Algorithm 1), or after each step. Its sums are kept up by the coordinates that a step touches
    alone: each knows up to when it has been summed.

    State per coordinate, unless `average` is "none": the sum (float64) and when
    it was last added to (int64).

    Parameters
    ----------
    params : iterable of tensors or param groups
        Vectors.
    lr : float
        η > 0, constant.
    regularizer : NoRegularizer, optional
        No other: this optimizer has no proximal step.
    unregularized : int
        Without meaning here; all optimizers take it.
    average : "epoch", "step" or "none"
        What `averaged` is the mean of.

    Raises
    ------
    ValueError
        An argument is out of range, or there is a regulariser.
    """

    settings: ClassVar[tuple[str, ...]] = ("average",)

    def __init__(
        self,
        params: ParamsT,
        lr: float = 0.001,
        regularizer: Regularizer | None = None,
        *,
        unregularized: int = 0,
        average: str = "epoch",
    ) -> None:
        given = {"regularizer": regularizer, "unregularized": unregularized}
        super().__init__(params, {"lr": lr, **given, "average": average})

    def _check_group(self, group: Group) -> None:
        check_average(group["average"])
        if elastic_strengths(group["regularizer"]) != (0, 0):
            raise ValueError(
                f"SGD takes gradient steps alone and {type(group['regularizer']).__name__} would "
                "have no effect: use regularizer=none, or FOBOS (optimizer=fobos "
                "optimizer.schedule=constant) instead of SGD, for L1 also CumulativeL1 "
                "(optimizer=cumulative_l1)"
            )

    def end_epoch(self) -> None:
        """Learn that an epoch is over: its final weights enter the average; O(1)."""
        for group in self.param_groups:
            for parameter in group["params"]:
                self._prepared(group, parameter)["epochs"] += 1

    def puts_off(self, group: Group) -> bool:
        """Say whether weights of a group can be out of date."""
        return False

    def _initial(self, group: Group, parameter: Tensor) -> State:
        state: State = {"step": 0, "epochs": 0}
        if group["average"] != "none":
            state["total"] = parameter.new_empty(0, dtype=torch.float64)
            state["last"] = parameter.new_empty(0, dtype=torch.int64)
        return state

    def _fill(self, group: Group, state: State, name: str) -> float:
        return self._clock(group, state) if name == "last" else 0.0

    def _changed(self, group: Group, parameter: Tensor, state: State) -> None:
        raise ValueError("average cannot change between steps")

    def _total(self, group: Group, parameter: Tensor, state: State) -> Tensor:
        missed = self._clock(group, state) - state["last"]
        total: Tensor = state["total"] + parameter.detach().double() * missed
        return total

    def _update(
        self, group: Group, parameter: Tensor, state: State, indices: Tensor, gradient: Tensor
    ) -> None:
        if group["average"] != "none":
            clock = self._clock(group, state)
            missed = clock - state["last"].index_select(0, indices)
            weight = parameter.index_select(0, indices).double()
            state["total"].index_add_(0, indices, weight * missed)
            state["last"].index_fill_(0, indices, clock)
        parameter.index_add_(0, indices, gradient, alpha=-group["lr"])
        state["step"] += 1

    def _catch_up(self, settings: Group, parameter: Tensor, state: State, indices: Tensor) -> None:
        """Do nothing: weights are always up to date."""

    def _update_rows(
        self, group: Group, weight: Float64, state: State, steps: RowSteps, first: int
    ) -> int:
        averaging = group["average"] != "none"
        done = row_kernels.sgd(
            weight,
            state["total"].numpy() if averaging else weight[:0],
            state["last"].numpy() if averaging else steps.row_begin[:0],
            self._clock(group, state),
            group["average"] == "step",
            steps,
            float(group["lr"]),
            first,
        )
        return int(done)

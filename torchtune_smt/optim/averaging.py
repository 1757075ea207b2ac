"""Averages of the weights that an optimizer has gone through."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from torchtune_smt.optim.sparse import Group, SparseOptimizer, State

AVERAGES = ("epoch", "step", "none")


class AveragingOptimizer(SparseOptimizer):
    """Base of the optimizers with an argument `average`, and a sum of weights in their state.

    A subclass says in `_total` what the sum is, and in its state "step" and "epochs" (where
    `average` is "epoch") how many vectors have entered it.
    """

    settings: ClassVar[tuple[str, ...]] = (*SparseOptimizer.settings, "average")

    @torch.no_grad()
    def averaged(self, parameter: Tensor | None = None) -> Tensor:
        """Return the averaged weights; O(D).

        Parameters
        ----------
        parameter : tensor, optional
            May be left out where there is only one.

        Returns
        -------
        tensor [D]
            The weights as they are, before the first epoch has ended or the first step is taken.

        Raises
        ------
        ValueError
            `average` is "none".
        """
        group, parameter = self._find(parameter)
        if group["average"] == "none":
            raise ValueError(
                f"nothing was averaged: build {self._name} with average=epoch or average=step"
            )
        state = self._prepared(group, parameter)
        clock = self._clock(group, state)
        if clock == 0:
            return parameter.detach().clone()
        return (self._total(group, parameter, state) / clock).to(parameter.dtype)

    def _clock(self, group: Group, state: State) -> int:
        """Return how many weight vectors have entered the average."""
        clock: int = state["epochs" if group["average"] == "epoch" else "step"]
        return clock

    def _total(self, group: Group, parameter: Tensor, state: State) -> Tensor:
        """Return the sum of these vectors, in float64."""
        raise NotImplementedError


def check_average(average: str) -> None:
    """Raise ValueError if it is not known what is to be averaged."""
    if average not in AVERAGES:
        raise ValueError(f"average must be one of {', '.join(AVERAGES)}, not {average!r}")

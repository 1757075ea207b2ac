"""The sum of weights over proximal steps that are put off."""

from __future__ import annotations

import numpy as np

from torchtune_smt.core.arrays import Float64, Int64
from torchtune_smt.optim import step_sums_kernels as kernels


class StepSums:
    """Proximal steps of an elastic net since some moment, and what weights add up to over them.

    Parameters
    ----------
    strengths : (float, float)
        (λ1, λ2), not both 0.
    begin : int
        How many steps there were before the first one.
    sizes : float64 [n], optional
        The sizes of steps that there are already.

    Attributes
    ----------
    size : float64 [room]
        The sizes; the first `count` count.
    block : float64 [blocks, 4]
        See `step_sums_kernels`.
    """

    def __init__(
        self, strengths: tuple[float, float], begin: int, sizes: Float64 | None = None
    ) -> None:
        self.lambda1, self.lambda2 = map(float, strengths)
        self.begin = begin
        self.count = 0
        self.size, self.block = np.empty(0), np.empty((1, 4))
        if sizes is not None:
            self.make_room(sizes.size)
            self.size[: sizes.size] = sizes
            self.count = sizes.size
            kernels.build(self.size, self.block, self.count, self.lambda1, self.lambda2)

    @property
    def sizes(self) -> Float64:
        """The sizes of all steps, float64 [count]."""
        return self.size[: self.count]

    def make_room(self, steps: int) -> None:
        """Let there be room for so many more steps; amortised O(steps)."""
        needed = self.count + steps
        if needed <= self.size.size:
            return
        room = max(needed, 2 * self.size.size, 64)
        size = np.empty(-(-room // kernels.RADIX) * kernels.RADIX)
        size[: self.count] = self.sizes
        self.size, self.block = size, np.empty((kernels.number_of_blocks(size.size), 4))
        kernels.build(self.size, self.block, self.count, self.lambda1, self.lambda2)

    def append(self, size: float) -> None:
        """Add a step."""
        self.make_room(1)
        kernels.add(self.size, self.block, self.count, size, self.lambda1, self.lambda2)
        self.count += 1

    def of(self, weights: Float64, last: Int64) -> Float64:
        """Return the sum of each weight over the steps that it has missed.

        Parameters
        ----------
        weights : float64 [k]
            Before the first of them.
        last : int64 [k]
            After how many steps each of them is up to date; `begin` at least.
        """
        out = np.empty(weights.size)
        first = last - self.begin
        kernels.sums(
            self.size, self.block, self.count, first, weights, self.lambda1, self.lambda2, out
        )
        return out

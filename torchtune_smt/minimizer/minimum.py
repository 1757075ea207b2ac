"""What the minimiser is asked for, and what it returns."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from torchtune_smt.core.arguments import check_whole
from torchtune_smt.core.arrays import Float64, Int64
from torchtune_smt.minimizer.certificate import Certificate
from torchtune_smt.minimizer.penalty import Penalty


@dataclass(frozen=True)
class Accuracy:
    """When the minimiser is done.

    Parameters
    ----------
    residual : float
        The KKT residual is at most this; see `Certificate`. A few more steps then polish the
        minimum to about a hundredth of it, so that blocks that move together are known, too.
    gap : float
        The duality gap and the smoothing, in parts of the objective, are at most this; the gap
        alone, where the smoothing nearly is, or is more, which is then said in a message.
    seconds : float
        Or this much time has gone by.
    steps : int
        Or so many of Newton's steps were taken for one loss.
    """

    residual: float = 1e-4
    gap: float = 1e-4
    seconds: float = float("inf")
    steps: int = 300

    def __post_init__(self) -> None:
        for name in ("residual", "gap", "seconds"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be above 0, not {getattr(self, name)}")
        check_whole("steps", self.steps, 1)


@dataclass(frozen=True)
class Minimum:
    """Weights, and what is known of them.

    Attributes
    ----------
    weights : float64 [D]
        A dense feature in which no pair differs keeps the weight that it started with, a sparse
        one has 0.
    groups : int64 [D]
        The same number for equal weights that are not 0, in descending order of |w|: 2 b for
        positive, 2 b + 1 for negative ones of block b. -1 for zeros and dense features.
    boundary : int64 array
        Ids of sparse features of which the accuracy that was asked for leaves open whether they
        have a weight, or which group they are in; see `at_boundary`.
    certificate : Certificate
    reached : bool
        Whether it is as good as was asked for.
    penalty : Penalty
    steps, passes : int
        Newton steps; passes over all non-zeros of the pairs.
    seconds : float
    messages : tuple of str
        What the user ought to know, a sentence each.
    """

    weights: Float64
    groups: Int64
    boundary: Int64
    certificate: Certificate
    reached: bool
    penalty: Penalty
    steps: int
    passes: int
    seconds: float
    messages: tuple[str, ...]

    @property
    def survivors(self) -> int:
        """The number of sparse features with a weight."""
        return int(np.count_nonzero(self.groups >= 0))

    @property
    def n_groups(self) -> int:
        """The number of groups."""
        return int(np.unique(self.groups[self.groups >= 0]).size)


def groups_of(weights: Float64) -> Int64:
    """Return the groups of equal weights; see `Minimum`."""
    _, block = np.unique(-np.abs(weights), return_inverse=True)
    return np.where(weights == 0.0, -1, 2 * block + (weights < 0.0)).astype(np.int64)

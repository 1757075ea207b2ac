"""Algorithm 2 of Liu et al. (2013): which features may share a weight, learnt from pairs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import torch

from torchtune_smt.core.arguments import check_whole
from torchtune_smt.core.arrays import Float64, Int64, Integers
from torchtune_smt.core.rows import Rows
from torchtune_smt.losses.slope_kernels import HINGE
from torchtune_smt.optim.lazy_oscar import FobosOscar
from torchtune_smt.optim.schedules import check_schedule
from torchtune_smt.regularizers.oscar import Oscar
from torchtune_smt.regularizers.oscar_prox import given_dimension_error
from torchtune_smt.tuners.base import Show
from torchtune_smt.tuners.gradient import check_pairs
from torchtune_smt.tuners.group_diagnosis import judged, lifetime
from torchtune_smt.tuners.group_learner import GroupLearner, LearntGroups

# Steps between two reports.
CHUNK = 1 << 19


@dataclass(frozen=True)
class StepLearning(GroupLearner):
    """The options of Algorithm 2's steps.

    Parameters
    ----------
    regularizer : Oscar
        Its `dimension`, where it is given, is d; otherwise d is the number of sparse features that
        have a place in the first weights.
    lr : float
        η0 > 0.
    schedule : "1/t", "inv_sqrt" or "constant"
    passes : int
        n = passes · N steps, N the number of pairs.

    Raises
    ------
    ValueError
        A value is out of range.
    """

    takes_not: ClassVar[Mapping[str, str]] = {
        "optimizer.average": "has no mean of weights: their groups would not be equal"
    }

    lr: float = 1.0
    schedule: str = "1/t"
    passes: int = 20

    def __post_init__(self) -> None:
        if not 0 < self.lr < float("inf"):
            raise ValueError(f"lr must be finite and above 0, not {self.lr}")
        check_schedule(self.schedule)
        check_whole("passes", self.passes, 1)


@dataclass(frozen=True)
class GroupLearning(StepLearning):
    """Algorithm 2, whose steps are taken one after the other, and OSCAR's prox with each."""

    def find(
        self, pairs: Rows, start: Float64, n_dense: int, seed: Sequence[int], show: Show
    ) -> LearntGroups:
        """Return the groups; see `GroupLearner.find`."""

        def on_steps(done: int, steps: int) -> None:
            show("learning groups", done, steps, "step")

        learned = learn_groups(pairs, start, n_dense, self, (*seed, 2), on_steps)
        remarks, numbers = judged(
            pairs,
            n_dense,
            self.regularizer,
            learned.dimension,
            learned.weights,
            learned.blocks,
            learned.last,
        )
        numbers |= {"oscar/loss": learned.loss, "oscar/steps": learned.steps}
        text = f"{learned.steps:,} steps, twice,"
        return LearntGroups(learned.blocks, learned.dimension, text, remarks, numbers)

    def again(
        self, pairs: Rows, start: Float64, n_dense: int, seed: Sequence[int], show: Show
    ) -> Int64:
        """Return the groups of another order; see `GroupLearner.again`."""

        def on_steps(done: int, steps: int) -> None:
            show("learning groups in another order", done, steps, "step")

        return learn_groups(pairs, start, n_dense, self, (*seed, 3), on_steps).blocks


@dataclass(frozen=True)
class Learned:
    """What Algorithm 2 has found.

    Attributes
    ----------
    blocks : int64 [D]
        The same number for equal weights, -1 for those that are 0 and for dense features; see
        `Oscar.groups`.
    weights : float64 [D]
        Those after the last step.
    dimension : int
        d.
    steps : int
        n.
    loss : float
        Mean hinge of the last pass (of the last N steps), each before its step.
    last : int64 array
        The pairs with a margin below 1 in the last steps, as many as a weight lives that nothing
        supports (see `lifetime`), or a pass.
    """

    blocks: Int64
    weights: Float64
    dimension: int
    steps: int
    loss: float
    last: Int64


def learn_groups(
    pairs: Rows,
    start: Float64,
    n_dense: int,
    settings: GroupLearning,
    seed: Sequence[int],
    on_steps: Callable[[int, int], None] = lambda done, steps: None,
) -> Learned:
    """Learn groups of features by FOBOS with OSCAR on the hinge of random pairs.

    One pair a step, drawn uniformly with replacement. Dense features are updated and not
    regularised.

    Parameters
    ----------
    pairs : Rows
        x = H(better) - H(worse) of N pairs; none has a feature beyond D.
    start : float64 [D]
        W^1 of the algorithm; steps count from t = 1 at each call.
    n_dense : int
        Ids below it are dense features.
    settings : GroupLearning
    seed : sequence of int
        Names the random stream.
    on_steps : callable
        Told now and then how many steps are done, and of how many.

    Raises
    ------
    InputError
        There are no pairs; d is smaller than the number of sparse features that may get a weight.
    DivergenceError
        A margin is not finite.
    """
    check_pairs(len(pairs))
    dimension = oscar_dimension(pairs, start, n_dense, settings.regularizer)
    parameter = torch.nn.Parameter(torch.from_numpy(start.copy()))
    optimizer = FobosOscar(
        [parameter],
        lr=settings.lr,
        regularizer=replace(settings.regularizer, dimension=dimension),
        schedule=settings.schedule,
        unregularized=n_dense,
    )
    n = len(pairs)
    steps = settings.passes * n
    draw = np.random.default_rng(seed)
    total = 0.0
    recent = min(lifetime(settings.regularizer, dimension), n)
    last_fired = []
    for begin in range(0, steps, CHUNK):
        order = draw.integers(n, size=min(CHUNK, steps - begin))
        margins = optimizer.step_rows(pairs, HINGE, order=order)
        last = margins[max(steps - n - begin, 0) :]
        total += float(np.maximum(1.0 - last, 0.0).sum())
        first = max(steps - recent - begin, 0)
        last_fired.append(order[first:][margins[first:] < 1.0])
        on_steps(begin + order.size, steps)
    optimizer.flush()
    blocks: Int64 = optimizer.groups().numpy()
    fired = np.concatenate(last_fired)
    return Learned(blocks, parameter.detach().numpy(), dimension, steps, total / n, fired)


def oscar_dimension(pairs: Rows, start: Float64, n_dense: int, regularizer: Oscar) -> int:
    """Return OSCAR's d.

    Raises
    ------
    InputError
        It is smaller than the number of sparse features that may get a weight.
    """
    dimension = given_dimension(regularizer, start, n_dense)
    if regularizer.dimension is not None:
        count = count_features(start, n_dense, pairs.feature)
        if dimension < count:
            raise given_dimension_error(dimension, "sparse features in the pairs", count)
    return dimension


def given_dimension(regularizer: Oscar, start: Float64, n_dense: int) -> int:
    """Return OSCAR's d, which is not compared with the features that there are."""
    return regularizer.dimension or max(start.size - n_dense, 1)


def count_features(weights: Float64, first: int, found: Integers) -> int:
    """Return the number of features that OSCAR pulls at, 1 at least.

    Parameters
    ----------
    weights : float64 [D]
        Features with a weight count.
    first : int
        Features below this id are not regularised.
    found : int64 or int32 array
        Ids of features that count, too.
    """
    known = weights != 0
    known[found] = True
    return max(int(np.count_nonzero(known[first:])), 1)

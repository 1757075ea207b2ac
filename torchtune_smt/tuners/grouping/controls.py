"""Groups to compare those of OSCAR with: others in their place, of nothing, and of clusters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np
import torch

from torchtune_smt.core.accepts import above, accepting, integer, least
from torchtune_smt.core.arrays import Float64, Int64
from torchtune_smt.core.rows import Rows
from torchtune_smt.losses.slope_kernels import LOGISTIC
from torchtune_smt.optim.adagrad import AdaGrad
from torchtune_smt.regularizers import L1
from torchtune_smt.tuners.grouping.base import DRAW, GroupLearner, LearntGroups, Problem, lifetime

CONTROLS: Final = ("none", "single", "shuffled")
NONE_DRAWN: Final = (
    "no sparse feature fires in the pairs that were drawn, of those with margins below 1"
)


def controlled(
    blocks: Int64, control: str, pairs: Rows, n_dense: int, seed: Sequence[int]
) -> Int64:
    """Return groups with something taken from them.

    blocks (int64 [D]): see `LearntGroups`.
    control ("none", "single", "shuffled"): ``single``: each feature alone, which leaves the choice
        of features. ``shuffled``: sizes stay, and which features are in which group is drawn from
        all sparse features that fire in the pairs, or are in a group.
    """
    result = blocks.copy()
    result[:n_dense] = -1
    inside = np.flatnonzero(result >= 0)
    if control == "single":
        result[inside] = np.arange(inside.size)
    elif control == "shuffled":
        places = np.union1d(pairs.numbered()[0], inside)
        places = places[places >= n_dense]
        result[places] = np.random.default_rng(seed).permutation(result[places])
    return result


@dataclass(frozen=True)
class RandomPairs(GroupLearner):
    """Takes groups from random pairs with a margin below 1, without any learning.

    As many pairs as steps in which a weight that nothing supports survives (`lifetime`), by the
    regulariser's λ1, λ2 and d: about what is left of Algorithm 2 where its groups are the last
    pairs. The features of a pair that fire on its better side are a group, and those on its worse
    side; a feature of several pairs is in a group of the first one.

    """

    prepares: ClassVar[bool] = False
    takes_not: ClassVar[Mapping[str, str]] = {"optimizer": "takes no steps of an optimizer"}

    chance = DRAW

    def find(self, problem: Problem) -> LearntGroups:
        """See `GroupLearner`."""
        pairs, start, oscar = problem.pairs, problem.start, self.regularizer
        dimension = problem.dimension(oscar)
        order = problem.draw(2).permutation(len(pairs))
        wrong = order[pairs.dot(start)[order] < 1.0]
        chosen = wrong[: lifetime(oscar, dimension)]
        blocks = np.full(start.size, -1, np.int64)
        for number, row in enumerate(chosen.tolist()):
            span = slice(pairs.begin[row], pairs.begin[row + 1])
            feature, value = pairs.feature[span], pairs.value[span]
            free = (feature >= problem.n_dense) & (blocks[feature] < 0) & (value != 0.0)
            blocks[feature[free]] = 2 * number + (value[free] < 0.0)
        text = f"{chosen.size:,} random pairs"
        numbers: dict[str, float] = {"control/pairs": chosen.size}
        return LearntGroups(blocks, dimension, text, numbers=numbers, why_none=NONE_DRAWN)


# Of Lloyd's algorithm; it ends before, as a rule.
ROUNDS = 1000
NOT_ONE: Final = (
    "the l1 norm has left no weight that is not 0; a smaller tuner.clusters.strength leaves more"
)


@dataclass(frozen=True)
class ClusteredWeights(GroupLearner):
    """Takes as groups the clusters of weights that AdaGrad with an l1 norm learns from the pairs.

    A plain rival of OSCAR, of which the d alone is of use here, and reported: first weights, then
    which of them are alike. Logistic loss, one random pair a step.

    count: clusters of positive weights, and of negative ones, at most.
    lr, strength: of AdaGrad, and of the l1 norm.
    passes: steps, in numbers of pairs.
    """

    prepares: ClassVar[bool] = False
    takes_not: ClassVar[Mapping[str, str]] = {
        "optimizer": "has an optimizer of its own (tuner.clusters)",
        "regularizer": "has an l1 norm of its own (tuner.clusters.strength)",
    }

    accepts = accepting(count=integer(1), lr=above(0), strength=least(0), passes=integer(1))

    count: int = 50
    lr: float = 0.02
    strength: float = 1e-4
    passes: int = 20

    def find(self, problem: Problem) -> LearntGroups:
        """See `GroupLearner`. Weights begin at those so far."""
        pairs, dimension = problem.pairs, problem.dimension(self.regularizer)
        parameter = torch.nn.Parameter(torch.from_numpy(problem.start.copy()))
        norm = L1(self.strength)
        optimizer = AdaGrad([parameter], self.lr, norm, unregularized=problem.n_dense)
        draw = problem.draw(2)
        for done in range(self.passes):
            optimizer.step_rows(pairs, LOGISTIC, order=draw.integers(len(pairs), size=len(pairs)))
            problem.show("learning weights", done + 1, self.passes, "pass")
        optimizer.flush()
        values = parameter.detach().numpy().copy()
        values[: problem.n_dense] = 0.0
        blocks = np.full(values.size, -1, np.int64)
        for sign, side in ((0, np.flatnonzero(values > 0)), (1, np.flatnonzero(values < 0))):
            blocks[side] = 2 * clusters(np.abs(values[side]), self.count) + sign
        text = (
            f"{self.passes * len(pairs):,} steps of AdaGrad, {np.count_nonzero(values):,} weights"
        )
        return LearntGroups(blocks, dimension, text, why_none=NOT_ONE)


def clusters(values: Float64, count: int) -> Int64:
    """Return the cluster of each value, from 0 for the largest: Lloyd's algorithm from quantiles.

    Equal values are in one cluster, and no number below the largest one is missing.
    """
    if values.size == 0:
        return np.empty(0, np.int64)
    known, places = np.unique(values, return_inverse=True)
    centres = np.unique(np.quantile(values, (np.arange(count) + 0.5) / count))
    weight = np.bincount(places).astype(np.float64)
    for _ in range(ROUNDS):
        nearest = np.searchsorted(0.5 * (centres[1:] + centres[:-1]), known)
        _, nearest = np.unique(nearest, return_inverse=True)
        new = np.bincount(nearest, weight * known) / np.bincount(nearest, weight)
        if np.array_equal(new, centres):
            break
        centres = new
    descending: Int64 = (nearest.max() - nearest)[places]
    return descending

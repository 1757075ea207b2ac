"""Groups that nothing was learnt for, to compare those with that were."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np

from torchtune_smt.core.arrays import Float64, Int64
from torchtune_smt.core.rows import Rows
from torchtune_smt.tuners.base import Show
from torchtune_smt.tuners.gradient import check_pairs
from torchtune_smt.tuners.group_diagnosis import DRAW, Chance, lifetime
from torchtune_smt.tuners.group_learner import GroupLearner, LearntGroups
from torchtune_smt.tuners.learn_groups import given_dimension

CONTROLS: Final = ("none", "single", "shuffled")
NONE_DRAWN: Final = (
    "no sparse feature fires in the pairs that were drawn, of those with margins below 1"
)


def check_control(control: str) -> None:
    """Raise ValueError if what is done to groups is not known."""
    if control not in CONTROLS:
        raise ValueError(f"control must be one of {', '.join(CONTROLS)}, not {control!r}")


def controlled(
    blocks: Int64, control: str, pairs: Rows, n_dense: int, seed: Sequence[int]
) -> Int64:
    """Return groups with something taken from them.

    Parameters
    ----------
    blocks : int64 [D]
        See `LearntGroups`.
    control : {"none", "single", "shuffled"}
        ``single``: each feature alone, which leaves the choice of features. ``shuffled``: sizes
        stay, and which features are in which group is drawn from all sparse features that fire in
        the pairs, or are in a group.
    pairs : Rows
    seed : sequence of int
        Names the random stream.
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

    As many pairs as steps in which a weight that nothing supports survives (`lifetime`): about
    what is left of Algorithm 2 where its groups are the last pairs. The features of a pair that
    fire on its better side are a group, and those on its worse side; a feature of several pairs is
    in a group of the first one.

    Parameters
    ----------
    regularizer : Oscar
        λ1, λ2 and d say how many pairs.
    """

    prepares: ClassVar[bool] = False
    takes_not: ClassVar[Mapping[str, str]] = {"optimizer": "takes no steps of an optimizer"}

    @property
    def chance(self) -> Chance:
        """See `GroupLearner.chance`."""
        return DRAW

    def find(
        self, pairs: Rows, start: Float64, n_dense: int, seed: Sequence[int], show: Show
    ) -> LearntGroups:
        """Return the groups; see `GroupLearner.find`."""
        check_pairs(len(pairs))
        oscar = self.regularizer
        dimension = given_dimension(oscar, start, n_dense)
        order = np.random.default_rng((*seed, 2)).permutation(len(pairs))
        wrong = order[pairs.dot(start)[order] < 1.0]
        chosen = wrong[: lifetime(oscar, dimension)]
        blocks = np.full(start.size, -1, np.int64)
        for number, row in enumerate(chosen.tolist()):
            span = slice(pairs.begin[row], pairs.begin[row + 1])
            feature, value = pairs.feature[span], pairs.value[span]
            free = (feature >= n_dense) & (blocks[feature] < 0) & (value != 0.0)
            blocks[feature[free]] = 2 * number + (value[free] < 0.0)
        text = f"{chosen.size:,} random pairs"
        numbers: dict[str, float] = {"control/pairs": chosen.size}
        return LearntGroups(blocks, dimension, text, numbers=numbers, why_none=NONE_DRAWN)

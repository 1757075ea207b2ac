"""What learns from pairs which features may share a weight."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Final, Self

import numpy as np

from torchtune_smt.core.arrays import Float64, Int64
from torchtune_smt.core.errors import DivergenceError, InputError
from torchtune_smt.core.rows import Rows
from torchtune_smt.regularizers.oscar import Oscar
from torchtune_smt.tuners.base import Show
from torchtune_smt.tuners.grouping.diagnosis import ORDER, SAME_SAMPLE, Chance, compared, why_not

TOO_STRONG: Final = (
    "OSCAR has left no weight that is not 0; smaller regularizer.lambda1 and lambda2 leave more"
)


@dataclass(frozen=True)
class LearntGroups:
    """Groups, and what is to be said of them.

    Attributes
    ----------
    blocks : int64 [D]
        The same number for features that may share a weight, -1 for those in no group; what it has
        for dense features is not looked at. See `Oscar.groups`.
    dimension : int
        OSCAR's d.
    text : str
        How they were found, in some words.
    remarks : tuple of str
        What the user ought to know, a sentence each.
    numbers : dict of str to float
        What the log is to have.
    boundary : int64 array
        Ids of features whose group, or whether they have one, is not known for certain.
    factor : float64 [D], optional
        What the value of a feature counts for in its group; see `FeatureGroups`.
    why_none : str
        Where there are no groups: why, and which options find some.
    """

    blocks: Int64
    dimension: int
    text: str
    remarks: tuple[str, ...] = ()
    numbers: dict[str, float] = field(default_factory=dict)
    boundary: Int64 = field(default_factory=lambda: np.empty(0, np.int64))
    factor: Float64 | None = None
    why_none: str = TOO_STRONG


@dataclass(frozen=True)
class GroupLearner(ABC):
    """Learns groups of features from pairs.

    Parameters
    ----------
    regularizer : Oscar
        Its `dimension`, where it is given, is d.

    Attributes
    ----------
    prepares : bool
        Whether it learns from features that may be scaled or merged (see `PreparedLearning`).
    takes_not : mapping of str to str
        Groups and options of a configuration that it makes no use of, with the reasons.
    """

    prepares: ClassVar[bool] = True
    takes_not: ClassVar[Mapping[str, str]] = {}

    regularizer: Oscar

    @property
    def chance(self) -> Chance:
        """What is random, and varied to see which groups depend on it."""
        return ORDER

    def calibrated(
        self, noise: Callable[[int], Rows], start: Float64, n_dense: int, show: Show
    ) -> Self:
        """Return what learns with the strength that follows from pairs that say nothing, if any.

        Parameters
        ----------
        noise : callable
            Returns such pairs; see `torchtune_smt.minimizer.noise_scale`.
        start, n_dense, show
            See `find`.
        """
        return self

    def learn(
        self,
        pairs: Rows,
        start: Float64,
        n_dense: int,
        seed: Sequence[int],
        show: Show,
        draw: Callable[[], Rows] | None = None,
    ) -> LearntGroups:
        """Return groups of the features of some pairs, and how much of them is chance's.

        For that it is done twice.

        Parameters
        ----------
        pairs, start, n_dense, seed, show
            See `find`.
        draw : callable, optional
            Draws other pairs of the same features. Without it groups in which nothing else is
            random are not compared with any.

        Raises
        ------
        InputError, DivergenceError
            See `find`.
        """
        found = self.find(pairs, start, n_dense, seed, show)
        chance = self.chance
        drawn = draw if chance.pairs else lambda: pairs
        if drawn is None:
            return found
        try:
            others = drawn()
            if chance.pairs and _equal(pairs, others):
                chance, blocks = SAME_SAMPLE, found.blocks
            else:
                blocks = self.again(others, start, n_dense, seed, show)
        except (InputError, DivergenceError, MemoryError) as error:
            # This is only there to be compared with, and the groups that count are learnt.
            said = f"{chance.otherwise} nothing can be learnt: {why_not(error)}"
            return replace(found, remarks=(*found.remarks, said))
        remarks, numbers = compared(found.blocks[n_dense:], blocks[n_dense:], chance)
        return replace(found, remarks=(*found.remarks, *remarks), numbers=found.numbers | numbers)

    def again(
        self, pairs: Rows, start: Float64, n_dense: int, seed: Sequence[int], show: Show
    ) -> Int64:
        """Return groups as `find` has them, by other random numbers: int64 [D]."""

        def shown(what: str, done: int, total: int, unit: str) -> None:
            show(f"{what} again", done, total, unit)

        # 3 names the stream where 2 is that of `find`.
        return self.find(pairs, start, n_dense, (*seed, 3), shown).blocks

    @abstractmethod
    def find(
        self, pairs: Rows, start: Float64, n_dense: int, seed: Sequence[int], show: Show
    ) -> LearntGroups:
        """Return groups of the features of some pairs.

        Parameters
        ----------
        pairs : Rows
            x = H(better) - H(worse); none has a feature beyond D.
        start : float64 [D]
            The weights so far.
        n_dense : int
            Ids below it are dense features.
        seed : sequence of int
            Names the random streams.
        show : callable
            See `Show`.

        Raises
        ------
        InputError
            There are no pairs; d is smaller than the number of sparse features that may get a
            weight.
        DivergenceError
            A margin is not finite.
        """
        ...


def _equal(pairs: Rows, others: Rows) -> bool:
    return (
        np.array_equal(pairs.begin, others.begin)
        and np.array_equal(pairs.feature, others.feature)
        and np.array_equal(pairs.value, others.value)
    )

"""Groups learnt from features of one size, or without features that always fire with others."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, Self

import numpy as np

from torchtune_smt.core.accepts import SWITCH, accepting, one_of
from torchtune_smt.core.arrays import Float64, Int64
from torchtune_smt.core.offsets import offsets
from torchtune_smt.core.rows import Rows
from torchtune_smt.tuners.grouping.base import Chance, GroupLearner, LearntGroups, Problem

SCALINGS: Final = ("none", "rms")


@dataclass(frozen=True)
class PreparedPairs:
    """Pairs of which the sparse features have been made others, in the same ids.

    one (int64 [D]): the feature that each is one with, the lowest of these; itself as a rule.
    factor (float64 [D]): what the value of a feature counts for: W_j = factor_j · v of the one
        weight v gives the pairs the margins that v gives the prepared ones.
    """

    pairs: Rows
    one: Int64
    factor: Float64

    def weights(self, start: Float64) -> Float64:
        """Return the weights of prepared features that give the margins of some weights."""
        totals = np.zeros(start.size)
        np.add.at(totals, self.one, start / (self.factor * np.bincount(self.one)[self.one]))
        return totals


def prepared_pairs(
    pairs: Rows, n_dense: int, dimension: int, *, scaling: str, merge_identical: bool
) -> PreparedPairs:
    """Prepare pairs of `dimension` features, of which those below `n_dense` stay as they are.

    scaling ("none", "rms"): ``rms``: each sparse feature is divided by the root of the mean of its
        squares over all pairs.
    merge_identical: sparse features of the same value in each pair (once scaled) become one, of
        this value. The factors of m of them are divided by m, so that they have it together.
    """
    factor = np.ones(dimension)
    if scaling == "rms":
        squares = np.bincount(pairs.feature, pairs.value**2, dimension)
        fires = squares > 0.0
        fires[:n_dense] = False
        factor[fires] = np.sqrt(len(pairs) / squares[fires])
        pairs = pairs.scaled(factor)
    one = np.arange(dimension)
    if merge_identical:
        one = identical_columns(pairs, n_dense, dimension, multiples=scaling != "none")
        factor = factor / np.bincount(one)[one]
        pairs = pairs.where(one[pairs.feature] == pairs.feature)
    return PreparedPairs(pairs, one, factor)


def identical_columns(rows: Rows, first: int, dimension: int, *, multiples: bool = False) -> Int64:
    """Return for each feature the lowest one that has the same value in each row.

    first: features below it, and those that are 0 in each row, are alone.
    multiples: whether positive multiples of a feature are the same, as they are once all have one
        size: these have the same values but for rounding.
    """
    rows = rows.where((rows.value != 0.0) & (rows.feature >= first))
    order = np.argsort(rows.feature, kind="stable")
    number = rows.owner[order]
    value = rows.value[order]
    begin = offsets(np.bincount(rows.feature, minlength=dimension))
    result = np.arange(dimension)
    # Digests, so that no column is kept as a key.
    known: dict[bytes, int] = {}
    for j in np.flatnonzero(np.diff(begin)).tolist():
        column = slice(begin[j], begin[j + 1])
        digest = hashlib.blake2b(number[column].tobytes(), digest_size=16)
        digest.update((_shape(value[column]) if multiples else value[column]).tobytes())
        result[j] = known.setdefault(digest.digest(), j)
    return result


def _shape(values: Float64) -> Float64:
    """Return what values have in common with their positive multiples.

    It is their ratios to |the first one|, in some 12 digits: whatever rounding does to ratios that
    are simple, they are the same then.
    """
    mantissa, exponent = np.frexp(values / np.abs(values[0]))
    shape: Float64 = np.ldexp(np.rint(np.ldexp(mantissa, 40)), exponent - 40)
    return shape


@dataclass(frozen=True)
class PreparedLearning(GroupLearner):
    """Lets another learner, by this regulariser, learn from pairs as `prepared_pairs` has them.

    What is learnt is undone: `LearntGroups.factor` says what the value of a feature counts for in
    its group, and features that were one are in one group, or in none. d still counts all features.
    """

    accepts = accepting(scaling=one_of(*SCALINGS), merge_identical=SWITCH)

    learner: GroupLearner
    scaling: str = "none"
    merge_identical: bool = False

    @property
    def chance(self) -> Chance:  # type: ignore[override]
        """See `GroupLearner`."""
        return self.learner.chance

    def calibrated(self, noise: Callable[[int], Rows], problem: Problem) -> Self:
        """See `GroupLearner`. Noise is prepared, too."""

        def prepared(number: int) -> Rows:
            return self._prepared(replace(problem, pairs=noise(number)))[0].pairs

        learner = self._own.calibrated(prepared, problem)
        return replace(self, regularizer=learner.regularizer, learner=learner)

    def find(self, problem: Problem) -> LearntGroups:
        """See `GroupLearner`."""
        prepared, own = self._prepared(problem)
        found = self._own.find(own)
        remarks, numbers = found.remarks, dict(found.numbers)
        if self.merge_identical:
            sizes = np.bincount(prepared.one)
            merged, left = int(sizes[sizes > 1].sum()), int(np.count_nonzero(sizes > 1))
            numbers |= {"merged/features": merged, "merged/left": left}
            said = f"{merged:,} features that always fire with others were taken as {left:,}"
            remarks = (*remarks, said)
        return replace(
            found,
            blocks=found.blocks[prepared.one],
            boundary=np.flatnonzero(np.isin(prepared.one, found.boundary)),
            factor=prepared.factor,
            remarks=remarks,
            numbers=numbers,
        )

    def again(self, problem: Problem) -> Int64:
        """See `GroupLearner`."""
        prepared, own = self._prepared(problem)
        return self._own.again(own)[prepared.one]

    @property
    def _own(self) -> GroupLearner:
        return replace(self.learner, regularizer=self.regularizer)

    def _prepared(self, problem: Problem) -> tuple[PreparedPairs, Problem]:
        """Return prepared pairs, and what is learnt from them."""
        pairs, n_dense, start = problem.pairs, problem.n_dense, problem.start
        scaling, merge = self.scaling, self.merge_identical
        prepared = prepared_pairs(
            pairs, n_dense, start.size, scaling=scaling, merge_identical=merge
        )
        return prepared, replace(problem, pairs=prepared.pairs, start=prepared.weights(start))

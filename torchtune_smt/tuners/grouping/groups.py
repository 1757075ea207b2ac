"""Groups of features that share one weight, and the file that lists them."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np

from torchtune_smt.core.arrays import Bool, Float64, Int64
from torchtune_smt.core.errors import InputError
from torchtune_smt.core.rows import Rows
from torchtune_smt.core.text import finite_number, whole_number
from torchtune_smt.core.textio import atomic_writer, iterate_lines
from torchtune_smt.core.vocabulary import Vocabulary

ZeroGroup = Literal["drop", "keep"]

_COLUMNS = ("group", "weight", "size", "feature")
# With factors.
_SCALED = ("group", "weight", "size", "factor", "feature")


@dataclass(frozen=True)
class FeatureGroups:
    """Disjoint groups of features (Liu et al., 2013, section 2): each is one feature to a tuner.

    G_k = Σ_{j in g_k} f_j H_j takes the place of the features in g_k, and W_j = f_j W^G_k
    afterwards, where f_j is 1 but for features that were learnt from at another scale. Each dense
    feature is a group of its own, with its own number. No group is empty.

    group (int64 [D]): the group of each feature; -1: in none, and with weight 0. Features that came
        later are in none.
    n_dense: ids below it are dense features.
    factor (float64 [D]): f_j, not 0; 1 of dense features, and of those in no group. Without it, all
        are 1.

    Raises ValueError: a number is missing among those of the groups, or a dense feature is not
    alone; a factor is 0, or one of a feature that has none is not 1.
    """

    group: Int64
    n_dense: int
    factor: Float64 | None = None

    def __post_init__(self) -> None:
        if self.factor is not None:
            fixed = (np.arange(self.group.size) < self.n_dense) | (self.group < 0)
            if (self.factor[fixed] != 1.0).any() or not self.factor.all():
                raise ValueError("factors must not be 0, and 1 of dense features and without group")
        sizes = self.sizes
        dense = np.arange(self.n_dense)
        if not np.array_equal(self.group[: self.n_dense], dense) or (sizes[dense] > 1).any():
            raise ValueError(f"the first {self.n_dense} features must each be a group of their own")
        if (sizes == 0).any():
            raise ValueError(f"group {int(np.argmin(sizes))} of {sizes.size} has no features")

    @classmethod
    def of(
        cls,
        blocks: Int64,
        n_dense: int,
        *,
        keep_zeros: Bool | None = None,
        factor: Float64 | None = None,
    ) -> FeatureGroups:
        """Return the groups of weights that OSCAR has made equal.

        blocks (int64 [D]): see `LearntGroups.blocks`; groups are numbered in ascending order of it.
        keep_zeros (bool [D]): sparse features without a group that form one more, all together.
        factor (float64 [D]): what it has for features in no group is not looked at.
        """
        group = np.full(blocks.size, -1, np.int64)
        group[:n_dense] = np.arange(n_dense)
        sparse = np.flatnonzero(blocks[n_dense:] >= 0) + n_dense
        numbers, inverse = np.unique(blocks[sparse], return_inverse=True)
        group[sparse] = n_dense + inverse
        if keep_zeros is not None:
            group[keep_zeros & (group < 0)] = n_dense + numbers.size
        if factor is not None:
            factor = np.where(group >= n_dense, factor, 1.0)
        return cls(group, n_dense, factor)

    def __len__(self) -> int:
        return int(self.group.max(initial=-1)) + 1

    @property
    def n_sparse(self) -> int:
        """The number of groups of sparse features."""
        return len(self) - self.n_dense

    @property
    def sizes(self) -> Int64:
        """The number of features in each group."""
        counts: Int64 = np.bincount(self.group[self.group >= 0], minlength=len(self))
        return counts

    def rename(self, dimension: int) -> Int64:
        """Return the group of each of `dimension` features, at least as many as are known."""
        result = np.full(dimension, -1, np.int64)
        result[: self.group.size] = self.group
        return result

    def project(self, rows: Rows, dimension: int) -> Rows:
        """Return rows over groups, given those over `dimension` features."""
        if self.factor is not None:
            rows = rows.scaled(np.append(self.factor, np.ones(dimension - self.group.size)))
        return rows.projected(self.rename(dimension), len(self))

    def mean(self, weights: Float64) -> Float64:
        """Return the mean weight W_j / f_j of each group; weights that are missing are 0."""
        group, own = self._own(weights)
        result: Float64 = np.bincount(group, own, minlength=len(self)) / self.sizes
        return result

    def pack(self, weights: Float64) -> Float64:
        """Return the weights of groups, given those that `unpack` has made of them."""
        group, own = self._own(weights)
        result = np.zeros(len(self))
        result[group] = own
        return result

    def _own(self, weights: Float64) -> tuple[Int64, Float64]:
        """Return the groups of features that have one and a weight, and W_j / f_j of each."""
        inside = np.flatnonzero(self.group[: weights.size] >= 0)
        chosen: Float64 = weights[inside]
        return self.group[inside], chosen if self.factor is None else chosen / self.factor[inside]

    def unpack(self, weights: Float64, dimension: int) -> Float64:
        """Return the weight of each of `dimension` features from those of the groups."""
        # The last one is for features in no group, whose number is -1.
        result: Float64 = np.append(weights, 0.0)[self.rename(dimension)]
        if self.factor is not None:
            result[: self.factor.size] *= self.factor
        return result


def save_groups(
    path: str | os.PathLike[str], groups: FeatureGroups, weights: Float64, features: Vocabulary
) -> None:
    """Write groups as a table: number, weight and size of the group, and one of its features.

    A feature a line, separated by tabs: groups of dense features first, then by descending |weight|
    and size; the features of a group by name. Where groups have factors, that of the feature
    stands before its name.

    path: packed with gzip if it ends in ``.gz``.
    """
    sizes = groups.sizes
    numbers = np.arange(len(groups))
    order = np.lexsort((numbers, -sizes, -np.abs(weights), numbers >= groups.n_dense))
    order[: groups.n_dense] = np.arange(groups.n_dense)
    inside = np.flatnonzero(groups.group >= 0)
    members = inside[np.argsort(groups.group[inside], kind="stable")]
    end = np.cumsum(sizes)
    with atomic_writer(path) as file:
        factor = groups.factor
        file.write("\t".join(_COLUMNS if factor is None else _SCALED) + "\n")
        for g in order.tolist():
            ids = members[end[g] - sizes[g] : end[g]]
            named = sorted(zip(features.names(ids), ids.tolist(), strict=True))
            head = f"{g}\t{float(weights[g])!r}\t{sizes[g]}\t"
            for name, j in named:
                own = "" if factor is None else f"{float(factor[j])!r}\t"
                file.write(f"{head}{own}{name}\n")


def read_groups(
    path: str | os.PathLike[str], features: Vocabulary, n_dense: int
) -> tuple[FeatureGroups, Float64]:
    """Read groups and their weights from a file of `save_groups`.

    Names that are new are added to the features; dense ones are groups 0 .. n_dense - 1.

    Raises InputError: a line is no row of the table, or contradicts another one; a group is not
    whole.
    """
    error = partial(InputError, path=path)
    lines = iterate_lines(path)
    columns = tuple(next(lines, "").split("\t"))
    if columns not in (_COLUMNS, _SCALED):
        raise error(
            f"does not begin with the columns {' '.join(_COLUMNS)}, separated by tabs; is it a "
            "file of groups?",
            line=1,
        )
    rows: dict[str, tuple[int, float]] = {}
    said: dict[int, tuple[float, int]] = {}
    for line, text in enumerate(lines, start=2):
        fields = [*text.split("\t", len(columns) - 1), "", "", "", ""]
        number, size = whole_number(fields[0]), whole_number(fields[2])
        weight, name = finite_number(fields[1]), fields[len(columns) - 1]
        factor = finite_number(fields[3]) if columns == _SCALED else 1.0
        if number is None or weight is None or not size or not name or not factor or factor < 0:
            above = "a number above 0, " if columns == _SCALED else ""
            raise error(
                f"is no row of {' '.join(columns)}, separated by tabs: a number from 0, a finite "
                f"number, a number from 1, {above}and a name",
                line=line,
            )
        if name in rows or said.setdefault(number, (weight, size)) != (weight, size):
            raise error("contradicts a row before it, of this feature or group", line=line)
        rows[name] = number, factor
    counts = Counter(number for number, _ in rows.values())
    if any(number >= len(said) or counts[number] != said[number][1] for number in said):
        raise error("is not whole: a group lacks features, or there is none of a number")
    weights = np.array([said[number][0] for number in range(len(said))])
    ids = features.intern(list(rows))
    group = np.full(len(features), -1, np.int64)
    group[ids] = [number for number, _ in rows.values()]
    scaled = None
    if columns == _SCALED:
        scaled = np.ones(group.size)
        scaled[ids] = [factor for _, factor in rows.values()]
    try:
        return FeatureGroups(group, n_dense, scaled), weights
    except (ValueError, IndexError) as problem:
        raise error(f"does not fit a model with {n_dense} dense features: {problem}") from None

"""Sparse rows of feature values: of hypotheses, and of differences between them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import compress
from typing import Final, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from torchtune_smt.core import rows_kernels as kernels
from torchtune_smt.core.arrays import Bool, Float64, Int32, Int64, Integers
from torchtune_smt.core.offsets import are_offsets, joined_offsets, offsets, places_of
from torchtune_smt.core.vocabulary import Vocabulary

T = TypeVar("T", bound=np.generic)

# Ids that a table is indexed with at a time: NumPy copies them to 64 bits first.
_PIECE: Final = 1 << 16
# How much longer an array gets that is full, in parts of it.
_GROWTH: Final = 1 / 8
# Bytes: an array that gets larger than the first is made of the second, which the C library never
# takes from its heap, where growing would copy it and leave holes.
_SMALL: Final = 1 << 20
_LARGE: Final = 1 << 25


@dataclass(frozen=True)
class Rows:
    """n rows in CSR form.

    begin (int64 [n + 1]): row i has the entries ``begin[i] .. begin[i + 1] - 1``; the first one
        begins at 0.
    feature (int32 [non-zeros]): ids of features, ascending within a row, none twice.
    value (float64 [non-zeros])
    """

    begin: Int64
    feature: Int32
    value: Float64

    @classmethod
    def of_dicts(cls, rows: Sequence[Mapping[str, float]], features: Vocabulary) -> Rows:
        """Return rows of feature names and values; zeros are left out, and new names added.

        Raises ValueError: a name is no string, or a value no finite number; says of which row.
        """
        for number, row in enumerate(rows):
            if type(row) is not dict and not isinstance(row, Mapping):
                raise ValueError(f"row {number}: features must be a dict of names and values")
        names = [name for row in rows for name in row]
        values = _finite(rows)
        kept = values != 0
        begin = offsets(kept.view(np.int8))[offsets([len(row) for row in rows])]
        used = list(compress(names, kept.tolist()))
        distinct = list(dict.fromkeys(used))
        ids = dict(zip(distinct, features.intern(distinct).tolist(), strict=True))
        feature = np.fromiter(map(ids.__getitem__, used), np.int32, len(used))
        return cls(begin, feature, values[kept]).sorted()

    @classmethod
    def joined(cls, parts: Sequence[Rows]) -> Rows:
        """Return the rows of several matrices behind each other."""
        if len(parts) == 1:
            return parts[0]
        return cls(
            joined_offsets([part.begin for part in parts]),
            np.concatenate([np.empty(0, np.int32), *(part.feature for part in parts)]),
            np.concatenate([np.empty(0), *(part.value for part in parts)]),
        )

    @classmethod
    def gathered(cls, parts: Iterable[Rows]) -> Rows:
        """Do as `joined` with parts each of which is forgotten once the next one is asked for."""
        feature, value = _Growing(np.int32), _Growing(np.float64)
        lengths = _Growing(np.int64)
        for part in parts:
            lengths.append(np.diff(part.begin))
            feature.append(part.feature)
            value.append(part.value)
        return cls(offsets(lengths.taken()), feature.taken(), value.taken())

    def __len__(self) -> int:
        return self.begin.size - 1

    @cached_property
    def limits(self) -> tuple[int, int]:
        """The smallest id and the largest; (0, -1) where there is none. O(non-zeros), once."""
        if self.feature.size == 0:
            return 0, -1
        return int(self.feature.min()), int(self.feature.max())

    def row(self, i: int) -> tuple[Int32, Float64]:
        """Return the ids and values of row `i`."""
        span = slice(self.begin[i], self.begin[i + 1])
        return self.feature[span], self.value[span]

    def between(self, first: int, last: int) -> Rows:
        """Return the rows ``first .. last - 1``; ids and values are not copied."""
        begin = self.begin[first : last + 1]
        span = slice(begin[0], begin[-1])
        return Rows(begin - begin[0], self.feature[span], self.value[span])

    def chosen(self, numbers: Int64) -> Rows:
        """Return some rows, in the order of their numbers (int64 array)."""
        begin, places = places_of(self.begin, numbers)
        return Rows(begin, self.feature[places], self.value[places])

    @property
    def owner(self) -> Int64:
        """The row of each entry (int64 [non-zeros])."""
        return np.repeat(np.arange(len(self)), np.diff(self.begin))

    def with_entries(self, owner: Int64, id: Integers, value: Float64) -> Rows:
        """Return the rows with more entries: the row of each, an id that it lacks, and a value."""
        owners = np.concatenate([self.owner, owner])
        order = np.argsort(owners, kind="stable")
        more = Rows(
            offsets(np.bincount(owners, minlength=len(self))),
            np.concatenate([self.feature, id], dtype=np.int32, casting="same_kind")[order],
            np.concatenate([self.value, value])[order],
        )
        return more.sorted()

    def where(self, kept: Bool) -> Rows:
        """Return the rows with some of their entries (bool [non-zeros])."""
        if kept.all():
            return self
        before = offsets(kept.view(np.int8))
        return Rows(before[self.begin], self.feature[kept], self.value[kept])

    def check(self, dimension: int | None = None) -> None:
        """Raise ValueError unless this is a matrix as `Rows` describes it.

        dimension: ids must be below it.
        """
        types = [array.dtype.name for array in (self.begin, self.feature, self.value)]
        if types != ["int64", "int32", "float64"]:
            raise ValueError("begin, feature and value must be int64, int32 and float64")
        if not are_offsets(self.begin, self.feature.size):
            raise ValueError("`begin` must ascend from 0 to the number of features")
        if self.value.shape != self.feature.shape:
            raise ValueError(f"{self.feature.size} features have {self.value.size} values")
        if not np.isfinite(self.value).all():
            raise ValueError("a value is not finite")
        if self.feature.size and self.feature.min() < 0:
            raise ValueError("ids of features must be at least 0")
        if not self.ascend():
            raise ValueError("ids of features must ascend within a row")
        if dimension is not None and self.feature.max(initial=-1) >= dimension:
            raise ValueError(f"ids of features must be below {dimension}")

    def ascend(self) -> bool:
        """Say whether the ids of each row ascend, none twice."""
        rises = np.empty(self.feature.size, np.bool_)
        np.greater(self.feature[1:], self.feature[:-1], out=rises[1:])
        # The first of a row may be less than the last of the row before.
        rises[self.begin[self.begin < self.feature.size]] = True
        return bool(rises.all())

    def sorted(self) -> Rows:
        """Return the rows with ascending ids."""
        if self.ascend():
            return self
        feature, value = self.feature.copy(), self.value.copy()
        kernels.sort_rows(self.begin, feature, value)
        return Rows(self.begin, feature, value)

    def dot(self, weights: Float64, first: int = 0, last: int | None = None) -> Float64:
        """Return W·H of the rows ``first .. last - 1``, each added up in the order of its ids."""
        last = len(self) if last is None else last
        out = np.empty(last - first)
        kernels.dot(self.begin, self.feature, self.value, weights, first, out)
        return out

    def differences(self, pairs: Int64) -> Rows:
        """Return x = H(better) - H(worse), one row a pair.

        What cancels is left out, also where it does so but for rounding; a row may be empty.

        pairs (int64 [p, 2]): numbers of rows (better, worse).
        """
        return Rows(*kernels.differences(self.begin, self.feature, self.value, pairs))

    def renamed(self, ids: Integers) -> Rows:
        """Return the rows in other ids, which may not make two features one.

        ids (int32 or int64 [D]): the new id of each feature; -1 leaves it out.
        """
        new = ids[self.feature].astype(np.int32, copy=False)
        return Rows(self.begin, new, self.value).where(new >= 0).sorted()

    def scaled(self, factor: Float64) -> Rows:
        """Return the rows with the values of each feature times its factor (float64 [D])."""
        return Rows(self.begin, self.feature, self.value * factor[self.feature])

    def projected(self, group: Int64, groups: int) -> Rows:
        """Return the rows over groups of features, whose values are added up.

        What becomes 0, but for rounding, is left out.

        group (int64 [D]): the group of each feature, below `groups`; -1 leaves it out.
        groups: their number.
        """
        return Rows(*kernels.project(self.begin, self.feature, self.value, group, groups))

    def numbered(self) -> tuple[Int64, Rows]:
        """Return the features that occur (int64 [u], ascending), and the rows over their places.

        Nothing is as long as the number of all features.
        """
        feature, column = numbered(self.feature)
        return feature, Rows(self.begin, column, self.value)

    def dense(self, columns: int) -> Float64:
        """Return the values of the features below `columns` as a matrix, float64 [n, columns]."""
        out = np.zeros((len(self), columns))
        kernels.dense(self.begin, self.feature, self.value, out)
        return out


class _Growing(Generic[T]):
    """An array that is appended to.

    It grows in place where the system can move pages, and what is beyond its items is little.
    """

    def __init__(self, dtype: type[T]) -> None:
        self._room: NDArray[T] = np.empty(0, dtype)
        self._size = 0

    def append(self, items: NDArray[T]) -> None:
        """Copy items behind those that there are."""
        end = self._size + items.size
        if end > self._room.size:
            self._grow(end)
        self._room[self._size : end] = items
        self._size = end

    def _grow(self, size: int) -> None:
        size = max(size, self._room.size + int(_GROWTH * self._room.size))
        if self._room.nbytes < _SMALL <= size * self._room.itemsize:
            # Other than `resize`, this touches no page that has no items yet.
            room: NDArray[T] = np.empty(max(size, _LARGE // self._room.itemsize), self._room.dtype)
            room[: self._size] = self._room[: self._size]
            self._room = room
        else:
            # Nobody else has the array, nor a view of it, before it is taken.
            self._room.resize(size, refcheck=False)

    def taken(self) -> NDArray[T]:
        """Return the array, which may not be appended to any longer."""
        self._room.resize(self._size, refcheck=False)
        return self._room


def _finite(rows: Sequence[Mapping[str, float]]) -> Float64:
    """Return the values of all rows."""
    names = [name for row in rows for name in row]
    values = [value for row in rows for value in row.values()]
    # A text would be read as a number.
    if set(map(type, names)) <= {str} and set(map(type, values)) <= {float, int, np.float64}:
        with suppress(OverflowError):
            result: Float64 = np.array(values, np.float64)
            if np.isfinite(result).all():
                return result
    for number, row in enumerate(rows):
        for name, value in row.items():
            if not isinstance(name, str):
                raise ValueError(f"row {number}: {name!r} is no name of a feature, a string")
            try:
                finite = bool(np.isfinite(value)) and np.ndim(value) == 0
            except TypeError:
                finite = False
            if not finite:
                raise ValueError(f"row {number}: {name} is {value!r}, no finite number")
    return np.array([float(value) for value in values], np.float64)


def mark(found: Bool, ids: Int32) -> None:
    """Set the places of some ids, none of which is negative, in a table of all."""
    for begin in range(0, ids.size, _PIECE):
        found[ids[begin : begin + _PIECE]] = True


def numbered(ids: Integers) -> tuple[Int64, Int32]:
    """Return the distinct ones of some ids (int64, ascending), and the place of each among them.

    As `numpy.unique` does, but only the distinct ones are sorted.
    """
    distinct, first_sight = kernels.number_distinct(ids)
    order = np.argsort(distinct)
    rank = np.empty(order.size, np.int32)
    rank[order] = np.arange(order.size, dtype=np.int32)
    return distinct[order], rank[first_sight]

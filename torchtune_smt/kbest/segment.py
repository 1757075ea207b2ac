"""The hypotheses that one iteration has brought, kept compactly."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import DTypeLike, NDArray

from torchtune_smt.core.archive import Archive
from torchtune_smt.core.arrays import Float64, Int32, Int64, Records, UInt64
from torchtune_smt.core.errors import InputError
from torchtune_smt.core.offsets import are_offsets, offsets, places_of, runs
from torchtune_smt.kbest.lists import KBestLists

# The first type that holds all numbers exactly is taken, or else float64.
_TYPES: Final[Sequence[DTypeLike]] = (np.uint8, np.int16, np.int32, np.float32)
# Of hypotheses, before those of dense features.
_FIELDS: Final = ("hash", "gain", "length", "statistics")
ARCHIVE: Final = Archive("file of k-best lists", 2, "start the run anew")


@dataclass(frozen=True)
class Segment:
    """Some hypotheses of some sentences; narrow and in order once they are `joined`.

    sentence (int64 [S]): ascending, none twice.
    list_begin (int64 [S + 1]): hypotheses of list s are ``list_begin[s] .. list_begin[s + 1] - 1``.
    sparse_begin (int64 [S + 1]): where in `feature` and `value` those of a list begin.
    hypotheses (record [n]): ``hash``, ``gain``, ``length`` (number of sparse features),
        ``statistics`` (of a metric, or none), and a field for each dense feature. All fields are as
        narrow as their numbers allow without rounding.
    feature (int32 [non-zeros])
    value ([non-zeros]): the sparse features, of a type as narrow.
    """

    sentence: Int64
    list_begin: Int64
    sparse_begin: Int64
    hypotheses: Records
    feature: Int32
    value: NDArray[Any]

    @classmethod
    def of(cls, lists: KBestLists, hashes: UInt64, n_dense: int) -> Segment:
        """Return lists with gains, each of another sentence, in no order; hashes are uint64 [n]."""
        rows = lists.rows
        dense = rows.dense(n_dense)
        sparse = rows.where((rows.feature >= n_dense) & (rows.value != 0))
        statistics = np.empty((hashes.size, 0)) if lists.statistics is None else lists.statistics
        columns = {
            "hash": hashes,
            "gain": np.empty(0) if lists.gain is None else lists.gain,
            "length": np.diff(sparse.begin),
            "statistics": statistics,
            **{_dense(f): dense[:, f] for f in range(n_dense)},
        }
        begin, hypotheses = sparse.begin[lists.begin], _records(columns)
        return cls(lists.index, lists.begin, begin, hypotheses, sparse.feature, sparse.value)

    @classmethod
    def joined(cls, parts: Sequence[Segment]) -> Segment:
        """Return the hypotheses of several segments (one at least), by sentence.

        Raises ValueError: some have statistics and some have none.
        """
        owner = np.concatenate([part.owner for part in parts])
        filled = [part for part in parts if len(part)] or list(parts[:1])
        names = filled[0].hypotheses.dtype.names
        assert names is not None
        if len({part.n_statistics > 0 for part in filled}) > 1:
            raise ValueError("statistics must be given for all lists, or for none")
        columns = {name: np.concatenate([p.hypotheses[name] for p in filled]) for name in names}
        feature = np.concatenate([part.feature for part in parts])
        # What is empty must not decide on the type.
        values = [part.value for part in parts if part.value.size]
        value = np.concatenate(values or [np.empty(0, np.uint8)])
        begin = offsets(columns["length"])
        if (np.diff(owner) < 0).any():
            order = np.argsort(owner, kind="stable")
            owner = owner[order]
            columns = {name: column[order] for name, column in columns.items()}
            begin, places = places_of(begin, order)
            feature, value = feature[places], value[places]
        sentence, list_begin = runs(owner)
        narrow = {
            name: column if name == "hash" else _narrow(column) for name, column in columns.items()
        }
        return cls(
            sentence, list_begin, begin[list_begin], _records(narrow), feature, _narrow(value)
        )

    def __len__(self) -> int:
        """Return the number of hypotheses."""
        return self.hypotheses.size

    @property
    def nbytes(self) -> int:
        """The size of all arrays."""
        return sum(array.nbytes for array in self._arrays().values())

    @property
    def n_statistics(self) -> int:
        """How many statistics a hypothesis has."""
        return int(self.hypotheses["statistics"].shape[1])

    @property
    def n_dense(self) -> int:
        """The number of dense features."""
        return len(self.hypotheses.dtype.names or ()) - len(_FIELDS)

    @property
    def owner(self) -> Int64:
        """The sentence of each hypothesis, int64 [n]."""
        return np.repeat(self.sentence, np.diff(self.list_begin))

    def between(self, first: int, last: int) -> Segment:
        """Return the lists of the sentences ``first .. last - 1``; nothing is copied."""
        a, b = np.searchsorted(self.sentence, [first, last]).tolist()
        h, p = self.list_begin[a], self.sparse_begin[a]
        return Segment(
            self.sentence[a:b],
            self.list_begin[a : b + 1] - h,
            self.sparse_begin[a : b + 1] - p,
            self.hypotheses[h : self.list_begin[b]],
            self.feature[p : self.sparse_begin[b]],
            self.value[p : self.sparse_begin[b]],
        )

    def hashes(self, sentence: int) -> UInt64:
        """Return the hashes of a sentence's hypotheses."""
        s = int(np.searchsorted(self.sentence, sentence))
        if s == self.sentence.size or self.sentence[s] != sentence:
            return np.empty(0, np.uint64)
        found: UInt64 = self.hypotheses["hash"][self.list_begin[s] : self.list_begin[s + 1]]
        return found

    def dense(self) -> Float64:
        """Return the dense features, float64 [n, n_dense]."""
        matrix = np.empty((len(self), self.n_dense))
        for f in range(self.n_dense):
            matrix[:, f] = self.hypotheses[_dense(f)]
        return matrix

    def save(self, path: Path, number: int) -> str:
        """Write what iteration `number` brought, whole or not at all; return the checksum."""
        return ARCHIVE.write(path, {"iteration": number}, self._arrays())

    @classmethod
    def open(cls, path: Path, number: int) -> tuple[Segment, str]:
        """Return a saved segment, mapped into memory rather than read, and its checksum."""
        stored = ARCHIVE.read(path)
        if stored.content != {"iteration": number}:
            raise InputError(f"is not of iteration {number}; {ARCHIVE.cure}", path=path)
        with ARCHIVE.checking(path):
            segment = cls(**stored.arrays)
            segment._check()
        return segment, stored.checksum

    def _check(self) -> None:
        """Raise ValueError unless the arrays fit together, as kernels rely on it."""
        lists, length = self.sentence.size, self.hypotheses["length"]
        if (
            not are_offsets(self.list_begin, len(self))
            or not are_offsets(self.sparse_begin, self.feature.size)
            or not lists + 1 == self.list_begin.size == self.sparse_begin.size
            or self.feature.size != self.value.size
            or (lists and self.sentence[0] < 0)
            or (self.sentence[1:] <= self.sentence[:-1]).any()
            # In float64, no sum of so few numbers of 32 bits wraps around.
            or (length < 0).any()
            or length.sum(dtype=np.float64) != self.feature.size
            or not np.array_equal(offsets(length)[self.list_begin], self.sparse_begin)
            or self.feature.min(initial=self.n_dense) < self.n_dense
        ):
            raise ValueError

    def _arrays(self) -> dict[str, NDArray[Any]]:
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


def _dense(number: int) -> str:
    """Return the name of the field of a dense feature."""
    return f"dense {number}"


def _records(columns: dict[str, NDArray[Any]]) -> Records:
    """Return columns of equal length as records."""
    kinds = [(name, column.dtype, column.shape[1:]) for name, column in columns.items()]
    records: Records = np.empty(columns["hash"].size, np.dtype(kinds))
    for name, column in columns.items():
        records[name] = column
    return records


def _narrow(numbers: NDArray[Any]) -> NDArray[Any]:
    """Return numbers in the narrowest type that holds them exactly."""
    if numbers.size == 0:
        return numbers.astype(np.uint8)
    for kind in _TYPES:
        with np.errstate(over="ignore", invalid="ignore"):
            narrow = numbers.astype(kind)
            if np.array_equal(narrow.astype(np.float64), numbers):
                return narrow
    return numbers.astype(np.float64)

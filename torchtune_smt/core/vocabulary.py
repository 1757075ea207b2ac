"""Strings and their dense integer ids, words and feature names alike; sequences of any kind."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from torchtune_smt.core import sequences_kernels as kernels
from torchtune_smt.core.arrays import Int32, Int64, Integers, UInt8
from torchtune_smt.core.offsets import are_offsets, offsets

T = TypeVar("T", np.uint8, np.int32)
Item = TypeVar("Item", bound=np.generic)


class SequenceTable(Generic[T]):
    """A growing set of sequences, each with an id: 0, 1, 2, ... in the order of first sight.

    They lie packed in one array, behind a hash table of int32 ids, so that ten million of them cost
    their letters and some 20 bytes each. Several threads may use one table.

    kind: uint8 or int32: what the sequences are of.
    expected: about how many will come.
    """

    def __init__(self, kind: type[T], expected: int = 16) -> None:
        # Kernels let other threads run.
        self._lock = threading.Lock()
        self._count = 0
        self._symbols: NDArray[T] = np.empty(4 * expected, kind)
        self._begin: Int64 = np.zeros(expected + 1, np.int64)
        self._table: Int32 = np.full(1 << (2 * expected).bit_length(), -1, np.int32)

    def __len__(self) -> int:
        return self._count

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _lock=threading.Lock())

    @property
    def begin(self) -> Int64:
        """int64 [n + 1]: sequence s is ``symbols[begin[s]:begin[s + 1]]``."""
        return self._begin[: self._count + 1]

    @property
    def symbols(self) -> NDArray[T]:
        """The symbols of all sequences."""
        return self._symbols[: self.begin[-1]]

    def intern_spans(self, buffer: NDArray[T], begin: Int64, end: Int64) -> Int32:
        """Return the ids of the sequences ``buffer[begin[i]:end[i]]``, adding those that are new.

        buffer: for a `Vocabulary`, UTF-8 text; its validity is the caller's business.
        begin, end: of one length.
        """
        ids: Int32 = np.empty(begin.size, np.int32)
        position = 0
        with self._lock:
            while True:
                self._count, position = kernels.intern(
                    self._table,
                    self._symbols,
                    self._begin,
                    self._count,
                    buffer,
                    begin,
                    end,
                    ids,
                    position,
                )
                if position == begin.size:
                    return ids
                self._make_room(int(end[position] - begin[position]))

    def lookup_spans(self, buffer: NDArray[T], begin: Int64, end: Int64) -> Int32:
        """Return the ids of the sequences ``buffer[begin[i]:end[i]]``, -1 where unknown."""
        ids: Int32 = np.empty(begin.size, np.int32)
        with self._lock:
            kernels.lookup(self._table, self._symbols, self._begin, buffer, begin, end, ids)
        return ids

    def _make_room(self, length: int) -> None:
        """Enlarge whatever is too small for one more sequence of `length` symbols."""
        used = int(self._begin[self._count])
        if used + length > self._symbols.size:
            self._symbols = enlarged(self._symbols, used + length)
        if self._count + 2 > self._begin.size:
            self._begin = enlarged(self._begin, self._count + 2)
        if 2 * (self._count + 1) > self._table.size:
            self._table = np.empty(2 * self._table.size, np.int32)
            kernels.rebuild(self._table, self._symbols, self._begin, self._count)


def enlarged(array: NDArray[Item], needed: int) -> NDArray[Item]:
    """Return a copy with at least `needed` places; room grows by a quarter, to keep memory low."""
    larger = np.zeros(max(needed, array.size + array.size // 4 + 16), array.dtype)
    larger[: array.size] = array
    return larger


class Vocabulary(SequenceTable[np.uint8]):
    """A growing set of strings, each with an id: 0, 1, 2, ... in the order of first sight.

    names: interned at once, in this order.
    """

    def __init__(self, names: Iterable[str] = ()) -> None:
        super().__init__(np.uint8)
        self.intern(list(names))

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and bool(self.lookup([name])[0] >= 0)

    def __getitem__(self, id: int) -> str:
        if not 0 <= id < self._count:
            raise IndexError(f"id {id} is not in 0..{self._count - 1}")
        return self._symbols[self._begin[id] : self._begin[id + 1]].tobytes().decode("utf-8")

    def names(self, ids: Iterable[int]) -> list[str]:
        """Return the strings of some ids."""
        given = [int(id) for id in ids]
        found = {id: self[id] for id in set(given)}
        return [found[id] for id in given]

    def named(self, ids: Iterable[int], values: NDArray[Any]) -> dict[str, Any]:
        """Return the values of some ids by their names."""
        return dict(zip(self.names(ids), values.tolist(), strict=True))

    def id(self, name: str) -> int:
        """Return the id of a string; raise KeyError if it is unknown."""
        id = int(self.lookup([name])[0])
        if id < 0:
            raise KeyError(name)
        return id

    def intern(self, names: Sequence[str]) -> Int32:
        """Return the ids (int32, one a string), adding the strings that are new."""
        return self.intern_spans(*_pack(names))

    def lookup(self, names: Sequence[str]) -> Int32:
        """Return the ids (int32, one a string), -1 where a string is unknown."""
        return self.lookup_spans(*_pack(names))

    def spans(self, ids: Int64) -> tuple[UInt8, Int64, Int64]:
        """Return where some names stand: a buffer that is shared, their begins and ends."""
        return self._symbols, self._begin[ids], self._begin[ids + 1]

    def part(self, ids: Int64) -> Vocabulary:
        """Return a vocabulary of some names, in the order of their ids, which grows on its own."""
        result = Vocabulary()
        result.intern_spans(*self.spans(ids))
        return result

    def copy(self) -> Vocabulary:
        """Return a vocabulary with the same names and ids, which grows on its own."""
        return self.part(np.arange(self._count))

    def intern_all(self, others: Vocabulary) -> Int32:
        """Return the ids of all names of another vocabulary, adding those that are new."""
        return self.intern_spans(*others.spans(np.arange(len(others))))

    def to_arrays(self, prefix: str = "") -> dict[str, NDArray[Any]]:
        """Return the names as arrays: ``letters`` (uint8) and ``begin`` (int64, one longer).

        They share memory, and stay as they are when names are added.
        """
        return {f"{prefix}letters": self.symbols, f"{prefix}begin": self.begin}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]], prefix: str = "") -> Vocabulary:
        """Return the vocabulary that `to_arrays` took apart; ValueError if it cannot have."""
        letters, begin = arrays[f"{prefix}letters"], arrays[f"{prefix}begin"]
        vocabulary = cls()
        if letters.dtype == np.uint8 and letters.ndim == 1 and are_offsets(begin, letters.size):
            str(letters.data, "utf-8")
            vocabulary.intern_spans(letters, begin[:-1], begin[1:])
        if len(vocabulary) != begin.size - 1:
            raise ValueError("the stored vocabulary has names that are none, or one twice")
        return vocabulary

    def since(self, first: int) -> dict[str, NDArray[Any]]:
        """Return the names from an id on as arrays: ``letters`` (uint8) and ``length`` (int32)."""
        begin = self._begin[first : self._count + 1]
        length = np.diff(begin).astype(np.int32)
        return {"letters": self._symbols[begin[0] : begin[-1]], "length": length}

    @classmethod
    def of_parts(cls, parts: Sequence[Mapping[str, NDArray[Any]]]) -> Vocabulary:
        """Return the vocabulary of what `since` gave, one part behind the other."""
        letters = np.concatenate([np.empty(0, np.uint8), *(part["letters"] for part in parts)])
        length = np.concatenate([np.empty(0, np.int32), *(part["length"] for part in parts)])
        return cls.from_arrays({"letters": letters, "begin": offsets(length)})


def _pack(names: Sequence[str]) -> tuple[UInt8, Int64, Int64]:
    """Return strings as one UTF-8 buffer with the spans' begins and ends."""
    encoded = [name.encode("utf-8") for name in names]
    bounds = offsets([len(text) for text in encoded])
    # A bytearray, since numba compiles anew for arrays that are read-only.
    buffer = np.frombuffer(bytearray().join(encoded), np.uint8)
    return buffer, bounds[:-1], bounds[1:]


class FeatureMap:
    """Says which id a feature of one vocabulary has in another, while both grow.

    Only names that are new in either since the last call are looked at, and nothing is kept of the
    first names, as long as both vocabularies have the same ones there: where all are, ids are
    returned as they come.

    source, target: another thread may add to `source` during a call, and not to `target`.
    """

    def __init__(self, source: Vocabulary, target: Vocabulary) -> None:
        self.source = source
        self.target = target
        # Ids below it are the same in both. Then come `_count` ids in target, -1: unknown.
        self._same = 0
        self._count = 0
        self._ids: Int32 = np.empty(0, np.int32)
        # How many of these are unknown in the first `_target_size` names of target. No id of source
        # below `_added` is.
        self._unknown = 0
        self._target_size = 0
        self._added = 0
        self._lock = threading.Lock()

    @property
    def is_identity(self) -> bool:
        """Whether each feature of the source that was looked at has the same id in both."""
        return self._count == 0

    def add(self) -> None:
        """Add all names of the source that the target lacks to it, in their order."""
        with self._lock:
            self._match()
            first = max(self._added, self._same)
            ids = self._ids[first - self._same : self._count]
            unknown = np.flatnonzero(ids < 0)
            ids[unknown] = self.target.intern_spans(*self.source.spans(unknown + first))
            self._unknown, self._target_size = 0, len(self.target)
            self._drop_same()
            self._added = self._same + self._count

    def lookup(self, ids: Integers) -> Int64:
        """Return the ids (int64) in the target, -1 for what it does not know."""
        with self._lock:
            self._match()
            places = ids.astype(np.int64, copy=False)
            if self.is_identity:
                return places
            result = places.copy()
            behind = np.flatnonzero(places >= self._same)
            result[behind] = self._ids[places[behind] - self._same]
            return result

    def _match(self) -> None:
        """Look at the names that are new in target, and at those that are new in source."""
        first, last, size = self._same + self._count, len(self.source), len(self.target)
        if self._unknown and self._target_size < size:
            places, ids = self._in_source(self._target_size, size)
            old = (places >= 0) & (places < first)
            self._ids[places[old] - self._same] = ids[old]
            self._unknown -= int(np.count_nonzero(old))
        self._target_size = size
        if first == last:
            return
        if size == self._same:
            # All names of target are among the first of source, and no name is there twice.
            found = np.full(last - first, -1, np.int32)
        elif size < last - first:
            # The fewer names are looked up in the other vocabulary.
            found = np.full(last - first, -1, np.int32)
            places, ids = self._in_source(0, size)
            new = (places >= first) & (places < last)
            found[places[new] - first] = ids[new]
        else:
            found = self.target.lookup_spans(*self.source.spans(np.arange(first, last)))
        if self._count + found.size > self._ids.size:
            self._ids = enlarged(self._ids, self._count + found.size)
        self._ids[self._count : self._count + found.size] = found
        self._count += found.size
        self._unknown += int(np.count_nonzero(found < 0))
        self._drop_same()

    def _in_source(self, first: int, last: int) -> tuple[Int32, Int64]:
        ids = np.arange(first, last)
        return self.source.lookup_spans(*self.target.spans(ids)), ids

    def _drop_same(self) -> None:
        """Keep nothing of the first names that are the same in both."""
        if self._count == 0 or self._ids[0] != self._same:
            return
        ids = self._ids[: self._count]
        differs = np.flatnonzero(ids != np.arange(self._same, self._same + self._count))
        run = int(differs[0]) if differs.size else self._count
        self._ids = ids[run:].copy()
        self._same += run
        self._count -= run

"""Many short sequences of letters or symbols in one array, each there once."""

from __future__ import annotations

import threading
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from torchtune_smt.core import sequences_kernels as kernels
from torchtune_smt.core.arrays import Int32, Int64

T = TypeVar("T", np.uint8, np.int32)
Item = TypeVar("Item", bound=np.generic)


class SequenceTable(Generic[T]):
    """A growing set of sequences, each with an id: 0, 1, 2, ... in the order of first sight.

    They lie packed in one array, behind a hash table of int32 ids, so that ten million of them cost
    their letters and some 20 bytes each. Several threads may use one table.

    Parameters
    ----------
    kind : type
        uint8 or int32: what the sequences are of.
    expected : int
        About how many sequences will come; more are no problem.
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

        Parameters
        ----------
        buffer : array of the table's kind
            For a `Vocabulary`, UTF-8 text; its validity is the caller's business.
        begin, end : int64 arrays
            Of one length.
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
            self._symbols = _enlarged(self._symbols, used + length)
        if self._count + 2 > self._begin.size:
            self._begin = _enlarged(self._begin, self._count + 2)
        if 2 * (self._count + 1) > self._table.size:
            self._table = np.empty(2 * self._table.size, np.int32)
            kernels.rebuild(self._table, self._symbols, self._begin, self._count)


def _enlarged(array: NDArray[Item], needed: int) -> NDArray[Item]:
    """Return a copy with at least `needed` places; room grows by a quarter, to keep memory low."""
    larger = np.zeros(max(needed, array.size + array.size // 4 + 16), array.dtype)
    larger[: array.size] = array
    return larger

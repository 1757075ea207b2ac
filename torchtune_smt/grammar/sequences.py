"""Many short symbol sequences in one array."""

from __future__ import annotations

import numpy as np

from torchtune_smt.core.arrays import Int32, Int64
from torchtune_smt.grammar import sequences_kernels as kernels


class SequenceTable:
    """A growing set of symbol sequences, numbered 0, 1, 2, ... in the order of first sight.

    Parameters
    ----------
    expected : int
        About how many sequences will come; more are no problem.
    """

    def __init__(self, expected: int = 1000) -> None:
        self._count = 0
        self._begin = np.zeros(expected + 1, np.int64)
        self._symbols = np.empty(4 * expected, np.int32)
        self._table = np.full(1 << max(4, (2 * expected).bit_length()), -1, np.int32)

    def __len__(self) -> int:
        return self._count

    @property
    def begin(self) -> Int64:
        """int64 [n + 1]: sequence s is ``symbols[begin[s]:begin[s + 1]]``."""
        return self._begin[: self._count + 1]

    @property
    def symbols(self) -> Int32:
        """int32: the symbols of all sequences."""
        return self._symbols[: self.begin[-1]]

    def intern(self, begin: Int64, symbols: Int32) -> Int32:
        """Return the numbers (int32) of sequences, adding those that are new.

        Sequence s is ``symbols[begin[s]:begin[s + 1]]``.
        """
        ids = np.empty(begin.size - 1, np.int32)
        position = 0
        while True:
            self._count, position = kernels.intern(
                self._table, self._begin, self._symbols, self._count, begin, symbols, ids, position
            )
            if position == ids.size:
                return ids
            self._make_room(int(begin[position + 1] - begin[position]))

    def _make_room(self, length: int) -> None:
        """Enlarge whatever is too small for one more sequence."""
        used = int(self._begin[self._count])
        if used + length > self._symbols.size:
            self._symbols = np.resize(self._symbols, max(used + length, 2 * self._symbols.size))
        if self._count + 2 > self._begin.size:
            self._begin = np.resize(self._begin, 2 * self._begin.size + 2)
        if 2 * (self._count + 1) > self._table.size:
            self._table = np.empty(2 * self._table.size, np.int32)
            kernels.rebuild(self._table, self._begin, self._symbols, self._count)


def gather(begin: Int64, symbols: Int32, wanted: Int64) -> tuple[Int64, Int32]:
    """Return the sequences of the numbers `wanted`, in that order, as (begin, symbols)."""
    new_begin = np.zeros(wanted.size + 1, np.int64)
    np.cumsum(begin[wanted + 1] - begin[wanted], out=new_begin[1:])
    new_symbols = np.empty(new_begin[-1], np.int32)
    kernels.gather(begin, symbols, wanted, new_begin, new_symbols)
    return new_begin, new_symbols

"""Many short symbol sequences in one array."""

from __future__ import annotations

import numpy as np

from torchtune_smt.grammar import sequences_kernels as kernels
from torchtune_smt.kernel_types import Ids, Offsets


def intern_sequences(begin: Offsets, symbols: Ids) -> tuple[Ids, int]:
    """Return a number for each sequence, equal for equal ones, and how many there are.

    Sequence s is ``symbols[begin[s]:begin[s + 1]]``. Numbers are in the order of first sight.
    """
    size = 1 << max(4, int(2 * begin.size).bit_length())
    table = np.full(size, -1, np.int32)
    ids = np.empty(begin.size - 1, np.int32)
    return ids, kernels.intern(table, begin, symbols, ids)


def gather(begin: Offsets, symbols: Ids, wanted: Offsets) -> tuple[Offsets, Ids]:
    """Return the sequences of the numbers `wanted`, in that order, as (begin, symbols)."""
    new_begin = np.zeros(wanted.size + 1, np.int64)
    np.cumsum(begin[wanted + 1] - begin[wanted], out=new_begin[1:])
    new_symbols = np.empty(new_begin[-1], np.int32)
    kernels.gather(begin, symbols, wanted, new_begin, new_symbols)
    return new_begin, new_symbols

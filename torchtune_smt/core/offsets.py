"""Consecutive pieces of an array: where each begins, and where the last one ends."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from torchtune_smt.core import rows_kernels as kernels
from torchtune_smt.core.arrays import Int64, Integers

T = TypeVar("T", bound=np.generic)


def offsets(lengths: Sequence[int] | NDArray[np.integer[Any]]) -> Int64:
    """Return where pieces of these lengths begin, and where the last one ends (int64, one more)."""
    begin = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=begin[1:])
    return begin


def joined_offsets(begins: Sequence[Int64]) -> Int64:
    """Return the offsets of pieces that are put behind those before them."""
    return offsets(np.concatenate([np.empty(0, np.int64), *map(np.diff, begins)]))


def places_of(begin: Int64, chosen: Int64) -> tuple[Int64, Int64]:
    """Return the offsets of some pieces behind each other, and where their items come from.

    begin (int64 [pieces + 1]), chosen (int64 [m]): numbers of pieces, in any order.

    Returns begin (int64 [m + 1])
    Returns places (int64 [items]): ``items[places]`` are the pieces' items.
    """
    return kernels.places_of(begin, chosen)


_PIECES = 1 << 18


def gather(begin: Int64, items: NDArray[T], chosen: Integers) -> tuple[Int64, NDArray[T]]:
    """Return some pieces behind each other: their offsets and their items; see `places_of`."""
    if chosen.size <= _PIECES:
        new_begin, places = places_of(begin, chosen.astype(np.int64, copy=False))
        return new_begin, items[places]
    # In parts: places are twice as long as most items are.
    new_begin = offsets(begin[chosen + 1] - begin[chosen])
    result = np.empty((new_begin[-1], *items.shape[1:]), items.dtype)
    for first in range(0, chosen.size, _PIECES):
        part = chosen[first : first + _PIECES]
        result[new_begin[first] : new_begin[first + part.size]] = gather(begin, items, part)[1]
    return new_begin, result


def runs(owner: Int64) -> tuple[Int64, Int64]:
    """Return what owns each run of equal numbers, and the offsets of the runs."""
    starts = np.flatnonzero(np.diff(owner, prepend=owner[:1] - 1))
    return owner[starts], np.append(starts, owner.size)


def are_offsets(begin: NDArray[Any], end: int) -> bool:
    """Return whether an array says where consecutive pieces begin, and that the last ends there."""
    return bool(
        begin.dtype == np.int64
        and begin.ndim == 1
        and begin.size > 0
        and begin[0] == 0
        and begin[-1] == end
        and (begin[1:] >= begin[:-1]).all()
    )

"""What a decoder keeps of sentences that it decodes again and again."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields, is_dataclass
from threading import Lock
from typing import Any, Final, Generic, TypeVar

import numpy as np

from torchtune_smt.kbest.lists import Source

Item = TypeVar("Item")
# Sentences that are remembered to have come once, at most: some bytes each.
MOST_MET: Final = 1 << 18

_Key = tuple[int, int, tuple[str, ...]]


class KeptSentences(Generic[Item]):
    """What was prepared of sentences, as far as there is room.

    A sentence is kept from its second time on: one that is decoded once takes no room, and those
    that come back soonest are kept first (dev in each iteration of a batch tuner, training
    sentences in each of a grouping one, which has many of those). What is kept stays. May be used
    by several threads.

    Parameters
    ----------
    room : float
        In bytes.

    Attributes
    ----------
    nbytes : int
        Of the arrays that are kept.
    """

    def __init__(self, room: float) -> None:
        self.nbytes = 0
        self._room = room
        self._met: set[int] = set()
        self._kept: dict[_Key, Item] = {}
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, source: Source) -> Item | None:
        """Return what is kept of a sentence, if anything is."""
        return self._kept.get(_key(source))

    def offer(self, source: Source, item: Item) -> None:
        """Keep what was prepared of a sentence that was not kept, if it is to be kept now."""
        key = _key(source)
        with self._lock:
            # Of two sentences with one hash the second is kept at its first time: no harm.
            met = hash(key)
            if met not in self._met:
                if len(self._met) == MOST_MET:
                    self._met.clear()
                self._met.add(met)
                return
            size = nbytes(item)
            if key not in self._kept and self.nbytes + size <= self._room:
                self._kept[key] = item
                self.nbytes += size


def nbytes(item: Any) -> int:
    """Return how many bytes the arrays in a dataclass or (named) tuple take, at any depth."""
    if isinstance(item, np.ndarray):
        return item.nbytes
    parts: Iterable[Any] = ()
    if isinstance(item, tuple):
        parts = item
    elif is_dataclass(item):
        parts = (getattr(item, field.name) for field in fields(item))
    return sum(map(nbytes, parts))


def _key(source: Source) -> _Key:
    return source.index, source.train_index, tuple(source.words)

"""Ids of one vocabulary of features in another."""

from __future__ import annotations

import threading

import numpy as np

from torchtune_smt.core.arrays import Int32, Int64, Integers
from torchtune_smt.core.vocabulary import Vocabulary


class FeatureMap:
    """Says which id a feature of one vocabulary has in another, while both grow.

    Only names that are new since the last call are looked at, and nothing is kept of the first
    names, as long as both vocabularies have the same ones there: where all are, ids are returned as
    they come.

    Parameters
    ----------
    source, target : Vocabulary
        Not to be added to by another thread during a call.
    """

    def __init__(self, source: Vocabulary, target: Vocabulary) -> None:
        self.source = source
        self.target = target
        # Ids below it are the same in both. Then come `_count` ids in target, -1: unknown.
        self._same = 0
        self._count = 0
        self._ids: Int32 = np.empty(0, np.int32)
        # Ids in source that were unknown when target had so many names.
        self._unknown: Int64 = np.empty(0, np.int64)
        self._target_size = 0
        self._lock = threading.Lock()

    @property
    def is_identity(self) -> bool:
        """Whether each feature of the source that was looked at has the same id in both."""
        return self._count == 0

    def add(self) -> None:
        """Add all names of the source that the target lacks to it, in their order."""
        with self._lock:
            self._extend()
            found = self.target.intern_spans(*self.source.spans(self._unknown))
            self._ids[self._unknown - self._same] = found
            self._unknown = self._unknown[:0]
            self._target_size = len(self.target)
            self._drop_same()

    def lookup(self, ids: Integers) -> Int64:
        """Return the ids (int64) in the target, -1 for what it does not know."""
        with self._lock:
            self._extend()
            places = ids.astype(np.int64, copy=False)
            if self.is_identity:
                return places
            result = places.copy()
            behind = np.flatnonzero(places >= self._same)
            result[behind] = self._ids[places[behind] - self._same]
            if self._target_size < len(self.target):
                # Others may have become known; who asks for them will see.
                missing = np.flatnonzero(result < 0)
                found = self.target.lookup_spans(*self.source.spans(places[missing]))
                result[missing] = found
            return result

    def _extend(self) -> None:
        """Look up the names of the source that are new."""
        first, last = self._same + self._count, len(self.source)
        if first == last:
            return
        if self._unknown.size == 0:
            self._target_size = len(self.target)
        new = np.arange(first, last)
        found = self.target.lookup_spans(*self.source.spans(new))
        self._unknown = np.append(self._unknown, new[found < 0])
        if self._count + found.size > self._ids.size:
            larger = np.empty((self._count + found.size) * 5 // 4, np.int32)
            larger[: self._count] = self._ids[: self._count]
            self._ids = larger
        self._ids[self._count : self._count + found.size] = found
        self._count += found.size
        self._drop_same()

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

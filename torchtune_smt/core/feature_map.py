"""Ids of one vocabulary of features in another."""

from __future__ import annotations

import threading

import numpy as np

from torchtune_smt.core.arrays import Int32, Int64, Integers
from torchtune_smt.core.vocabulary import Vocabulary


class FeatureMap:
    """Says which id a feature of one vocabulary has in another, while both grow.

    Only names that are new in either since the last call are looked at, and nothing is kept of the
    first names, as long as both vocabularies have the same ones there: where all are, ids are
    returned as they come.

    Parameters
    ----------
    source, target : Vocabulary
        Another thread may add to `source` during a call, and not to `target`.
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
            larger = np.empty((self._count + found.size) * 5 // 4, np.int32)
            larger[: self._count] = self._ids[: self._count]
            self._ids = larger
        self._ids[self._count : self._count + found.size] = found
        self._count += found.size
        self._unknown += int(np.count_nonzero(found < 0))
        self._drop_same()

    def _in_source(self, first: int, last: int) -> tuple[Int32, Int64]:
        """Return the ids in source, -1 where unknown, of some ids of target; and these."""
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

"""The store of k-best lists: those of several iterations, merged."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, Literal, Self, get_args

import numpy as np

from torchtune_smt.core.accepts import integer, one_of
from torchtune_smt.core.archive import well_formed, whole
from torchtune_smt.core.arrays import Int64, UInt64
from torchtune_smt.core.errors import InputError
from torchtune_smt.core.offsets import offsets
from torchtune_smt.core.rows import Rows, mark
from torchtune_smt.core.rows_kernels import number_distinct
from torchtune_smt.kbest import lists_kernels as kernels
from torchtune_smt.kbest.lists import KBest, KBestLists
from torchtune_smt.kbest.measure import BLEU, Measure
from torchtune_smt.kbest.segment import Segment

Unique = Literal["derivation", "string"]

# Hypotheses that are laid out at once where not all are needed together: some 20 MB.
_BLOCK: Final = 1 << 16

_NONE: Final = KBestLists.of([]).with_gains(np.empty(0))


class ListStore:
    """k-best lists of several iterations, merged per sentence, without duplicates.

    A hypothesis takes about 100 bytes and 5 more for each sparse feature; numbers are stored
    without rounding. Duplicates are told by a hash of 64 bits: that two different hypotheses of a
    sentence have one is less likely than 1e-12 for a thousand of them.

    n_dense: features below this id are dense: nearly all hypotheses have them.
    unique ("derivation", "string"): what makes a duplicate: the same words and features (their
        values compared as 32-bit numbers, since two ways to add them up may differ in the last
        digit), or the same words. The first one stays.
    measure: of the lists that are added, if they have statistics.
    folder: keep the lists in files there, mapped into memory, one an iteration. Those of an earlier
        run are removed (`open` takes them up).
    """

    def __init__(
        self,
        *,
        n_dense: int = 0,
        unique: Unique = "derivation",
        measure: Measure = BLEU,
        folder: Path | None = None,
    ) -> None:
        one_of(*get_args(Unique)).check("unique", unique)
        integer(0).check("n_dense", n_dense)
        self.unique: Unique = unique
        self.n_dense = n_dense
        self.measure = measure
        self.folder = folder
        self._segments: list[Segment] = []
        # Of their files.
        self._checksums: list[str] = []
        self._open: list[Segment] = []
        self._open_hashes: dict[int, list[UInt64]] = {}

    @classmethod
    def open(
        cls,
        folder: Path,
        *,
        n_dense: int,
        unique: Unique = "derivation",
        measure: Measure = BLEU,
    ) -> Self:
        """Take up the lists that a folder has, with the settings that they were made with.

        Raises InputError: a file is missing or damaged. Whether it is of the run, and so of its
            model and metric, `load_state_dict` says.
        """
        lists = cls(n_dense=n_dense, unique=unique, measure=measure)
        lists.folder = folder
        while (path := _segment_path(folder, lists.n_iterations + 1)).is_file():
            segment, checksum = Segment.open(path, lists.n_iterations + 1)
            lists._segments.append(segment)
            lists._checksums.append(checksum)
        return lists

    @property
    def n_iterations(self) -> int:
        """The number of iterations that have ended."""
        return len(self._segments)

    @property
    def sizes(self) -> list[int]:
        """The number of new hypotheses of each iteration that has ended."""
        return [len(segment) for segment in self._segments]

    @property
    def n_hypotheses(self) -> int:
        """The number of hypotheses of the iterations that have ended."""
        return sum(self.sizes)

    @property
    def nbytes(self) -> int:
        """The size of these hypotheses, in memory or in files."""
        return sum(segment.nbytes for segment in self._segments)

    def add(self, lists: KBestLists) -> int:
        """Add what is new in some lists to the iteration under way.

        Raises ValueError: a list has no gains, or a number that is not finite.

        lists: with gains; sentences in any order. All lists that are added have statistics, or
            none. Without words, two hypotheses are the same that have the same `entry` and
            features.

        Returns int: number of hypotheses that are new.
        """
        for kbest in lists:
            kbest.finite_gains()
            for array in (kbest.score, kbest.rows.value):
                if array is not None and not np.isfinite(array).all():
                    raise ValueError(f"sentence {kbest.index}: a score or a value is not finite")
        if len(np.unique(lists.index)) < len(lists):
            return sum(self.add(lists.some(np.array([s]))) for s in range(len(lists)))
        with np.errstate(over="ignore"):
            # Adding 0 turns a negative zero into a positive one, whose bits are 0.
            value = lists.rows.value.astype(np.float32) + np.float32(0)
        worded = lists
        if lists.tokens is None:
            # What hypotheses are known by stands for their words.
            begin, tokens = np.arange(lists.n_hypotheses + 1), lists.entries().astype(np.int32)
            worded = replace(lists, token_begin=begin, tokens=tokens)
        (hashes,) = worded.hashes(value.view(np.uint32)[:, None], self.unique == "string")
        new = np.empty(hashes.size, np.bool_)
        for sentence, (first, last) in zip(
            lists.index.tolist(), pairwise(lists.begin.tolist()), strict=True
        ):
            known = [segment.hashes(sentence) for segment in self._segments]
            known += self._open_hashes.setdefault(sentence, [])
            both = np.concatenate([*known, hashes[first:last]]).view(np.int64)
            # Their numbers rise where there was none like them before.
            number = np.maximum.accumulate(number_distinct(both)[1])
            new[first:last] = np.diff(number, prepend=-1)[both.size - (last - first) :] > 0
            self._open_hashes[sentence].append(hashes[first:last][new[first:last]])
        numbers = np.flatnonzero(new)
        if numbers.size:
            part = Segment.of(lists.chosen(numbers), hashes[numbers], self.n_dense)
            self._open.append(Segment.joined([part]))
        return numbers.size

    def end_iteration(self) -> int:
        """End the iteration under way; return the number of its new hypotheses.

        Raises ValueError: some lists have statistics and some have none.
        """
        segment = Segment.joined(
            self._open or [Segment.of(_NONE, np.empty(0, np.uint64), self.n_dense)]
        )
        earlier = {old.n_statistics for old in self._segments if len(old)}
        if len(segment) and segment.n_statistics not in (earlier or {0, self.measure.width}):
            raise ValueError("statistics must be given for all lists, or for none")
        self._open.clear()
        self._open_hashes.clear()
        if self.folder is not None:
            if not self._segments:
                # Those of an earlier run, now that this one has some of its own.
                self._forget(0)
            number = self.n_iterations + 1
            path = _segment_path(self.folder, number)
            segment.save(path, number)
            segment, checksum = Segment.open(path, number)
            self._checksums.append(checksum)
        self._segments.append(segment)
        return len(segment)

    def features(self) -> Int64:
        """Return the ids (int64, ascending) of the sparse features in all ended iterations."""
        # However long the lists are, this takes a byte for each id up to the largest.
        found = np.zeros(self._largest() + 1, np.bool_)
        for segment in self._segments:
            mark(found, segment.feature)
        return np.flatnonzero(found)

    def truncate(self, iterations: int) -> None:
        """Forget all but the first iterations, and what has not ended; they must be there."""
        if not 0 <= iterations <= self.n_iterations:
            raise ValueError(f"there are {self.n_iterations} iterations, not {iterations}")
        del self._segments[iterations:], self._checksums[iterations:]
        self._open.clear()
        self._open_hashes.clear()
        self._forget(iterations)

    def state_dict(self) -> dict[str, Any]:
        """Return how many iterations have ended, and what their files are known by."""
        return {"iterations": self.n_iterations, "checksums": list(self._checksums)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Forget later iterations; raise ValueError where those before are missing, or others."""
        with well_formed():
            iterations = whole(state_dict["iterations"], 0)
            checksums = state_dict["checksums"]
        if checksums != self._checksums[:iterations]:
            raise ValueError("the lists are not those of this run")
        self.truncate(iterations)

    def require(self, dimension: int) -> None:
        """Raise InputError unless the ids of all features are below `dimension`."""
        if dimension <= max(self._largest(), self.n_dense - 1):
            raise InputError(f"there are features beyond the {dimension} that were named")

    def lists(self) -> KBestLists:
        """Return the hypotheses of all iterations that have ended, by sentence, as they came."""
        return _laid_out(self._segments, self.measure)

    def __iter__(self) -> Iterator[KBest]:
        """Yield the list of each sentence; only some lists at a time are laid out."""
        for first, last in self._blocks():
            parts = [segment.between(first, last) for segment in self._segments]
            yield from _laid_out(parts, self.measure)

    def _blocks(self) -> Iterator[tuple[int, int]]:
        """Yield ranges of sentences that have some tens of thousands of hypotheses together."""
        if not self.n_hypotheses:
            return
        sentence = np.concatenate([segment.sentence for segment in self._segments])
        size = np.concatenate([np.diff(segment.list_begin) for segment in self._segments])
        numbers, inverse = np.unique(sentence, return_inverse=True)
        total = np.cumsum(np.bincount(inverse, size).astype(np.int64))
        first = 0
        while first < total.size:
            before = total[first - 1] if first else 0
            last = max(first + 1, int(np.searchsorted(total, before + _BLOCK)))
            yield int(numbers[first]), int(numbers[last - 1]) + 1
            first = last

    def _largest(self) -> int:
        """Return the largest id of a sparse feature in an ended iteration; -1 without any."""
        return max((int(s.feature.max(initial=-1)) for s in self._segments), default=-1)

    def _forget(self, iterations: int) -> None:
        """Remove the files of later iterations."""
        number = iterations + 1
        while self.folder is not None and (path := _segment_path(self.folder, number)).is_file():
            path.unlink()
            number += 1


def _laid_out(segments: Sequence[Segment], measure: Measure) -> KBestLists:
    """Return the hypotheses of some segments by sentence."""
    filled = [segment for segment in segments if len(segment)]
    if not filled:
        return _NONE
    owner = np.concatenate([segment.owner for segment in filled])
    place = np.empty_like(owner)
    place[np.argsort(owner, kind="stable")] = np.arange(owner.size)
    places = [place[a:b] for a, b in pairwise(offsets([len(segment) for segment in filled]))]
    lengths, gain = np.empty_like(owner), np.empty(owner.size)
    kinds = [np.dtype(np.int32), *(segment.hypotheses["statistics"].dtype for segment in filled)]
    whole = all(kind.kind in "iu" for kind in kinds)
    statistics = np.empty((owner.size, filled[0].n_statistics), np.int32 if whole else np.float64)
    for segment, where in zip(filled, places, strict=True):
        sparse = segment.hypotheses["length"].astype(np.int64)
        lengths[where] = sparse + np.count_nonzero(segment.dense(), axis=1)
        gain[where] = segment.hypotheses["gain"]
        statistics[where] = segment.hypotheses["statistics"]
    begin = offsets(lengths)
    rows = Rows(begin, np.empty(begin[-1], np.int32), np.empty(begin[-1]))
    for segment, where in zip(filled, places, strict=True):
        kernels.join_rows(
            where,
            segment.dense(),
            offsets(segment.hypotheses["length"]),
            np.asarray(segment.feature),
            segment.value.astype(np.float64),
            rows.begin,
            rows.feature,
            rows.value,
        )
    index, counts = np.unique(owner, return_counts=True)
    return KBestLists(
        index=index,
        begin=offsets(counts),
        rows=rows,
        gain=gain,
        statistics=statistics if statistics.shape[1] else None,
        measure=measure,
    )


def _segment_path(folder: Path, iteration: int) -> Path:
    return folder / f"iteration-{iteration:04}"

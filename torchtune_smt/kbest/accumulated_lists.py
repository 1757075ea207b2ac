"""k-best lists of several iterations, merged."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, Literal, Self, get_args

import numpy as np

from torchtune_smt.core.arrays import Int64, UInt64
from torchtune_smt.core.errors import InputError
from torchtune_smt.core.rows import Rows
from torchtune_smt.core.state import well_formed, whole
from torchtune_smt.kbest import segment_kernels as kernels
from torchtune_smt.kbest.flat_lists import FlatLists
from torchtune_smt.kbest.lists import KBest
from torchtune_smt.kbest.segment import Segment
from torchtune_smt.metrics.bleu import Counts
from torchtune_smt.samplers.pairs import PairSampler, pair_rows

Unique = Literal["derivation", "string"]

# Hypotheses that are laid out at once where not all are needed together: some 20 MB.
_BLOCK: Final = 1 << 16


class AccumulatedLists:
    """k-best lists of several iterations, merged per sentence, without duplicates.

    A hypothesis takes about 100 bytes and 5 more for each sparse feature; numbers are stored
    without rounding. Duplicates are told by a hash of 64 bits: that two different hypotheses of a
    sentence have one is less likely than 1e-12 for a thousand of them.

    Parameters
    ----------
    n_dense : int
        Features below this id are dense: nearly all hypotheses have them.
    unique : {"derivation", "string"}
        What makes a duplicate: the same words and features (their values compared as 32-bit
        numbers, since two ways to add them up may differ in the last digit), or the same words.
        The first one stays.
    folder : path, optional
        Keep the lists in files there, mapped into memory, one an iteration. Those of an
        earlier run are removed (`open` takes them up).

    Raises
    ------
    ValueError
        An argument is out of range.
    """

    def __init__(
        self, *, n_dense: int = 0, unique: Unique = "derivation", folder: Path | None = None
    ) -> None:
        if unique not in get_args(Unique):
            raise ValueError(f"unique must be derivation or string, not {unique!r}")
        if n_dense < 0:
            raise ValueError(f"n_dense must be at least 0, not {n_dense}")
        self.unique: Unique = unique
        self.n_dense = n_dense
        self.folder = folder
        self._segments: list[Segment] = []
        # Of their files.
        self._checksums: list[str] = []
        self._open: list[Segment] = []
        self._open_hashes: dict[int, list[UInt64]] = {}
        if folder is not None:
            self._forget(0)

    @classmethod
    def open(cls, folder: Path, *, n_dense: int, unique: Unique = "derivation") -> Self:
        """Take up the lists that a folder has, with the settings that they were made with.

        Raises
        ------
        InputError
            A file is missing or damaged, or the dense features are others.
        """
        lists = cls(n_dense=n_dense, unique=unique)
        lists.folder = folder
        while (path := _segment_path(folder, lists.n_iterations + 1)).is_file():
            segment, checksum = Segment.open(path, lists.n_iterations + 1)
            if segment.n_dense != n_dense:
                raise InputError(
                    f"has {segment.n_dense} dense features, and now there are {n_dense}; resume "
                    "with the same model",
                    path=path,
                )
            if lists._differs(segment):
                raise InputError(
                    "has statistics and an earlier file none, or the reverse; start the run anew",
                    path=path,
                )
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

    def add(self, kbests: Sequence[KBest], statistics: Sequence[Counts] | None = None) -> int:
        """Add what is new in some lists to the iteration under way.

        Parameters
        ----------
        kbests : sequence of KBest
            With gains; sentences in any order.
        statistics : sequence of int64 [k, 10], optional
            BLEU's statistics of the hypotheses of each list; all lists have them, or none.

        Returns
        -------
        int
            Number of hypotheses that are new.

        Raises
        ------
        ValueError
            A list has no gains, or a number that is not finite.
        """
        parts = []
        for i, kbest in enumerate(kbests):
            kbest.finite_gains()
            kbest.check_finite()
            hashes = self._hashes(kbest)
            known = [segment.hashes(kbest.index) for segment in self._segments]
            known += self._open_hashes.get(kbest.index, [])
            new = np.flatnonzero(
                kernels.mark_new(np.concatenate([np.empty(0, np.uint64), *known]), hashes)
            )
            self._open_hashes.setdefault(kbest.index, []).append(hashes[new])
            counts = None if statistics is None else statistics[i]
            parts.append(Segment.of_list(kbest, new, hashes, counts, self.n_dense))
        if parts:
            self._open.append(Segment.joined(parts))
        return sum(map(len, parts))

    def end_iteration(self) -> int:
        """End the iteration under way; return the number of its new hypotheses.

        Raises
        ------
        ValueError
            Some lists have statistics and some have none.
        InputError
            The folder cannot be written to.
        """
        segment = Segment.joined(self._open or [self._empty()])
        if self._differs(segment):
            raise ValueError("statistics must be given for all lists, or for none")
        self._drop_open()
        if self.folder is not None:
            number = self.n_iterations + 1
            path = _segment_path(self.folder, number)
            segment.save(path, number)
            segment, checksum = Segment.open(path, number)
            self._checksums.append(checksum)
        self._segments.append(segment)
        return len(segment)

    def features(self) -> Int64:
        """Return the ids (int64, ascending) of the sparse features in all ended iterations."""
        found = [np.unique(segment.feature) for segment in self._segments]
        return np.unique(np.concatenate([np.empty(0, np.int64), *found])).astype(np.int64)

    def truncate(self, iterations: int) -> None:
        """Forget all but the first iterations, and what has not ended yet.

        Raises
        ------
        ValueError
            There are fewer.
        """
        if not 0 <= iterations <= self.n_iterations:
            raise ValueError(f"there are {self.n_iterations} iterations, not {iterations}")
        del self._segments[iterations:], self._checksums[iterations:]
        self._drop_open()
        self._forget(iterations)

    def state_dict(self) -> dict[str, Any]:
        """Return how many iterations have ended, and what their files are known by."""
        return {"iterations": self.n_iterations, "checksums": list(self._checksums)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Forget the iterations that ended after `state_dict` was asked.

        Raises
        ------
        ValueError
            Iterations are missing, or their lists are others.
        """
        with well_formed():
            iterations = whole(state_dict["iterations"], 0)
            checksums = state_dict["checksums"]
        if iterations > self.n_iterations:
            raise ValueError(f"there are {self.n_iterations} iterations, not {iterations}")
        if checksums != self._checksums[:iterations]:
            raise ValueError("the lists are not those of this run")
        self.truncate(iterations)

    def require(self, dimension: int) -> None:
        """Raise InputError unless the ids of all features are below `dimension`."""
        largest = max((int(s.feature.max(initial=-1)) for s in self._segments), default=-1)
        if dimension <= max(largest, self.n_dense - 1):
            raise InputError(f"there are features beyond the {dimension} that were named")

    def flat(self, dimension: int) -> FlatLists:
        """Return the hypotheses of all iterations that have ended, by sentence, as they came.

        Parameters
        ----------
        dimension : int
            D, larger than all ids of features.

        Raises
        ------
        InputError
            An id is not below `dimension`.
        """
        self.require(dimension)
        return self._laid_out(self._segments, dimension)

    def pair_rows(self, sampler: PairSampler, seed: Sequence[int]) -> Rows:
        """Return pairs of each list, drawn with ``(*seed, sentence)``, list after list.

        The same as ``flat(...).pair_rows(sampler, seed)``, but only some lists at a time are laid
        out.
        """
        return pair_rows(self._kbests(), sampler, seed)

    def _kbests(self) -> Iterator[KBest]:
        """Yield the list of each sentence, as `FlatLists.kbest` has it."""
        for first, last in self._blocks():
            block = self._laid_out([s.between(first, last) for s in self._segments], 0)
            for s in range(len(block)):
                yield block.kbest(s)

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

    def _laid_out(self, segments: Sequence[Segment], dimension: int) -> FlatLists:
        """Return the hypotheses of some segments by sentence."""
        filled = [segment for segment in segments if len(segment)]
        owners = [np.repeat(s.sentence, np.diff(s.list_begin)) for s in filled]
        owner = np.concatenate([np.empty(0, np.int64), *owners])
        order = np.argsort(owner, kind="stable")
        place = np.empty_like(order)
        place[order] = np.arange(order.size)
        lengths: Int64 = np.empty(order.size, np.int64)
        gain = np.empty(order.size)
        width = filled[0].hypotheses["statistics"].shape[1] if filled else 0
        statistics = np.empty((order.size, width), np.int32)
        ends = np.cumsum([0, *map(len, filled)])
        places = [place[a:b] for a, b in pairwise(ends)]
        for segment, where in zip(filled, places, strict=True):
            sizes = segment.hypotheses["length"].astype(np.int64)
            lengths[where] = sizes + np.count_nonzero(segment.dense(), axis=1)
            gain[where] = segment.hypotheses["gain"]
            statistics[where] = segment.hypotheses["statistics"]
        row_begin = np.append(np.int64(0), np.cumsum(lengths))
        feature = np.empty(row_begin[-1], np.int32)
        value = np.empty(row_begin[-1])
        for segment, where in zip(filled, places, strict=True):
            sizes = segment.hypotheses["length"].astype(np.int64)
            kernels.join_rows(
                where,
                segment.dense(),
                np.append(np.int64(0), np.cumsum(sizes)),
                np.asarray(segment.feature),
                segment.value.astype(np.float64),
                row_begin,
                feature,
                value,
            )
        sentence, counts = np.unique(owner, return_counts=True)
        list_begin = np.append(np.int64(0), np.cumsum(counts))
        return FlatLists(
            sentence, list_begin, row_begin, feature, value, gain, statistics, dimension
        )

    def _hashes(self, kbest: KBest) -> UInt64:
        with np.errstate(over="ignore"):
            bits = kbest.rows.value.astype(np.float32)
        # Adding 0 turns a negative zero into a positive one, whose bits are 0.
        hashes: UInt64 = kernels.hash_hypotheses(
            *kbest.strings(),
            kbest.rows.begin,
            kbest.rows.feature,
            (bits + np.float32(0)).view(np.uint32),
            self.unique == "string",
        )
        return hashes

    def _empty(self) -> Segment:
        """Return a segment without hypotheses."""
        kbest = KBest(index=0, rows=Rows.joined([]), gain=np.empty(0))
        return Segment.of_list(
            kbest, np.empty(0, np.int64), np.empty(0, np.uint64), None, self.n_dense
        )

    def _differs(self, segment: Segment) -> bool:
        """Say whether of hypotheses and those before them only the ones have statistics."""
        return len(segment) > 0 and any(
            len(old) > 0 and old.has_statistics != segment.has_statistics for old in self._segments
        )

    def _drop_open(self) -> None:
        self._open.clear()
        self._open_hashes.clear()

    def _forget(self, iterations: int) -> None:
        """Remove the files of later iterations."""
        number = iterations + 1
        while self.folder is not None and (path := _segment_path(self.folder, number)).is_file():
            path.unlink()
            number += 1


def _segment_path(folder: Path, iteration: int) -> Path:
    return folder / f"iteration-{iteration:04}"

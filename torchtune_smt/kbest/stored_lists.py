"""k-best lists in memory, as files hold them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from torchtune_smt.core.arrays import Bool, Float64, Int32, Int64
from torchtune_smt.core.vocabulary import Vocabulary
from torchtune_smt.kbest import stored_lists_kernels as kernels

T = TypeVar("T", bound=np.generic)


@dataclass
class StoredLists:
    """The k-best lists of a set of sentences, n entries in all.

    Attributes
    ----------
    sentence : int64 [lists]
        Numbers of the sentences, as the file has them, ascending.
    list_begin : int64 [lists + 1]
        Entries of list s are ``list_begin[s] .. list_begin[s + 1] - 1``.
    line : int64 [n]
        Where the file has the entry, from 1.
    token_begin, tokens : int64 [n + 1], int32
        Hypotheses, in ids of `words`.
    row_begin, feature, value : int64 [n + 1], int32, float64
        Rows of features without zeros, in ids of `features`; ascending until a decoder sorts
        them otherwise.
    total : float64 [n]
        The score that the file gives; NaN where it gives none.
    statistics : int32 [n, 10]
        BLEU's statistics (m_1..m_4, l_1..l_4, c, r) where they come instead of words; else [n, 0].
    words, features : Vocabulary
        May be shared with other lists.
    dense_names : list of str
        The dense features, in the order of the file.
    same_dense : bool
        Whether the format has every file name the same dense features (Moses's).
    skipped : Counter
        How many entries or lists were left out, or are of no use, by reason.
    """

    sentence: Int64
    list_begin: Int64
    line: Int64
    token_begin: Int64
    tokens: Int32
    row_begin: Int64
    feature: Int32
    value: Float64
    total: Float64
    statistics: Int32
    words: Vocabulary
    features: Vocabulary
    dense_names: list[str]
    same_dense: bool
    skipped: Counter[str] = field(default_factory=Counter)

    def __len__(self) -> int:
        return self.sentence.size

    @property
    def n_entries(self) -> int:
        """The number of hypotheses in all lists."""
        return self.total.size

    @property
    def has_statistics(self) -> bool:
        """Whether BLEU's statistics stand for the words."""
        return bool(self.statistics.shape[1])

    def summary(self) -> str:
        """Return a line for the log: how much there is, and what was left out, and why."""
        text = f"{self.n_entries:,} hypotheses of {len(self):,} sentences"
        if self.skipped:
            text += "; " + ", ".join(f"{n:,} {what}" for what, n in sorted(self.skipped.items()))
        return text

    def chosen(self, entries: Int64) -> StoredLists:
        """Return some of the entries (numbers ascending within each list, lists in order)."""
        token_begin, tokens = kernels.gather_items(self.token_begin, self.tokens, entries)
        row_begin, feature, value = kernels.gather_features(
            self.row_begin, self.feature, self.value, entries
        )
        owner = np.repeat(self.sentence, np.diff(self.list_begin))[entries]
        sentence, list_begin = lists_of(owner)
        return StoredLists(
            sentence,
            list_begin,
            self.line[entries],
            token_begin,
            tokens,
            row_begin,
            feature,
            value,
            self.total[entries],
            self.statistics[entries],
            self.words,
            self.features,
            self.dense_names,
            self.same_dense,
            self.skipped,
        )

    def with_features(self, chosen: Bool, features: Vocabulary) -> StoredLists:
        """Return the lists with some of their features (bool, one a feature) alone.

        Parameters
        ----------
        features : Vocabulary
            Takes their names.
        """
        new_id: Int32 = np.full(chosen.size, -1, np.int32)
        new_id[chosen] = features.intern(self.features.names(np.flatnonzero(chosen)))
        feature = new_id[self.feature]
        kept = feature >= 0
        before: Int64 = np.append(np.int64(0), np.cumsum(kept))
        return replace(
            self,
            row_begin=before[self.row_begin],
            feature=feature[kept],
            value=self.value[kept],
            features=features,
            dense_names=[name for name in self.dense_names if name in features],
        )

    def without_copies(self) -> StoredLists:
        """Return the lists without entries that repeat an earlier one of the list exactly.

        Words, all features and statistics must be the same; the first one stays. Copies are
        counted in `skipped`.
        """
        longest = int(np.diff(self.list_begin).max(initial=0))
        table: Int64 = np.empty(1 << (2 * longest + 1).bit_length(), np.int64)
        copy = np.empty(self.n_entries, np.bool_)
        kernels.mark_copies(
            self.list_begin,
            self.token_begin,
            self.tokens,
            self.row_begin,
            self.feature,
            self.value,
            self.value.view(np.int64),
            self.statistics,
            table,
            copy,
        )
        if not copy.any():
            return self
        lists = self.chosen(np.flatnonzero(~copy))
        lists.skipped = self.skipped + Counter({"copies of earlier entries": int(copy.sum())})
        return lists


def merged(parts: Sequence[StoredLists]) -> StoredLists:
    """Return the lists of several files in one: those of a sentence follow each other.

    They must share their vocabularies, and be all with words or all with statistics.
    """
    if len(parts) == 1:
        return parts[0]
    first = parts[0]
    owner = np.concatenate([np.repeat(p.sentence, np.diff(p.list_begin)) for p in parts])
    order = np.argsort(owner, kind="stable")
    skipped: Counter[str] = Counter()
    for part in parts:
        skipped.update(part.skipped)
    together = StoredLists(
        owner,
        np.arange(owner.size + 1),  # each entry a list of its own, until they are in order
        np.concatenate([p.line for p in parts]),
        concatenated_begins([p.token_begin for p in parts]),
        np.concatenate([p.tokens for p in parts]),
        concatenated_begins([p.row_begin for p in parts]),
        np.concatenate([p.feature for p in parts]),
        np.concatenate([p.value for p in parts]),
        np.concatenate([p.total for p in parts]),
        np.concatenate([p.statistics for p in parts]),
        first.words,
        first.features,
        first.dense_names,
        first.same_dense,
        skipped,
    )
    return together.chosen(order)


def lists_of(owner: Int64) -> tuple[Int64, Int64]:
    """Return the sentences that own consecutive entries, and where their lists begin."""
    starts = np.flatnonzero(np.diff(owner, prepend=-1))
    return owner[starts], np.append(starts, owner.size)


def concatenated_begins(begins: Sequence[Int64]) -> Int64:
    """Return the begins of rows that were put behind each other."""
    shifts = np.cumsum([0, *(int(begin[-1]) for begin in begins)])
    pieces = [begin[:-1] + shift for begin, shift in zip(begins, shifts, strict=False)]
    return np.concatenate([*pieces, shifts[-1:]])


def concatenated(arrays: Sequence[NDArray[T]], like: Any) -> NDArray[T]:
    """Return arrays behind each other; none of them make an empty one of dtype `like`."""
    return np.concatenate(arrays) if arrays else np.empty(0, like)

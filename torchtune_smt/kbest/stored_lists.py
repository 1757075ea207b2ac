"""What the files of k-best lists hold."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from torchtune_smt.core.arrays import Bool, Int32
from torchtune_smt.core.errors import InputError
from torchtune_smt.core.vocabulary import Vocabulary
from torchtune_smt.kbest.lists import KBestLists


@dataclass(frozen=True)
class StoredLists:
    """The k-best lists of a set of sentences, and what else is known of their files.

    lists: `index` are the numbers of the sentences that the file has, ascending; `entry` are lines,
        from 1; `score` is what the file gives. Rows have no zeros. BLEU's statistics may come in
        the place of words.
    dense_names: the dense features, in the order of the file.
    same_dense: whether every file must name the same dense features.
    n_sentences: of how many sentences, counted from 0, lines are there, those that were left out
        included.
    skipped: how many entries or lists were left out, or are of no use, by reason.
    n_entries: hypotheses in the file, those that were left out included: `entry` counts them from
        1.
    empty: sentences of which the file says that they have no hypothesis.
    references, sources: by the number of the sentence, where the file has them.
    texts: hypotheses as the file has them, by entry - 1, where that was asked for.
    """

    lists: KBestLists
    dense_names: list[str]
    same_dense: bool
    n_sentences: int
    skipped: Counter[str] = field(default_factory=Counter)
    n_entries: int = 0
    empty: frozenset[int] = frozenset()
    references: Mapping[int, list[str]] = field(default_factory=dict)
    sources: Mapping[int, str] = field(default_factory=dict)
    texts: Sequence[str] = ()

    def summary(self) -> str:
        """Return a line for the log: how much there is, and what was left out, and why."""
        text = f"{self.lists.n_hypotheses:,} hypotheses of {len(self.lists):,} sentences"
        return f"{text}; {listed(self.skipped)}" if self.skipped else text

    def check_features(self, path: str | os.PathLike[str]) -> None:
        """Raise InputError if lists have no features; `path` is the file that it names."""
        if self.lists.features is None or len(self.lists.features) == 0:
            raise InputError(
                "has no features, from which alone weights are learned: write them into the third "
                "field of each line, as in name=0.5, the score of the decoder, too",
                path=path,
            )

    def with_features(self, chosen: Bool, features: Vocabulary) -> StoredLists:
        """Return the lists with some features (bool [D]) alone, whose names `features` takes."""
        old = self.lists.features
        assert old is not None
        new_id: Int32 = np.full(chosen.size, -1, np.int32)
        new_id[chosen] = features.intern(old.names(np.flatnonzero(chosen)))
        rows = self.lists.rows.renamed(new_id)
        return replace(
            self,
            lists=replace(self.lists, rows=rows, features=features),
            dense_names=[name for name in self.dense_names if name in features],
        )

    def called(self, dense: Sequence[str], features: Vocabulary) -> StoredLists:
        """Return the lists with dense features called as in `dense`, where both mean the same.

        features: takes the names; another one than the lists have.
        """
        own = self.lists.features
        assert own is not None
        other = dict(zip(names_in(own, dense), dense, strict=True))
        ids = features.intern([other.get(name, name) for name in own.names(range(len(own)))])
        return replace(
            self,
            lists=replace(self.lists, rows=self.lists.rows.renamed(ids), features=features),
            dense_names=[other.get(name, name) for name in self.dense_names],
        )

    def check_dense(self, dense: Sequence[str], path: str | os.PathLike[str]) -> None:
        """Raise InputError if files with dense features of these names go with no such file."""
        odd = [name for name in self.dense_names if name not in dense]
        odd += [name for name in dense if name not in self.dense_names]
        if self.same_dense and odd:
            raise InputError(
                f"the dense feature {odd[0]} is "
                f"{'only here' if odd[0] in self.dense_names else 'missing here'}; all files need "
                "the same dense features (or missing=0, or dense=[NAME,...])",
                path=path,
            )

    def without_copies(self) -> StoredLists:
        """Return `KBestLists.without_copies` of the lists; copies are counted in `skipped`."""
        lists = self.lists.without_copies()
        copies = self.lists.n_hypotheses - lists.n_hypotheses
        # Nothing is left of a count of 0.
        skipped = self.skipped + Counter({"copies of earlier entries": copies})
        return replace(self, lists=lists, skipped=skipped)


def names_in(known: Vocabulary, names: Sequence[str]) -> list[str]:
    """Return names of features as lists have them.

    A feature of one value is `F0_0` in Moses's lists, which write it ``F0= v``, and `F0` in others,
    which write it ``F0=v``: where the lists know one of the names alone, both are that one.

    known: the features of the lists.
    """
    called = list(names)
    lacking = np.flatnonzero(known.lookup(names) < 0).tolist()
    labels = [names[i].removesuffix("_0") for i in lacking]
    others = [
        f"{label}_0" if label == names[i] else label
        for i, label in zip(lacking, labels, strict=True)
    ]
    given = set(names)
    for at in np.flatnonzero(known.lookup(others) >= 0).tolist():
        several = f"{labels[at]}_1"
        if others[at] not in given and several not in given and several not in known:
            called[lacking[at]] = others[at]
    return called


def some(names: Sequence[str], most: int = 5) -> str:
    """Return names for a message."""
    text = ", ".join(names[:most]) or "(none)"
    return text if len(names) <= most else f"{text} and {len(names) - most:,} more"


def listed(skipped: Counter[str]) -> str:
    """Return counts for a message."""
    return ", ".join(f"{n:,} {what}" for what, n in sorted(skipped.items()))


def merged(
    parts: Sequence[StoredLists], paths: Sequence[Path], *, strict: bool, by_line: bool = True
) -> StoredLists:
    """Return the lists of several files in one: those of a sentence follow each other.

    They must share their vocabularies, and be all with words or all with statistics.

    Raises InputError: there is one.

    paths: the file of each part.
    strict: whether a sentence of which no file has a list is an error, and not counted.
    by_line: whether the entry of a hypothesis is its line.
    """
    skipped: Counter[str] = Counter()
    for part in parts:
        skipped.update(part.skipped)
    lists = KBestLists.joined([part.lists for part in parts]).by_sentence()
    n_sentences = max(part.n_sentences for part in parts)
    together = replace(
        parts[0],
        lists=lists,
        n_sentences=n_sentences,
        skipped=skipped,
        n_entries=sum(part.n_entries for part in parts),
        empty=frozenset[int]().union(*(part.empty for part in parts)) - set(lists.index.tolist()),
        references={n: some for part in parts for n, some in part.references.items()},
        sources={n: source for part in parts for n, source in part.sources.items()},
    )
    if missing := n_sentences - len(lists) - len(together.empty):
        there = np.union1d(lists.index, sorted(together.empty))
        behind = np.flatnonzero(there != np.arange(there.size))
        if strict and behind.size and lists.ids is None:
            s = int(behind[0])
            at = np.searchsorted(lists.index, s)
            number = lists.index[at]
            both = zip(parts, paths, strict=True)
            raise InputError(
                f"this list is of sentence {number}, and sentence {s} has none; sentences "
                "are numbered from 0 without gaps (tuning and rerank leave sentences without a "
                "list out with on_error=skip)",
                path=next(path for part, path in both if number in part.lists.index),
                line=int(lists.entries()[lists.begin[at]]) if by_line else None,
            )
        skipped["sentences without a list"] += missing
    return together

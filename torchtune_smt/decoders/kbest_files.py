"""The decoder that decodes nothing: k-best lists of other decoders, under current weights."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import cast

import numpy as np
from numpy.typing import NDArray

from torchtune_smt.core.arrays import Bool, Float64, Int64
from torchtune_smt.core.errors import InputError
from torchtune_smt.core.feature_map import FeatureMap
from torchtune_smt.core.rows import Rows
from torchtune_smt.core.shortcuts import behaves_as
from torchtune_smt.core.snapshot import Snapshot
from torchtune_smt.core.vocabulary import Vocabulary
from torchtune_smt.data.bitext import Corpus
from torchtune_smt.decoders.base import Decoder
from torchtune_smt.kbest import stored_lists_kernels as kernels
from torchtune_smt.kbest.choose_features import choose_features
from torchtune_smt.kbest.formats import Format, OnError, read_lists
from torchtune_smt.kbest.lists import KBest, KBestLists, Source
from torchtune_smt.kbest.moses_tuning_files import number_hypotheses, read_tuning_files
from torchtune_smt.kbest.sentences import Sentences
from torchtune_smt.kbest.stored_lists import StoredLists, merged
from torchtune_smt.metrics.base import BoundMetric, Metric
from torchtune_smt.metrics.bleu import SentenceBleu

AnyPath = str | os.PathLike[str]


@dataclass(frozen=True)
class ListSource(Source):
    """A sentence that has a stored list.

    Attributes
    ----------
    set : str
        Name of the set of lists.
    list : int
        Its place there. `index` may change when sentences are chosen; this stays.
    """

    set: str = ""
    list: int = -1


class KBestFiles(Decoder):
    """Stored k-best lists as a decoder: they are scored and sorted anew with each weights.

    Parameters
    ----------
    k : int, optional
        How many of the best hypotheses of a list are given; all by default.
    format : {"moses", "cdec"}, optional
        Of n-best lists; told from the first line by default.
    dense : sequence of str, optional
        Names of the dense features, where the format's own distinction does not hold; see
        `read_lists`.
    keep : sequence of str, optional
        Only these features are read; see `choose_features`. All by default.
    on_error : {"error", "skip"}
        What happens to lines with a fault; see `read_lists`.
    unique : bool
        Drop entries that repeat an earlier one of the sentence in all they hold.

    Attributes
    ----------
    dense_names : list of str
        Dense features of all sets read so far, if they are kept; make `Weights` of them after the
        last `read`.
    words, features : Vocabulary
        Words and feature names of all sets, the dense ones first.
    sets : dict of str to StoredLists
        What was read.
    """

    def __init__(
        self,
        *,
        k: int | None = None,
        format: Format | None = None,
        dense: Sequence[str] | None = None,
        keep: Sequence[str] | None = None,
        on_error: OnError = "error",
        unique: bool = True,
    ) -> None:
        if k is not None and k < 1:
            raise ValueError(f"k must be at least 1, not {k}")
        self.k = k
        self.format = format
        self.dense = dense
        self.keep = keep
        self.on_error: OnError = on_error
        self.unique = unique
        self.dense_names: list[str] = []
        self.words = Vocabulary()
        self.sets: dict[str, StoredLists] = {}
        # Of the features in the order of the files: those that they have, and those that are kept.
        self._read_features = Vocabulary()
        self._kept = self._read_features if keep is None else Vocabulary()
        self.features = self._kept
        self._read_dense: list[str] = [] if dense is None else list(dense)
        self._bound = False
        self._names: Int64 = np.empty(0, np.int64)
        self._weight: Float64 = np.empty(0)
        self._mark: Bool = np.empty(0, np.bool_)

    def read(
        self,
        name: str,
        lists: Sequence[AnyPath],
        scores: Sequence[AnyPath] | None = None,
        *,
        for_tuning: bool = False,
    ) -> StoredLists:
        """Read the lists of a set; those of several files are merged.

        Parameters
        ----------
        name : str
            What the set is called from now on.
        lists : sequence of path
            n-best lists; or, with `scores`, Moses's features.dat.
        scores : sequence of path, optional
            Moses's scores.dat, one for each of `lists`.
        for_tuning : bool
            A list of one hypothesis, from which nothing can be learned, is an error, or counted.

        Raises
        ------
        InputError
            As `read_lists` and `read_tuning_files`; the dense features are not those of a set
            read before; a feature to be kept does not occur; or all lists for tuning have one
            hypothesis.
        ValueError
            There are no files, or not as many scores as lists.
        """
        if not lists:
            raise ValueError("no files of k-best lists are given")
        if scores is not None and len(scores) != len(lists):
            raise ValueError(
                f"{len(lists)} files of features and {len(scores)} files of scores; each "
                "features.dat needs its own scores.dat"
            )
        vocabularies = {"words": self.words, "features": self._read_features}
        parts = []
        for number, path in enumerate(lists):
            if scores is None:
                part = read_lists(
                    path, self.format, **vocabularies, dense=self.dense, on_error=self.on_error
                )
            else:
                part = read_tuning_files(
                    path, scores[number], **vocabularies, dense=self.dense, on_error=self.on_error
                )
            self._take_dense(part, path)
            parts.append(part)
        stored = merged(parts)
        if self.keep is not None:
            chosen = choose_features(self._read_features, self._read_dense, self.keep, lists[0])
            stored = stored.with_features(chosen, self._kept)
        self.dense_names = [name for name in self._read_dense if name in self._kept]
        if self.unique:
            stored = stored.without_copies()
        if scores is not None:
            number_hypotheses(stored)
        if for_tuning:
            self._check_sizes(stored, lists)
        self.sets[name] = stored
        self.features = self._numbered()
        self._bound = False
        return stored

    def sources(self, name: str) -> list[ListSource]:
        """Return the sentences of a set, those that have a list; ``index`` counts from 0."""
        return [ListSource(i, set=name, list=i) for i in range(len(self.sets[name]))]

    def decode(
        self, sources: Sequence[Source], snapshot: Snapshot, *, k: int | None = None
    ) -> KBestLists:
        """Return the stored list of each sentence, best first under these weights.

        Equal scores leave the order of the file.

        Raises
        ------
        ValueError
            k is less than 1, or a sentence is none of `sources`.
        """
        k = self.k if k is None else k
        if k is not None and k < 1:
            raise ValueError(f"k must be at least 1, not {k}")
        places = [self._place(source) for source in sources]
        self._read_weights(places, snapshot)
        return KBestLists.of(
            [
                self._rescored(source.index, stored, place, k)
                for source, (stored, place) in zip(sources, places, strict=True)
            ]
        )

    def ranked_lines(
        self, source: Source, snapshot: Snapshot, *, k: int | None = None
    ) -> tuple[Int64, Float64]:
        """Return the lines of the file that hold a list, best first, and their scores.

        The set must come from one file; else see `decode`.
        """
        place = self._place(source)
        self._read_weights([place], snapshot)
        entries, score = self._ranked(*place, self.k if k is None else k)
        return place[0].line[entries], score

    def feature_ids(self, sources: Sequence[Source]) -> Int64:
        """Return the ids (int64, ascending) of all features in some lists."""
        self._bind()
        return np.sort(self._names[self._occurring([self._place(source) for source in sources])])

    def fork(self) -> KBestFiles:
        """Return this one: it adds no features when it decodes."""
        return self

    def sentences(
        self, name: str, corpus: Corpus | None, report: Callable[[str], None] = print
    ) -> Sentences:
        """Return the sentences of a set that have a list, with their references.

        Sentence n of the lists belongs to line n + 1 of the corpus. Lists with statistics need no
        corpus.

        Raises
        ------
        InputError
            There are no references; lists and references do not fit together.
        """
        stored, sources = self.sets[name], self.sources(name)
        if stored.has_statistics:
            return Sentences(list(sources), [[] for _ in sources])
        if corpus is None:
            raise InputError(f"data.{name} is null: the lists of {name} need references; name them")
        place = {line - 1: i for i, line in enumerate(corpus.lines)}
        last = corpus.lines[-1] + sum(corpus.dropped.values())
        numbers = stored.sentence.tolist()
        if numbers[-1] >= last:
            raise InputError(
                f"decoder.{name} has a list of sentence {numbers[-1]} (counted from 0), and "
                f"data.{name} has references of {len(corpus)} sentences; do they belong together?"
            )
        chosen = [source for source in sources if numbers[source.list] in place]
        lacking = set(place) - set(numbers)
        if lacking and self.on_error == "error":
            raise InputError(
                f"decoder.{name} has no list of sentence {min(lacking)} (counted from 0), and "
                f"data.{name} has references of {len(corpus)} sentences; do they belong together? "
                "(decoder.on_error=skip leaves sentences without a list out)"
            )
        if len(chosen) < len(corpus):
            report(f"{name}: {len(corpus) - len(chosen)} sentences without a list are left out")
        if not chosen:
            raise InputError(f"no sentence of decoder.{name} has a reference in data.{name}")
        references = [corpus.references[place[numbers[source.list]]] for source in chosen]
        return Sentences([replace(s, index=i) for i, s in enumerate(chosen)], references)

    def metric(self, metric: Metric, sources: Sequence[Source]) -> BoundMetric:
        """Return gains from the statistics that came with the lists, which need no references.

        Parameters
        ----------
        metric : Metric
            One that is computed from BLEU's statistics.
        sources : sequence of Source
            ``sources[i].index`` is i; all of sets with statistics.

        Raises
        ------
        InputError
            The metric is computed from something else.
        """
        if not behaves_as(metric, SentenceBleu, "bind"):
            raise InputError(
                f"metric: {type(metric).__name__} needs the words of the hypotheses, and "
                "scores.dat has only BLEU's statistics; choose a metric of BLEU's family, or give "
                "n-best lists"
            )
        return _StatisticsGains(self, cast(SentenceBleu, metric), sources)

    def statistics(self, source: Source, kbest: KBest) -> NDArray[np.int64]:
        """Return BLEU's statistics (int64 [k, 10]) of the hypotheses of a list of this source."""
        stored, place = self._place(source)
        if not stored.has_statistics:
            raise ValueError(f"the list of sentence {source.index} has no statistics")
        first = self.words.id("hypothesis 0")
        entries = stored.list_begin[place] + kbest.tokens - first
        statistics: NDArray[np.int64] = stored.statistics[entries].astype(np.int64)
        return statistics

    def _take_dense(self, part: StoredLists, path: AnyPath) -> None:
        """Note the dense features of a file; those of Moses's files must be always the same."""
        if self.dense is not None:
            missing = [name for name in self.dense if name not in part.features]
            if missing:
                raise InputError(
                    f"the dense feature {missing[0]} does not occur; check the list dense=[...]",
                    path=path,
                )
            return
        new = [name for name in part.dense_names if name not in set(self._read_dense)]
        if part.same_dense and self._read_dense:
            lacking = [name for name in self._read_dense if name not in set(part.dense_names)]
            if new or lacking:
                raise InputError(
                    f"the dense feature {(new + lacking)[0]} is "
                    f"{'only here' if new else 'missing here'} and not in the other files; all "
                    "need the same dense features",
                    path=path,
                )
        self._read_dense += new

    def _check_sizes(self, stored: StoredLists, paths: Sequence[AnyPath]) -> None:
        """Refuse, or count, lists of one entry."""
        short = np.flatnonzero(np.diff(stored.list_begin) == 1)
        if short.size == 0:
            return
        if short.size == len(stored):
            raise InputError(
                "every list has one hypothesis, which leaves nothing to choose and to learn from; "
                "give longer lists",
                path=paths[0],
            )
        if self.on_error == "error":
            entry = int(stored.list_begin[short[0]])
            raise InputError(
                f"sentence {stored.sentence[short[0]]} has one hypothesis, and nothing can be "
                "learned from it; give longer lists, or let such lists pass with on_error=skip",
                path=paths[0],
                line=int(stored.line[entry]) if len(paths) == 1 else None,
            )
        stored.skipped["lists of one hypothesis, of no use in tuning"] += int(short.size)

    def _place(self, source: Source) -> tuple[StoredLists, int]:
        """Return the set and the number of a sentence's list."""
        if not isinstance(source, ListSource) or source.set not in self.sets:
            raise ValueError(
                f"sentence {source.index} has no stored list; take the sentences from `sources`"
            )
        return self.sets[source.set], source.list

    def _numbered(self) -> Vocabulary:
        """Return the features that are kept, the dense ones first."""
        n = len(self.dense_names)
        if self._kept.names(range(n)) == self.dense_names:
            return self._kept
        features = Vocabulary(self.dense_names)
        FeatureMap(self._kept, features).add()
        return features

    def _bind(self) -> None:
        """Learn the ids of all features, and sort all rows by them."""
        if self._bound:
            return
        self._names = FeatureMap(self._kept, self.features).lookup(np.arange(len(self._kept)))
        self._weight = np.zeros(self._names.size)
        self._mark = np.zeros(self._names.size, np.bool_)
        ids = self._names.astype(np.int32)
        for stored in self.sets.values():
            kernels.sort_rows(stored.row_begin, stored.feature, stored.value, ids)
        self._bound = True

    def _read_weights(self, places: Sequence[tuple[StoredLists, int]], snapshot: Snapshot) -> None:
        """Read the weights of all features of these lists."""
        self._bind()
        chosen = self._occurring(places)
        self._weight[chosen] = snapshot.read(self.features, self._names[chosen])

    def _occurring(self, places: Sequence[tuple[StoredLists, int]]) -> Int64:
        """Return all features of these lists, each once, as the lists number them."""
        spans = [
            (stored, *stored.row_begin[stored.list_begin[place : place + 2]].tolist())
            for stored, place in places
        ]
        room = min(sum(end - begin for _, begin, end in spans), self._mark.size)
        chosen: Int64 = np.empty(room, np.int64)
        n = 0
        for stored, begin, end in spans:
            n = kernels.mark_features(begin, end, stored.feature, self._mark, chosen, n)
        chosen = chosen[:n]
        self._mark[chosen] = False
        return chosen

    def _ranked(self, stored: StoredLists, place: int, k: int | None) -> tuple[Int64, Float64]:
        """Return the entries of a list, best first, and their scores."""
        first, last = stored.list_begin[place : place + 2].tolist()
        score: Float64 = np.empty(last - first)
        kernels.score_rows(
            first, last, stored.row_begin, stored.feature, stored.value, self._weight, score
        )
        order = np.argsort(-score, kind="stable")[:k]
        return order + first, score[order]

    def _rescored(self, index: int, stored: StoredLists, place: int, k: int | None) -> KBest:
        """Return a list, sorted by the weights that were read."""
        entries, score = self._ranked(stored, place, k)
        token_begin, tokens = kernels.gather_items(stored.token_begin, stored.tokens, entries)
        rows = kernels.gather_rows(
            stored.row_begin, stored.feature, stored.value, entries, self._names
        )
        return KBest(
            index=index,
            rows=Rows(*rows),
            features=self.features,
            score=score,
            token_begin=token_begin,
            tokens=tokens,
            words=self.words,
        )


class _StatisticsGains:
    """Gains of hypotheses whose statistics are stored."""

    def __init__(
        self, decoder: KBestFiles, metric: SentenceBleu, sources: Sequence[Source]
    ) -> None:
        self._decoder = decoder
        self._metric = metric
        self._sources: Mapping[int, Source] = {source.index: source for source in sources}

    def gains(self, kbest: KBest) -> Float64:
        """Return the gain (float64 [k]) of each hypothesis."""
        statistics = self._decoder.statistics(self._sources[kbest.index], kbest)
        return self._metric.score(statistics)

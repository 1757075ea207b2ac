"""The decoder that decodes nothing: k-best lists of other decoders, under current weights."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any, ClassVar, Final, cast, get_args

import numpy as np

from torchtune_smt.core.accepts import FINITE, accepting, check_arguments, integer, one_of
from torchtune_smt.core.arrays import Bool, Float64, Int64
from torchtune_smt.core.errors import InputError
from torchtune_smt.core.offsets import offsets
from torchtune_smt.core.rows_kernels import mark_features
from torchtune_smt.core.snapshot import Snapshot
from torchtune_smt.core.text import split_words
from torchtune_smt.core.vocabulary import FeatureMap, Vocabulary
from torchtune_smt.core.weights_io import Origin
from torchtune_smt.data.bitext import Corpus
from torchtune_smt.decoders.base import Decoder
from torchtune_smt.features.templates import templates_of
from torchtune_smt.kbest.formats import OnError
from torchtune_smt.kbest.forms import FORM_NAMES, read_lists
from torchtune_smt.kbest.lists import KBestLists, Source
from torchtune_smt.kbest.moses_tuning_files import read_tuning_files
from torchtune_smt.kbest.sentences import FileNumbers, Sentences
from torchtune_smt.kbest.stored_lists import StoredLists, merged, some
from torchtune_smt.kbest.tools import Sizes

DENSE: Final = "dense"
"""Stands for all dense features."""

# Moses gives the values of a label numbers.
_NUMBERED: Final = re.compile(r"(.+)_\d+")


def choose_features(
    features: Vocabulary, dense: Sequence[str], wanted: Sequence[str], path: str | os.PathLike[str]
) -> Bool:
    """Return which features are wanted (bool, one a feature).

    Raises InputError: there is no feature for one of `wanted`; the message tells what there is.

    dense: those of them that are dense.
    wanted: each is the name of a feature; or what several have in common, the template of sparse
        ones (see `templates_of`) or the label of dense ones (``TM0`` of ``TM0_0``, ``TM0_1``, ...);
        or `DENSE`.
    """
    is_dense: Bool = np.zeros(len(features), np.bool_)
    is_dense[[features.id(name) for name in dense]] = True
    chosen = is_dense & (DENSE in wanted)
    found = {DENSE} if dense else set()
    named = set(wanted) - {DENSE}
    sparse = features.names(np.flatnonzero(~is_dense))
    # It takes long to tell the templates of millions of names.
    common = dict(zip(sparse, templates_of(sparse), strict=True)) if named else {}
    for id, name in enumerate(features.names(range(len(features))) if named else ()):
        label = _NUMBERED.fullmatch(name)
        reasons = named & {name, common.get(name) or (label[1] if label else name)}
        chosen[id] |= bool(reasons)
        found |= reasons
    if lacking := [name for name in wanted if name not in found]:
        raise InputError(
            f"has no feature {lacking[0]!r}, and no template or label of that name; there are the "
            f"dense features {some(dense, 20)}, and sparse ones of the templates "
            + some([name for name, _ in Counter(templates_of(sparse)).most_common()], 20),
            path=path,
        )
    return chosen


AnyPath = str | os.PathLike[str]
Paths = AnyPath | Sequence[AnyPath] | None

SETS: Final = ("train", "dev", "test")


@dataclass(frozen=True)
class ListSource(Source):
    """A sentence and its list's place in a set, which stays when sentences are chosen."""

    set: str = ""
    list: int = -1


class KBestFiles(Decoder):
    """Stored k-best lists as a decoder: they are scored and sorted anew with each weights.

    k: how many of the best hypotheses of a list are given; all by default.
    format: of the lists, one of `FORM_NAMES`; told from the content by default.
    score, sizes, scale: see `forms.read_lists`.
    columns: files of more features for each set, by the names of the features; see `with_columns`.
    dense: names of the dense features, where the format's own distinction does not hold; see
        `read_lists`.
    missing: the value of a dense feature that a line lacks; by default that is a fault.
    features: only these features are read; see `choose_features`.
    on_error ("error", "skip"): what happens to lines with a fault; see `read_lists`.
    unique: drop entries that repeat an earlier one of the sentence in all they hold.
    train, dev, test: lists of these sets, which are read at once; see `read`.
    train_scores, dev_scores, test_scores: Moses's scores.dat of these sets.
    tune_on: the set that is tuned on. It must be there then, and dev, too.

    As attributes:
    dense_names: dense features of all sets read so far, if they are kept.
    sets: what was read.
    """

    accepts = accepting(
        k=integer(1).or_null(),
        format=one_of(*FORM_NAMES).or_null(),
        missing=FINITE.or_null(),
        on_error=one_of(*get_args(OnError)),
    )
    stored: ClassVar[bool] = True
    takes_not: ClassVar[Mapping[str, str]] = {
        "model": "decodes nothing",
        "threads": "decodes nothing",
        "templates": "has the features of its lists (decoder.features chooses them)",
    }

    def __init__(
        self,
        *,
        k: int | None = None,
        format: str | None = None,
        dense: Sequence[str] | None = None,
        missing: float | None = None,
        score: bool | None = None,
        sizes: Sizes = None,
        scale: Mapping[str, float] | None = None,
        columns: Mapping[str, Mapping[str, AnyPath]] | None = None,
        features: str | Sequence[str] = "all",
        on_error: OnError = "error",
        unique: bool = True,
        train: Paths = None,
        dev: Paths = None,
        test: Paths = None,
        train_scores: Paths = None,
        dev_scores: Paths = None,
        test_scores: Paths = None,
        tune_on: str | None = None,
        report: Callable[[str], None] = print,
    ) -> None:
        numbers = {"k": k, "format": format, "missing": missing, "on_error": on_error}
        check_arguments(type(self), numbers)
        self.k = k
        self.format = format
        self.dense = _paths(dense)
        self.missing = missing
        self.reading: dict[str, Any] = {"score": score, "sizes": sizes, "scale": scale}
        self.columns = {} if columns is None else columns
        if strange := [name for name in self.columns if name not in SETS]:
            raise InputError(f"decoder.columns has {strange[0]!r}, and sets are {', '.join(SETS)}")
        self.keep = None if features == "all" else _paths(features)
        self.on_error: OnError = on_error
        self.unique = unique
        self.dense_names: list[str] = []
        self.words = Vocabulary()
        self.sets: dict[str, StoredLists] = {}
        # Of the features in the order of the files: those that they have, and those that are kept.
        self._read_features = Vocabulary()
        self._kept = self._read_features if self.keep is None else Vocabulary()
        self.features = self._kept
        self._read_dense: list[str] = list(self.dense or ())
        self._weight: Float64 = np.empty(0)
        self._mark: Bool = np.empty(0, np.bool_)
        given = {
            "train": (_paths(train), _paths(train_scores)),
            "dev": (_paths(dev), _paths(dev_scores)),
            "test": (_paths(test), _paths(test_scores)),
        }
        # Reading takes long: what can be wrong before it is found before it.
        for name, (lists, scores) in given.items():
            _check_given(name, lists, scores, tune_on and name in ("dev", tune_on))
        self._files = {name: lists or [] for name, (lists, _) in given.items()}
        for name, (lists, scores) in given.items():
            if lists is not None:
                stored = self.read(name, lists, scores, for_tuning=name == tune_on)
                report(f"k-best lists of {name}: {stored.summary()}")

    def read(
        self,
        name: str,
        lists: Sequence[AnyPath],
        scores: Sequence[AnyPath] | None = None,
        *,
        for_tuning: bool = False,
    ) -> StoredLists:
        """Read the lists of a set, which is called `name` from now on; several files are merged.

        Raises InputError: as `read_lists` and `read_tuning_files`; the dense features are not those
        of a set read before; a feature to be kept does not occur.

        lists: n-best lists; or, with `scores`, Moses's features.dat.
        scores: Moses's scores.dat, one for each of `lists`.
        for_tuning: a list of one hypothesis, from which nothing can be learned, is an error, or
            counted.
        """
        _check_given(name, lists, scores, True)
        options: dict[str, Any] = {"dense": self.dense, "on_error": self.on_error, "shard": True}
        options["missing"] = self.missing
        columns, parts = self.columns.get(name), []
        more = {"words": self.words, "ids": Vocabulary(), "columns": columns, **self.reading}
        if columns and len(lists) > 1:
            raise InputError(f"decoder.columns.{name} needs one file of lists, not {len(lists)}")
        for number, path in enumerate(lists):
            # Names of their own, which may mean what was read before under other ones.
            own = Vocabulary() if self._read_dense else self._read_features
            options["features"] = own
            if scores is None:
                part = read_lists(path, self.format, **options, **more)
            else:
                part = read_tuning_files(path, scores[number], **options)
            if own is not self._read_features:
                part = part.called(self._read_dense, self._read_features)
            self._take_dense(part, path)
            parts.append(part)
        stored = merged(parts, [Path(path) for path in lists], strict=self.on_error == "error")
        stored.check_features(lists[0])
        if self.keep is not None:
            chosen = choose_features(self._read_features, self._read_dense, self.keep, lists[0])
            stored = stored.with_features(chosen, self._kept)
        self.dense_names = [name for name in self._read_dense if name in self._kept]
        if self.unique:
            stored = stored.without_copies()
        if for_tuning:
            self._check_sizes(stored, lists)
        if scores is not None:
            # Lines of several files could be the same; nobody needs them from here on.
            places = replace(stored.lists, entry=None).entries()
            stored = replace(stored, lists=replace(stored.lists, entry=places))
        self.sets[name] = stored
        self._number()
        return self.sets[name]

    def sources(self, name: str) -> list[ListSource]:
        """Return the sentences of a set that have a list, counted from 0."""
        return [ListSource(i, set=name, list=i) for i in range(len(self.sets[name].lists))]

    def decode(
        self, sources: Sequence[Source], snapshot: Snapshot, *, k: int | None = None
    ) -> KBestLists:
        """Return the stored lists of some `sources`, best first; equal scores keep their order."""
        k = self.k if k is None else k
        chosen = cast(Sequence[ListSource], sources)
        ids = self._occurring(chosen)
        self._weight[ids] = snapshot.read(self.features, ids)
        sets = groupby(chosen, lambda source: source.set)
        return KBestLists.joined([self._ranked(name, list(some), k) for name, some in sets])

    def feature_ids(self, sources: Sequence[Source]) -> Int64:
        """Return the ids (int64, ascending) of all features in some lists."""
        return np.sort(self._occurring(cast(Sequence[ListSource], sources)))

    def fork(self) -> KBestFiles:
        """Return a decoder of the same lists and features: none are added when it decodes."""
        other = copy(self)
        other._weight, other._mark = self._weight.copy(), self._mark.copy()
        return other

    def sentences(
        self, name: str, read: Callable[[], Corpus | None], report: Callable[[str], None] = print
    ) -> Sentences | None:
        """Return the sentences of a set that have a list, with their references.

        Sentence n of the lists belongs to line n + 1 of the corpus, which lists with statistics do
        not need.
        """
        if name not in self.sets:
            return None
        lists, sources = self.sets[name].lists, self.sources(name)
        numbers, own = lists.index.tolist(), self.sets[name].references
        corpus = read() if lists.statistics is None else None
        if corpus is None:
            if lists.statistics is not None:
                words: list[list[list[str]]] = [[] for _ in sources]
            elif bare := [number for number in numbers if number not in own]:
                raise InputError(
                    f"data.{name} is null: the lists of {name} need references; name them"
                    + (f" (sentence {bare[0]} has none in the lists)" if own else "")
                )
            else:
                words = [[split_words(text) for text in own[number]] for number in numbers]
            gaps = frozenset(range(self.sets[name].n_sentences)).difference(numbers)
            return Sentences(list(sources), words, lacking=gaps)
        if lists.ids is not None:
            raise InputError(
                f"decoder.{name} has lists of {lists.ids[numbers[0]]!r} and others, and of which "
                f"lines of data.{name} they are is not known; put the references into JSON lines, "
                "or take `tune`"
            )
        place = {line - 1: i for i, line in enumerate(corpus.lines)}
        if numbers[-1] >= corpus.total:
            raise InputError(
                f"decoder.{name} has a list of sentence {numbers[-1]} (counted from 0), and "
                f"data.{name} has {corpus.total} lines of references; do they belong together?"
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
        return Sentences(
            [replace(s, index=i) for i, s in enumerate(chosen)],
            references,
            lacking=frozenset(place[number] for number in lacking),
        )

    def file_numbers(self, sources: Sequence[Source]) -> FileNumbers:
        """Return the numbers of some sentences of one set in its files."""
        chosen = cast(Sequence[ListSource], sources)
        stored = self.sets[chosen[0].set]
        of = {source.index: int(stored.lists.index[source.list]) for source in chosen}
        return FileNumbers(of, stored.n_sentences)

    def has_feature(self, name: str) -> bool:
        """Return whether a feature is in the lists."""
        return name in self.features

    def check_start(self, weights: Snapshot, path: str | None) -> None:
        """Raise InputError if a file, not values, has no weight for any feature of the lists."""
        if path is None or weights.read(self.features, np.arange(len(self.features))).any():
            return
        raise InputError(
            "has no weight for any feature of the k-best lists (their dense ones are "
            f"{', '.join(self.dense_names)}); is it the weights file of another model?",
            path=path,
        )

    def origin(self) -> Origin:
        """Return the files of the lists that can be tuned on, and their dense features."""
        files = [path for name in ("train", "dev") for path in self._files[name]]
        return Origin.of_lists(files, self.dense_names)

    @classmethod
    def unused(
        cls, options: Mapping[str, Any], tune_on: str, *, drops_copies: bool
    ) -> Mapping[str, str]:
        """Return the sets that need no lists or references, and what depends on them."""
        unused: dict[str, str] = {}
        read = []
        for name in SETS:
            if name == "train" and tune_on != "train":
                reason = "lists of the bitext are for tuner.tune_on=train"
                unused |= dict.fromkeys(("decoder.train", "decoder.train_scores"), reason)
                unused["data.train"] = (
                    "decoder=kbest_files needs no bitext (but for tuner.tune_on=train)"
                )
            elif options[name] is None:
                unused[f"data.{name}"] = f"there are no lists of {name} (decoder.{name} is null)"
            elif options[f"{name}_scores"] is not None:
                unused[f"data.{name}"] = f"decoder.{name}_scores is in the place of references"
            else:
                read.append(name)
        words = all(options[f"{name}_scores"] is None for name in ("dev", tune_on))
        if words and options["k"] is None and drops_copies:
            unused["decoder.unique"] = "this tuner drops copies in any case (tuner.unique)"
        if not read:
            unused["decoder.format"] = "features.dat with scores.dat has one format"
        return unused

    def _take_dense(self, part: StoredLists, path: AnyPath) -> None:
        """Note the dense features of a file, which must be those of the others, or as told."""
        if self.dense is not None:
            if missing := [name for name in self.dense if name not in self._read_features]:
                raise InputError(
                    f"the dense feature {missing[0]} does not occur; check the list dense=[...]",
                    path=path,
                )
            return
        if self._read_dense:
            part.check_dense(self._read_dense, path)
        self._read_dense += [name for name in part.dense_names if name not in self._read_dense]

    def _check_sizes(self, stored: StoredLists, paths: Sequence[AnyPath]) -> None:
        """Refuse, or count, lists of one entry."""
        lists = stored.lists
        short = np.flatnonzero(np.diff(lists.begin) == 1)
        if short.size == 0:
            return
        if short.size == len(lists):
            raise InputError(
                "every list has one hypothesis, which leaves nothing to choose and to learn from; "
                "give longer lists",
                path=paths[0],
            )
        if self.on_error == "error":
            line = int(lists.entries()[lists.begin[short[0]]])
            raise InputError(
                f"sentence {lists.index[short[0]]} has one hypothesis, and nothing can be "
                "learned from it; give longer lists, or let such lists pass with on_error=skip",
                path=paths[0],
                line=line if len(paths) == 1 else None,
            )
        stored.skipped["lists of one hypothesis, of no use in tuning"] += int(short.size)

    def _number(self) -> None:
        """Give the features of all lists, the dense ones first, their ids in `features`."""
        self.features = self._kept
        if self._kept.names(range(len(self.dense_names))) != self.dense_names:
            self.features = Vocabulary(self.dense_names)
            FeatureMap(self._kept, self.features).add()
        self._weight = np.zeros(len(self.features))
        self._mark = np.zeros(len(self.features), np.bool_)
        for name, stored in self.sets.items():
            known = stored.lists.features
            if known is not None and known is not self.features:
                ids = FeatureMap(known, self.features).lookup(np.arange(len(known)))
                rows = stored.lists.rows.renamed(ids)
                lists = replace(stored.lists, rows=rows, features=self.features)
                self.sets[name] = replace(stored, lists=lists)

    def _occurring(self, sources: Sequence[ListSource]) -> Int64:
        """Return all features of these lists, each once."""
        spans = []
        for source in sources:
            lists = self.sets[source.set].lists
            spans.append((lists.rows, *lists.begin[source.list : source.list + 2].tolist()))
        room = min(sum(int(r.begin[b] - r.begin[a]) for r, a, b in spans), self._mark.size)
        chosen: Int64 = np.empty(room, np.int64)
        n = 0
        for rows, first, last in spans:
            n = mark_features(
                rows.begin[first], rows.begin[last], rows.feature, self._mark, chosen, n
            )
        chosen = chosen[:n]
        self._mark[chosen] = False
        return chosen

    def _ranked(self, name: str, sources: Sequence[ListSource], k: int | None) -> KBestLists:
        """Return some lists of a set, sorted by the weights that were read."""
        lists = self.sets[name].lists
        entries, scores = [], []
        for source in sources:
            first, last = lists.begin[source.list : source.list + 2].tolist()
            score = lists.rows.dot(self._weight, first, last)
            order = np.argsort(-score, kind="stable")[:k]
            entries.append(order + first)
            scores.append(score[order])
        return replace(
            lists.chosen(np.concatenate(entries)),
            index=np.array([source.index for source in sources], np.int64),
            begin=offsets([score.size for score in scores]),
            score=np.concatenate(scores),
        )


def _check_given(
    name: str, lists: Sequence[AnyPath] | None, scores: Sequence[AnyPath] | None, needed: object
) -> None:
    """Raise InputError where files of a set are wanting, by their names alone."""
    if lists is None and scores is not None:
        raise InputError(f"decoder.{name}_scores needs decoder.{name}: the features.dat files")
    if lists is None and needed:
        raise InputError(f"decoder.{name} is null, and its k-best lists are needed; name the files")
    if lists is not None and (not lists or len(scores or lists) != len(lists)):
        raise InputError(
            f"decoder.{name}: {len(lists)} files of features and {len(scores or ())} files of "
            "scores; name at least one, and for each features.dat its own scores.dat"
        )
    for path in [*(lists or ()), *(scores or ())]:
        if not os.path.exists(path):
            raise InputError("no such file; check the path", path=path)


def _paths(given: str | os.PathLike[str] | Sequence[Any] | None) -> list[str] | None:
    """Return names, of which one may stand without a list."""
    if given is None or isinstance(given, str | os.PathLike):
        return None if given is None else [str(given)]
    return [str(path) for path in given]

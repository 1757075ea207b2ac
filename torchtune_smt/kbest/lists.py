"""What is passed along: source sentences and their k-best lists."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import pairwise, zip_longest
from typing import TYPE_CHECKING, Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from torchtune_smt.core.arrays import Bool, Float64, Int32, Int64, UInt64
from torchtune_smt.core.offsets import are_offsets, joined_offsets, offsets, places_of, runs
from torchtune_smt.core.rows import Rows
from torchtune_smt.core.vocabulary import Vocabulary
from torchtune_smt.kbest import lists_kernels as kernels
from torchtune_smt.kbest.measure import BLEU, Measure

if TYPE_CHECKING:
    import torch

    from torchtune_smt.kbest.tensors import ListTensors


@dataclass(frozen=True)
class Source:
    """A source sentence.

    index: its number in the set at hand; references are found by it.
    train_index: its number in the training bitext, where it stands in it: it is then decoded with
        rules and with a language model that have not seen it. -1 elsewhere.
    """

    index: int
    words: list[str] = field(default_factory=list)
    train_index: int = -1


@dataclass(frozen=True, kw_only=True)
class Hypotheses:
    """n hypotheses, with all that is known of them; what is None is not.

    rows (Rows [n]): their features.
    features: names of the features; without them, ids are those of whoever was given the
        hypotheses.
    score (float64 [n]): model scores, row · W.
    gain (float64 [n]): sentence-level gains, once a metric has given them.
    statistics (int32 or float64 [n, statistics]): of `measure`; those of BLEU are as
        `torchtune_smt.metrics.bleu.BleuReferences` has them.
    measure: what the metric of `statistics` is of a corpus.
    entry (int64 [n]): what a hypothesis is known by in whatever order: its line in a file (from 1),
        or its place in the list as it was read (from 0).
    token_begin (int64 [n + 1])
    tokens (int32 [number of tokens]): hypothesis h is ``tokens[token_begin[h]:token_begin[h +
        1]]``, in ids of `words`. Hypotheses without tokens are all different ones.
    ids: what files call the sentences: that with number `index` is ``ids[index]``.
    """

    rows: Rows
    features: Vocabulary | None = None
    score: Float64 | None = None
    gain: Float64 | None = None
    statistics: Int32 | Float64 | None = None
    measure: Measure = BLEU
    entry: Int64 | None = None
    token_begin: Int64 | None = None
    tokens: Int32 | None = None
    words: Vocabulary | None = None
    ids: Vocabulary | None = None

    def strings(self) -> tuple[Int64, Int32]:
        """Return `token_begin` and `tokens`; raise ValueError where there are no words."""
        if self.tokens is None or self.token_begin is None:
            raise ValueError("these hypotheses have no words")
        return self.token_begin, self.tokens

    def hypothesis(self, h: int) -> Int32:
        """Return the word ids of hypothesis `h`; raise ValueError where there are no words."""
        begin, tokens = self.strings()
        return tokens[begin[h] : begin[h + 1]]

    def row(self, h: int) -> tuple[Int32, Float64]:
        """Return the feature ids and values of hypothesis `h`."""
        return self.rows.row(h)

    def text(self, h: int) -> str:
        """Return the words of hypothesis `h` in one line; without words, what it is known by."""
        if self.words is not None:
            return " ".join(self.words.names(self.hypothesis(h)))
        return str(h if self.entry is None else int(self.entry[h]))

    def texts(
        self, count: int | None = None, line: Callable[[list[str]], str] = " ".join
    ) -> list[str]:
        """Return what `text` does of the first hypotheses, by default all, in lines of words."""
        count = len(self.rows) if count is None else count
        if self.words is None:
            return [self.text(h) for h in range(count)]
        begin, tokens = self.strings()
        names = self.words.names(tokens[begin[0] : begin[count]].tolist())
        ends = (begin[: count + 1] - begin[0]).tolist()
        return [line(names[a:b]) for a, b in pairwise(ends)]

    def with_gains(self, gain: Float64) -> Self:
        """Return the hypotheses with gains (float64 [n])."""
        return replace(self, gain=gain)

    def _check(self) -> None:
        """Raise ValueError unless everything is of one length, in range, and finite."""
        self.rows.check(None if self.features is None else len(self.features))
        for name in _COLUMNS:
            column = getattr(self, name)
            if column is None:
                continue
            if column.shape[0] != len(self.rows):
                raise ValueError(f"{len(self.rows)} hypotheses have {column.shape[0]} of {name}")
            if not np.isfinite(column).all():
                raise ValueError(f"a {name} is not finite")
        if (self.tokens is None) != (self.token_begin is None):
            raise ValueError("tokens and token_begin must be given both, or neither")
        if self.tokens is not None and self.token_begin is not None:
            if self.token_begin.size != len(self.rows) + 1 or not are_offsets(
                self.token_begin, self.tokens.size
            ):
                raise ValueError("`token_begin` must ascend from 0 to the number of tokens")
            size = np.inf if self.words is None else len(self.words)
            if self.tokens.size and not 0 <= self.tokens.min() <= self.tokens.max() < size:
                raise ValueError("a token is no id of `words`")

    def _some(self, numbers: Int64) -> dict[str, Any]:
        """Return the fields of some hypotheses."""
        found: dict[str, Any] = {"rows": self.rows.chosen(numbers), **self._columns(numbers)}
        if self.tokens is not None and self.token_begin is not None:
            found["token_begin"], places = places_of(self.token_begin, numbers)
            found["tokens"] = self.tokens[places]
        return found

    def _between(self, first: int, last: int) -> dict[str, Any]:
        """Return the fields of the hypotheses ``first .. last - 1``, sharing memory."""
        found: dict[str, Any] = {"rows": self.rows.between(first, last)}
        found |= {"features": self.features, "words": self.words, "ids": self.ids}
        found["measure"] = self.measure
        found |= self._columns(slice(first, last))
        if self.tokens is not None and self.token_begin is not None:
            begin = self.token_begin[first : last + 1]
            found["token_begin"] = begin - begin[0]
            found["tokens"] = self.tokens[begin[0] : begin[-1]]
        return found

    def _columns(self, numbers: Int64 | slice) -> dict[str, Any]:
        """Return what some hypotheses have one of each."""
        columns = {name: getattr(self, name) for name in _COLUMNS}
        return {name: None if c is None else c[numbers] for name, c in columns.items()}


_BLANK: Final = np.isin(np.arange(256), list(b" \t\n\r"))
_COLUMNS: Final = ("score", "gain", "statistics", "entry")


@dataclass(frozen=True, kw_only=True)
class KBest(Hypotheses):
    """The k-best list of one sentence, best first where a decoder gave it.

    index: `Source.index` of the sentence.
    """

    index: int

    def __len__(self) -> int:
        return len(self.rows)

    def finite_gains(self) -> Float64:
        """Return the gains; raise ValueError unless each hypothesis has one, a finite number."""
        gain = self.gain
        if gain is None or gain.size != len(self) or not np.isfinite(gain).all():
            raise ValueError(
                f"sentence {self.index}: each of {len(self)} hypotheses needs a gain, a finite "
                "number; let a metric set `gain` first"
            )
        return gain


@dataclass(frozen=True, kw_only=True)
class KBestLists(Hypotheses):
    """The k-best lists of S sentences; their hypotheses are numbered throughout.

    ``lists[s]`` is a view of one list; ``len(lists)`` is S.

    index (int64 [S]): `Source.index` of each list.
    begin (int64 [S + 1]): hypotheses of list s are ``begin[s] .. begin[s + 1] - 1``.
    """

    index: Int64
    begin: Int64

    @classmethod
    def of(cls, kbests: Sequence[KBest]) -> KBestLists:
        """Return lists of single sentences together; raise ValueError where they do not fit."""
        return cls(
            index=np.array([kbest.index for kbest in kbests], np.int64),
            begin=offsets([len(kbest) for kbest in kbests]),
            **_together(kbests),
        )

    @classmethod
    def joined(cls, parts: Sequence[KBestLists]) -> KBestLists:
        """Return the lists of all parts, in their order; raise ValueError where they do not fit."""
        if len(parts) == 1:
            return parts[0]
        return cls(
            index=np.concatenate([np.empty(0, np.int64), *(part.index for part in parts)]),
            begin=joined_offsets([part.begin for part in parts]),
            **_together(parts),
        )

    @classmethod
    def gathered(cls, parts: Iterable[KBestLists]) -> KBestLists:
        """Return `joined` lists of parts that are made one by one; see `Rows.gathered`."""
        rest: list[KBestLists] = []
        none = Rows.of_dicts([], Vocabulary())

        def rows() -> Iterator[Rows]:
            for part in parts:
                rest.append(replace(part, rows=none))
                yield part.rows

        rows_of_all = Rows.gathered(rows())
        return replace(cls.joined(rest), rows=rows_of_all)

    @classmethod
    def of_strings(
        cls,
        hypotheses: Sequence[Sequence[str]],
        features: Sequence[Sequence[Mapping[str, float]]] | None = None,
        *,
        scores: Sequence[Sequence[float]] | None = None,
        gains: Sequence[Sequence[float]] | None = None,
        index: Sequence[int] | None = None,
        words: Vocabulary | None = None,
        names: Vocabulary | None = None,
    ) -> KBestLists:
        """Return lists of strings and of features by name.

        Raises ValueError: a list is empty, a number is not finite, two lists are of one sentence,
        or there are more or fewer features or numbers than hypotheses; says where.

        hypotheses: ``hypotheses[s][h]``: tokenised, with blanks between the words.
        features: ``features[s][h]``: values by the names of the features; none by default.
        scores, gains: a number for each hypothesis.
        index: number of each sentence, by which its references are found; 0, 1, 2, ... by default.
        words, names: words and names of features; those that are new are added.
        """
        names = Vocabulary() if names is None else names
        sizes = [len(strings) for strings in hypotheses]
        for s, strings in enumerate(hypotheses):
            if isinstance(strings, str) or not all(isinstance(text, str) for text in strings):
                raise ValueError(f"list {s}: hypotheses must be a sequence of strings")
            if len(strings) == 0:
                raise ValueError(f"list {s} is empty")
        given: dict[str, Any] = {"features": features, "scores": scores, "gains": gains}
        for what, lists in given.items():
            others = sizes if lists is None else map(len, lists)
            for s, (size, other) in enumerate(zip_longest(sizes, others)):
                if size != other:
                    raise ValueError(f"list {s}: hypotheses and {what} must be as many")
        score, gain = (
            None if lists is None else np.array([x for row in lists for x in row], np.float64)
            for lists in (scores, gains)
        )
        texts = [text for strings in hypotheses for text in strings]
        rows = [row for one in features for row in one] if features else [{}] * len(texts)
        return cls._checked(
            texts,
            words,
            index=np.arange(len(sizes)) if index is None else np.array(index, np.int64),
            begin=offsets(sizes),
            rows=Rows.of_dicts(rows, names),
            features=names,
            score=score,
            gain=gain,
        )

    @classmethod
    def _checked(
        cls,
        texts: Sequence[str] | None,
        words: Vocabulary | None,
        ids: Sequence[str] | None = None,
        **fields: Any,
    ) -> KBestLists:
        """Return lists with the words of texts, and ids, if these are what they should be."""
        if texts is not None:
            fields |= tokens_of(texts, Vocabulary() if words is None else words)
        if ids is not None:
            _check_distinct("id", ids)
        result = cls(ids=None if ids is None else Vocabulary(ids), **fields)
        result.check()
        return replace(result, entry=result.entries())

    @classmethod
    def of_arrays(
        cls,
        begin: Sequence[int] | Int64,
        values: Any,
        columns: Sequence[str],
        *,
        texts: Sequence[str] | None = None,
        ids: Sequence[str] | None = None,
        score: Float64 | None = None,
        gain: Float64 | None = None,
        words: Vocabulary | None = None,
        names: Vocabulary | None = None,
    ) -> KBestLists:
        """Return the lists that arrays hold: sentence s is number s, and has number s of `ids`.

        A sentence without hypotheses counts, and has no list.

        Raises ValueError: shapes do not fit, a number is not finite, a name or id is there twice;
        says where.

        begin (int [S + 1]): hypotheses of list s are ``begin[s] .. begin[s + 1] - 1``.
        values (float [n, D], or a matrix in SciPy's CSR form): of D features; zeros are left out.
        columns: their names.
        texts: the hypotheses, with blanks between the words.
        score, gain (float [n])
        words, names: as for `of_strings`.
        """
        begin = np.asarray(begin, np.int64)
        names = Vocabulary() if names is None else names
        sparse = all(hasattr(values, name) for name in ("indptr", "indices", "data"))
        values = values if sparse else np.asarray(values, np.float64)
        n, size = int(begin[-1]) if begin.size else 0, max(begin.size - 1, 0)
        if values.shape != (n, len(columns)):
            raise ValueError(
                f"values are {list(values.shape)}, and there are {n} hypotheses (`begin` ends so) "
                f"and {len(columns)} columns"
            )
        for what, given, wanted in (("texts", texts, n), ("ids", ids, size)):
            if given is not None and len(given) != wanted:
                raise ValueError(f"there are {len(given)} {what}, and {wanted} are needed")
        _check_distinct("column", columns)
        column = names.intern(columns)
        if sparse:
            rows = Rows(
                np.array(values.indptr, np.int64),
                column[values.indices],
                np.array(values.data, np.float64),
            )
        else:
            there = values != 0
            rows = Rows(
                offsets(there.sum(axis=1)),
                np.broadcast_to(column, values.shape)[there],
                values[there],
            )
        result = cls._checked(
            texts,
            words,
            ids,
            index=np.arange(size),
            begin=begin,
            rows=rows.where(rows.value != 0).sorted(),
            features=names,
            score=None if score is None else np.asarray(score, np.float64),
            gain=None if gain is None else np.asarray(gain, np.float64),
        )
        there = np.flatnonzero(np.diff(begin))
        return result if there.size == size else result.some(there)

    @classmethod
    def of_records(
        cls,
        records: Sequence[Mapping[str, Any]],
        *,
        words: Vocabulary | None = None,
        names: Vocabulary | None = None,
    ) -> KBestLists:
        """Return the lists of records, as JSON lines have them.

        A record is ``{"id": "utt1", "hypotheses": [{"text": "a b", "features": {"lm": -3.2}}]}``. A
        hypothesis may have a ``score``; features that it does not name are 0, dense ones, too.
        Without ids, the number of the record is its id, from 0; a record without hypotheses counts,
        and has no list. What else there is (``source``, ``references``) is not looked at.

        Raises ValueError: a record is none; says which one.

        words, names: as for `of_strings`.
        """
        ids: list[str] = []
        found: list[Mapping[str, Any]] = []
        for number, record in enumerate(records):
            lists = record.get("hypotheses") if isinstance(record, Mapping) else None
            if not isinstance(lists, Sequence) or not all(
                isinstance(h, Mapping) and isinstance(h.get("text"), str) for h in lists
            ):
                raise ValueError(f'record {number} is no {{"hypotheses": [{{"text": ...}}, ...]}}')
            ids.append(str(record.get("id", number)))
            found += lists
        scores = [hypothesis.get("score") for hypothesis in found]
        if 0 < scores.count(None) < len(scores):
            raise ValueError("some hypotheses have a score, and some have none")
        names = Vocabulary() if names is None else names
        result = cls._checked(
            [hypothesis["text"] for hypothesis in found],
            words,
            ids,
            index=np.arange(len(ids)),
            begin=offsets([len(record["hypotheses"]) for record in records]),
            rows=Rows.of_dicts([hypothesis.get("features", {}) for hypothesis in found], names),
            features=names,
            score=np.array(scores, np.float64) if scores and scores[0] is not None else None,
        )
        return result.some(np.flatnonzero(np.diff(result.begin)))

    def __len__(self) -> int:
        return self.index.size

    def __getitem__(self, s: int) -> KBest:
        if not 0 <= s < len(self):
            raise IndexError(f"list {s} is not in 0..{len(self) - 1}")
        first, last = self.begin[s : s + 2].tolist()
        return KBest(index=int(self.index[s]), **self._between(first, last))

    def __iter__(self) -> Iterator[KBest]:
        return (self[s] for s in range(len(self)))

    def between(self, first: int, last: int) -> KBestLists:
        """Return the lists ``first .. last - 1``; their hypotheses are not copied."""
        begin = self.begin[first : last + 1]
        span = self._between(*begin[[0, -1]].tolist())
        return KBestLists(index=self.index[first:last], begin=begin - begin[0], **span)

    @property
    def n_hypotheses(self) -> int:
        """The number of hypotheses in all lists."""
        return int(self.begin[-1])

    def entries(self) -> Int64:
        """Return what hypotheses are known by: `entry`, or else their places in the lists."""
        if self.entry is not None:
            return self.entry
        return np.arange(self.n_hypotheses) - np.repeat(self.begin[:-1], np.diff(self.begin))

    def check(self) -> None:
        """Raise ValueError unless the lists are as described, with finite numbers."""
        if self.begin.size != self.index.size + 1 or not are_offsets(self.begin, len(self.rows)):
            raise ValueError(
                f"`begin` must ascend from 0 to {len(self.rows)}, the number of hypotheses, and "
                "have one more entry than there are lists"
            )
        if np.unique(self.index).size < self.index.size:
            raise ValueError("two lists are of one sentence")
        self._check()

    def chosen(self, numbers: Int64) -> KBestLists:
        """Return some hypotheses in this order, those of a list together; no list is empty."""
        kept, begin = runs(np.searchsorted(self.begin, numbers, side="right") - 1)
        return replace(self, index=self.index[kept], begin=begin, **self._some(numbers))

    def some(self, lists: Int64) -> KBestLists:
        """Return some of the lists (int64 array of numbers), in this order."""
        begin, numbers = places_of(self.begin, lists)
        return replace(self, index=self.index[lists], begin=begin, **self._some(numbers))

    def by_sentence(self) -> KBestLists:
        """Return one list for each index, ascending: lists of a sentence behind each other."""
        owner = np.repeat(self.index, np.diff(self.begin))
        lists = self
        if (np.diff(owner) < 0).any():
            order = np.argsort(owner, kind="stable")
            owner, lists = owner[order], replace(self, **self._some(order))
        index, begin = runs(owner)
        return replace(lists, index=index, begin=begin)

    def with_empty(self, numbers: Sequence[int]) -> KBestLists:
        """Return the lists, and one for each of these sentences, which have none yet.

        It has one hypothesis, without words and features, and with 0 in the place of numbers.
        """
        n, none = len(numbers), np.zeros(len(numbers) + 1, np.int64)
        columns = self._columns(slice(0)).items()
        zeros: dict[str, Any] = {
            name: np.zeros((n, *c.shape[1:]), c.dtype) for name, c in columns if c is not None
        }
        more = replace(
            self,
            index=np.array(numbers, np.int64),
            begin=np.arange(n + 1),
            rows=Rows(none, np.empty(0, np.int32), np.empty(0)),
            token_begin=None if self.tokens is None else none,
            tokens=None if self.tokens is None else self.tokens[:0],
            **zeros,
        )
        return KBestLists.joined([self, more]).by_sentence()

    def best(self, weights: Float64) -> Int64:
        """Return for each list the hypothesis with the largest W·H (int64 [S]), first of ties."""
        out = np.empty(len(self), np.int64)
        kernels.best(self.begin, self.rows.dot(weights), out)
        return out

    def to_torch(
        self, device: torch.device | str = "cpu", *, pairs: Int64 | None = None
    ) -> ListTensors:
        """Return the lists as tensors on a device, which share no memory with them.

        `pairs` (int64 [p, 2]): hypotheses to be compared; see `torchtune_smt.samplers.list_pairs`.
        """
        from torchtune_smt.kbest.tensors import ListTensors

        return ListTensors.of(self, pairs).to(device)

    def without_copies(self) -> KBestLists:
        """Return the lists without hypotheses whose words, features and statistics came before."""
        owner = np.repeat(np.arange(len(self)), np.diff(self.begin))
        keys = [*self.hashes(self.rows.value.view(np.uint32).reshape(-1, 2)), owner]
        if self.statistics is not None:
            keys += list(self.statistics.T)
        order = np.lexsort(keys)
        new: Bool = np.zeros(order.size, np.bool_)
        new[:1] = True
        for key in keys:
            new[1:] |= key[order[1:]] != key[order[:-1]]
        return self if new.all() else self.chosen(np.sort(order[new]))

    def hashes(self, bits: NDArray[np.uint32], words_only: bool = False) -> list[UInt64]:
        """Return hashes of 64 bits of the hypotheses, by their words, if any, and features.

        bits (uint32 [non-zeros, hashes]): what stands for values in each; 0 is no feature.
        words_only: leave the features out.
        """
        begin, tokens = np.zeros(self.n_hypotheses + 1, np.int64), np.empty(0, np.int32)
        if self.tokens is not None:
            begin, tokens = self.strings()
        rows = self.rows
        return [
            kernels.hash_hypotheses(begin, tokens, rows.begin, rows.feature, column, words_only)
            for column in np.ascontiguousarray(bits.T)
        ]


def _check_distinct(what: str, names: Sequence[str]) -> None:
    """Raise ValueError where a name is there twice."""
    if len(set(names)) < len(names):
        twice = next(name for name, count in Counter(names).items() if count > 1)
        raise ValueError(f"the {what} {twice!r} is there twice")


def tokens_of(texts: Sequence[str], words: Vocabulary) -> dict[str, Any]:
    """Return the fields of hypotheses that hold their words; new ones are added to `words`."""
    encoded = [text.encode("utf-8") for text in texts]
    bounds = offsets([len(text) + 1 for text in encoded])
    # A bytearray, since numba compiles anew for arrays that are read-only.
    buffer = np.frombuffer(bytearray(b"\n").join([b"", *encoded, b""]), np.uint8)
    blank = _BLANK[buffer]
    begin = np.flatnonzero(blank[:-1] & ~blank[1:]) + 1
    end = np.flatnonzero(~blank[:-1] & blank[1:]) + 1
    return {
        "token_begin": np.searchsorted(begin, bounds + 1),
        "tokens": words.intern_spans(buffer, begin, end),
        "words": words,
    }


def _together(parts: Sequence[Hypotheses]) -> dict[str, Any]:
    """Return the fields of the hypotheses of all parts."""
    found: dict[str, Any] = {"rows": Rows.joined([part.rows for part in parts])}
    for name in (f.name for f in fields(Hypotheses) if f.name != "rows"):
        given = [getattr(part, name) for part in parts]
        if not given or all(value is None for value in given):
            continue
        if any(value is None for value in given):
            raise ValueError(f"some lists have {name}, and some have none")
        if name in ("features", "words", "ids", "measure"):
            if any(value is not given[0] and value != given[0] for value in given):
                raise ValueError(f"the lists do not share their {name}")
            found[name] = given[0]
        else:
            found[name] = joined_offsets(given) if name == "token_begin" else np.concatenate(given)
    return found

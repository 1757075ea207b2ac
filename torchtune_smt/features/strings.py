"""Sparse features of the texts of k-best lists: which words and letters a hypothesis is made of.

A feature that all hypotheses of a list have as often says nothing of which one is better, and is
left out there: what is left is where they differ. No reference is asked, so that new lists get the
same features.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, Self
from zlib import crc32

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from rapidfuzz.distance import Levenshtein

from torchtune_smt.core.accepts import Checked, accepting, integer
from torchtune_smt.core.arrays import Bool, Float64, Int32, Int64
from torchtune_smt.core.errors import InputError
from torchtune_smt.core.offsets import offsets, places_of
from torchtune_smt.core.text import split_words
from torchtune_smt.core.textio import read_lines
from torchtune_smt.core.vocabulary import SequenceTable, Vocabulary
from torchtune_smt.core.weights_io import read_comment
from torchtune_smt.features.templates import escape
from torchtune_smt.features.texts import added_by
from torchtune_smt.kbest.lists import KBestLists
from torchtune_smt.kbest.stored_lists import StoredLists
from torchtune_smt.kbest.tools import keyed_lines

# Lists that are looked at together.
_PIECE: Final = 1000
_TITLE: Final = "string features: "
# Nothing stands there; a blank, of letters.
_NONE: Final = -1
_BLANK: Final = ord(" ")

Found = tuple[Int64, Int32]
"""owner (int64 [m]): the hypothesis of each firing; symbols (int32 [m, w]): what fires in it."""


def _grams(begin: Int64, symbols: Int32, n: int) -> Found:
    """Return n symbols in a row, of hypotheses ``symbols[begin[h]:begin[h + 1]]``."""
    owner = np.repeat(np.arange(begin.size - 1), np.diff(begin))
    if symbols.size < n:
        return owner[:0], np.empty((0, n), np.int32)
    inside = np.flatnonzero(owner[: owner.size - n + 1] == owner[n - 1 :])
    return owner[inside], sliding_window_view(symbols, n)[inside]


def _words(lists: KBestLists, n: int, sources: Sequence[str] | None) -> Found:
    return _grams(*lists.strings(), n)


def _letters(lists: KBestLists, n: int, sources: Sequence[str] | None) -> Found:
    """A blank stands before each word."""
    begin, tokens = lists.strings()
    assert lists.words is not None
    kinds, place = np.unique(tokens, return_inverse=True)
    words = [f" {word}" for word in lists.words.names(kinds)]
    codes = np.frombuffer("".join(words).encode("utf-32-le"), np.int32)
    starts, places = places_of(offsets([len(word) for word in words]), place)
    return _grams(starts[begin], codes[places], n)


def _edits(lists: KBestLists, n: int, sources: Sequence[str] | None) -> Found:
    """Words in the place of those of the first hypothesis."""
    owner: list[int] = []
    pairs: list[tuple[int, int]] = []
    for s in range(len(lists)):
        first, *others = range(lists.begin[s], lists.begin[s + 1])
        old = lists.hypothesis(first).tolist()
        for h in others:
            new = lists.hypothesis(h).tolist()
            for edit in Levenshtein.editops(old, new):
                gone = _NONE if edit.tag == "insert" else old[edit.src_pos]
                owner.append(h)
                pairs.append((gone, _NONE if edit.tag == "delete" else new[edit.dest_pos]))
    return np.array(owner, np.int64), np.array(pairs, np.int32).reshape(-1, 2)


def _pairs(lists: KBestLists, n: int, sources: Sequence[str] | None) -> Found:
    """Each word, beside each of the words of the source."""
    if sources is None:
        raise InputError(
            "strings: `source` needs the source sentences; give sources=FILE, or JSON lines with a "
            "`source`"
        )
    assert lists.words is not None
    begin, tokens = lists.strings()
    owner, _ = _grams(begin, tokens, 1)
    own_owner, word, count = _counted(lists.begin, owner, tokens)
    owner, tokens = np.repeat(own_owner, count), np.repeat(word, count).astype(np.int32)
    own = [np.unique(lists.words.intern(split_words(source))) for source in sources]
    starts = offsets([one.size for one in own])
    numbers = np.searchsorted(lists.begin, owner, side="right") - 1
    bounds, places = places_of(starts, numbers)
    length = np.diff(bounds)
    symbols = np.concatenate([np.empty(0, np.int32), *own])[places]
    return np.repeat(owner, length), np.column_stack([symbols, np.repeat(tokens, length)])


class _Template(NamedTuple):
    """`between`: what separates its symbols in names. `letters`: whether these are letters."""

    found: Callable[[KBestLists, int, Sequence[str] | None], Found]
    between: Literal["_", "~", ""]
    letters: bool = False


TEMPLATES: Final = {
    "word": _Template(_words, ""),
    "ngram": _Template(_words, "_"),
    "chars": _Template(_letters, "", letters=True),
    "substitution": _Template(_edits, "~"),
    "source": _Template(_pairs, "~"),
}
"""Templates by the beginning of the names of their features."""

NUMBERED: Final = ("ngram", "chars")
"""Those whose name ends in a number, that of words or letters."""


def _counted(begin: Int64, owner: Int64, id: Int32) -> tuple[Int64, Int64, Int64]:
    """Return how often features fire, but those that a list has throughout: owner, id, count."""
    columns = int(id.max(initial=-1)) + 1
    pair, count = np.unique(owner * columns + id, return_counts=True)
    owner, feature = pair // max(columns, 1), pair % max(columns, 1)
    number = np.searchsorted(begin, owner, side="right") - 1
    _, place = np.unique(number * columns + feature, return_inverse=True)
    n, total, squares = (np.bincount(place, of)[place] for of in (None, count, count**2))
    differs = (n < np.diff(begin)[number]) | (total**2 != n * squares)
    return owner[differs], feature[differs], count[differs]


@dataclass(frozen=True)
class StringFeatures(Checked):
    """Sparse features of texts, ``template:...``, each with how often it fires.

    templates: ``word``; ``ngram2``, ``ngram3``, ...: words in a row; ``chars1``, ``chars2``, ...:
        letters in a row, with a blank (``_``) before each word; ``substitution``: words in the
        place of those of the decoder's first hypothesis (one side is empty for an insertion or a
        deletion); ``source``: pairs of a word of the source and one of the hypothesis.
    bits: names are hashed to so many bits, a template's each; by default they are what they are.

    Raises InputError: there is no such template. ValueError: `bits` is out of range.
    """

    accepts = accepting(bits=integer(1, 32).or_null())

    templates: tuple[str, ...]
    bits: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        for given in self.templates:
            name, number = _parts(given)
            wrong = number.startswith("0") or (name in NUMBERED) != bool(number)
            if name not in TEMPLATES or wrong:
                raise InputError(
                    f"strings: there is no template {given!r}; there are word, ngram2, ngram3, "
                    "chars1, chars2, substitution, source, and so on"
                )

    @classmethod
    def read(cls, path: str | PathLike[str]) -> Self | None:
        """Return what a weights file says of them; raise InputError where that is not whole."""
        return read_comment(
            path, _TITLE, lambda given: cls(tuple(map(str, given["templates"])), given["bits"])
        )

    def comment(self) -> str:
        """Return what a weights file says."""
        return _TITLE + json.dumps({"templates": self.templates, "bits": self.bits})

    def gives(self, name: str) -> bool:
        """Say whether a feature is one of these."""
        return name.partition(":")[0] in self.templates and ":" in name

    def added(
        self,
        lists: KBestLists,
        known: Vocabulary,
        sources: Sequence[str] | None = None,
        least: int = 0,
    ) -> KBestLists:
        """Return lists, with names of features and words, that have these features, too.

        known: those of other names are left out; where it is that of the lists, nothing is.
        sources: of each list, for ``source``.
        least: if above 0, features in which so many lists differ are added to `known` before.

        Raises InputError: the lists have features of such names already; or there are no sources,
            and a template looks at them.
        """
        assert lists.features is not None
        own = lists.features.names(np.unique(lists.rows.feature))
        if twice := next(filter(self.gives, own), None):
            raise InputError(
                f"the lists have a feature {twice!r} of their own; rename it, or leave "
                f"{twice.partition(':')[0]} out of strings"
            )
        for template in self.templates:
            names, owner, id, count = self._found(template, lists, sources)
            kept: Bool = known.lookup(names) >= 0
            if least:
                number = np.searchsorted(lists.begin, owner, side="right") - 1
                pairs = np.unique(number * len(names) + id) % max(len(names), 1)
                kept |= np.bincount(pairs, minlength=len(names)) >= least
            new = np.full(len(names), -1, np.int64)
            new[kept] = lists.features.intern([names[i] for i in np.flatnonzero(kept).tolist()])
            there = new[id] >= 0
            rows = lists.rows.with_entries(owner[there], new[id[there]], count[there])
            lists = replace(lists, rows=rows)
        return lists

    def _found(
        self, template: str, lists: KBestLists, sources: Sequence[str] | None
    ) -> tuple[list[str], Int64, Int64, Float64]:
        """Return names of features, and where which one fires how often: owner, id, count."""
        name, number = _parts(template)
        kind = TEMPLATES[name]
        table: SequenceTable[Any] = SequenceTable(np.int32)
        parts, width = [tuple(np.empty((3, 0), np.int64))], 1
        for first in range(0, len(lists), _PIECE):
            last = min(first + _PIECE, len(lists))
            some = lists.between(first, last)
            of = None if sources is None else sources[first:last]
            owner, symbols = kind.found(some, int(number or 1), of)
            width = symbols.shape[1]
            begin = width * np.arange(owner.size)
            ids = table.intern_spans(np.ascontiguousarray(symbols).ravel(), begin, begin + width)
            fires, *counted = _counted(some.begin, owner, ids)
            parts.append((fires + lists.begin[first], *counted))
        owner, found, count = map(np.concatenate, zip(*parts, strict=True))
        used, id = np.unique(found, return_inverse=True)
        assert lists.words is not None
        spelt = _spelt(table.symbols.reshape(-1, width)[used], kind, lists.words)
        names = [f"{template}:{text}" for text in spelt]
        if self.bits is not None:
            names = [f"{template}:#{crc32(n.encode()) >> 32 - self.bits}" for n in names]
            distinct = Vocabulary()
            id = distinct.intern(names).astype(np.int64)[id]
            names = distinct.names(range(len(distinct)))
            pair, place = np.unique(owner * len(names) + id, return_inverse=True)
            owner, id, count = pair // len(names), pair % len(names), np.bincount(place, count)
        return names, owner, id, count.astype(np.float64)


def _spelt(symbols: Int32, kind: _Template, words: Vocabulary) -> list[str]:
    """Return rows of symbols (int32 [m, w]) as they stand in names."""
    kinds, place = np.unique(symbols, return_inverse=True)
    if kind.letters:
        texts = ["_" if code == _BLANK else escape(chr(code)) for code in kinds.tolist()]
    else:
        there = kinds[kinds != _NONE]
        texts = [""] * (kinds.size - there.size) + [escape(word) for word in words.names(there)]
    spelt = np.array([*texts, ""], object)[place.reshape(symbols.shape)].tolist()
    return [kind.between.join(row) for row in spelt]


def _parts(template: str) -> tuple[str, str]:
    """Return the name of a template, and the number behind it."""
    name = template.rstrip("0123456789")
    return name, template[len(name) :]


Sources = Callable[[StoredLists], Mapping[int, str] | None]
"""Returns source sentences by the numbers of lists; None: there are none."""


def sources_from(path: str | None, strings: StringFeatures | None) -> Sources:
    """Return what finds the sources of lists: in a file, or in the lists.

    path: lines ``id text`` where lists have names of sentences, else a line a sentence.

    Raises InputError: no template looks at sources. What is returned does where one is missing.
    """
    if path is not None and (strings is None or "source" not in strings.templates):
        raise InputError("sources would change nothing without strings=[source]", path=path)
    lines = [] if path is None else read_lines(Path(path))
    numbered = dict(enumerate(lines))
    keyed: dict[str, str] = {}

    def found(stored: StoredLists) -> Mapping[int, str] | None:
        numbers, ids = stored.lists.index.tolist(), stored.lists.ids
        if path is None:
            return stored.sources if stored.sources.keys() >= {*numbers} else None
        texts = numbered
        if ids is not None:
            if not keyed:
                keyed.update((id, text) for id, (text, _) in keyed_lines(Path(path), lines).items())
            called = dict(zip(numbers, ids.names(numbers), strict=True))
            texts = {n: keyed[id] for n, id in called.items() if id in keyed}
        for number in numbers:
            if number not in texts:
                name = number if ids is None else repr(ids[number])
                raise InputError(f"has no line for sentence {name}, which has a list", path=path)
        return texts

    return found


def added_to_new(
    path: str | PathLike[str], weighted: Sequence[str], sources: str | None = None
) -> tuple[Callable[[StoredLists], KBestLists] | None, list[str]]:
    """Return what gives new lists the features of texts that a weights file needs, if any.

    weighted: the features that have a weight there; those of strings are returned, too.
    sources: a file of source sentences; see `sources_from`.
    """
    texts, strings = added_by(path, weighted), StringFeatures.read(path)
    of = sources_from(sources, strings)
    given = [] if strings is None else list(filter(strings.gives, weighted))
    known, seen = Vocabulary(given), None

    def added(stored: StoredLists) -> KBestLists:
        nonlocal seen
        lists = stored.lists if texts is None else texts(stored.lists)
        if strings is None:
            return lists
        assert lists.features is not None
        if lists.features is not seen:
            seen = lists.features
            seen.intern(given)
        found = of(stored)
        own = None if found is None else [found[number] for number in lists.index.tolist()]
        return strings.added(lists, known, own)

    return (None if texts is None and strings is None else added), given

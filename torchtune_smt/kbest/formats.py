"""Files of k-best lists with fields between ``|||``, such as Moses's and cdec's."""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, get_args

import numpy as np

from torchtune_smt.core.accepts import one_of
from torchtune_smt.core.arrays import Bool, Float64, Int32, Int64, UInt8
from torchtune_smt.core.errors import InputError
from torchtune_smt.core.offsets import offsets, runs
from torchtune_smt.core.rows import Rows
from torchtune_smt.core.text import BLANKS, finite_number, split_fields, split_words
from torchtune_smt.core.text_kernels import POWERS, count_lines
from torchtune_smt.core.textio import text_pieces
from torchtune_smt.core.vocabulary import Vocabulary
from torchtune_smt.kbest import formats_kernels as kernels
from torchtune_smt.kbest.formats_kernels import Piece
from torchtune_smt.kbest.lists import KBest, KBestLists
from torchtune_smt.kbest.stored_lists import StoredLists, listed, names_in


def longest_in_order(numbers: Int64) -> Int64:
    """Return places (ascending) of as many numbers as can be left so that none is below one before.

    One number that is far too large costs one place, not all that follow it. Of several choices the
    one is returned that leaves out the later numbers.
    """
    if not (np.diff(numbers) < 0).any():
        return np.arange(numbers.size)
    # Patience sorting, from the end: the last number of the best sequence of each length so far.
    lasts: list[int] = []
    places: list[int] = []
    following: list[int] = [-1] * numbers.size
    for place in range(numbers.size - 1, -1, -1):
        number = -int(numbers[place])
        length = bisect_right(lasts, number)
        following[place] = places[length - 1] if length else -1
        lasts[length : length + 1] = [number]
        places[length : length + 1] = [place]
    found = []
    place = places[-1]
    while place >= 0:
        found.append(place)
        place = following[place]
    return np.array(found, np.int64)


Format = Literal["cdec", "moses"]
OnError = Literal["error", "skip"]
Sizes = tuple[int, int, int, int]

PIECE: Final = 1 << 22
"""Bytes that are parsed at a time."""

# Values of a part of the lists that are read: an array of so many is given back to the system.
_PART: Final = 1 << 23

# What a sentence is called that has no number; other tools would take ``0x0`` and ``1_0`` for one.
_NAME: Final = re.compile(r"(?!0x)(?=.*[A-Za-z]|[^ \t]+-)[^ \t]+")

# Bytes of a file that tell how it is written.
_LOOKED_AT: Final = 1 << 20
_LINES: Final = 200

MAX_DENSE: Final = 200
"""cdec's lists do not say which features are dense; more than these cannot be meant."""

TUNING_FILES: Final = dict.fromkeys(
    (b"FEATURES_", b"SCORES_"),
    "is one of Moses's tuning files, no n-best list, and has no words; tuning alone takes them, as "
    "decoder.dev=features.dat decoder.dev_scores=scores.dat",
)

_CURES: Final = (
    "; say what stands for a missing one, with missing=VALUE (0 for cdec's lists, which have no "
    "zeros), or which ones are dense, with dense=[NAME,...]; in tuning, these are decoder.missing "
    "and decoder.dense"
)

# For each fault: its name in counts, and the message.
FAULTS: Final = {
    kernels.MISSING_FIELD: (
        "with a field missing",
        "a field is missing: `sentence ||| words ||| features ||| score` is needed",
    ),
    kernels.BAD_SENTENCE: (
        "with a bad sentence number",
        "{token!r} is no sentence number; lines begin with the number of the sentence, from 0",
    ),
    kernels.NO_FEATURE: (
        "with a bad feature",
        "{token!r} stands where `{example}` is expected: a feature has a name, which has no blanks "
        "in it, and a value",
    ),
    kernels.NO_NUMBER: (
        "with a bad value",
        "the feature value {token!r} is no finite number; write `{example}`, and for the logarithm "
        "of 0 a floor, such as -100",
    ),
    kernels.NO_TOTAL: (
        "with a bad score",
        "{token!r} is not the score that the fourth field must hold, one finite number",
    ),
    kernels.NEW_DENSE: (
        "with other dense features",
        "{token!r} is a dense feature that the first line does not have; every line needs the same "
        "ones ({sparse})" + _CURES,
    ),
    kernels.OTHER_WIDTH: (
        "with other dense features",
        "at {token!r}, the line has another number of values than the first one, or than the "
        "block's head names; every line needs the same",
    ),
    kernels.LACKS_DENSE: (
        "with other dense features",
        "the dense feature {token!r} is missing; every line needs the same ones ({sparse})"
        + _CURES,
    ),
    kernels.TWICE: ("with a feature twice", "the feature {token!r} is given twice"),
    kernels.NOT_UTF8: ("not in UTF-8", "is not valid UTF-8; convert the file to UTF-8"),
    kernels.OUT_OF_ORDER: (
        "out of order",
        "the number of the sentence is smaller than that of line {before}, and it has lines before "
        "that; if that is right, put the lines of a sentence together",
    ),
    kernels.NO_STATISTICS: (
        "with bad statistics",
        "BLEU's statistics must be whole numbers, 0 or more, with no more matches than n-grams "
        "(matches and n-grams of each length, then the length of the reference)",
    ),
}


def read_bars(
    path: Path,
    format: Format | None,
    text: bytearray | None,
    dense: Sequence[str] | None,
    **options: Any,
) -> StoredLists:
    """Read a file of n-best lists with fields between ``|||``; see `forms.read_lists`.

    These are sentence number, words, features, score; further ones are not used.

    - ``moses``: ``Label= v v Label= v``. A label is sparse if it has an underscore and one value,
      as in Moses's tuner. Values of the others are called ``Label_0``, ``Label_1``, ... (``LM0_0``,
      too: Moses's own features.dat has it so); every line must have the same ones.
    - ``cdec``: ``name=v name=v``, where the last ``=`` counts. The format does not say which ones
      are dense: here those without a colon; every line must have the same ones.

    A sparse feature that a line does not mention is 0.
    """
    pieces = text_pieces(path, PIECE, TUNING_FILES) if text is None else iter([text])
    first = next(pieces, bytearray())
    if not first:
        raise InputError("is empty; k-best lists are expected", path=path)
    assembler = ListAssembler(path, layout_of(first, format), **options)
    return assembler.read(chain([first], pieces), dense)


def stream_lists(
    path: Path,
    format: Format | None,
    *,
    features: Vocabulary,
    ids: Vocabulary,
    dense: Sequence[str] | None,
    missing: float | None,
) -> Iterator[tuple[StoredLists, list[bytearray]]]:
    """Yield the lists of a file some at a time, with their lines; faults are errors.

    `StoredLists.lists.entry` are still the lines of the whole file: the first of some lists is the
    first of the lines that come with them. Words are numbered anew each time.

    Raises InputError: as `forms.read_lists`; or sentences are not in order.

    missing: None or 0, unless `dense` is given: what stands for a feature must be known from the
        first line on.
    """
    rest, head = bytearray(), bytearray()
    line, sentence = 0, -1
    layout: Layout | None = None
    for piece in chain(text_pieces(path, PIECE, TUNING_FILES), [None]):
        rest += piece or b""
        cut = len(rest) if piece is None else _last_sentence(rest)
        if cut == 0:
            continue
        text = head + rest[:cut]
        rest = rest[cut:]
        layout = layout or layout_of(text, format)
        # The first line of the file, which says what the others must have, stands before each part.
        first = line - bool(head)
        assembler = ListAssembler(path, layout, None, features, ids, "error", missing)
        stored = assembler.read([text], dense, first)
        lists = stored.lists
        if head:
            lists = lists.chosen(np.arange(1, lists.n_hypotheses))
        else:
            head = text[: text.index(b"\n") + 1]
        expected = np.arange(sentence + 1, sentence + 1 + len(lists))
        if (lists.index != expected).any():
            at = int((lists.index != expected).argmax())
            raise InputError(
                f"this list is of sentence {lists.index[at]}, and the next one is {expected[at]}; "
                "sentences are numbered from 0 without gaps, and in order where the file is not "
                "held (on_error=skip holds it, and leaves sentences without a list out)",
                path=path,
                line=int(lists.entries()[lists.begin[at]]),
            )
        sentence += len(lists)
        lines = text.split(b"\n")[1 if first < line else 0 : -1]
        line += len(lines)
        yield replace(stored, lists=lists, n_sentences=sentence + 1), lines
    if layout is None:
        raise InputError("is empty; k-best lists are expected", path=path)


def _last_sentence(text: bytearray) -> int:
    """Return where the lines of the last sentence begin."""
    end, number = len(text), None
    while end:
        begin = text.rfind(b"\n", 0, end - 1) + 1
        found = text[begin:end].partition(b"|||")[0].strip(b" \t")
        if number is not None and found != number:
            return end
        number, end = found, begin
    return 0


class ListAssembler:
    """Puts the parsed pieces of a file together, and deals with their faults.

    path: what errors call it.
    layout: of its lines.
    Others: see `torchtune_smt.kbest.forms.read_lists`.
    """

    def __init__(
        self,
        path: Path,
        layout: Layout,
        words: Vocabulary | None = None,
        features: Vocabulary | None = None,
        ids: Vocabulary | None = None,
        on_error: OnError = "error",
        missing: float | None = None,
    ) -> None:
        one_of(*get_args(OnError)).check("on_error", on_error)
        self.words = Vocabulary() if words is None else words
        self.features = Vocabulary() if features is None else features
        self.ids = None if not layout.named else Vocabulary() if ids is None else ids
        self.skipped: Counter[str] = Counter()
        self._layout = layout
        self._text: UInt8 = np.empty(0, np.uint8)  # names of labels, then the piece at hand
        self._labels: Int64 = np.empty((kernels.MAX_LABELS, 4), np.int64)
        self._path = path
        self._strict = on_error == "error"
        self._missing = missing
        self.set_dense(
            [f"F{i}" for i in range(layout.width)] if layout.form == kernels.UNLABELLED else []
        )
        self.n_sentences = 0  # by the largest number, which `lists` finds
        self._faulty: list[Int64] = []  # the sentence numbers of lines with a fault
        self._n_lines = 0
        self._parts: list[KBestLists] = []
        self._open: list[KBestLists] = []  # which make one part together

    def read(
        self, pieces: Iterable[bytearray], dense: Sequence[str] | None, first: int = 0
    ) -> StoredLists:
        """Return the lists of pieces of a text, whose lines are `first` + 1 and so on."""
        for piece, sizes, lines in self.parsed(pieces):
            self.add(piece, sizes, lines + 1 + first)
        names, given = self.dense_names if dense is None else list(dense), dense is not None
        is_cdec = self._layout.form == kernels.CDEC
        if is_cdec and not given:
            # All names without a colon, or those of the first line if no other may lack them.
            self._close()
            used: Bool = np.zeros(len(self.features), np.bool_)
            for part in self._parts[: 1 if self._missing is None else None]:
                used[part.row(0)[0] if self._missing is None else part.rows.feature] = True
            names = [n for n in self.features.names(np.flatnonzero(used)) if ":" not in n]
            if len(names) > MAX_DENSE:
                raise InputError(
                    f"has {len(names):,} features without a colon in their names, which "
                    "would all be dense; say which ones are, with dense=[NAME,...]",
                    path=self._path,
                )
        # The parser has seen to it that lines have all of Moses's labels.
        must = names if is_cdec or given or self._missing is not None else ()
        lists = self.lists(must, fixed=is_cdec and not given and self._missing is None)
        return StoredLists(
            lists,
            names,
            self._missing != 0,
            self.n_sentences,
            self.skipped,
            n_entries=self._n_lines,
        )

    def parsed(self, pieces: Iterable[bytearray]) -> Iterator[tuple[Piece, Sizes, Int64]]:
        """Yield whole lines in parsed pieces: how much each holds, and numbers of lines from 0."""
        layout, roles = self._layout, np.array(self._layout.roles, np.int64)
        seen: Int64 = np.empty(kernels.MAX_LABELS, np.int64)
        n_labels, line = -1, 0
        for text in chain.from_iterable(map(_split, pieces)):
            start = self._renew(text, max(n_labels, 0))
            lines, tokens = count_lines(self._text[start:])
            piece = Piece.empty(lines, tokens)
            broken = self._blank_invalid(start)
            sizes, n_labels = kernels.parse_lines(
                self._text, start, self._text.size, layout.form, layout.width, roles,
                layout.named, POWERS, self._labels, n_labels, seen,
                self._missing is None, piece,
            )  # fmt: skip
            if layout.form == kernels.MOSES:
                labels = self._labels[: max(n_labels, 0)].tolist()
                named = ((_decoded(self._text[a:b]), width) for a, b, width, _ in labels)
                self.set_dense([f"{label}_{i}" for label, width in named for i in range(width)])
            self._read_long(piece, sizes[-1])
            piece.fault[broken] = kernels.NOT_UTF8
            if self.ids is not None:
                there = np.flatnonzero(piece.id_end > piece.id_begin)
                begin, end = piece.id_begin[there], piece.id_end[there]
                piece.sentence[:] = -1
                piece.sentence[there] = self.ids.intern_spans(self._text, begin, end)
            yield piece, sizes, np.arange(line, line + lines)
            line += lines

    def _renew(self, text: bytearray, n_labels: int) -> int:
        """Take the next piece of the text; return where it begins, behind the labels' names."""
        labels = self._labels[:n_labels]
        names = [self._text[begin:end].tobytes() for begin, end in labels[:, :2].tolist()]
        bounds = offsets([len(name) for name in names])
        labels[:, 0], labels[:, 1] = bounds[:-1], bounds[1:]
        self._text = np.frombuffer(bytearray().join([*names, text]), np.uint8)
        return int(bounds[-1])

    def set_dense(self, names: list[str]) -> None:
        """Say what the dense columns are called."""
        self.dense_names = names
        self._dense = self.features.intern(names)

    def add(self, piece: Piece, sizes: Sizes, line: Int64) -> None:
        """Add a piece, of which so much is used, and whose lines have these numbers, from 1."""
        n_words, n_values, n_names, _ = sizes
        lines = line.size
        names = self.features.intern_spans(
            self._text, piece.name_begin[:n_names], piece.name_end[:n_names]
        )
        row_begin: Int64 = np.empty(lines + 1, np.int64)
        feature: Int32 = np.empty(n_values, np.int32)
        value: Float64 = np.empty(n_values)
        kernels.tidy_rows(piece, self._dense, names, row_begin, feature, value)
        kept = self.check(piece, line)
        tokens = self.words.intern_spans(
            self._text, piece.word_begin[:n_words], piece.word_end[:n_words]
        )
        used = int(row_begin[-1])
        sentence, begin = runs(piece.sentence)
        part = KBestLists(
            index=sentence,
            begin=begin,
            # Copies: the piece has room for more.
            rows=Rows(row_begin, feature[:used].copy(), value[:used].copy()),
            features=self.features,
            score=piece.total,
            entry=line,
            token_begin=piece.token_begin,
            tokens=tokens,
            words=self.words,
            ids=self.ids,
        )
        if kept.size:
            self._open.append(part if kept.size == lines else part.chosen(kept))
        if sum(part.rows.feature.size for part in self._open) >= _PART:
            self._close()

    def _close(self) -> None:
        """Make one part of those that are open."""
        if self._open:
            self._parts.append(KBestLists.joined(self._open))
            self._open = []

    def check(self, piece: Piece, line: Int64) -> Int64:
        """Return the slots without a fault (or out of order); raise, or count, the others."""
        fault = piece.fault
        good = fault == kernels.FINE
        bad = np.flatnonzero(~good)
        if self._strict and bad.size:
            slot = int(bad[0])
            token = self._token(int(fault[slot]), int(piece.place[slot]))
            raise self._error(int(fault[slot]), token, int(line[slot]))
        for code, count in Counter(fault[bad].tolist()).items():
            self.skipped[f"lines {FAULTS[code][0]}"] += count
        self._faulty.append(piece.sentence[bad].copy())
        self._n_lines += line.size
        return np.flatnonzero(good)

    def lists(self, dense: Sequence[str] = (), *, fixed: bool = False) -> KBestLists:
        """Return all that was added, without zeros; raise InputError where that is none.

        Every line must have the features called `dense`, but for those that no line has. `fixed`:
        no other name may be without a colon.
        """
        column = np.full(len(self.features), -1, np.int64)
        if fixed:
            names = self.features.names(range(len(self.features)))
            column[[":" not in name for name in names]] = len(dense)
        ids = self.features.lookup(names_in(self.features, dense)).tolist()
        known = [id for id in ids if id >= 0]
        column[known] = np.arange(len(known))
        self._close()
        lists = KBestLists.gathered(
            self._settled(self._parts.pop(0), column, np.array(known, np.int32))
            for _ in range(len(self._parts))
        )
        if not lists.n_hypotheses:
            raise InputError(
                f"no hypothesis is left ({listed(self.skipped) or 'no lines'}); check the format",
                path=self._path,
            )
        kept = self._in_order(lists)
        lists = (lists if kept.size == lists.n_hypotheses else lists.chosen(kept)).by_sentence()
        last = int(lists.index[-1])
        # Sentences count of which all lines have a fault, unless the number belongs to the fault.
        most = last + self._n_lines
        faulty = [int(some[some <= most].max(initial=-1)) for some in self._faulty]
        self.n_sentences = max(last, *faulty) + 1
        lost = np.unique(np.concatenate(self._faulty))
        if count := int(((lost >= 0) & (lost <= most)).sum()):
            self.skipped["sentences with a fault"] = count
        self._check_names(lists)
        return lists

    def _in_order(self, lists: KBestLists) -> Int64:
        """Return the lines of whole lists, in any order, or without wrong numbers of sentences."""
        numbers = np.repeat(lists.index, np.diff(lists.begin))
        pieces, _ = runs(numbers)
        gaps = int(pieces.max()) + 1 - pieces.size
        lost = sum(some.size for some in self._faulty)
        if (gaps <= lost or self._strict) and np.unique(pieces).size == pieces.size:
            return np.arange(numbers.size)
        if self._strict:
            largest = np.maximum.accumulate(numbers)
            at = int((numbers < largest).argmax())
            lines = lists.entries()
            before = int(lines[numbers[:at].argmax()])
            raise self._error(kernels.OUT_OF_ORDER, "", int(lines[at]), before)
        kept = longest_in_order(numbers)
        out = np.delete(np.arange(numbers.size), kept)
        again = (np.diff(out) == 1) & (np.diff(numbers[out]) == 0)
        if again.any() or out.size > kept.size:
            line = int(lists.entries()[out[again.argmax() if again.any() else 0]])
            raise InputError(
                f"the lists are out of order, {out.size:,} lines of {numbers.size:,}, not a wrong "
                "number here and there; sort them by sentence",
                path=self._path,
                line=line,
            )
        if out.size:
            self.skipped[f"lines {FAULTS[kernels.OUT_OF_ORDER][0]}"] += out.size
        return kept

    def _settled(self, part: KBestLists, column: Int64, dense: Int32) -> KBestLists:
        """Return lists without zeros, where what lacks a dense feature is filled, or a fault.

        `column` is the place of each feature in `dense`, those that every line must have; or after
        it where no line may have the feature; -1: sparse.
        """
        rows = part.rows
        owner = rows.owner
        place = column[rows.feature]
        present: Bool = np.zeros((len(rows), dense.size + 1), np.bool_)
        present[owner[place >= 0], place[place >= 0]] = True
        lacking = ~present[:, :-1]
        bad = present[:, -1] | (lacking.any(axis=1) & (self._missing is None))
        for line in np.flatnonzero(bad)[:1].tolist() if self._strict else []:
            new = rows.feature[(owner == line) & (place == dense.size)].tolist()
            fault = kernels.NEW_DENSE if new else kernels.LACKS_DENSE
            id = new[0] if new else int(dense[lacking[line].argmax()])
            raise self._error(fault, self.features[id], int(part.entries()[line]))
        if self._missing:
            line, lacks = np.nonzero(lacking)
            rows = rows.with_entries(line, dense[lacks], np.full(line.size, self._missing))
        part = replace(part, rows=rows.where(rows.value != 0))
        if not bad.any():
            return part
        self.skipped[f"lines {FAULTS[kernels.LACKS_DENSE][0]}"] += int(bad.sum())
        self._faulty.append(np.repeat(part.index, np.diff(part.begin))[bad])
        return part.chosen(np.flatnonzero(~bad))

    def _error(self, fault: int, token: str, line: int, before: int = 0) -> InputError:
        labels = self._layout.form in (kernels.MOSES, kernels.UNLABELLED)
        of_moses = "a label with an underscore and one value is sparse"
        message = FAULTS[fault][1].format(
            token=token,
            example="Label= 0.5" if labels else "name=0.5",
            before=before,
            sparse=of_moses if labels else "a name with a colon is sparse",
        )
        return InputError(message, path=self._path, line=line)

    def _blank_invalid(self, start: int) -> list[int]:
        """Overwrite lines that are not UTF-8, but for the number, with blanks; return which."""
        data = self._text[start:].tobytes()
        broken: list[int] = []
        for slot, line in enumerate([] if _is_utf8(data) else data.split(b"\n")[:-1]):
            if not _is_utf8(line):
                number, bar, _ = line.partition(b"|||")
                begin = start + (len(number) + len(bar) if bar else 0)
                self._text[begin : start + len(line)] = ord(" ")
                broken.append(slot)
            start += len(line) + 1
        return broken

    def _read_long(self, piece: Piece, n_long: int) -> None:
        """Read the numbers that the parser left alone; mark lines where one is not finite."""
        for slot, index, begin, end in piece.long[:n_long].tolist():
            number = float(self._text[begin:end].tobytes())
            if not math.isfinite(number):
                piece.fault[slot] = kernels.NO_TOTAL if index < 0 else kernels.NO_NUMBER
                piece.place[slot] = begin
            elif index < 0:
                piece.total[slot] = number
            else:
                piece.value[index] = number

    def _check_names(self, lists: KBestLists) -> None:
        """Refuse names that a weights file could not hold: it would fail after all the tuning."""
        first = self.features.symbols[self.features.begin[:-1]]
        comments = np.flatnonzero(first == ord("#"))
        if comments.size:
            there = np.flatnonzero(np.isin(lists.rows.feature, comments))
            rows = np.searchsorted(lists.rows.begin, there, side="right") - 1
            raise InputError(
                f"the feature {self.features[int(comments[0])]!r} begins with #, which weights "
                "files take for a comment; call it something else",
                path=self._path,
                line=int(lists.entries()[rows[0]]) if rows.size else None,
            )

    def _token(self, fault: int, place: int) -> str:
        """Return what a message is about."""
        if fault == kernels.TWICE and place >= 0:
            return self.features[place]
        if fault in (kernels.TWICE, kernels.LACKS_DENSE):
            row = place if place >= 0 else -1 - place
            begin, end = self._labels[row, :2]
            return _decoded(self._text[begin:end])
        rest = _decoded(self._text[place : place + 1000].tobytes().split(b"\n", 1)[0])
        return next(iter(split_words(rest)), "the end of the line")


def _split(text: bytearray) -> Iterator[bytearray]:
    """Yield whole lines of a text, `PIECE` bytes or a little more at a time."""
    begin = 0
    while begin < len(text):
        end = text.index(b"\n", min(begin + PIECE, len(text)) - 1) + 1
        yield text[begin:end]
        begin = end


class Layout(NamedTuple):
    """How the lines of a file are written; see `kernels.parse_lines`.

    form: `kernels.MOSES`, `kernels.CDEC`, `kernels.UNLABELLED` or `kernels.VALUES`.
    width: how many numbers without a name there are.
    roles: what the fields hold.
    named: whether sentences have names in the place of numbers.
    """

    form: int
    width: int = 0
    roles: tuple[int, ...] = (kernels.ID, kernels.WORDS, kernels.FEATURES, kernels.TOTAL)
    named: bool = False


def layout_of(data: bytearray, format: Format | None = None) -> Layout:
    """Return how most of the first lines are written: one among others may have a fault.

    Behind number and words come features, with the score in the field behind them, or before them
    (Travatar). Fields of words alone, as of alignments, and Marian's scores of words are passed by.
    """
    default = kernels.MOSES if format == "moses" else kernels.CDEC
    lines = data[:_LOOKED_AT].decode("utf-8", "replace").split("\n")[:_LINES]
    lines = [line for line in lines if line.count("|||") > 2]
    ids = [line.partition("|||")[0].strip(BLANKS) for line in lines]
    named = 2 * sum(_NAME.fullmatch(id) is not None for id in ids) > len(ids)
    found: Counter[Layout] = Counter()
    for line in lines:
        fields = [split_words(field) for field in split_fields(line)]
        numeric = [bool(some) and None not in map(finite_number, some) for some in fields]
        single = [len(some) == 1 and fine for some, fine in zip(fields, numeric, strict=True)]
        places = range(2, len(fields))
        at = next((i for i in places if _has_names(fields[i])), 0)
        bare = next((i for i in places[:-1] if numeric[i] and single[i + 1] and not at), 0)
        if at:
            before = not (at + 1 < len(fields) and single[at + 1]) and single[at - 1] and at > 2
            labels = any(token.endswith(("=", ":")) for token in fields[at])
            form = kernels.MOSES if labels and not format else default
            found[Layout(form, 0, _roles(at, at - 1 if before else at + 1), named)] += 1
        elif bare and format != "cdec":
            roles = _roles(bare, bare + 1)
            found[Layout(kernels.UNLABELLED, len(fields[bare]), roles, named)] += 1
    standard = Layout(default, named=named)
    # Who names the format has its fields in their places.
    likely = [one for one, _ in found.most_common() if not format or one.roles == standard.roles]
    return likely[0] if likely else standard


def _roles(features: int, total: int) -> tuple[int, ...]:
    roles = [kernels.OTHER] * (max(features, total) + 1)
    roles[:2] = kernels.ID, kernels.WORDS
    roles[features], roles[total] = kernels.FEATURES, kernels.TOTAL
    return tuple(roles)


def _has_names(field: Sequence[str]) -> bool:
    """Return whether a field has names of features; Marian's scores of words are none."""
    named = any("=" in token or token.endswith(":") for token in field)
    return named and field[0] != "WordScores="


def _is_utf8(letters: bytes) -> bool:
    try:
        letters.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _decoded(letters: bytes | UInt8) -> str:
    return bytes(letters).decode("utf-8", "replace")


def nbest_lines(kbest: KBest, texts: Sequence[str], dense: Sequence[str] = ()) -> Iterator[str]:
    """Yield a list, with scores, as lines of an n-best list, with features as cdec has them.

    `texts` stand for the words of the hypotheses. Features that are `dense` come first, and are
    written where they are 0, too.

    Raises ValueError: the list has no names of features, or no scores.
    """
    if kbest.features is None or kbest.score is None:
        raise ValueError("only lists with names of features and scores can be written")
    rows, n, width = kbest.rows, len(kbest), len(dense)
    ids = kbest.features.lookup(list(dense))
    # The column of each feature; behind those that are dense, which the last place stands for, -1.
    column = np.full(ids.max(initial=-1) + 2, -1)
    column[ids[ids >= 0]] = np.flatnonzero(ids >= 0)
    place = column[np.minimum(rows.feature, column.size - 1)]
    row = rows.owner
    first = np.zeros((n, width))
    first[row[place >= 0], place[place >= 0]] = rows.value[place >= 0]
    others = place < 0
    # Hypotheses of one list have many values in common: each becomes text once. By their bits, as
    # zeros have signs.
    values = np.concatenate([first.ravel(), rows.value[others]]).view(np.int64)
    distinct, which = np.unique(values, return_inverse=True)
    written = np.array([f"{value:.10g}" for value in distinct.view(np.float64).tolist()], object)
    text = written[which].tolist()
    names = kbest.features.names(rows.feature[others].tolist())
    more = [f"{name}={value}" for name, value in zip(names, text[n * width :], strict=True)]
    ends = np.searchsorted(row[others], np.arange(n + 1)).tolist()
    form = " ".join(f"{name.replace('%', '%%')}=%s" for name in dense)
    scores = kbest.score.tolist()
    for h, (begin, end) in enumerate(pairwise(ends)):
        features = [form % tuple(text[h * width : (h + 1) * width])] if dense else []
        said = " ".join(features + more[begin:end])
        yield f"{kbest.index} ||| {texts[h]} ||| {said} ||| {scores[h]:.10g}\n"

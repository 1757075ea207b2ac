"""Reading and writing of tables: rules of cdec (our own format, too), Joshua and Moses; phrases."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Final, Literal, NamedTuple, get_args

import numpy as np

from torchtune_smt.core.accepts import one_of
from torchtune_smt.core.archive import checksum, file_checksum
from torchtune_smt.core.arrays import Float64, Int32, Int64, UInt8
from torchtune_smt.core.errors import InputError
from torchtune_smt.core.offsets import offsets
from torchtune_smt.core.text import finite_number, split_fields, split_words
from torchtune_smt.core.text_kernels import POWERS, count_lines
from torchtune_smt.core.textio import atomic_writer, check_utf8, read_packed, text_pieces
from torchtune_smt.core.vocabulary import SequenceTable, Vocabulary
from torchtune_smt.grammar import formats_kernels as kernels
from torchtune_smt.grammar.base import RULE_COUNT, UNIQUE_RULE, Grammar
from torchtune_smt.grammar.file_grammar import FileGrammar, PhraseTable, Side, no_count
from torchtune_smt.grammar.formats_kernels import Table
from torchtune_smt.grammar.reordering import ReorderingType, reordering_names
from torchtune_smt.grammar.store import read_copy, write_copy

Format = Literal["cdec", "joshua", "moses"]

logger = logging.getLogger(__name__)

PIECE: Final = 1 << 22
"""Bytes of a text that are parsed at a time; with what comes of them, few beside a grammar."""

_MOSES_NAMES = ["FgivenE", "LexFgivenE", "EgivenF", "LexEgivenF"]

_PROBLEMS = {
    kernels.MISSING_FIELD: "a field is missing: {fields} are needed",
    kernels.BAD_LABEL: "the left-hand side must be [X]; other categories, glue rules among them, "
    "are not read (the decoder has its own glue rules)",
    kernels.OTHER_CATEGORY: "{token} has a category other than X, and only X is supported",
    kernels.NO_LABEL: "source and target side must end with [X]; is this a hierarchical table?",
    kernels.INNER_LABEL: "[X] stands inside of a side, and may only end it; write [ and ] in words "
    "as &#91; and &#93;",
    kernels.TOO_MANY_GAPS: "{token} is the third non-terminal, and at most two are supported",
    kernels.UNKNOWN_GAP: "{token} has no counterpart on the source side",
    kernels.REPEATED_GAP: "{token} occurs twice on one side",
    kernels.UNBALANCED_GAPS: "source and target side have different numbers of non-terminals",
    kernels.UNPAIRED_GAPS: "the alignment does not say which non-terminals belong together",
    kernels.EMPTY_SOURCE: "the source side is empty; remove the line",
    kernels.UNARY_RULE: "a source side of one non-terminal alone lets X derive itself for ever; "
    "remove the rule",
    kernels.BAD_ALIGNMENT: "{token} is no alignment point; write source-target, as in 0-1",
    kernels.LINK_OUTSIDE: "the alignment point {token} lies outside of the rule; count from 0",
    kernels.NAMELESS_VALUE: "{token} has no feature name before the =",
    kernels.TOO_MANY_NAMES: f"more than {kernels.MAX_NAMES} different feature names",
}


class _Layout(NamedTuple):
    """How a format writes a line: its fields, and what they hold.

    `separator` is a byte that separates values, as blanks do (-1: none); `nameless` gives the name
    of nameless value i of n.
    """

    fields: str
    roles: list[int]
    form: int
    separator: int = -1
    nameless: Callable[[int, int], str] = lambda i, n: f"PhraseModel_{i}"


_CDEC_FIELDS = "[X] ||| source ||| target ||| features"
_CDEC_ROLES = [kernels.LABEL, kernels.SOURCE, kernels.TARGET, kernels.VALUES]
_MOSES_ROLES = [kernels.SOURCE, kernels.TARGET, kernels.VALUES, kernels.ALIGNMENT]
_LAYOUTS: dict[str, _Layout] = {
    "cdec": _Layout(_CDEC_FIELDS, _CDEC_ROLES, kernels.CDEC, ord(";")),
    "joshua": _Layout(_CDEC_FIELDS, _CDEC_ROLES, kernels.CDEC, nameless=lambda i, n: f"tm_pt_{i}"),
    "moses": _Layout(
        "source [X] ||| target [X] ||| probabilities ||| alignment",
        _MOSES_ROLES,
        kernels.MOSES,
        nameless=lambda i, n: _MOSES_NAMES[i] if n == len(_MOSES_NAMES) else f"PhraseModel_{i}",
    ),
}
_PHRASES = _Layout(
    "source ||| target ||| probabilities", [*_MOSES_ROLES, kernels.COUNTS], kernels.PHRASES
)
_REORDERING = _Layout("source ||| target ||| probabilities", _MOSES_ROLES[:3], kernels.PHRASES)
_OF_SOURCES = _Layout("source ||| probabilities", [kernels.SOURCE, kernels.VALUES], kernels.PHRASES)

_PHRASES_AGAIN = (
    "`train-model.perl --first-step 6 --last-step 6` writes it as phrase-table.gz; name it with "
    "model.phrase_table"
)
_REORDERING_AGAIN = (
    "`train-model.perl --first-step 7 --last-step 7` writes it; name it with model.reordering_table"
)
# What binary tables are called, or have in their folders.
_BINARY = {
    ".minphr": "a compact phrase table (processPhraseTableMin)",
    ".binphr.idx": "a binary phrase table (processPhraseTable)",
    ".minlexr": "a compact reordering table (processLexicalTableMin)",
    ".binlexr.idx": "a binary reordering table (processLexicalTable)",
    "Misc.dat": "a binary phrase table (CreateOnDiskPt)",
    "probing_hash.dat": "a binary phrase table (CreateProbingPT)",
}


def read_grammar(
    path: str | os.PathLike[str],
    format: Format | None = None,
    *,
    cache: bool = False,
    may_write: bool = True,
) -> FileGrammar:
    """Read a rule table, plain or ``.gz``.

    - ``cdec`` (what `write_grammar` writes, too): ``[X] ||| [X,1] a ||| b [1] ||| F=1 G=2``. A gap
      of the source side may be ``[X]``, which is the next one. Blanks or ``;`` separate values;
      those without a name are called ``PhraseModel_i``.
    - ``joshua`` (Thrax): the same, but values without a name are negated, and called ``tm_pt_i``.
    - ``moses`` (hierarchical): ``[X][X] a [X] ||| b [X][X] [X] ||| 0.1 0.2 ||| 0-1 1-0``. Values,
      as many in each line, are probabilities, of which log10 is taken (0 becomes e^-100, as in
      Moses). Four of them are Moses's ``FgivenE LexFgivenE EgivenF LexEgivenF``; any other number
      are called ``PhraseModel_i``. Fields after the alignment (counts and others) are not used.

    A feature that a line does not mention is 0 there. An empty target side is a rule that deletes.
    A rule that occurs again is dropped, counted and reported as a warning.

    format: told from the first line by default, where what looks like cdec's is taken for cdec's.
    cache: read the binary copy ``<path>.cache`` if it belongs to this content, else write one (not
        if the folder is read-only), unless `may_write` is not set.
    """
    path = Path(path)
    one_of(*get_args(Format)).or_null().check("format", format)
    key, grammar = {"format": format}, None
    if cache:
        grammar = read_copy(path, key | {"source": file_checksum(path)})
    if grammar is None:
        # A copy is of the very bytes that are parsed: the file may be replaced meanwhile.
        packed = read_packed(path)
        source = checksum(packed)
        texts = _texts(path, packed)
        del packed
        first = next(texts, None)
        if first is None:
            raise InputError("the grammar is empty", path=path)
        kind = _detect(first, path) if format is None else format
        rules = _rules_of(chain([first], texts), kind, path)
        del first, texts
        grammar = FileGrammar(*rules[:-1])
        grammar.feature_places = rules[-1]
        del rules
        if cache and may_write:
            write_copy(path, key | {"source": source}, grammar)
    _warn(path, grammar, "rules")
    return grammar


def read_phrase_table(
    path: str | os.PathLike[str],
    *,
    name: str = "TranslationModel0",
    reordering: str | os.PathLike[str] | None = None,
    reordering_type: str | None = None,
    reordering_name: str = "LexicalReordering0",
    rule_counts: bool = False,
) -> PhraseTable:
    """Read a phrase table of Moses, and its reordering table, plain or ``.gz``.

    Lines are ``source ||| target ||| probabilities ||| alignment ||| counts``, the last two
    optional; further fields are not used. Natural logarithms are taken of probabilities, at least
    -100, as in Moses. Pairs that occur again are dropped, counted and reported as a warning, as
    are lines of the reordering table without a phrase.

    name, reordering_name: scores are called ``NAME_0``, ``NAME_1``, ...
    reordering: a reordering table; `reordering_type`: its type, as `ReorderingType.parse` takes it.
    rule_counts: add the features ``LogRuleCount`` (logarithm of how often the pair occurred) and
        ``UniqueRule`` (1 where that is once), from the third of the counts. Source: [G13].
    """
    path = Path(path)
    table = _read(path, _PHRASES, Vocabulary(), Vocabulary())
    names = [f"{name}_{i}" for i in range(table.values.shape[1])]
    columns = [table.values]
    lacking = np.flatnonzero(table.counts <= 0.0)
    uncounted = (path, int(lacking[0]) + 1) if lacking.size else None
    if rule_counts:
        if uncounted is not None:
            raise no_count(*uncounted, "rule_counts")
        unique = (table.counts == 1.0).astype(np.float64)
        columns.append(np.stack([np.log(table.counts), unique], axis=1))
        names += [RULE_COUNT, UNIQUE_RULE]
    kind = None
    if reordering is not None:
        kind = ReorderingType.parse(reordering_type or "")
        columns.append(_reordering_of(table, path, kind, Path(reordering)))
        names += reordering_names(kind, reordering_name)
    result = PhraseTable(
        table.source,
        table.target,
        names,
        np.hstack(columns),
        reordering=kind,
        point_begin=table.point_begin if table.points.size else None,
        points=table.points,
        counts=table.counts,
        uncounted=uncounted,
    )
    _warn(path, result, "phrase pairs")
    return result


def write_grammar(path: str | os.PathLike[str], grammar: Grammar) -> None:
    """Write a grammar as text in cdec's format (gzip if the name ends in ``.gz``).

    Rules beyond the table limit are left out. Values are written so that they are read back
    exactly, zeros are left out.

    Raises InputError: a name or a word of the grammar cannot be told from markup in this format.
    """
    both = (grammar.source_words, grammar.target_words)
    names = chain.from_iterable(words.names(range(len(words))) for words in both)
    bad = [name for name in grammar.dense_names if ";" in name]
    bad += [w for w in names if w == "|||" or (w.startswith("[") and w.endswith("]"))]
    if bad:
        raise InputError(
            f"{bad[0]} cannot be told from markup; write it another way (as &#124; or &#91;) and "
            "build the grammar again",
            path=path,
        )
    with atomic_writer(path) as file:
        for rules in grammar.rules_within_limit():
            for rule, values in zip(rules, grammar.values(rules), strict=True):
                source, target = grammar.rule_text(int(rule))
                source = [f"[X,{t[1:]}" if t in ("[1]", "[2]") else t for t in source]
                features = [
                    f"{name}={value!r}"
                    for name, value in zip(grammar.dense_names, values.tolist(), strict=True)
                    if value != 0.0
                ]
                fields = ["[X]", " ".join(source), " ".join(target), " ".join(features)]
                file.write(" ||| ".join(fields) + "\n")


def _warn(path: Path, grammar: FileGrammar, what: str) -> None:
    if grammar.n_duplicates:
        message = "%s: %d %s occur again and were dropped; the first of each counts"
        logger.warning(message, path, grammar.n_duplicates, what)


def _detect(data: bytearray, path: Path) -> Format:
    """Return the format that the first line is in."""
    line = data[: data.index(b"\n")].decode("utf-8")
    fields = [split_words(field) for field in split_fields(line)]
    if len(fields[0]) == 1 and len(fields) >= 3 and fields[0][0].startswith("["):
        return "cdec"
    if len(fields) >= 3 and fields[0] and fields[0][-1].startswith("["):
        return "moses"
    cdec, moses = (_LAYOUTS[name].fields for name in ("cdec", "moses"))
    message = f"neither cdec's format ({cdec}) nor Moses's hierarchical one ({moses})"
    raise InputError(message, path=path, line=1)


def _texts(path: Path, packed: bytes | None = None) -> Iterator[bytearray]:
    """Yield the text of a file in pieces that are UTF-8; of one that was read, given its bytes."""
    before = 0
    for text in text_pieces(path, PIECE, packed=packed):
        check_utf8(text, path, before)
        yield text
        before += count_lines(np.frombuffer(text, np.uint8))[0]


class _Piece(NamedTuple):
    """A part of a table."""

    text: UInt8
    # With spans in the text.
    table: Table
    # Lines of the file before it.
    before: int
    # Spans of the names of features that are not in the pieces before; names so far.
    new_names: Int64
    n_names: int
    # Lines with fields that are not used.
    n_ignored: int


def _parse(
    texts: Iterable[bytearray], layout: _Layout, path: Path, scores: int | None = None
) -> Iterator[_Piece]:
    """Parse a table, whose lines have as many `scores`, by default those of the first one."""
    expected = "as the first line has" if scores is None else "as its settings say"
    roles = np.array(layout.roles, np.int32)
    names, known, n_known, before = np.empty((kernels.MAX_NAMES, 2), np.int64), bytearray(), 0, 0
    for piece in texts:
        # The names that are known stand before the lines.
        text = np.frombuffer(known + piece, np.uint8)
        lines, tokens = count_lines(text[len(known) :])
        table = Table.empty(lines, tokens, names)
        code, line, at, n_names, n_slow, n_ignored = kernels.parse(
            text, len(known), n_known, roles, layout.form, layout.separator, POWERS, table
        )
        # The first error of the file is reported, be it one of form, of a number, or of how many.
        sound = lines if code == kernels.FINE else line
        counted = table.count_begin[:sound] - table.value_begin[:sound]
        if scores is None and sound:
            scores = int(counted[0])
        wrong = np.flatnonzero(counted != scores) if layout.form != kernels.CDEC else counted[:0]
        if wrong.size:
            sound = int(wrong[0])
        for index, begin, end in table.slow[:n_slow].tolist():
            of = int(np.searchsorted(table.value_begin[: sound + 1], index, side="right"))
            if of > sound:
                break
            token = bytes(text[begin:end]).decode()
            number = finite_number(token)
            if number is None:
                message = f"the feature value {token!r} is no finite number"
                raise InputError(message, path=path, line=before + of)
            table.value[index] = number
        if wrong.size:
            message = f"has {counted[sound]} scores, and not {scores}, {expected}"
            raise InputError(message, path=path, line=before + sound + 1)
        if code != kernels.FINE:
            rest = bytes(text[at : at + 1000]).split(b"\n", 1)[0].decode(errors="replace")
            token = "".join(split_words(rest)[:1])
            message = _PROBLEMS[code].format(fields=layout.fields, token=token)
            raise InputError(message, path=path, line=before + line + 1)
        yield _Piece(text, table, before, names[n_known:n_names], n_names, n_ignored)
        spelt = [bytes(text[begin:end]) for begin, end in names[:n_names].tolist()]
        ends = np.cumsum([len(name) for name in spelt], dtype=np.int64)
        names[:n_names, 0], names[:n_names, 1] = np.append(0, ends)[:-1], ends
        known, n_known, before = bytearray().join(spelt), n_names, before + lines
        # Nothing of a piece is there while the next one is read.
        del piece, text, table


def _checked_probabilities(value: Float64, begin: Int64, before: int, path: Path) -> Float64:
    """Return probabilities of a table of Moses's, at least e^-100; those of lines from `begin`."""
    bad = np.flatnonzero(value < 0.0)
    if bad.size:
        message = f"{value[bad[0]]} is no probability: Moses's tables hold no negative numbers"
        line = before + int(np.searchsorted(begin, bad[0], side="right"))
        raise InputError(message, path=path, line=line)
    return np.maximum(value, math.exp(-100.0))


class _SideParts(NamedTuple):
    """One side of the rules so far: of its pieces, lengths and symbols."""

    words: Vocabulary
    lengths: list[Int64]
    symbols: list[Int32]

    def add(self, piece: _Piece, which: int, gaps: bool) -> None:
        """Add side `which` of a piece, 0 or 1; if `gaps`, with what is between its words."""
        table = piece.table
        spans, begin = table.word[which, :, : table.n_words[which]], table.side_begin[which]
        words = self.words.intern_spans(piece.text, *spans)
        if gaps:
            symbols = table.symbol[which, : begin[-1]].copy()
            symbols[symbols == 0] = words
            words = symbols
        self.lengths.append(np.diff(begin))
        self.symbols.append(words)

    def joined(self) -> Side:
        return Side(self.words, offsets(np.concatenate(self.lengths)), np.concatenate(self.symbols))


# Rules


def _rules_of(
    texts: Iterable[bytearray], format: Format, path: Path
) -> tuple[Side, Side, list[str], Float64, dict[str, tuple[Path, int]]]:
    """Return both sides of rules, names and values of features, and where these are named first."""
    layout = _LAYOUTS[format]
    sides = [_SideParts(Vocabulary(), [], []) for _ in range(2)]
    places: dict[str, tuple[Path, int]] = {}
    # Values of nameless features, and of the others.
    parts: list[tuple[Float64, Float64]] = []
    for piece in _parse(texts, layout, path):
        table, begin = piece.table, piece.table.value_begin
        value, value_name = table.value[: begin[-1]], table.value_name[: begin[-1]]
        if format == "moses":
            value = np.log10(_checked_probabilities(value, begin, piece.before, path))
        elif format == "joshua":
            value[value_name < 0] *= -1.0
        n_nameless = -int(min(value_name.min(initial=0), 0))
        places |= _places(piece, path)
        column = np.where(value_name < 0, -1 - value_name, n_nameless + value_name).astype(np.int32)
        dense = np.zeros((begin.size - 1, n_nameless + piece.n_names))
        twice, which = kernels.fill_dense(begin, column, value, dense)
        if twice >= 0:
            name = list(places)[which - n_nameless]
            line = piece.before + twice + 1
            raise InputError(f"gives the feature {name} twice", path=path, line=line)
        parts.append((dense[:, :n_nameless], dense[:, n_nameless:]))
        for number, side in enumerate(sides):
            side.add(piece, number, gaps=True)
    n_nameless = max(nameless.shape[1] for nameless, _ in parts)
    dense_names = [layout.nameless(i, n_nameless) for i in range(n_nameless)] + list(places)
    if len(set(dense_names)) < len(dense_names):
        raise InputError("nameless values would get a name that also occurs in the file", path=path)
    dense = np.zeros((sum(len(named) for _, named in parts), len(dense_names)))
    end = len(dense)
    while parts:
        nameless, named = parts.pop()
        rows = slice(end - len(named), end)
        dense[rows, : nameless.shape[1]] = nameless
        dense[rows, n_nameless : n_nameless + named.shape[1]] = named
        end = rows.start
    source, target = (side.joined() for side in sides)
    return source, target, dense_names, dense, places


def _places(piece: _Piece, path: Path) -> dict[str, tuple[Path, int]]:
    """Return the line of each name that is new in a piece, in their order."""
    places, line, read = {}, piece.before + 1, 0
    for begin, end in piece.new_names.tolist():
        name = bytes(piece.text[begin:end]).decode()
        line += int(np.count_nonzero(piece.text[read:begin] == ord("\n")))
        read = begin
        if name.startswith("#"):
            message = f"the feature name {name} would be a comment in a weights file; change it"
            raise InputError(message, path=path, line=line)
        places[name] = (path, line)
    return places


# Phrases


class _Phrases(NamedTuple):
    """What a table's lines hold: logarithms of scores; joint counts are 0 where there are none."""

    source: Side
    target: Side
    values: Float64
    counts: Float64
    point_begin: Int64
    points: Int32


def _read(
    path: Path,
    layout: _Layout,
    source_words: Vocabulary,
    target_words: Vocabulary,
    scores: int | None = None,
) -> _Phrases:
    """Read a table whose lines have so many `scores`, by default those of the first."""
    sides = [_SideParts(words, [], []) for words in (source_words, target_words)]
    values, counts, lengths, points = [], [], [], []
    ignored = 0
    for piece in _parse(_texts_of(path), layout, path, scores):
        table, begin = piece.table, piece.table.value_begin
        width = int(table.count_begin[0])
        if width == 0:
            message = "has no scores between the second and the third |||"
            raise InputError(message, path=path, line=piece.before + 1)
        value = table.value[begin[:-1, None] + np.arange(width)].ravel()
        of_lines = np.arange(0, value.size, width)
        value = _checked_probabilities(value, of_lines, piece.before, path)
        values.append(np.log(value).reshape(-1, width))
        counted = np.zeros(begin.size - 1)
        with_counts = begin[1:] - table.count_begin >= 3
        counted[with_counts] = table.value[table.count_begin[with_counts] + 2]
        counts.append(counted)
        lengths.append(np.diff(table.point_begin))
        points.append(table.point[: table.point_begin[-1]].copy())
        for number, side in enumerate(sides):
            side.add(piece, number, gaps=False)
        ignored += piece.n_ignored
    if not values:
        raise InputError("the table is empty", path=path)
    if ignored and layout is _PHRASES:
        logger.warning(
            "%s: %d lines have more than source, target, probabilities, alignment and counts; "
            "what stands there is not used",
            path,
            ignored,
        )
    source, target = (side.joined() for side in sides)
    numbers = np.concatenate(values), np.concatenate(counts)
    links = offsets(np.concatenate(lengths)), np.concatenate(points)
    return _Phrases(source, target, *numbers, *links)


def _texts_of(path: Path) -> Iterator[bytearray]:
    """Return the text of a table as `_texts`; refuse binary ones by what they are called."""
    for name, what in _BINARY.items():
        beside = not path.exists() and path.with_name(path.name + name).exists()
        if path.name.endswith(name) or beside or (path / name).exists():
            again = _REORDERING_AGAIN if "reordering" in what else _PHRASES_AGAIN
            message = f"is {what}, and the text that it was made from is read; {again}"
            raise InputError(message, path=path)
    return _texts(path)


def _reordering_of(table: _Phrases, path: Path, kind: ReorderingType, reordering: Path) -> Float64:
    """Return the reordering scores of a table's phrases."""
    layout = _REORDERING if kind.target else _OF_SOURCES
    other = _read(reordering, layout, table.source.words, table.target.words, kind.scores)
    phrases = table.source.begin.size
    sides = SequenceTable(np.int32, phrases // 4 + 16)
    targets = SequenceTable(np.int32, phrases)

    def keys(part: _Phrases) -> Int64:
        _, begin, symbols = part.source
        key = sides.intern_spans(symbols, begin[:-1], begin[1:]).astype(np.int64) << 32
        if kind.target:
            _, begin, symbols = part.target
            key |= targets.intern_spans(symbols, begin[:-1], begin[1:])
        return key

    wanted, given = keys(table), keys(other)
    if kind.target and np.array_equal(wanted, given):
        row = np.arange(wanted.size)
        unused = 0
    else:
        distinct, first, number = np.unique(given, return_index=True, return_inverse=True)
        others = (other.values != other.values[first[number]]).any(axis=1)
        if others.any() and not kind.target:
            line = int(others.argmax())
            message = f"has other scores than line {first[number[line]] + 1}; keep one of them"
            raise InputError(message, path=reordering, line=line + 1)
        place = np.minimum(np.searchsorted(distinct, wanted), distinct.size - 1)
        missing = np.flatnonzero(distinct[place] != wanted)
        if missing.size:
            message = f"has no scores in {reordering}; take both tables from one extraction"
            raise InputError(message, path=path, line=int(missing[0]) + 1)
        row = first[place]
        unused = given.size - np.unique(place).size
    if unused:
        message = "%s: %d lines are not used, for they are repeated or belong to no phrase of %s"
        logger.warning(message, reordering, unused, path)
    return other.values[row]

"""Reading and writing of rule tables: cdec's (which is also our own), Joshua's and Moses's."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Literal, NamedTuple, get_args

import numpy as np

from torchtune_smt.core.accepts import one_of
from torchtune_smt.core.arrays import Float64, Int64, UInt8
from torchtune_smt.core.errors import InputError
from torchtune_smt.core.numerals_kernels import POWERS
from torchtune_smt.core.text import finite_number, split_fields, split_words
from torchtune_smt.core.text_kernels import count_lines
from torchtune_smt.core.textio import atomic_writer, check_utf8, read_text
from torchtune_smt.core.vocabulary import Vocabulary
from torchtune_smt.grammar import formats_kernels as kernels
from torchtune_smt.grammar.base import Grammar
from torchtune_smt.grammar.file_grammar import FileGrammar, Side

Format = Literal["cdec", "joshua", "moses"]

logger = logging.getLogger(__name__)

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
    kernels.EMPTY_SOURCE: "the source side is empty; remove the rule",
    kernels.UNARY_RULE: "a source side of one non-terminal alone lets X derive itself for ever; "
    "remove the rule",
    kernels.BAD_ALIGNMENT: "{token} is no alignment point; write source-target, as in 0-1",
    kernels.LINK_OUTSIDE: "the alignment point {token} lies outside of the rule",
    kernels.UNEQUAL_SCORES: "has {scores} scores, and not {expected}, as the first line has",
    kernels.NAMELESS_VALUE: "{token} has no feature name before the =",
    kernels.TOO_MANY_NAMES: f"more than {kernels.MAX_NAMES} different feature names",
}


class _Layout(NamedTuple):
    """How a format writes a rule."""

    fields: str
    roles: list[int]
    moses: bool
    separator: int
    """A byte that separates values, as blanks do; -1: none."""
    nameless: Callable[[int, int], str]
    """The name of nameless value i of n."""


_CDEC_FIELDS = "[X] ||| source ||| target ||| features"
_CDEC_ROLES = [kernels.LABEL, kernels.SOURCE, kernels.TARGET, kernels.VALUES]
_LAYOUTS: dict[str, _Layout] = {
    "cdec": _Layout(_CDEC_FIELDS, _CDEC_ROLES, False, ord(";"), lambda i, n: f"PhraseModel_{i}"),
    "joshua": _Layout(_CDEC_FIELDS, _CDEC_ROLES, False, -1, lambda i, n: f"tm_pt_{i}"),
    "moses": _Layout(
        "source [X] ||| target [X] ||| probabilities ||| alignment",
        [kernels.SOURCE, kernels.TARGET, kernels.VALUES, kernels.ALIGNMENT],
        True,
        -1,
        lambda i, n: _MOSES_NAMES[i] if n == len(_MOSES_NAMES) else f"PhraseModel_{i}",
    ),
}


def read_grammar(
    path: str | os.PathLike[str],
    format: Format | None = None,
    *,
    table_limit: int | None = None,
    rank_by: str | None = None,
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

    Parameters
    ----------
    path : path
    format : {"cdec", "joshua", "moses"}, optional
        Told from the first line by default, where what looks like cdec's is taken for cdec's.
    table_limit, rank_by : optional
        See `FileGrammar`.

    Raises
    ------
    InputError
        A line is not as described; file, line and cure are named.
    """
    path = Path(path)
    data = read_text(path)
    check_utf8(data, path)
    if not data:
        raise InputError("the grammar is empty", path=path)
    one_of(*get_args(Format)).or_null().check("format", format)
    format = _detect(data, path) if format is None else format
    grammar = _build(np.frombuffer(data, np.uint8), format, path, table_limit, rank_by)
    if grammar.n_duplicates:
        logger.warning(
            "%s: %d rules occur again and were dropped; the first of each counts",
            path,
            grammar.n_duplicates,
        )
    return grammar


def _build(
    text: UInt8, format: Format, path: Path, table_limit: int | None, rank_by: str | None
) -> FileGrammar:
    layout = _LAYOUTS[format]
    lines, tokens = count_lines(text)
    # Memory that is not written to is not taken.
    side_begin, value_begin = np.empty((2, lines + 1), np.int64), np.empty(lines + 1, np.int64)
    symbol, value_name = np.empty((2, tokens), np.int32), np.empty(tokens, np.int32)
    word, n_words = np.empty((2, 2, tokens), np.int64), np.empty(2, np.int64)
    value, slow = np.empty(tokens), np.empty((tokens, 3), np.int64)
    names = np.empty((kernels.MAX_NAMES, 2), np.int64)
    code, line, at, n_names, n_slow, n_values = kernels.parse(
        text,
        np.array(layout.roles, np.int32),
        layout.moses,
        layout.separator,
        POWERS,
        side_begin,
        symbol,
        word,
        n_words,
        value_begin,
        value_name,
        value,
        slow,
        names,
    )
    value, value_name = value[:n_values], value_name[:n_values]
    # The first error of the file is reported, be it one of form or of a number.
    read_slow_values(text, slow[:n_slow], value, path, value_begin[: line + 1], line + 1)
    if code != kernels.FINE:
        message = _PROBLEMS[code].format(
            fields=layout.fields,
            token=token_at(text, at),
            scores=n_values - value_begin[line],
            expected=value_begin[1],
        )
        raise InputError(message, path=path, line=line + 1)

    if layout.moses:
        value = np.log10(checked_probabilities(value, value_begin, path))
    elif format == "joshua":
        value[value_name < 0] *= -1.0
    n_nameless = -int(min(value_name.min(initial=0), 0))
    dense_names = [layout.nameless(i, n_nameless) for i in range(n_nameless)]
    places = _places(text, names[:n_names], path)
    dense_names += list(places)
    column = np.where(value_name < 0, -1 - value_name, n_nameless + value_name).astype(np.int32)
    dense = np.zeros((lines, len(dense_names)))
    twice, which = kernels.fill_dense(value_begin, column, value, dense)
    if twice >= 0:
        raise InputError(f"gives the feature {dense_names[which]} twice", path=path, line=twice + 1)
    if len(set(dense_names)) < len(dense_names):
        raise InputError("nameless values would get a name that also occurs in the file", path=path)

    source, target = (
        Side(Vocabulary(), begin, symbols[: begin[-1]])
        for begin, symbols in zip(side_begin, symbol, strict=True)
    )
    for side, spans, n in zip((source, target), word, n_words, strict=True):
        side.symbols[side.symbols == 0] = side.words.intern_spans(text, *spans[:, :n])
    try:
        return FileGrammar(
            source,
            target,
            dense_names,
            dense,
            table_limit=table_limit,
            rank_by=rank_by,
            feature_places=places,
        )
    except ValueError as error:
        raise InputError(str(error), path=path) from None


def _places(text: UInt8, names: Int64, path: Path) -> dict[str, tuple[Path, int]]:
    """Return the line of each name, given the spans where each first stands, in their order."""
    places, line, read = {}, 1, 0
    for begin, end in names.tolist():
        name = bytes(text[begin:end]).decode()
        line += int(np.count_nonzero(text[read:begin] == ord("\n")))
        read = begin
        if name.startswith("#"):
            raise InputError(
                f"the feature name {name} cannot be written to a weights file, where # begins a "
                "comment; give it another name",
                path=path,
                line=line,
            )
        places[name] = (path, line)
    return places


def write_grammar(path: str | os.PathLike[str], grammar: Grammar) -> None:
    """Write a grammar as text in cdec's format (gzip if the name ends in ``.gz``).

    Rules beyond the table limit are left out. Values are written so that they are read back
    exactly, zeros are left out.

    Raises
    ------
    InputError
        A word of the grammar cannot be told from markup in this format, or a feature has a ``;``
        in its name; or the file cannot be written.
    """
    for name in grammar.dense_names:
        if ";" in name:
            raise InputError(
                f"the feature name {name} cannot be written in cdec's format, where ; separates "
                "features; give it another name",
                path=path,
            )
    for words in (grammar.source_words, grammar.target_words):
        for word in words.names(range(len(words))):
            if word == "|||" or (word.startswith("[") and word.endswith("]")):
                raise InputError(
                    f"the word {word} cannot be told from markup; escape it in the bitext "
                    "(as &#124; or &#91; ...) and build the grammar again",
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


def _detect(data: bytearray, path: Path) -> Format:
    """Return the format that the first line is in."""
    line = data[: data.index(b"\n")].decode("utf-8")
    fields = [split_words(field) for field in split_fields(line)]
    if len(fields[0]) == 1 and len(fields) >= 3 and fields[0][0].startswith("["):
        return "cdec"
    if len(fields) >= 3 and fields[0] and fields[0][-1].startswith("["):
        return "moses"
    raise InputError(
        f"neither cdec's format ({_LAYOUTS['cdec'].fields}) nor Moses's hierarchical one "
        f"({_LAYOUTS['moses'].fields})",
        path=path,
        line=1,
    )


def token_at(text: UInt8, at: int) -> str:
    """Return the token of the text that begins at `at`; nothing at the end of a line."""
    line = bytes(text[at : at + 1000]).split(b"\n", 1)[0]
    return "".join(split_words(line.decode(errors="replace"))[:1])


def read_slow_values(
    text: UInt8, slow: Int64, value: Float64, path: Path, value_begin: Int64, lines: int
) -> None:
    """Read the values of the first lines that a kernel left alone: many digits, or no numbers."""
    for index, begin, end in slow.tolist():
        line = int(np.searchsorted(value_begin, index, side="right"))
        if line > lines:
            return
        token = bytes(text[begin:end]).decode()
        number = finite_number(token)
        if number is None:
            raise InputError(
                f"the feature value {token!r} is no finite number", path=path, line=line
            )
        value[index] = number


def checked_probabilities(value: Float64, value_begin: Int64, path: Path) -> Float64:
    """Return probabilities of a table of Moses's, at least e^-100, as there."""
    bad = np.flatnonzero(value < 0.0)
    if bad.size:
        raise InputError(
            f"{value[bad[0]]} is no probability: Moses's tables hold no negative numbers",
            path=path,
            line=int(np.searchsorted(value_begin, bad[0], side="right")),
        )
    return np.maximum(value, math.exp(-100.0))

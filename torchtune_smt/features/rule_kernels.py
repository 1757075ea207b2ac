"""Kernels of sparse features of rules: their names, and those of one sentence."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from torchtune_smt.core.arrays import Float64, Int32, Int64, UInt8
from torchtune_smt.core.compiled import inner, kernel

# What a template's `spelling` says.
RULE_ID, SOURCE_NGRAM, RULE_SHAPE = range(3)
PREFIXES: Final = ("rule_id:", "source_ngram:", "rule_shape:")
# A gap is `[1]`, or in n-grams `[X]`.
_GAP = 3
_OPEN, _CLOSE, _X, _ONE, _WORDS = ord("["), ord("]"), ord("X"), ord("1"), ord("T")
_JOIN, _SIDES = ord("_"), ord("~")


class SentenceFeatures(NamedTuple):
    """Sparse features of the rules of a sentence.

    begin (int64 [rules * rows + 1])
    feature: in CSR form, one entry for each time that a feature fires: places in `id`.
    rows: rows of a rule; see `torchtune_smt.decoders.rule_features.RuleFeatures`.
    id: ids of the features that occur, ascending.
    """

    begin: Int64
    feature: Int32
    rows: int
    id: Int32


@inner
def _put(out: UInt8, at: int, text: UInt8, first: int, last: int) -> int:
    """Copy letters to a place of the output; return the place behind them."""
    for i in range(first, last):
        out[at] = text[i]
        at += 1
    return at


@inner
def _put_gap(out: UInt8, at: int, sign: int) -> int:
    """Write a gap; return the place behind it."""
    out[at], out[at + 1], out[at + 2] = _OPEN, sign, _CLOSE
    return at + _GAP


@inner
def _put_side(
    out: UInt8,
    at: int,
    symbols: Int32,
    first: int,
    last: int,
    numbered: bool,
    shape: bool,
    number: Int32,
    text: UInt8,
    begin: Int64,
) -> int:
    """Write a side of a rule, joined by underscores; return the place behind it.

    numbered: whether symbols say which gap one is, and not their order.
    shape: whether runs of words are one T.
    """
    gaps = 0
    for i in range(first, last):
        symbol = symbols[i]
        if shape and symbol >= 0 and i > first and symbols[i - 1] >= 0:
            continue
        if i > first:
            out[at] = _JOIN
            at += 1
        if symbol < 0:
            gaps += 1
            at = _put_gap(out, at, _ONE - 1 + (-symbol if numbered else gaps))
        elif shape:
            out[at] = _WORDS
            at += 1
        else:
            at = _put(out, at, text, begin[number[symbol] - 1], begin[number[symbol]])
    return at


@inner
def _length(symbols: Int32, first: int, last: int, number: Int32, begin: Int64) -> int:
    """Return how many letters a side has at most, with something between its symbols."""
    total = 0
    for i in range(first, last):
        symbol = symbols[i]
        total += 1 + (_GAP if symbol < 0 else begin[number[symbol]] - begin[number[symbol] - 1])
    return total


@kernel
def spell(
    spelling: Int64,
    least: Float64,
    occurred: Float64,
    prefix: UInt8,
    prefix_begin: Int64,
    source: Int32,
    source_first: Int64,
    target: Int32,
    target_first: Int64,
    source_number: Int32,
    source_text: UInt8,
    source_begin: Int64,
    target_number: Int32,
    target_text: UInt8,
    target_begin: Int64,
) -> tuple[UInt8, Int64, Int64]:
    """Return the names of rules' features: letters, begins of names, begins of rules' names.

    spelling, least (int64 [t], float64 [t]): of each template: how it spells, and how often a rule
        has to have occurred.
    occurred (float64 [n]): how often each rule did.
    prefix, prefix_begin: what the names of each spelling begin with.
    source, target: symbols of the rules' sides; words by their ids, gaps of the source side -1,
        those of the target side -1 and -2.
    source_first, target_first (int64 [n + 1]): where the sides of each rule begin.
    source_number, target_number: number plus one of each word's text.
    source_text, source_begin, target_text, target_begin: words as they stand in names (UTF-8), by
        these numbers.
    """
    rules = source_first.size - 1
    letters = names = 0
    for r in range(rules):
        words = source_first[r + 1] - source_first[r]
        own = _length(source, source_first[r], source_first[r + 1], source_number, source_begin)
        other = _length(target, target_first[r], target_first[r + 1], target_number, target_begin)
        for t in range(spelling.size):
            kind = spelling[t]
            ahead = prefix_begin[kind + 1] - prefix_begin[kind]
            if kind == SOURCE_NGRAM:
                names += words
                letters += words * ahead + 2 * own
            else:
                # No symbol of a shape is longer than a gap, and each has at least one letter.
                names += 1
                letters += ahead + 2 * (own + other) + 1
    out = np.empty(letters, np.uint8)
    name_begin = np.zeros(names + 1, np.int64)
    rule_begin = np.zeros(rules + 1, np.int64)
    at = count = 0
    for r in range(rules):
        first, last = source_first[r], source_first[r + 1]
        start, stop = target_first[r], target_first[r + 1]
        for t in range(spelling.size):
            if occurred[r] < least[t]:
                continue
            kind = spelling[t]
            ahead = prefix_begin[kind], prefix_begin[kind + 1]
            if kind == SOURCE_NGRAM:
                for i in range(first + 1, last):
                    at = _put(out, at, prefix, ahead[0], ahead[1])
                    for j in (i - 1, i):
                        if j == i:
                            out[at] = _JOIN
                            at += 1
                        if source[j] < 0:
                            at = _put_gap(out, at, _X)
                        else:
                            n = source_number[source[j]]
                            at = _put(out, at, source_text, source_begin[n - 1], source_begin[n])
                    count += 1
                    name_begin[count] = at
                continue
            at = _put(out, at, prefix, ahead[0], ahead[1])
            shape = kind == RULE_SHAPE
            at = _put_side(
                out, at, source, first, last, False, shape, source_number, source_text, source_begin
            )
            out[at] = _SIDES
            at += 1
            at = _put_side(
                out, at, target, start, stop, True, shape, target_number, target_text, target_begin
            )
            count += 1
            name_begin[count] = at
        rule_begin[r + 1] = count
    return out[:at].copy(), name_begin[: count + 1].copy(), rule_begin


@kernel
def gather_rows(
    begin: Int64, symbols: Int32, rows: Int32, place: Int32
) -> tuple[Int64, Int32, Int32]:
    """Return some rows behind each other, and the ids that occur, in the order of first sight.

    begin, symbols: all rows (CSR); the symbols are ids of features.
    rows (int32 [n]): numbers of rows, plus one.
    place (int32 [features]): zeros; ids that occur get a 1 there, which `number_rows` takes away.
    """
    out_begin = np.zeros(rows.size + 1, np.int64)
    for i in range(rows.size):
        row = rows[i]
        out_begin[i + 1] = out_begin[i] + begin[row] - begin[row - 1]
    feature = np.empty(out_begin[rows.size], np.int32)
    distinct = np.empty(feature.size, np.int32)
    count = 0
    for i in range(rows.size):
        first = begin[rows[i] - 1]
        for p in range(out_begin[i + 1] - out_begin[i]):
            f = symbols[first + p]
            feature[out_begin[i] + p] = f
            if place[f] == 0:
                place[f] = 1
                distinct[count] = f
                count += 1
    return out_begin, feature, distinct[:count].copy()


@inner
def number_rows(feature: Int32, distinct: Int32, place: Int32) -> None:
    """Replace each id by its place in `distinct`, and leave nothing but zeros in `place`."""
    for i in range(distinct.size):
        place[distinct[i]] = i
    for p in range(feature.size):
        feature[p] = place[feature[p]]
    for i in range(distinct.size):
        place[distinct[i]] = 0

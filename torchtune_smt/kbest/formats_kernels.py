"""The parsers of k-best lists: from bytes to words, features and values."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from torchtune_smt.core.arrays import Float64, Int32, Int64, UInt8
from torchtune_smt.core.compiled import inner
from torchtune_smt.core.rows_kernels import sort_row
from torchtune_smt.core.text_kernels import LONG, NONE, digits, is_bar, number, row_of

# What can be wrong with a line. The kernels here find the first ones.
FINE, MISSING_FIELD, BAD_SENTENCE, NO_FEATURE, NO_NUMBER, NO_TOTAL, NEW_DENSE = range(7)
OTHER_WIDTH, LACKS_DENSE, TWICE, NOT_UTF8, OUT_OF_ORDER, NO_STATISTICS = range(7, 13)

# How lines are written; see `parse_lines`.
CDEC, MOSES, VALUES, UNLABELLED = range(4)

# What the fields between ``|||`` hold; others are not looked at.
ID, WORDS, FEATURES, TOTAL, OTHER = range(5)

MAX_LABELS = 1000

_SPACE, _TAB, _NEWLINE, _EQUALS, _COLON, _UNDERSCORE = 32, 9, 10, 61, 58, 95


class Piece(NamedTuple):
    """What a piece of a file holds, a slot for each of its lines; spans are places in the text.

    sentence (int64 [lines]): -1 where a fault lies in the number.
    id_begin, id_end (int64 [lines]): the span of its name.
    fault (int32 [lines]): `FINE`, or what is wrong with the line, whose words and features are then
        left out.
    place (int64 [lines]): where the fault is; for `LACKS_DENSE` the row of the labels, for `TWICE`
        the feature.
    total (float64 [lines])
    token_begin (int64 [lines + 1])
    word_begin, word_end (int64 [words])
    row_begin (int64 [lines + 1])
    column (int32 [values]): of a dense feature its number, of the sparse one with name i -1 - i.
    value (float64 [values])
    name_begin, name_end (int64 [names]): an entry for each occurrence.
    long (int64 [long numbers, 4]): (line, number of the value or -1 for the total, begin, end):
        numbers yet to be read.
    """

    sentence: Int64
    id_begin: Int64
    id_end: Int64
    fault: Int32
    place: Int64
    total: Float64
    token_begin: Int64
    word_begin: Int64
    word_end: Int64
    row_begin: Int64
    column: Int32
    value: Float64
    name_begin: Int64
    name_end: Int64
    long: Int64

    @classmethod
    def empty(cls, lines: int, tokens: int) -> Piece:
        """Return room for so many lines and tokens; what is not written to takes no memory."""
        return cls(
            np.empty(lines, np.int64),
            np.empty(lines, np.int64),
            np.empty(lines, np.int64),
            np.empty(lines, np.int32),
            np.empty(lines, np.int64),
            np.empty(lines),
            np.empty(lines + 1, np.int64),
            np.empty(tokens, np.int64),
            np.empty(tokens, np.int64),
            np.empty(lines + 1, np.int64),
            np.empty(tokens, np.int32),
            np.empty(tokens),
            np.empty(tokens, np.int64),
            np.empty(tokens, np.int64),
            np.empty((tokens, 4), np.int64),
        )


@inner
def parse_lines(
    text: UInt8,
    start: int,
    stop: int,
    form: int,
    width: int,
    roles: Int64,
    named: bool,
    powers: Float64,
    labels: Int64,
    n_labels: int,
    seen: Int64,
    fixed: bool,
    piece: Piece,
) -> tuple[tuple[int, int, int, int], int]:
    r"""Parse the lines of a form.

    start, stop: the lines to parse; the last one ends with ``\n``.
    form: `MOSES` and `CDEC`: fields between ``|||``, with features ``Label= v v Label= v`` (the
        label may end with a colon, too) or ``name=v name=v``. `UNLABELLED`: `width` numbers for
        features. `VALUES`: lines of `width` numbers and any number of ``name=v``, without other
        fields.
    roles: what each field holds; see `ID`.
    named: whether sentences have names, whose spans are written, and no numbers.
    labels (int64 [MAX_LABELS, 4]): Moses's dense labels: begin and end of the name, number of
        values, first column. One is sparse that has an underscore and one value, as Moses's tuner
        has it.
    n_labels: their number, -1 before they are known.
    seen (int64 [MAX_LABELS]): the line in which each was met last.
    fixed: whether the first line without a fault decides which dense labels there are; else any
        line may add some, and lack others.

    Returns sizes: words, values, names and long numbers in `piece`.
    Returns n_labels
    """
    line, n_words, n_values, n_names, n_long = 0, 0, 0, 0, 0
    i = start
    for k in range(labels.shape[0]):
        seen[k] = -1
    piece.token_begin[0] = 0
    piece.row_begin[0] = 0
    while i < stop:
        field, place = 0, 0
        role = roles[0]
        sentence, total = 0, 0.0
        id_begin = id_end = i
        known = fixed and n_labels >= 0
        line_labels = max(n_labels, 0)
        met, guess = 0, 0
        label, label_end, first = -1, -1, 0
        word0, value0, name0, long0 = n_words, n_values, n_names, n_long
        code, at = FINE, i
        while True:
            c = text[i]
            if c == _SPACE or c == _TAB:
                i += 1
                continue
            if c == _NEWLINE:
                at = i
                if field < roles.size - 1 or (place == 0 and (role == ID or role == TOTAL)):
                    code = MISSING_FIELD
                elif form == VALUES or form == UNLABELLED:
                    if n_values - value0 < width:
                        code = OTHER_WIDTH
                elif form == MOSES:
                    if not known:
                        n_labels = line_labels
                    elif met < n_labels:
                        code = LACKS_DENSE
                        for k in range(n_labels):
                            if seen[k] != line:
                                at = k
                                break
                break
            begin, split = i, -1
            while c != _SPACE and c != _NEWLINE and c != _TAB:
                if c == _EQUALS:
                    split = i
                i += 1
                c = text[i]
            if form == MOSES and text[i - 1] == _COLON:
                split = i - 1
            at = begin
            bar = form != VALUES and is_bar(text, begin, i)
            is_label = form == MOSES and role == FEATURES and begin < split == i - 1
            if label >= 0 and (bar or is_label):
                # The values behind the label before get their columns.
                at, count = label, n_values - first
                sparse = False
                for k in range(label, label_end if count == 1 else label):
                    sparse |= text[k] == _UNDERSCORE
                if count == 0:
                    code = NO_FEATURE
                    break
                if sparse:
                    piece.column[first] = -1 - n_names
                    piece.name_begin[n_names], piece.name_end[n_names] = label, label_end
                    n_names += 1
                else:
                    row = row_of(text, label, label_end, labels, line_labels, guess)
                    if row < 0:
                        if known or line_labels == MAX_LABELS:
                            code = NEW_DENSE
                            break
                        row = line_labels
                        labels[row, 0], labels[row, 1], labels[row, 2] = label, label_end, count
                        labels[row, 3] = 0 if row == 0 else labels[row - 1, 3] + labels[row - 1, 2]
                        line_labels += 1
                    elif seen[row] == line:
                        code, at = TWICE, -1 - row
                        break
                    if labels[row, 2] != count:
                        code = OTHER_WIDTH
                        break
                    seen[row] = line
                    for j in range(count):
                        piece.column[first + j] = labels[row, 3] + j
                    met += 1
                    guess = row + 1
                label = -1
            if bar:
                if place == 0 and (role == ID or role == TOTAL):
                    code = MISSING_FIELD
                    break
                field += 1
                place = 0
                if field < roles.size:
                    role = roles[field]
                else:
                    role = OTHER
                    while text[i] != _NEWLINE:
                        i += 1
                continue
            if is_label:
                label, label_end, first = begin, split, n_values
            elif role == WORDS:
                piece.word_begin[n_words], piece.word_end[n_words] = begin, i
                n_words += 1
            elif role == FEATURES:
                number_begin = begin
                if form == MOSES:
                    if label < 0 or split == i - 1:
                        code = NO_FEATURE
                        break
                elif (form == VALUES or form == UNLABELLED) and place < width:
                    piece.column[n_values] = place
                else:
                    if split <= begin or split == i - 1:
                        code = NO_FEATURE
                        break
                    piece.column[n_values] = -1 - n_names
                    piece.name_begin[n_names], piece.name_end[n_names] = begin, split
                    n_names += 1
                    number_begin = split + 1
                kind, value = number(text, number_begin, i, powers)
                if kind == NONE:
                    code = NO_NUMBER
                    at = number_begin
                    break
                if kind == LONG:
                    piece.long[n_long, 0], piece.long[n_long, 1] = line, n_values
                    piece.long[n_long, 2], piece.long[n_long, 3] = number_begin, i
                    n_long += 1
                piece.value[n_values] = value
                n_values += 1
            elif role == ID:
                id_begin, id_end = begin, i
                sentence = 0 if named else digits(text, begin, i)
                if place > 0 or sentence < 0:
                    code = BAD_SENTENCE
                    break
            elif role == TOTAL:
                kind, total = number(text, begin, i, powers)
                if kind == NONE or place > 0:
                    code = NO_TOTAL
                    break
                if kind == LONG:
                    piece.long[n_long, 0], piece.long[n_long, 1] = line, -1
                    piece.long[n_long, 2], piece.long[n_long, 3] = begin, i
                    n_long += 1
            place += 1
        if code != FINE:
            n_words, n_values, n_names, n_long = word0, value0, name0, long0
            while text[i] != _NEWLINE:
                i += 1
        i += 1
        piece.sentence[line] = sentence if field > 0 else -1
        piece.id_begin[line], piece.id_end[line] = id_begin, id_end
        piece.total[line] = total
        piece.fault[line] = code
        piece.place[line] = at
        line += 1
        piece.token_begin[line] = n_words
        piece.row_begin[line] = n_values
    return (n_words, n_values, n_names, n_long), n_labels


@inner
def tidy_rows(
    piece: Piece,
    dense: Int32,
    names: Int32,
    out_begin: Int64,
    out_feature: Int32,
    out_value: Float64,
) -> None:
    """Write the rows with feature ids for columns, ascending.

    A feature that a line has twice is the fault `TWICE`.

    dense: feature ids of the dense columns.
    names: feature ids of the names.
    out_begin, out_feature, out_value (int64 [lines + 1], int32, float64): as large as the piece's.
    """
    n = 0
    out_begin[0] = 0
    for line in range(piece.fault.size):
        first = n
        for p in range(piece.row_begin[line], piece.row_begin[line + 1]):
            c = piece.column[p]
            out_feature[n] = dense[c] if c >= 0 else names[-1 - c]
            out_value[n] = piece.value[p]
            n += 1
        sort_row(first, n, out_feature, out_value)
        for p in range(first + 1, n):
            if out_feature[p] == out_feature[p - 1] and piece.fault[line] == FINE:
                piece.fault[line] = TWICE
                piece.place[line] = out_feature[p]
        out_begin[line + 1] = n

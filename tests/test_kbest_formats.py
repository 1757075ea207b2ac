"""Readers of n-best lists: against a slow reader, and every fault of a file."""

import gzip
import math
from itertools import combinations
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from torchtune_smt.core.errors import InputError
from torchtune_smt.core.text_kernels import EXACT, LONG, NONE, POWERS, number
from torchtune_smt.core.vocabulary import Vocabulary
from torchtune_smt.core.weights import Weights
from torchtune_smt.core.weights_io import read_weights, save_weights
from torchtune_smt.kbest import formats
from torchtune_smt.kbest.formats import OnError, longest_in_order, read_lists
from torchtune_smt.kbest.moses_tuning_files import read_tuning_files
from torchtune_smt.kbest.stored_lists import StoredLists, merged

MOSES = """\
0 ||| ein haus  ||| D0= 0 LM0= -4.5 TM0= -1 -2.5 WT_a~b= 2 PL_1= 0 ||| -8.25 ||| 0-0 1-1
0 ||| das haus ||| D0= 1 LM0= -5 TM0= 0 1e-3 WT_a~== 1 ||| -9
1 ||| gut ||| LM0= -1 D0= 0 TM0= -1 -1 ||| -3
"""
CDEC = """\
0 ||| ein haus ||| LM=-4.5 Glue=2 id:a=b=1 ||| -8.25
0 ||| das haus ||| LM=-5 Glue=0 ||| -9 ||| 0.5
1 ||| gut ||| Glue=0 LM=0 ||| 0
"""


def entries(stored: StoredLists) -> list[tuple[int, list[str], dict[str, float], float | None]]:
    """Everything in plain Python."""
    lists = stored.lists
    lists.check()
    assert lists.features is not None
    result = []
    for i, sentence in enumerate(np.repeat(lists.index, np.diff(lists.begin)).tolist()):
        words = [] if lists.words is None else lists.words.names(lists.hypothesis(i))
        ids, values = lists.row(i)
        row = dict(zip(lists.features.names(ids), values.tolist(), strict=True))
        score = None if lists.score is None else float(lists.score[i])
        result.append((sentence, words, row, score))
    return result


def write(path: Path, text: str | bytes) -> Path:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_moses(tmp_path: Path) -> None:
    lists = read_lists(write(tmp_path / "list", MOSES))
    assert entries(lists) == [
        (0, ["ein", "haus"], {"LM0_0": -4.5, "TM0_0": -1, "TM0_1": -2.5, "WT_a~b": 2}, -8.25),
        (0, ["das", "haus"], {"D0_0": 1, "LM0_0": -5, "TM0_1": 0.001, "WT_a~=": 1}, -9),
        (1, ["gut"], {"LM0_0": -1, "TM0_0": -1, "TM0_1": -1}, -3),
    ]
    assert lists.dense_names == ["D0_0", "LM0_0", "TM0_0", "TM0_1"]
    assert lists.lists.entries().tolist() == [1, 2, 3]
    assert lists.summary() == "3 hypotheses of 2 sentences"


def test_cdec(tmp_path: Path) -> None:
    path = tmp_path / "list.gz"
    path.write_bytes(gzip.compress(CDEC.replace("\n", "\r\n").encode()))
    lists = read_lists(path)
    assert entries(lists) == [
        (0, ["ein", "haus"], {"LM": -4.5, "Glue": 2, "id:a=b": 1}, -8.25),
        (0, ["das", "haus"], {"LM": -5}, -9),
        (1, ["gut"], {}, 0),
    ]
    assert lists.dense_names == ["LM", "Glue"]
    assert read_lists(path, dense=["Glue"]).dense_names == ["Glue"]


NAMES = st.sampled_from(["LM", "a=b", "id:x", "größe", "A_b", "w~="])
VALUES = st.one_of(
    st.floats(allow_nan=False, allow_infinity=False), st.integers(-99, 99).map(float)
)
LINES = st.lists(
    st.tuples(
        st.lists(st.sampled_from(["a", "für", "=", "||", "c"]), max_size=4),
        st.dictionaries(NAMES, VALUES, max_size=5),
        VALUES,
    ),
    min_size=1,
    max_size=8,
)


@settings(max_examples=60)
@given(lines=LINES, moses=st.booleans(), piece=st.integers(1, 200))
def test_equals_what_was_written(
    tmp_path_factory: pytest.TempPathFactory, lines: list, moses: bool, piece: int
) -> None:
    text = ""
    for i, (words, row, total) in enumerate(lines):
        if moses:
            row = {name if "_" in name else f"{name}_": value for name, value in row.items()}
            lines[i] = (words, row, total)
        features = " ".join(f"{n}={' ' if moses else ''}{v!r}" for n, v in row.items())
        text += f"{i // 2} ||| {' '.join(words)} ||| {features} ||| {total!r}\n"
    path = write(tmp_path_factory.getbasetemp() / "random", text)
    before = formats.PIECE
    formats.PIECE = piece
    try:
        lists = read_lists(path, "moses" if moses else "cdec", dense=[])
    finally:
        formats.PIECE = before
    assert entries(lists) == [
        (i // 2, words, {n: v for n, v in row.items() if v}, total)
        for i, (words, row, total) in enumerate(lines)
    ]
    for row in np.split(lists.lists.rows.feature, lists.lists.rows.begin[1:-1]):
        assert (np.diff(row) > 0).all()


@given(st.one_of(st.floats().map(repr), st.text("0123456789.+-eE_ni", max_size=12)))
@example("8.803145748222139e-299")  # 10^-314 alone is 0, or next to it
def test_numbers_are_pythons(text: str) -> None:
    letters = np.frombuffer(bytearray(text.encode() + b" "), np.uint8)
    kind, value = number(letters, 0, letters.size - 1, POWERS)
    try:
        expected = math.nan if set(text) & set("_n i") else float(text)
    except ValueError:
        expected = math.nan
    if kind == EXACT:
        assert value == expected
        assert math.copysign(1, value) == math.copysign(1, expected)
    else:
        assert kind == (NONE if math.isnan(expected) else LONG)
        if kind == LONG and abs(expected) < 1e300:
            assert value == pytest.approx(expected, rel=2e-15, abs=1e-300)


def moses_line(line: int, text: str) -> str:
    lines = MOSES.splitlines()
    lines[line - 1] = text
    return "\n".join(lines)


FAULTS = {
    "no list": (1, "hello", "'hello' is no sentence number; lines begin"),
    "blank line": (2, "", "a field is missing"),
    "no score": (2, "0 ||| a ||| D0= 1 LM0= 1 TM0= 1 1", "a field is missing"),
    "empty score": (2, "0 ||| a ||| D0= 1 LM0= 1 TM0= 1 1 |||", "a field is missing"),
    "no features": (3, "1 ||| a", "a field is missing"),
    "no number": (2, "zero ||| a ||| D0= 1 LM0= 1 TM0= 1 1 ||| 0", "'zero' is no sentence number"),
    "negative": (2, "-1 ||| a ||| D0= 1 LM0= 1 TM0= 1 1 ||| 0", "'-1' is no sentence number"),
    "two numbers": (2, "0 0 ||| a ||| D0= 1 LM0= 1 TM0= 1 1 ||| 0", "no sentence number"),
    "alignment": (2, "0 ||| a ||| 0-0 1-1 ||| 0", "'0-0' stands where `Label= 0.5` is expected"),
    "blank in name": (2, "0 ||| a ||| D0= 1 my LM0= 1 TM0= 1 1 ||| 0", "value 'my' is no finite"),
    "blank in first name": (2, "0 ||| a ||| my D0= 1 LM0= 1 TM0= 1 1 ||| 0", "no blanks in it"),
    "other format": (2, "0 ||| a ||| D0=1 LM0=1 ||| 0", "'D0=1' stands where `Label= 0.5`"),
    "no name": (2, "0 ||| a ||| = 1 LM0= 1 ||| 0", "no feature name before the ="),
    "no value": (2, "0 ||| a ||| D0= LM0= 1 TM0= 1 1 ||| 0", "feature 'D0=' has no value"),
    "no last value": (2, "0 ||| a ||| D0= 1 LM0= 1 TM0= ||| 0", "feature 'TM0=' has no value"),
    "score": (2, "0 ||| a ||| D0= 1 LM0= 1 TM0= 1 1 ||| good", "'good' is not the score"),
    "two scores": (2, "0 ||| a ||| D0= 1 LM0= 1 TM0= 1 1 ||| 0 1", "'1' is not the score"),
    "new": (2, "0 ||| a ||| D0= 1 LM0= 1 TM0= 1 1 X= 1 ||| 0", "'X=' is a dense feature that"),
    "lacking": (2, "0 ||| a ||| D0= 1 TM0= 1 1 ||| 0", "dense feature 'LM0' is missing"),
    "width": (2, "0 ||| a ||| D0= 1 LM0= 1 TM0= 1 1 1 ||| 0", "'TM0=' has another number of"),
    "dense twice": (2, "0 ||| a ||| D0= 1 D0= 1 LM0= 1 TM0= 1 1 ||| 0", "'D0' is given twice"),
    "sparse twice": (2, "0 ||| a ||| D0= 1 LM0= 1 TM0= 1 1 A_= 1 A_= 2 ||| 0", "'A_' is given"),
    "clash": (2, "0 ||| a ||| D0= 1 LM0= 1 LM0_0= 2 TM0= 1 1 ||| 0", "'LM0_0' is given twice"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_faults_are_located_or_skipped(name: str, tmp_path: Path) -> None:
    line, text, message = FAULTS[name]
    path = write(tmp_path / "list", moses_line(line, text))
    with pytest.raises(InputError, match=message) as caught:
        read_lists(path, "moses")
    assert (caught.value.path, caught.value.line) == (path, line)
    lists = read_lists(path, "moses", on_error="skip")
    assert lists.lists.entries().tolist() == [i for i in (1, 2, 3) if i != line]
    assert sum(n for what, n in lists.skipped.items() if what.startswith("lines")) == 1
    assert "1 lines " in lists.summary()


ZEROS_LEFT_OUT = CDEC.replace(" Glue=0 LM=0", "").replace(" Glue=0", "")


def test_a_line_without_a_dense_value_is_a_fault_unless_one_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "list", ZEROS_LEFT_OUT)
    with pytest.raises(InputError, match="list:2: .*'Glue' is missing.*missing=VALUE"):
        read_lists(path)
    assert read_lists(path, on_error="skip").summary() == (
        "1 hypotheses of 1 sentences; 2 lines with other dense features, 2 sentences with a fault, "
        "1 sentences without a list"
    )
    whole = write(tmp_path / "whole", CDEC)
    for format in ("cdec", None):
        filled = read_lists(path, format, missing=0)
        assert entries(filled) == entries(read_lists(whole))
        assert filled.dense_names == ["LM", "Glue"]
    rows = [row for _, _, row, _ in entries(read_lists(path, missing=-7.5))]
    assert [(row["LM"], row["Glue"]) for row in rows] == [(-4.5, 2), (-5, -7.5), (-7.5, -7.5)]
    # A value of 0 that is there stays.
    assert entries(read_lists(whole, missing=-7.5)) == entries(read_lists(whole))
    with pytest.raises(ValueError, match="missing must be a finite number"):
        read_lists(path, missing=math.nan)


def test_the_line_is_found_in_whatever_piece(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(formats, "PIECE", 64)
    lines = [f"{i} ||| a ||| LM=-1 F={i % 2} s:{i}=1 ||| 0" for i in range(9)]
    for change, line, message in (
        (lambda text: text.replace(" F=1", ""), 8, "'F' is missing"),
        (lambda text: text.replace("s:", "s"), 8, "'s7' is a dense feature that the first line"),
    ):
        path = write(tmp_path / "list", "\n".join([*lines[:7], change(lines[7]), lines[8]]))
        with pytest.raises(InputError, match=f"list:{line}: .*{message}"):
            read_lists(path)
        filled = entries(read_lists(path, missing=3))
        assert len(filled) == 9 and filled[7][2].get("F") in (1, 3)


@pytest.mark.parametrize("dense", [["LM"], ["WT_a~b"], ["D0_0", "WT_a~b"]])
def test_named_dense_features_are_in_every_line(dense: list[str], tmp_path: Path) -> None:
    path = write(tmp_path / "list", ZEROS_LEFT_OUT if dense == ["LM"] else MOSES)
    with pytest.raises(InputError, match=f"list:[23]: .*'{dense[-1]}' is missing"):
        read_lists(path, dense=dense)
    rows = [row for _, _, row, _ in entries(read_lists(path, dense=dense, missing=9))]
    assert [row[dense[-1]] for row in rows].count(9) == (1 if dense == ["LM"] else 2)


def test_labels_of_moses_that_lines_lack_are_filled(tmp_path: Path) -> None:
    text = MOSES.replace("D0= 0 LM0= -4.5", "LM0= -4.5").replace("TM0= 0 1e-3", "")
    read = read_lists(write(tmp_path / "list", text), missing=-3)
    assert read.dense_names == ["LM0_0", "TM0_0", "TM0_1", "D0_0"]
    assert [row for _, _, row, _ in entries(read)][:2] == [
        {"LM0_0": -4.5, "TM0_0": -1, "TM0_1": -2.5, "D0_0": -3, "WT_a~b": 2},
        {"LM0_0": -5, "D0_0": 1, "TM0_0": -3, "TM0_1": -3, "WT_a~=": 1},
    ]


def test_cdec_faults(tmp_path: Path) -> None:
    for features, message in {
        "LM": "'LM' stands where `name=0.5` is expected",
        "my LM=1": "a name has no blanks in it",
        "LM= 1": "'LM=' has no value",
        "=1": "no feature name before the = of '=1'",
        "LM=1 LM=0": "'LM' is given twice",
        "F=1 LM=0": "'LM' is a dense feature that the first line does not have",
        "LM=0x1": "'0x1' is no finite number",
        "LM= -1.5": "'LM=' has no value",
    }.items():
        path = write(tmp_path / "list", f"0 ||| a ||| F=1 ||| 1\n0 ||| a ||| {features} ||| 1\n")
        with pytest.raises(InputError, match="list:2: .*" + message):
            read_lists(path, "cdec")


def test_sentences_of_which_all_is_left_out_count(tmp_path: Path) -> None:
    good, lost = "0 ||| a ||| F=1 ||| 1\n", "without a list"
    for bad, n_sentences in {
        b"2 ||| a ||| F=x ||| 1": 3,
        b"2 ||| \xff ||| F=1 ||| 1": 3,
        b"2 |||": 3,
        b"2": 1,
        b"2 a": 1,
        b"2\xff ||| a": 1,
        b"||| a": 1,
    }.items():
        path = write(tmp_path / "list", good.encode() + bad)
        lists = read_lists(path, on_error="skip")
        assert lists.n_sentences == n_sentences
        missing = {f"sentences {lost}": n_sentences - 1} if n_sentences > 1 else {}
        assert {what: n for what, n in lists.skipped.items() if what.endswith(lost)} == missing


def test_order_and_gaps(tmp_path: Path) -> None:
    line = "{} ||| a ||| F=1 ||| 1\n"
    path = write(tmp_path / "list", "".join(line.format(i) for i in (0, 1, 0, 3)))
    with pytest.raises(
        InputError, match="list:3: the number of .* is smaller than that of line 2,"
    ):
        read_lists(path)
    lists = read_lists(path, on_error="skip")
    assert lists.lists.index.tolist() == [0, 1, 3]
    assert lists.skipped == {"lines out of order": 1, "sentences without a list": 1}
    path = write(tmp_path / "list", "".join(line.format(i) for i in (0, 2, 2)))
    with pytest.raises(InputError, match="list:2: this list is of sentence 2, and sentence 1 has"):
        read_lists(path)
    path = write(tmp_path / "list", line.format(1))
    with pytest.raises(InputError, match="list:1: .* sentence 0 has none"):
        read_lists(path)


@pytest.mark.parametrize("pieces", [1 << 22, 64])
def test_one_wrong_number_costs_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pieces: int
) -> None:
    monkeypatch.setattr(formats, "PIECE", pieces)
    line = "{} ||| a ||| F=1 ||| 1\n"
    numbers = np.repeat(np.arange(20), 3)
    for place, wrong in ((1, 15), (1, 10**8), (30, 2), (57, 99)):
        given = numbers.copy()
        given[place] = wrong
        read = read_lists(
            write(tmp_path / "list", "".join(map(line.format, given))), None, on_error="skip"
        )
        left = np.delete(np.arange(60), place)
        assert read.lists.entry is not None and (read.lists.entry == left + 1).all()
        assert read.n_sentences == 20 and read.skipped == {"lines out of order": 1}


@pytest.mark.parametrize("lines", [1, 3])
@pytest.mark.parametrize("pieces", [1 << 22, 64])
def test_whole_lists_in_another_order_are_sorted(
    lines: int, pieces: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(formats, "PIECE", pieces)
    line = "{} ||| a ||| F=1 ||| 1\n"
    for numbers in (np.arange(6)[::-1], np.array([3, 4, 5, 0, 1, 2]), np.array([4, 0, 1, 2, 3, 5])):
        text = "".join(line.format(i) for i in np.repeat(numbers, lines))
        path = write(tmp_path / "list", text)
        for on_error in get_args(OnError):
            read = read_lists(path, on_error=on_error)
            assert read.lists.index.tolist() == list(range(6)) and read.n_sentences == 6
            assert read.lists.n_hypotheses == 6 * lines and not read.skipped
        # Nothing but a line with a fault is left out.
        read = read_lists(write(path, text.replace("2 ||| a", "2 ||| a |||")), on_error="skip")
        assert read.n_sentences == 6 and set(read.skipped) == {
            "sentences with a fault",
            "lines with a bad score",
            "sentences without a list",
        }


@pytest.mark.parametrize(
    "numbers",
    [
        [0, 0, 1, 1, 2, 2, 0, 0, 1, 1, 2, 2],
        [3, 3, 4, 4, 0, 0, 1, 1],
        [9, 7, 5, 3, 1],
        [0, 0, 3, 3, 1, 1, 5],
    ],
)
def test_other_lists_out_of_order_are_refused(numbers: list[int], tmp_path: Path) -> None:
    path = write(tmp_path / "list", "".join(f"{i} ||| a ||| F=1 ||| 1\n" for i in numbers))
    with pytest.raises(InputError, match="list:[0-9]+: .*out of order.*sort them"):
        read_lists(path, on_error="skip")


def test_a_wrong_number_of_a_line_with_a_fault_makes_no_sentences(tmp_path: Path) -> None:
    text = "0 ||| a ||| F=1 ||| 1\n2 ||| a ||| F=x ||| 1\n9999999 ||| a ||| F=x ||| 1\n"
    read = read_lists(write(tmp_path / "list", text), on_error="skip")
    assert read.n_sentences == 3 and read.skipped["sentences without a list"] == 2


@given(st.lists(st.integers(0, 6), max_size=9))
def test_longest_in_order(numbers: list[int]) -> None:
    found = longest_in_order(np.array(numbers, np.int64))
    assert (np.diff(found) > 0).all() and (np.diff(np.array(numbers, np.int64)[found]) >= 0).all()
    chosen = (c for n in range(len(numbers), -1, -1) for c in combinations(range(len(numbers)), n))
    best = next(c for c in chosen if sorted(numbers[i] for i in c) == [numbers[i] for i in c])
    assert found.size == len(best)


def test_not_utf8(tmp_path: Path) -> None:
    bad = b"0 ||| \xff ||| F\xfe=1 ||| 1\n"
    path = write(tmp_path / "list", CDEC[: CDEC.index("\n") + 1].encode() + bad)
    with pytest.raises(InputError, match="list:2: is not valid UTF-8"):
        read_lists(path)
    lists = read_lists(path, on_error="skip")
    assert lists.skipped == {"lines not in UTF-8": 1, "sentences with a fault": 1}
    assert lists.lists.features.names(range(len(lists.lists.features))) == ["LM", "Glue", "id:a=b"]
    assert lists.lists.words.names(range(len(lists.lists.words))) == ["ein", "haus"]


def test_nothing_to_read(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is empty"):
        read_lists(write(tmp_path / "list", "\n"))
    with pytest.raises(InputError, match="no hypothesis is left .2 lines with a field missing"):
        read_lists(write(tmp_path / "list", "0\n1\n"), on_error="skip")
    with pytest.raises(InputError, match="is one of Moses's tuning files"):
        read_lists(write(tmp_path / "list", "FEATURES_TXT_BEGIN_0 0 1 0\n"))
    with pytest.raises(ValueError, match="format must be cdec or moses"):
        read_lists(tmp_path / "list", "joshua")  # type: ignore[arg-type]


def test_many_names_without_a_colon_are_not_taken_for_dense(tmp_path: Path) -> None:
    row = " ".join(f"F{i}=1" for i in range(201))
    path = write(tmp_path / "list", f"0 ||| a ||| {row} ||| 1\n")
    with pytest.raises(InputError, match="has 201 features without a colon"):
        read_lists(path)
    assert read_lists(path, dense=["F3"]).dense_names == ["F3"]


def test_names_must_fit_into_a_weights_file(tmp_path: Path) -> None:
    path = write(tmp_path / "list", "0 ||| a ||| F=1 ||| 1\n0 ||| b ||| F=1 #x:=2 ||| 1\n")
    with pytest.raises(InputError, match="list:2: the feature '#x:' begins with #"):
        read_lists(path)
    # What a list may have is written and read back.
    lists = read_lists(write(tmp_path / "list", "0 ||| a ||| a==1 w~=~==2 x=y=3 ||| 1\n"))
    names = lists.lists.features.names(range(3))
    assert names == ["a=", "w~=~=", "x=y"]
    weights = Weights()
    weights.set(names, [1.0, 2.0, 3.0])
    save_weights(tmp_path / "weights", weights)
    assert read_weights(tmp_path / "weights")[0].names(range(3)) == sorted(names)


FEATURES = """\
FEATURES_TXT_BEGIN_0 0 2 2 LM0_0 D0_0
-1.5 0 A_b=2
-2 3
FEATURES_TXT_END_0
FEATURES_TXT_BEGIN_0 1 1 2 LM0_0 D0_0
-1 1
FEATURES_TXT_END_0
"""
SCORES = """\
SCORES_TXT_BEGIN_0 0 2 9 BLEU
7 9 4 8 2 7 1 6 10
8 9 5 8 3 7 1 6 10
SCORES_TXT_END_0
SCORES_TXT_BEGIN_0 1 1 9 BLEU
1 2 0 1 0 0 0 0 3
SCORES_TXT_END_0
"""


def tuning_files(
    folder: Path, features: str = FEATURES, scores: str = SCORES, **options: str
) -> StoredLists:
    write(folder / "f", features)
    write(folder / "s", scores)
    return read_tuning_files(folder / "f", folder / "s", **options)  # type: ignore[arg-type]


def test_tuning_files(tmp_path: Path) -> None:
    # Moses's extractor ends lines with a blank.
    lists = tuning_files(tmp_path, FEATURES.replace("\n", " \n"), SCORES.replace("\n", " \n"))
    rows = [row for _, _, row, _ in entries(lists)]
    assert rows == [{"LM0_0": -1.5, "A_b": 2}, {"LM0_0": -2, "D0_0": 3}, {"LM0_0": -1, "D0_0": 1}]
    assert lists.lists.statistics.tolist() == [
        [7, 4, 2, 1, 9, 8, 7, 6, 9, 10],
        [8, 5, 3, 1, 9, 8, 7, 6, 9, 10],
        [1, 0, 0, 0, 2, 1, 0, 0, 2, 3],
    ]
    assert lists.lists.entries().tolist() == [2, 3, 6]
    assert lists.dense_names == ["LM0_0", "D0_0"]
    assert lists.lists.words is None and lists.lists.score is None


@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        ("f", "-2 3", "-2", "f:3: has fewer values"),
        ("f", "-2 3", "-2 3 4", "f:3: '4' stands where"),
        ("f", "A_b=2", "A_b=", "f:2: the feature 'A_b=' has no value"),
        ("f", "A_b=2", "LM0_0=2", "f:2: the feature 'LM0_0' is given twice"),
        ("f", "-2 3\n", "", "f:1: announces 2 lines, and 1 follow"),
        ("f", "-2 3\n", "-2 3\n\n", "f:1: announces 2 lines, and 3 follow"),
        ("f", "0 2 2 LM0_0 D0_0", "0 2 3 LM0_0 D0_0", "f:1: write `FEATURES_TXT_BEGIN_0"),
        ("f", "1 1 2 LM0_0 D0_0", "1 1 2 LM0_0 E0_0", "f:5: names other dense features than"),
        ("f", "1 1 2 LM0_0", "2 1 2 LM0_0", "s:5: has 1 lines of sentence 1, and line 5 of"),
        ("f", "-1 1\nFEATURES_TXT_END_0\n", "-1 1\n", "f:5: FEATURES_TXT_END_0 is missing"),
        ("f", "FEATURES_TXT_END_0\nF", "F", "f:4: FEATURES_TXT_BEGIN_0 where"),
        ("f", "FEATURES_TXT_BEGIN_0 1", "FEATURES_BIN_BEGIN_0 1", "f:5: is not the text form"),
        ("f", FEATURES, "0 ||| a ||| b ||| c\n", "f:1: is no line of a block"),
        ("s", "8 9 5", "9 8 5", "s:3: BLEU's statistics must be"),
        ("s", "0 0 0 0 3", "0 0 1 0 3", "s:6: BLEU's statistics must be"),
        ("s", "8 9 5", "8 9", "s:3: has fewer values"),
        ("s", "1 1 9 BLEU", "1 1 2 TER", "s:5: holds 2 statistics of TER"),
        ("s", SCORES[SCORES.index("SCORES_TXT_BEGIN_0 1") :], "", "s: has 1 blocks, and"),
    ],
)
def test_tuning_files_with_faults(
    file: str, old: str, new: str, message: str, tmp_path: Path
) -> None:
    texts = {"f": FEATURES, "s": SCORES}
    assert old in texts[file]
    texts[file] = texts[file].replace(old, new, 1)
    with pytest.raises(InputError, match=message):
        tuning_files(tmp_path, texts["f"], texts["s"])


def test_exchanged_tuning_files(tmp_path: Path) -> None:
    message = "f:1: has the text of scores.dat where that of features.dat is expected; exchange"
    with pytest.raises(InputError, match=message):
        tuning_files(tmp_path, SCORES, FEATURES)
    with pytest.raises(InputError, match="s:1: has the text of features.dat where that of scores"):
        tuning_files(tmp_path, FEATURES, FEATURES)


def test_lines_that_one_tuning_file_lacks_are_left_out_of_the_other(tmp_path: Path) -> None:
    features = FEATURES.replace("-1.5 0", "nan 0")
    lists = tuning_files(tmp_path, features, SCORES.replace("1 2 0", "1 2 x"), on_error="skip")
    assert lists.lists.statistics.tolist() == [[8, 5, 3, 1, 9, 8, 7, 6, 9, 10]]
    assert lists.lists.entries().tolist() == [3]
    assert lists.skipped == {
        "sentences with a fault": 2,
        "lines with a bad value": 1,
        "lines with bad statistics": 1,
        "sentences without a list": 1,
    }


def read_merged(folder: Path, texts: list[str], on_error: OnError = "error") -> StoredLists:
    paths = [write(folder / f"{i}", text) for i, text in enumerate(texts)]
    words, features = Vocabulary(), Vocabulary()
    parts = [
        read_lists(path, words=words, features=features, on_error=on_error, shard=True)
        for path in paths
    ]
    return merged(parts, paths, strict=on_error == "error")


def test_each_file_may_have_some_of_the_sentences(tmp_path: Path) -> None:
    first, second, third = (f"{i} ||| a ||| F={i} ||| 1\n" for i in range(3))
    for texts in ([first, second + third], [first + third, second], [second, first, third]):
        lists = read_merged(tmp_path, texts, "skip")
        assert lists.summary() == "3 hypotheses of 3 sentences"
        assert entries(lists) == entries(read_merged(tmp_path, texts))
    texts = [first, first.replace("a", "b") + third]
    with pytest.raises(InputError, match="1:2: this list is of sentence 2, and sentence 1 has"):
        read_merged(tmp_path, texts)
    lists = read_merged(tmp_path, texts, "skip")
    assert lists.skipped == {"sentences without a list": 1}


def test_lists_of_several_files_are_merged_without_copies(tmp_path: Path) -> None:
    texts = [
        "0 ||| a ||| F=1 ||| 1\n0 ||| b ||| F=1 ||| 1\n1 ||| c ||| F=1 ||| 1\n",
        "0 ||| b ||| F=1 ||| 5\n0 ||| a ||| F=2 ||| 1\n"
        "1 ||| c ||| F=0 ||| 1\n2 ||| d ||| F=3 ||| 1\n",
    ]
    together = read_merged(tmp_path, texts)
    owners = [(s, w[0], row.get("F", 0)) for s, w, row, _ in entries(together)]
    assert owners == [(0, "a", 1), (0, "b", 1), (0, "b", 1), (0, "a", 2), *owners[4:]]
    assert owners[4:] == [(1, "c", 1), (1, "c", 0), (2, "d", 3)]
    unique = together.without_copies()
    assert [(s, w[0], row.get("F", 0)) for s, w, row, _ in entries(unique)] == [
        *owners[:2],
        *owners[3:],
    ]
    assert unique.summary() == "6 hypotheses of 3 sentences; 1 copies of earlier entries"

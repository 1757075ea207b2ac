"""Readers of n-best lists: against a slow reader, and every fault of a file."""

import math
from itertools import combinations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from small_lists import put, weights_of

from torchtune_smt.core.errors import InputError
from torchtune_smt.core.snapshot import FrozenWeights
from torchtune_smt.core.text_kernels import EXACT, LONG, NONE, POWERS, number
from torchtune_smt.core.vocabulary import Vocabulary
from torchtune_smt.core.weights_io import save_weights
from torchtune_smt.kbest import formats
from torchtune_smt.kbest.formats import longest_in_order
from torchtune_smt.kbest.forms import read_lists
from torchtune_smt.kbest.moses_tuning_files import read_tuning_files
from torchtune_smt.kbest.stored_lists import merged

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
ZEROS_LEFT_OUT = CDEC.replace(" Glue=0 LM=0", "").replace(" Glue=0", "")
LINE = "{} ||| a ||| F=1 ||| 1\n"


def entries(stored):
    lists = stored.lists
    lists.check()
    result = []
    for i, sentence in enumerate(np.repeat(lists.index, np.diff(lists.begin)).tolist()):
        words = lists.words.names(lists.hypothesis(i)) if lists.words else []
        score = None if lists.score is None else float(lists.score[i])
        result.append((sentence, words, lists.features.named(*lists.row(i)), score))
    return result


def rows_of(stored):
    return [row for _, _, row, _ in entries(stored)]


@pytest.fixture(params=[1 << 22, 64], ids=["whole", "pieces"])
def pieces(request, monkeypatch):
    """Texts are parsed as a whole, and in pieces of some lines."""
    monkeypatch.setattr(formats, "PIECE", request.param)
    monkeypatch.setattr(formats, "_PART", request.param)


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
def test_equals_what_was_written(tmp_path_factory, lines, moses, piece):
    text = ""
    for i, (words, row, total) in enumerate(lines):
        if moses:
            row = {name if "_" in name else f"{name}_": value for name, value in row.items()}
            lines[i] = (words, row, total)
        features = " ".join(f"{n}={' ' if moses else ''}{v!r}" for n, v in row.items())
        text += f"{i // 2} ||| {' '.join(words)} ||| {features} ||| {total!r}\n"
    path = put(tmp_path_factory.getbasetemp(), {"random": text})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(formats, "PIECE", piece)
        lists = read_lists(path, "moses" if moses else "cdec", dense=[])
    assert entries(lists) == [
        (i // 2, words, {n: v for n, v in row.items() if v}, total)
        for i, (words, row, total) in enumerate(lines)
    ]
    for row in np.split(lists.lists.rows.feature, lists.lists.rows.begin[1:-1]):
        assert (np.diff(row) > 0).all()


@given(st.one_of(st.floats().map(repr), st.text("0123456789.+-eE_ni", max_size=12)))
@example("8.803145748222139e-299")  # 10^-314 alone is 0, or next to it
def test_numbers_are_pythons(text):
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


def moses(features):
    return f"0 ||| a ||| {features} ||| 0"


FAULTS = {
    "no list": (1, "hello", "'hello' is no sentence number; lines begin"),
    "blank line": (2, "", "a field is missing"),
    "no features": (3, "1 ||| a", "a field is missing"),
    "blank in name": (2, moses("D0= 1 my LM0= 1 TM0= 1 1"), "value 'my' is no finite"),
    "other format": (2, moses("D0=1 LM0=1"), "'D0=1' stands where `Label= 0.5`"),
    "no last value": (2, moses("D0= 1 LM0= 1 TM0="), "'TM0=' stands where"),
    "score": (2, "0 ||| a ||| D0= 1 LM0= 1 TM0= 1 1 ||| good", "'good' is not the score"),
    "new": (2, moses("D0= 1 LM0= 1 TM0= 1 1 X= 1"), "'X=' is a dense feature that"),
    "lacking": (2, moses("D0= 1 TM0= 1 1"), "dense feature 'LM0' is missing"),
    "width": (2, moses("D0= 1 LM0= 1 TM0= 1 1 1"), "at 'TM0=', the line has another number"),
    "dense twice": (2, moses("D0= 1 D0= 1 LM0= 1 TM0= 1 1"), "'D0' is given twice"),
    "clash": (2, moses("D0= 1 LM0= 1 LM0_0= 2 TM0= 1 1"), "'LM0_0' is given twice"),
}
OF_CDEC = {
    "LM= 1": "'LM=' stands where `name=0.5` is expected",
    "=1": "'=1' stands where",
    "LM=1 LM=0": "'LM' is given twice",
}
CASES = {name: ("moses", MOSES, *row) for name, row in FAULTS.items()}
CASES |= {
    features: ("cdec", LINE.format(0) * 2 + LINE.format(1), 2, moses(features), message)
    for features, message in OF_CDEC.items()
}


@pytest.mark.parametrize("name", CASES)
def test_faults_are_located_or_skipped(name, tmp_path):
    form, text, line, bad, message = CASES[name]
    lines = text.splitlines()
    lines[line - 1] = bad
    path = put(tmp_path, {"list": lines})
    with pytest.raises(InputError, match=message) as caught:
        read_lists(path, form)
    assert (caught.value.path, caught.value.line) == (path, line)
    lists = read_lists(path, form, on_error="skip")
    assert lists.lists.entries().tolist() == [i for i in (1, 2, 3) if i != line]
    assert sum(n for what, n in lists.skipped.items() if what.startswith("lines")) == 1
    assert "1 lines " in lists.summary()


def test_a_line_without_a_dense_value_is_a_fault_unless_one_is_named(tmp_path):
    path, whole = tmp_path / "list", tmp_path / "whole"
    put(tmp_path, {"list": ZEROS_LEFT_OUT, "whole": CDEC})
    with pytest.raises(InputError, match="list:2: .*'Glue' is missing.*missing=VALUE"):
        read_lists(path)
    assert read_lists(path, on_error="skip").summary() == (
        "1 hypotheses of 1 sentences; 2 lines with other dense features, 2 sentences with a fault, "
        "1 sentences without a list"
    )
    filled = read_lists(path, missing=0)
    assert entries(filled) == entries(read_lists(whole))
    assert filled.dense_names == ["LM", "Glue"]
    rows = rows_of(read_lists(path, missing=-7.5))
    assert [(row["LM"], row["Glue"]) for row in rows] == [(-4.5, 2), (-5, -7.5), (-7.5, -7.5)]
    # A value of 0 that is there stays.
    assert entries(read_lists(whole, missing=-7.5)) == entries(read_lists(whole))
    # Labels of Moses, too.
    text = MOSES.replace("D0= 0 LM0= -4.5", "LM0= -4.5").replace("TM0= 0 1e-3", "")
    read = read_lists(put(tmp_path, {"list": text}), missing=-3)
    assert read.dense_names == ["LM0_0", "TM0_0", "TM0_1", "D0_0"]
    assert rows_of(read)[:2] == [
        {"LM0_0": -4.5, "TM0_0": -1, "TM0_1": -2.5, "D0_0": -3, "WT_a~b": 2},
        {"LM0_0": -5, "D0_0": 1, "TM0_0": -3, "TM0_1": -3, "WT_a~=": 1},
    ]


@pytest.mark.parametrize("dense", [["LM"], ["D0_0", "WT_a~b"]])
def test_named_dense_features_are_in_every_line(dense, tmp_path):
    path = put(tmp_path, {"list": ZEROS_LEFT_OUT if dense == ["LM"] else MOSES})
    with pytest.raises(InputError, match=f"list:[23]: .*'{dense[-1]}' is missing"):
        read_lists(path, dense=dense)
    rows = rows_of(read_lists(path, dense=dense, missing=9))
    assert [row[dense[-1]] for row in rows].count(9) == (1 if dense == ["LM"] else 2)


def test_many_names_without_a_colon_are_not_taken_for_dense(tmp_path):
    path = put(tmp_path, {"list": [moses(" ".join(f"F{i}=1" for i in range(201)))]})
    with pytest.raises(InputError, match="has 201 features without a colon"):
        read_lists(path)
    assert read_lists(path, dense=["F3"]).dense_names == ["F3"]


def test_names_must_fit_into_a_weights_file(tmp_path):
    path = put(tmp_path, {"list": LINE.format(0) + "0 ||| b ||| F=1 #x:=2 ||| 1\n"})
    with pytest.raises(InputError, match="list:2: the feature '#x:' begins with #"):
        read_lists(path)
    # What a list may have is written and read back.
    lists = read_lists(put(tmp_path, {"list": [moses("a==1 w~=~==2 x=y=3")]})).lists
    names = lists.features.names(range(len(lists.features)))
    assert names == ["a=", "w~=~=", "x=y"]
    save_weights(tmp_path / "weights", FrozenWeights.of(dict.fromkeys(names, 1.0)))
    assert sorted(weights_of(tmp_path / "weights")) == sorted(names)


UP = list(range(6))
# Numbers of lines; the error; and what is left if faults are skipped, or the error then.
ORDERS = {
    "back": ([0, 1, 0, 3], "list:3: .* smaller than that of line 2,", [0, 1, 3]),
    "gap": ([0, 2, 2], "list:2: this list is of sentence 2, and sentence 1 has", [0, 2]),
    "from 1": ([1], "list:1: .* sentence 0 has none", [1]),
    "turned in threes": (np.repeat(UP[::-1], 3), None, UP),
    "two parts": ([3, 4, 5, 0, 1, 2], None, UP),
    "all twice": ([0, 0, 1, 1, 2, 2, 0, 0, 1, 1, 2, 2], "list:7:", "sort them"),
    "parts with a gap": ([3, 3, 4, 4, 0, 0, 1, 1], "list:", "sort them"),
    "gaps": ([0, 0, 3, 3, 1, 1, 5], "list:", "sort them"),
}


@pytest.mark.parametrize("name", ORDERS)
def test_order(name, tmp_path, pieces):
    """Whole lists in another order are sorted; nothing is guessed where more is wrong."""
    numbers, error, left = ORDERS[name]
    path = put(tmp_path, {"list": "".join(LINE.format(i) for i in numbers)})
    if error is None:
        read = read_lists(path)
        assert read.lists.index.tolist() == left and not read.skipped
        assert read.lists.n_hypotheses == len(numbers) and read.n_sentences == 6
    else:
        with pytest.raises(InputError, match=error):
            read_lists(path)
    if left == "sort them":
        with pytest.raises(InputError, match="list:[0-9]+: .*out of order.*sort them"):
            read_lists(path, on_error="skip")
        return
    read = read_lists(path, on_error="skip")
    assert read.lists.index.tolist() == left
    lost = {"lines out of order": len(numbers) - read.lists.n_hypotheses}
    lost["sentences without a list"] = max(left) + 1 - len(left)
    assert read.skipped == {what: n for what, n in lost.items() if n}
    if error is None:
        # Nothing but a line with a fault is left out.
        text = path.read_text().replace("2 ||| a", "2 ||| a |||")
        read = read_lists(put(tmp_path, {"list": text}), on_error="skip")
        assert read.n_sentences == 6 and set(read.skipped) == {
            "sentences with a fault",
            "lines with a bad score",
            "sentences without a list",
        }


def test_one_wrong_number_costs_its_line(tmp_path, pieces):
    for place, wrong in ((1, 15), (1, 10**8), (30, 2), (57, 99)):
        given = np.repeat(np.arange(20), 3)
        given[place] = wrong
        path = put(tmp_path, {"list": "".join(map(LINE.format, given))})
        read = read_lists(path, on_error="skip")
        assert (read.lists.entry == np.delete(np.arange(60), place) + 1).all()
        assert read.n_sentences == 20 and read.skipped == {"lines out of order": 1}


@pytest.mark.parametrize(
    ("bad", "n_sentences"),
    [(b"2 ||| a ||| F=x ||| 1", 3), (b"2 ||| \xff ||| F=1 ||| 1", 3), (b"2 a", 1)],
)
def test_sentences_of_which_all_is_left_out_count(bad, n_sentences, tmp_path):
    path = put(tmp_path, {"list": LINE.format(0).encode() + bad})
    lists = read_lists(path, on_error="skip")
    assert lists.n_sentences == n_sentences
    assert lists.skipped["sentences without a list"] == n_sentences - 1


@given(st.lists(st.integers(0, 6), max_size=9))
def test_longest_in_order(numbers):
    found = longest_in_order(np.array(numbers, np.int64))
    assert (np.diff(found) > 0).all() and (np.diff(np.array(numbers, np.int64)[found]) >= 0).all()
    chosen = (c for n in range(len(numbers), -1, -1) for c in combinations(range(len(numbers)), n))
    best = next(c for c in chosen if sorted(numbers[i] for i in c) == [numbers[i] for i in c])
    assert found.size == len(best)


@pytest.mark.parametrize(
    ("text", "on_error", "message"),
    [
        ("", "error", "is empty"),
        ("0\n1\n", "skip", "no hypothesis is left .2 lines with a field missing"),
        ("FEATURES_TXT_BEGIN_0 0 1 0\n", "error", "is one of Moses's tuning files"),
    ],
)
def test_nothing_to_read(text, on_error, message, tmp_path):
    with pytest.raises(InputError, match=message):
        read_lists(put(tmp_path, {"list": text}), on_error=on_error)


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


def tuning_files(folder, features=FEATURES, scores=SCORES, **options):
    put(folder, {"f": features, "s": scores})
    return read_tuning_files(folder / "f", folder / "s", **options)


@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        ("f", "-2 3", "-2", "f:3: at 'the end of the line', the line has another"),
        ("f", "-2 3\n", "", "f:3: is not features.dat"),
        ("f", "0 2 2 LM0_0 D0_0", "0 2 3 LM0_0 D0_0", "f:1: is not features.dat"),
        ("f", "1 1 2 LM0_0 D0_0", "1 1 2 LM0_0 E0_0", "f:5: names other dense features than"),
        ("f", "1 1 2 LM0_0", "2 1 2 LM0_0", "s:5: has not as many lines"),
        ("f", FEATURES, "0 ||| a ||| b ||| c\n", "f:1: is not features.dat"),
        ("s", "8 9 5", "9 8 5", "s:3: BLEU's statistics must be"),
        ("s", "1 1 9 BLEU", "1 1 2 TER", "s:5: holds 2 statistics of TER"),
        ("s", SCORES[SCORES.index("SCORES_TXT_BEGIN_0 1") :], "", "s: has not as many lines"),
        ("f", FEATURES, SCORES, "f:1: is not features.dat .*scores.dat as scores"),
    ],
)
def test_tuning_files_with_faults(file, old, new, message, tmp_path):
    texts = {"f": FEATURES, "s": SCORES}
    assert old in texts[file]
    texts[file] = texts[file].replace(old, new, 1)
    with pytest.raises(InputError, match=message):
        tuning_files(tmp_path, texts["f"], texts["s"])


def test_lines_that_one_tuning_file_lacks_are_left_out_of_the_other(tmp_path):
    # Moses's extractor ends lines with a blank.
    features, scores = (text.replace("\n", " \n") for text in (FEATURES, SCORES))
    lists = tuning_files(tmp_path, features, scores)
    assert lists.dense_names == ["LM0_0", "D0_0"]
    assert lists.lists.words is None and lists.lists.score is None
    features, scores = features.replace("-1.5 0", "nan 0"), scores.replace("1 2 0", "1 2 x")
    lists = tuning_files(tmp_path, features, scores, on_error="skip")
    assert rows_of(lists) == [{"LM0_0": -2, "D0_0": 3}]
    assert lists.lists.statistics.tolist() == [[8, 5, 3, 1, 9, 8, 7, 6, 9, 10]]
    assert lists.lists.entries().tolist() == [3]
    assert lists.skipped == {
        "sentences with a fault": 2,
        "lines with a bad value": 1,
        "lines with bad statistics": 1,
        "sentences without a list": 1,
    }


def read_merged(folder, texts, on_error="error"):
    paths = [put(folder, {f"{i}": text}) for i, text in enumerate(texts)]
    own = {"words": Vocabulary(), "features": Vocabulary(), "on_error": on_error}
    parts = [read_lists(path, shard=True, **own) for path in paths]
    return merged(parts, paths, strict=on_error == "error")


def test_each_file_may_have_some_of_the_sentences(tmp_path):
    first, second, third = (LINE.format(i) for i in range(3))
    again = first.replace("a", "b")
    lists = read_merged(tmp_path, [first + again + second, first + third]).without_copies()
    assert lists.summary() == "4 hypotheses of 3 sentences; 1 copies of earlier entries"
    for texts in ([first, second + third], [first + third, second], [second, first, third]):
        lists = read_merged(tmp_path, texts, "skip")
        assert lists.summary() == "3 hypotheses of 3 sentences"
        assert entries(lists) == entries(read_merged(tmp_path, texts))
    texts = [first, again + third]
    with pytest.raises(InputError, match="1:2: this list is of sentence 2, and sentence 1 has"):
        read_merged(tmp_path, texts)
    lists = read_merged(tmp_path, texts, "skip")
    assert lists.skipped == {"sentences without a list": 1}

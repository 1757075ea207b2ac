"""Lists in the forms that tools write: each against what its files say, and every damage."""

import json
import math
from typing import get_args

import numpy as np
import pytest
from commands import run_command
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_matrix
from small_lists import put

from torchtune_smt.core.errors import InputError
from torchtune_smt.core.snapshot import FrozenWeights
from torchtune_smt.data.bitext import Corpus
from torchtune_smt.decoders.kbest_files import KBestFiles
from torchtune_smt.kbest.formats import OnError
from torchtune_smt.kbest.forms import FORM_NAMES, read_lists
from torchtune_smt.kbest.lists import KBestLists
from torchtune_smt.kbest.rerank import best_first
from torchtune_smt.kbest.tools import FORMS


def plain(lists):
    """Lists in plain Python: id, and text, features and score of each hypothesis."""
    lists.check()
    found = []
    for kbest in lists:
        id = str(kbest.index) if kbest.ids is None else kbest.ids[kbest.index]
        hypotheses = []
        for h in range(len(kbest)):
            score = None if kbest.score is None else float(kbest.score[h])
            hypotheses.append((kbest.text(h), kbest.features.named(*kbest.row(h)), score))
        assert kbest.texts() == [text for text, _, _ in hypotheses]
        found.append((id, hypotheses))
    return found


def said(*lines):
    """The same of lines ``id|text|features|score``."""
    found = {}
    for line in lines:
        id, text, features, score = line.split("|")
        pairs = (feature.rpartition("=") for feature in features.split())
        row = {name: float(value) for name, _, value in pairs}
        found.setdefault(id, []).append((text, row, float(score) if score else None))
    return [*found.items()]


JSON = """\
{"id": "u2", "hypotheses": [{"text": "a b", "features": {"lm": -3.5, "w:x": 1}, "score": -1}, \
{"text": "", "features": {"lm": 0}, "score": -2}]}
{"id": "u0", "hypotheses": []}
{"id": "u1", "source": "x", "references": ["c"], "hypotheses": \
[{"text": "c", "features": {"lm": "tensor(2)"}, "score": 1}]}
"""
ESPNET = {
    "out/output.1/1best_recog/text": "u1 a b\nu2 \n",
    "out/output.1/1best_recog/score": "u1 tensor(-1.5)\nu2 tensor(-2., device='cuda:0')\n",
    "out/output.1/1best_recog/scores": 'u1 {"lm": "tensor(-3)", "ctc": -1}\n'
    'u2 {"ctc": -4, "lm": "tensor(0.)"}\n',
    "out/output.1/2best_recog/text": "u1 b\n",
    "out/output.1/2best_recog/score": "u1 tensor(-2.5)\n",
    "out/output.1/2best_recog/scores": 'u1 {"lm": -5, "ctc": -7}\n',
    "out/output.2/1best_recog/text": "u0 c\n",
    "out/output.2/1best_recog/score": "u0 -3\n",
    "out/output.2/1best_recog/scores": 'u0 {"lm": 1, "ctc": -1}\n',
}

# For each form: its files, and what they say.
TWO = said("0|a b|score=-0.5|-0.5", "0||score=-1|-1", "1|c|score=-0.25|-0.25", "1|d|score=-3|-3")
LOG2 = math.log(2)
EXAMPLES = {
    "json": ({"list": JSON}, said("u2|a b|lm=-3.5 w:x=1|-1", "u2|||-2", "u1|c|lm=2|1")),
    "espnet": (
        ESPNET,
        said(
            *("u1|a b|lm=-3 ctc=-1|-1.5", "u1|b|lm=-5 ctc=-7|-2.5"),
            *("u2||ctc=-4|-2", "u0|c|lm=1 ctc=-1|-3"),
        ),
    ),
    "kaldi": (
        {
            "n/words_text": "u1-1 a b\nu1-2 b\nu-x-1 \n",
            "n/lm_cost": "u1-1 3\nu1-2 4.5\nu-x-1 0\n",
            "n/ac_cost": "u1-1 -30\nu1-2 -20\nu-x-1 1e1\n",
        },
        said("u1|a b|acoustic=30 lm=-3|", "u1|b|acoustic=20 lm=-4.5|", "u-x||acoustic=-10|"),
    ),
    "sockeye": (
        {
            "list": '{"scores": [[0.5], [1]], "sentence_id": 1, "translation": "a b", '
            '"translations": ["a b", ""]}\n'
            '{"score": 2.5, "sentence_id": 2, "translation": "c"}\n'
        },
        said("0|a b|score=-0.5|-0.5", "0||score=-1|-1", "1|c|score=-2.5|-2.5"),
    ),
    "fairseq": (
        {
            "list": "2026-01-01 | INFO | loaded\nS-1\tx\nT-1\ty\nH-1\t-0.5\tc@@ d\nD-1\t-0.5\tcd\n"
            "P-1\t-1 -2\nH-1\t-1\t\nP-1\t-1\nS-0\tz\nH-0\t-2\ta b\nGenerate test: BLEU4 = 1\n"
        },
        said(
            *(f"0|a b|score={-2 * LOG2}|{-2 * LOG2}", f"1|cd|score={-LOG2 / 2}|{-LOG2 / 2}"),
            f"1||score={-LOG2}|{-LOG2}",
        ),
    ),
    "ctranslate2": ({"list": "-0.5 ||| a b\n-1 ||| \n-0.25 ||| c\n-3 ||| d\n"}, TWO),
    "nemo": ({"list": "a b\t-0.5\n\t-1\nc\t-0.25\nd\t-3\n"}, TWO),
    "hypo2trans": (
        {"list": '[{"input": ["a b", ""], "output": "a"},\n{"input": ["c"], "output": "d"}]'},
        said("0|a b||", "0|||", "1|c||"),
    ),
    "lines": ({"list": "a b\n\nc\nd\n"}, said("0|a b||", "0|||", "1|c||", "1|d||")),
    "moses": (
        {
            "list": "0 ||| a b ||| LM0= -1 TM0= -2 3 W_x= 1 ||| -4 ||| 0-0 1-1\n"
            "1 ||| ||| LM0= -2 TM0= 0 0 ||| -5\n"
        },
        said("0|a b|LM0_0=-1 TM0_0=-2 TM0_1=3 W_x=1|-4", "1||LM0_0=-2|-5"),
    ),
    "unlabelled": (
        {"list": "0 ||| a b ||| -1 2e0 ||| -4\n0 ||| c ||| 3 0 ||| -5\n"},
        said("0|a b|F0=-1 F1=2|-4", "0|c|F0=3|-5"),
    ),
    "phrasal": (
        {"list": "0 ||| a b ||| d: 0 -7.5 lm: -4 ||| -4\n0 ||| c ||| d: 1 0 lm: 2 ||| -5\n"},
        said("0|a b|d_1=-7.5 lm_0=-4|-4", "0|c|d_0=1 lm_0=2|-5"),
    ),
    "cdec": (
        {"list": "0 ||| a b ||| lm=-1 id:x=2 ||| -4\n0 ||| c ||| lm=3 ||| -5 ||| 0.5\n"},
        said("0|a b|lm=-1 id:x=2|-4", "0|c|lm=3|-5"),
    ),
    "joshua": (
        {"list": "0 ||| a b ||| tm_pt_0=-3.000 WordPenalty=-2.606 ||| -7.650\n"},
        said("0|a b|tm_pt_0=-3 WordPenalty=-2.606|-7.65"),
    ),
    "travatar": (
        {"list": "0 ||| a b ||| -3.2 ||| lm=-7 w=2 ||| (S a b)\n0 ||| c ||| -5 ||| lm=3 w=0\n"},
        said("0|a b|lm=-7 w=2|-3.2", "0|c|lm=3|-5"),
    ),
    "marian": (
        {
            "list": "0 ||| a b ||| 0-0 1-1 ||| WordScores= -1 -2 -3 ||| F0= -1 F1= -2 ||| -0.7\n"
            "0 ||| ||| ||| WordScores= -1 ||| F0= 3 F1= 0 ||| -5\n"
        },
        said("0|a b|F0_0=-1 F1_0=-2|-0.7", "0||F0_0=3|-5"),
    ),
    "names of sentences": (
        {"list": "utt-1 ||| a b ||| F0=-1 ||| -0.7\n1272-128104-0000 ||| b ||| F0=1 ||| 0\n"},
        said("utt-1|a b|F0=-1|-0.7", "1272-128104-0000|b|F0=1|0"),
    ),
    "any order": (
        {"list": "1 ||| a b ||| F0=-1 ||| -0.7\n0 ||| b ||| F0=1 ||| 0\n"},
        said("0|b|F0=1|0", "1|a b|F0=-1|-0.7"),
    ),
}


@pytest.mark.parametrize("form", EXAMPLES)
def test_a_form_is_recognised_and_read(form, tmp_path):
    files, expected = EXAMPLES[form]
    path = put(tmp_path, files)
    sizes = 2 if form in ("ctranslate2", "nemo", "lines") else None
    for named in {None if form != "lines" else form, form if form in FORM_NAMES else None}:
        assert plain(read_lists(path, named, sizes=sizes).lists) == expected
    if sizes:
        with pytest.raises(InputError, match="sizes=NUMBER"):
            read_lists(path, form)
        with pytest.raises(InputError, match="sizes=3 makes 3"):
            read_lists(path, form, sizes=3)
        put(tmp_path, {"numbers": "3\n0\n1\n"})
        read = read_lists(path, form, sizes=tmp_path / "numbers")
        assert [len(kbest) for kbest in read.lists] == [3, 1] and read.empty == {1}


@pytest.mark.parametrize("form", FORMS)
def test_a_list_is_written_back_in_its_form(form, tmp_path):
    path = put(tmp_path / "old", EXAMPLES[form][0])
    sizes = 2 if form in ("ctranslate2", "nemo", "lines") else None
    old = read_lists(path, form, sizes=sizes, texts=True)
    # The last becomes the first.
    lists = best_first(old.lists, np.arange(old.lists.n_hypotheses) / 8)
    if write := FORMS[form].write:
        new = put(tmp_path / "new", {"list": "".join(write(path, lists))})
    else:
        written = FORMS[form].write_folder(path, lists)
        new = put(tmp_path, {f"new/{name}": "".join(some) for name, some in written.items()})
    stored = read_lists(new, form, sizes=sizes, texts=True)
    assert stored.n_sentences == old.n_sentences and stored.references == old.references
    texts = [stored.texts[entry - 1] for entry in stored.lists.entries()]
    assert texts == [old.texts[entry - 1] for entry in lists.entries()]
    expected = plain(lists)
    if form in ("kaldi", "lines", "hypo2trans"):
        expected = [(id, [(t, row, None) for t, row, _ in some]) for id, some in expected]
    elif form != "json":
        expected = [(id, [(t, {"score": s}, s) for t, _, s in some]) for id, some in expected]
    for (id, some), (new_id, others) in zip(expected, plain(stored.lists), strict=True):
        assert id == new_id
        for (text, row, score), (new_text, new_row, new_score) in zip(some, others, strict=True):
            assert (text, pytest.approx(score)) == (new_text, new_score)
            assert pytest.approx({n: v for n, v in row.items() if v}) == new_row


RECORDS = st.lists(
    st.lists(
        st.tuples(
            st.text("aü \t\n", max_size=6),
            st.dictionaries(st.sampled_from("fgh"), st.integers(-3, 3).map(float), max_size=3),
        ),
        max_size=3,
    ),
    max_size=4,
)


@given(RECORDS)
def test_records_arrays_and_strings_are_the_same(drawn):
    names = ["f", "g", "h"]
    flat = [entry for one in drawn for entry in one]
    values = np.array([[row.get(n, 0) for n in names] for _, row in flat]).reshape(len(flat), 3)
    begin = np.cumsum([0, *map(len, drawn)])
    records, expected = [], []
    for number, one in enumerate(drawn):
        hypotheses = [{"text": text, "features": row} for text, row in one]
        records.append({"id": f"u{number}", "hypotheses": hypotheses})
        rows = [(" ".join(t.split()), {n: v for n, v in row.items() if v}, None) for t, row in one]
        if rows:
            expected.append((f"u{number}", rows))
    given = {"texts": [text for text, _ in flat], "ids": [record["id"] for record in records]}
    for matrix in (values, csr_matrix(values)):
        assert plain(KBestLists.of_arrays(begin, matrix, names, **given)) == expected
    assert plain(KBestLists.of_records(records)) == expected


def test_names_of_one_feature_in_files_of_several_forms(tmp_path):
    """What is `lm_0` in Moses's lists is `lm` in others, where files meet, and in `dense`."""
    rows = [(-1.5, "a"), (-2.0, "b")]
    put(tmp_path, {"moses": [f"0 ||| {text} ||| lm= {value} ||| 0" for value, text in rows]})
    put(tmp_path, {"cdec": [f"1 ||| {text} ||| lm={value} ||| 0" for value, text in rows]})
    entries = [{"text": text, "features": {"lm": value}, "score": 0} for value, text in rows]
    put(tmp_path, {"json": [json.dumps({"id": 2, "hypotheses": entries})]})
    files = {name: tmp_path / name for name in ("moses", "cdec", "json")}
    for paths in ([*files.values()], [*files.values()][::-1]):
        stored = read_lists(paths, on_error="skip")
        names = stored.lists.features.names(range(len(stored.lists.features)))
        assert names == stored.dense_names == ["lm_0" if paths[0].name == "moses" else "lm"]
        assert stored.lists.rows.value.tolist() == [-1.5, -2.0] * 3
    for name, other in (("moses", "lm"), ("cdec", "lm_0"), ("json", "lm_0")):
        stored = read_lists(files[name], dense=[other], on_error="skip")
        assert [*stored.lists.features.names(stored.lists.rows.feature)] == [other] * 2
    put(tmp_path, {"more": ["1 ||| a ||| lm=1 ctc=2 ||| 0"]})
    with pytest.raises(InputError, match="ctc is only here; all files need"):
        read_lists([files["moses"], tmp_path / "more"], on_error="skip")
    with pytest.raises(InputError, match="ctc is missing here; all files need"):
        read_lists([tmp_path / "more", files["moses"]], on_error="skip")


def test_fields_between_bars_and_tabs_are_no_nemo_lists(tmp_path):
    put(tmp_path, {"d": [f"0\t|||\t{text}\t|||\tlm=1\t|||\t-2.5" for text in "ab"]})
    assert len(read_lists(tmp_path / "d").lists) == 1
    put(tmp_path, {"json": ['{"hypotheses": [{"text": "a"}]}']})
    with pytest.raises(ValueError, match="on_error must be error or skip, not 'stop'"):
        read_lists(tmp_path / "json", on_error="stop")


def test_shapes_are_checked():
    good = {"begin": [0, 2], "values": np.ones((2, 1)), "columns": ["f"]}
    for name, bad in {
        "begin": (1, 2),
        "values": np.array([[0], [math.nan]]),
        "columns": ("f", "g"),
        "texts": ("a",),
        "score": (1.0,),
    }.items():
        with pytest.raises(ValueError, match="begin|not finite|2 columns|needed|score"):
            KBestLists.of_arrays(**good | {name: bad})
    hypothesis = {"text": "a", "features": {"f": 1}}
    for records, message in (
        ([{"hypotheses": [hypothesis, {}]}], "record 0 is no"),
        ([{"id": 1, "hypotheses": []}] * 2, "'1' is there twice"),
        ([{"hypotheses": [hypothesis, {**hypothesis, "score": 1}]}], "some .* have a score"),
    ):
        with pytest.raises(ValueError, match=message):
            KBestLists.of_records(records)


# For each damage: the form, the file, what is put in the place of what, and the line that the
# error names with a word of its message.
DAMAGES = {
    "breaks off": ("json", "list", '"score": 1}]}\n', "", 3, "cut off"),
    "no record": ("json", "list", '"hypotheses": []', '"nbest": []', 2, "record"),
    "NaN": ("json", "list", "-3.5", "NaN", 1, "floor"),
    "no text": ("json", "list", '"a b"', r'"\ud800"', 1, "surrogates"),
    "other features": ("json", "list", '"lm": 0', '"am": 0', 1, "lacks the feature 'lm'"),
    "score nan": (
        "espnet", "out/output.1/1best_recog/score", "tensor(-2.", "tensor(-inf", 2, "floor",
    ),
    "id missing": ("espnet", "out/output.1/1best_recog/score", "u1 tensor(-1.5)\n", "", 1, "'u1'"),
    "sentence twice": ("json", "list", '"u0"', '"u2"', 2, "twice"),
    "references": ("json", "list", '["c"]', '"c"', 3, "references"),
    "kaldi's other keys": ("kaldi", "n/lm_cost", "u1-2 4.5\n", "", 2, "u1-2"),
    "kaldi's keys": ("kaldi", "n/words_text", "u1-1", "u1", 1, "'u1'"),
    "sockeye from 0": ("sockeye", "list", '"sentence_id": 1', '"sentence_id": 0', 1, "from 1"),
    "no costs": ("sockeye", "list", "[[0.5], [1]]", "[[], [1]]", 1, "no finite"),
    "no array": ("hypo2trans", "list", EXAMPLES["hypo2trans"][0]["list"], "7", 1, "array"),
    "fairseq's -inf": ("fairseq", "list", "H-1\t-1", "H-1\t-inf", 7, "floor"),
    "fairseq's blanks": ("fairseq", "list", "H-0\t-2\ta", "H-0\t-2 a", 10, "tabs"),
    "array cut off": ("hypo2trans", "list", '"d"}]', '"d"}', 2, "cut off"),
    "unlabelled, one less": ("unlabelled", "list", "3 0", "3", 2, "another number of values"),
    "a separator in the text": ("cdec", "list", "c |||", "c ||| d |||", 2, "name"),
    "another sentence between": ("any order", "list", "1 |||", "0 ||| x ||| F0=1 ||| 0\n1 |||", 3,
        "line 2",
    ),
    "from 1": ("cdec", "list", "0 |||", "1 |||", 1, "numbered from 0"),
    "id twice": ("espnet", "out/output.1/1best_recog/text", "u2 \n", "u2 \nu1 x\n", 3, "twice"),
}  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_located(damage, tmp_path):
    form, name, old, new, line, word = DAMAGES[damage]
    files = dict(EXAMPLES[form][0])
    assert old in files[name]
    files[name] = files[name].replace(old, new, 2 if damage == "from 1" else 1)
    with pytest.raises(InputError, match=word.replace("(", r"\(")) as error:
        read_lists(put(tmp_path, files), form if form in FORM_NAMES else None)
    assert error.value.line == line and str(tmp_path / name) in str(error.value)


# What is wrong with the file as a whole, or with its ids.
WHOLE = ("no array", "array cut off", "from 1", "sentence twice", "another sentence between")


@pytest.mark.parametrize("form", ["json", "cdec"])
def test_a_line_that_is_no_text_is_left_out(form, tmp_path):
    """The form is told from the others."""
    ((name, text),) = EXAMPLES[form][0].items()
    first, rest = text.encode().split(b"\n", 1)
    (tmp_path / name).write_bytes(first + b"\n" + rest.replace(b"\n", b"\xff\n", 1))
    with pytest.raises(InputError, match="UTF-8"):
        read_lists(tmp_path / name)
    assert read_lists(tmp_path / name, on_error="skip").skipped["sentences with a fault"] == 1


# One of each form.
SKIPPED = {form: damage for damage, (form, *_) in DAMAGES.items() if damage not in WHOLE}


@pytest.mark.parametrize("damage", SKIPPED.values())
def test_skipping_counts_sentences_and_loses_no_line(damage, tmp_path):
    """As many sentences are written as the whole file has, plainly and as lists, by `rerank`."""
    form, name, old, new, _, _ = DAMAGES[damage]
    files = dict(EXAMPLES[form][0])
    # A feature that all lists have.
    if form == "hypo2trans":
        files |= {"comet": "1\n" * 3}
    whole = read_lists(put(tmp_path / "whole", EXAMPLES[form][0]))
    files[name] = files[name].replace(old, new, 1)
    path = put(tmp_path / "damaged", files)
    options = {"format": form} if form in FORM_NAMES else {}
    damaged = read_lists(path, options.get("format"), on_error="skip")
    assert damaged.n_sentences == whole.n_sentences
    assert damaged.skipped["sentences with a fault"] == 1, damaged.skipped
    weights = "".join(f"{name} 1\n" for name in damaged.dense_names)
    put(tmp_path, {"weights": weights})
    given = [f"input={path}", "weights=weights", "on_error=skip"]
    given += [f"{key}={value}" for key, value in options.items()]
    outcome = run_command("rerank", *given, "output=best", folder=tmp_path)
    assert outcome.code == 0, outcome.err
    assert "1 sentences with a fault" in outcome.err
    assert (tmp_path / "best").read_text().count("\n") == whole.n_sentences
    outcome = run_command("rerank", *given, "output=lists", "n_best=9", folder=tmp_path)
    assert outcome.code == 0, outcome.err
    again = read_lists(tmp_path / "lists", options.get("format"), on_error="skip")
    texts = {id: [text for text, *_ in some] for id, some in plain(damaged.lists)}
    found = {id: sorted(text for text, *_ in some) for id, some in plain(again.lists)}
    assert found == {id: sorted(some) for id, some in texts.items()}
    if form in ("json", "sockeye"):
        assert again.n_sentences == whole.n_sentences


PIECES = [b"", b"\n", b"\r", b"\t", b" ||| ", b"H-0\t", b"tensor("]
PIECES += b'nan -inf 1e999 \xff \0 { } [ ] " , null true 0 -1 99999999999'.split(b" ")


@settings(max_examples=300)
@given(
    form=st.sampled_from(sorted(EXAMPLES)),
    edits=st.lists(
        st.tuples(st.integers(0, 10**6), st.integers(0, 9), st.sampled_from(PIECES)),
        min_size=1,
        max_size=3,
    ),
    named=st.booleans(),
    on_error=st.sampled_from(get_args(OnError)),
)
def test_damage_is_refused_or_read_as_something(tmp_path_factory, form, edits, named, on_error):
    folder = tmp_path_factory.mktemp("damaged")
    path = put(folder, EXAMPLES[form][0])
    files = sorted(file for file in folder.rglob("*") if file.is_file())
    for place, length, piece in edits:
        file = files[place % len(files)]
        data = file.read_bytes()
        at = place % (len(data) + 1)
        file.write_bytes(data[:at] + piece + data[at + length :])
    try:
        stored = read_lists(
            path, form if named and form in FORM_NAMES else None, sizes=2, on_error=on_error
        )
    except InputError as error:
        assert error.path is not None and str(folder) in str(error)
        return
    stored.lists.check()
    assert stored.lists.n_hypotheses <= stored.n_entries
    assert stored.lists.index.max() < stored.n_sentences
    lost = stored.n_entries - stored.lists.n_hypotheses
    assert lost == sum(n for what, n in stored.skipped.items() if "sentences" not in what)


def test_a_missing_feature_is_filled_and_the_score_is_one(tmp_path):
    path = put(tmp_path, {"list": JSON.replace('{"lm": 0}', "{}")})
    assert plain(read_lists(path, missing=7).lists)[0][1][1][1] == {"lm": 7}
    scored = read_lists(put(tmp_path, {"b": JSON}), score=True)
    assert scored.dense_names == ["lm", "score"]
    assert plain(scored.lists)[1][1][0][1] == {"lm": 2, "score": 1}
    only = [{"id": "u", "hypotheses": [{"text": "a", "score": -1}]}]
    path = put(tmp_path, {"c": "\n".join(map(json.dumps, only))})
    assert plain(read_lists(path).lists) == [("u", [("a", {"score": -1}, -1)])]


JOINED = """\
{"id": "u1", "hypotheses": [{"text": "a", "features": {"lm": 2}}, {"text": "b", "features": {}}]}
{"id": "u2", "hypotheses": [{"text": "c", "features": {"lm": 0}}, \
{"text": "d", "features": {"lm": 5}}]}
"""
FILLED = JOINED.replace("{}", '{"lm": 3}')
KEYED = "rank\tid\tcomet\n1\tu2\t7\n2\tu2\t4\n1\tu1\t0.5\n2\tu1\t0\n"


@pytest.mark.parametrize(
    ("column", "missing"),
    [
        ("0.5\n0\n7\n4\n", None),
        ("x\tcomet\n1\t0.5\n2\t0\n3\t7\n4\t4\n", None),
        (KEYED, None),
        ("0.5\nnan\n7\n4\n", 0),
        (KEYED.replace("2\tu1\t0", "2\tu1\t"), 0),
    ],
)
def test_columns_join(column, missing, tmp_path):
    put(tmp_path, {"list": FILLED, "faulty": JOINED, "column": column})
    options: dict = {"columns": {"comet": tmp_path / "column"}, "scale": {"lm": -1}}
    stored = read_lists(tmp_path / "list", missing=missing, **options)
    rows = {text: row for _, one in plain(stored.lists) for text, row, _ in one}
    assert stored.dense_names == ["lm", "comet"] and rows == {
        "a": {"lm": -2, "comet": 0.5},
        "b": {"lm": -3},
        "c": {"comet": 7},
        "d": {"lm": -5, "comet": 4},
    }
    # A line stays that of its hypothesis where another one is left out; a rank does not.
    if missing is None and "rank" not in column:
        skipped = read_lists(tmp_path / "faulty", on_error="skip", **options)
        rows.pop("b")
        assert {t: row for _, one in plain(skipped.lists) for t, row, _ in one} == rows
    elif missing is None:
        with pytest.raises(InputError, match="some were left out"):
            read_lists(tmp_path / "faulty", on_error="skip", **options)


@pytest.mark.parametrize(
    ("column", "line", "word"),
    [
        ("1\nnan\n3\n4\n", 2, "missing=VALUE"),
        ("1\n-inf\n3\n4\n", 2, "a floor"),
        ("comet\tx\n1\n", 2, "1 fields, and 2"),
        (KEYED.replace("2\tu2\t4\n", ""), None, "hypothesis 2 of 'u2'"),
        (KEYED.replace("2\tu2", "3\tu2"), 3, "no hypothesis 3"),
        (KEYED.replace("2\tu1", "1\tu1"), 5, "those of line 4"),
    ],
)
def test_a_damaged_column(column, line, word, tmp_path):
    put(tmp_path, {"list": FILLED, "column": column})
    with pytest.raises(InputError, match=word) as error:
        read_lists(tmp_path / "list", columns={"comet": tmp_path / "column"})
    assert (error.value.path, error.value.line) == (tmp_path / "column", line)
    for options in ({"scale": {"ml": 2}}, {"columns": {"lm": tmp_path / "column"}}):
        with pytest.raises(InputError, match="no feature 'ml'|already"):
            read_lists(tmp_path / "list", **options)


def test_lists_with_references_need_no_corpus(tmp_path):
    record = {"id": "u1", "references": ["b  c", "b"], "hypotheses": []}
    hypotheses = [{"text": text, "score": -i} for i, text in enumerate(["a", "b"])]
    records = [record, {**record, "id": "u0", "hypotheses": hypotheses}]
    path = put(tmp_path, {"list": "\n".join(map(json.dumps, records))})
    decoder = KBestFiles(dev=path, scale={"score": -1}, report=lambda _: None)
    sentences = decoder.sentences("dev", lambda: None)
    assert sentences is not None and sentences.references == [[["b", "c"], ["b"]]]
    assert sentences.lacking == {0} and decoder.dense_names == ["score"]
    (best,) = decoder.decode(decoder.sources("dev"), FrozenWeights.of({"score": 1.0}))
    assert best.text(0) == "b"
    corpus = Corpus([["x"]], [[["y"]]], [1])
    with pytest.raises(InputError, match="lists of 'u0' and others"):
        decoder.sentences("dev", lambda: corpus)
    path.write_text(path.read_text().replace('"references"', '"refs"'))
    with pytest.raises(InputError, match="data.dev is null"):
        KBestFiles(dev=path, report=lambda _: None).sentences("dev", lambda: None)


def test_ranks_of_kaldi(tmp_path):
    order = (10, 2, 1)
    for name, value in (("words_text", "w{}"), ("lm_cost", "{}"), ("ac_cost", "{}")):
        lines = [f"u-{n} {value.format(n)}\n" for n in order]
        (tmp_path / name).write_text("".join(lines))
    assert read_lists(tmp_path, texts=True).texts == ["w1", "w2", "w10"]

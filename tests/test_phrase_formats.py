"""Reading of Moses's phrase tables, reordering tables and configuration files."""

from __future__ import annotations

import gzip
import logging
import math
from pathlib import Path

import numpy as np
import pytest

from torchtune_smt.core.errors import InputError
from torchtune_smt.core.weights import Weights
from torchtune_smt.decoders.hiero import HieroDecoder
from torchtune_smt.decoders.phrase import PhraseDecoder
from torchtune_smt.features import RuleId
from torchtune_smt.grammar.file_grammar import NO_LIMIT
from torchtune_smt.grammar.phrase_formats import read_phrase_table
from torchtune_smt.grammar.reordering import ReorderingType
from torchtune_smt.lm.model import NgramModel
from torchtune_smt.models.base import Model
from torchtune_smt.models.files import MosesModel
from torchtune_smt.models.moses_ini import read_any_weights, read_moses_ini
from torchtune_smt.models.moses_ini_writing import write_moses_ini

PHRASES = """\
ein haus ||| a house ||| 0.5 0.25 1 0.125 ||| 0-0 1-1 ||| 2 4 1 ||| |||
ein ||| a ||| 0.5 0.5 0.5 0.5 ||| 0-0 ||| 8 9 7 ||| |||
ein ||| one ||| 1e-3 0 0.5 0.5 ||| 0-0 ||| 8 9 3
nun ||| ||| 1 1 1 1
"""
REORDERING = """\
ein haus ||| a house ||| 0.6 0.2 0.2 0.1 0.1 0.8
ein ||| a ||| 0.5 0.25 0.25 0.2 0.2 0.6
ein ||| one ||| 0.2 0.2 0.6 0.2 0.6 0.2
nun ||| ||| 0.2 0.2 0.6 0.2 0.6 0.2
"""
TYPE = "wbe-msd-bidirectional-fe-allff"
ARPA = "\\data\\\nngram 1=3\n\n\\1-grams:\n-1 <s>\n-1 </s>\n-2 <unk>\n\n\\end\\\n"


def written(path: Path, text: str) -> Path:
    data = text.encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def no_bitext():
    pytest.fail("no bitext is needed")


def entries(table) -> dict[tuple[str, str], list[float]]:
    return {
        tuple(" ".join(side) for side in table.rule_text(r)): table.dense[r].tolist()
        for r in range(len(table))
    }


@pytest.mark.parametrize("name", ["table", "table.gz"])
def test_a_phrase_table(tmp_path, name):
    table = read_phrase_table(written(tmp_path / name, PHRASES))
    found = entries(table)
    assert list(found) == [("ein", "a"), ("ein", "one"), ("nun", ""), ("ein haus", "a house")]
    assert table.dense_names == [f"TranslationModel0_{i}" for i in range(4)]
    assert found["ein haus", "a house"] == pytest.approx(np.log([0.5, 0.25, 1, 0.125]))
    assert found["ein", "one"] == pytest.approx([math.log(1e-3), -100.0, *np.log([0.5, 0.5])])
    begin, points = table.point_begin, table.points
    aligned = [points[begin[r] : begin[r + 1]].tolist() for r in range(len(table))]
    assert aligned == [[[0, 0]], [[0, 0]], [], [[0, 0], [1, 1]]]


def test_five_scores_and_counts(tmp_path):
    lines = [line.replace(" ||| 0-0", " 2.718 ||| 0-0") for line in PHRASES.splitlines()[:3]]
    path = written(tmp_path / "table", "\n".join(lines))
    table = read_phrase_table(path, name="T", rule_counts=True)
    assert table.dense_names == ["T_0", "T_1", "T_2", "T_3", "T_4", "LogRuleCount", "UniqueRule"]
    assert entries(table)["ein", "a"][4:] == pytest.approx([math.log(2.718), math.log(7), 0.0])
    assert entries(table)["ein haus", "a house"][5:] == [0.0, 1.0]


@pytest.mark.parametrize("order", [1, -1])
def test_reordering_scores_find_their_phrases(tmp_path, order, caplog):
    path = written(tmp_path / "table", PHRASES)
    lines = [*REORDERING.splitlines(), "zu ||| to ||| 1 1 1 1 1 1"][::order]
    other = written(tmp_path / "reordering.gz", "\n".join(lines))
    with caplog.at_level(logging.WARNING):
        table = read_phrase_table(path, reordering=other, reordering_type=TYPE)
    assert "1 lines are not used" in caplog.text
    assert table.dense_names[4:] == [f"LexicalReordering0_{i}" for i in range(6)]
    found = entries(table)
    assert found["ein haus", "a house"][4:] == pytest.approx(np.log([0.6, 0.2, 0.2, 0.1, 0.1, 0.8]))
    assert found["ein", "a"][4:] == pytest.approx(np.log([0.5, 0.25, 0.25, 0.2, 0.2, 0.6]))


@pytest.mark.parametrize("more", ["", "c ||| 0.5 0.5\n"])
def test_repeated_source_sides_have_one_kind_of_scores(tmp_path, more):
    path = written(tmp_path / "table", "a ||| x ||| 0.5\nb ||| y ||| 0.5\na ||| z ||| 0.5\n")
    lines = "a ||| 0.5 0.25\nb ||| 0.1 0.2\n" + more + "a ||| 0.5 0.25\n"
    options = {"reordering_type": "monotonicity-backward-f"}
    found = entries(read_phrase_table(path, reordering=written(tmp_path / "r", lines), **options))
    for target in ("x", "z"):
        assert found["a", target][1:] == pytest.approx(np.log([0.5, 0.25]))
    other = written(tmp_path / "r", lines[:-3] + "75\n")
    line = other.read_text().count("\n")
    with pytest.raises(InputError, match=f"r:{line}: .*other scores than line 1"):
        read_phrase_table(path, reordering=other, **options)


def test_reordering_scores_of_source_sides(tmp_path):
    path = written(tmp_path / "table", PHRASES)
    lines = ["ein haus ||| 0.5 0.5", "ein ||| 0.25 0.75", "nun ||| 1 1"]
    other = written(tmp_path / "reordering", "\n".join(lines))
    table = read_phrase_table(path, reordering=other, reordering_type="monotonicity-backward-f")
    for target in ("a", "one"):
        assert entries(table)["ein", target][4:] == pytest.approx(np.log([0.25, 0.75]))


def test_pairs_that_occur_again_are_dropped(tmp_path, caplog):
    path = written(tmp_path / "table", PHRASES + "ein ||| a ||| 1 1 1 1\n")
    with caplog.at_level(logging.WARNING):
        table = read_phrase_table(path)
    assert "1 phrase pairs occur again" in caplog.text
    assert entries(table)["ein", "a"] == pytest.approx(np.log([0.5] * 4))


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("ein ||| a\n", 1, "a field is missing: source ||| target ||| probabilities are needed"),
        (PHRASES + "x ||| y ||| 1 1 1\n", 5, "has 3 scores, and not 4, as the first line has"),
        (PHRASES + " ||| y ||| 1 1 1 1\n", 5, "the source side is empty"),
        ("x ||| y ||| 1 a 1 1\n", 1, "the feature value 'a' is no finite number"),
        ("x ||| y ||| 1 nan 1 1\n", 1, "the feature value 'nan' is no finite number"),
        ("x ||| y ||| 1 -1 1 1\n", 1, "-1.0 is no probability"),
        ("x ||| y ||| 1 ||| 0-1\n", 1, "0-1 is no alignment point of these sides"),
        ("x ||| y ||| 1 ||| 0\n", 1, "0 is no alignment point"),
        ("x ||| y ||| \n", 1, "has no scores"),
    ],
)
def test_bad_lines(tmp_path, text, line, message):
    path = written(tmp_path / "table", text)
    with pytest.raises(InputError) as error:
        read_phrase_table(path)
    assert str(error.value).startswith(f"{path}:{line}: {message}")


def test_the_first_bad_line_is_named(tmp_path):
    path = written(tmp_path / "table", "a ||| b ||| 1 x\nc ||| d ||| 1\ne\n")
    with pytest.raises(InputError, match=r":1: the feature value 'x' is no finite number"):
        read_phrase_table(path)


def test_an_empty_table(tmp_path):
    with pytest.raises(InputError, match="the table is empty"):
        read_phrase_table(written(tmp_path / "table", ""))


def test_tables_out_of_step(tmp_path):
    path = written(tmp_path / "table", PHRASES)
    other = written(tmp_path / "reordering", "\n".join(REORDERING.splitlines()[:2]))
    with pytest.raises(InputError) as error:
        read_phrase_table(path, reordering=other, reordering_type=TYPE)
    assert str(error.value).startswith(f"{path}:3: this phrase has no scores in {other}")


def test_a_reordering_table_of_another_type(tmp_path):
    path = written(tmp_path / "table", PHRASES)
    other = written(tmp_path / "reordering", REORDERING)
    with pytest.raises(InputError, match=r"reordering:1: has 6 scores, and not 3, as its settings"):
        read_phrase_table(path, reordering=other, reordering_type="msd-backward-fe")


def test_no_counts(tmp_path):
    with pytest.raises(InputError, match=r"table:4: has no positive third count"):
        read_phrase_table(written(tmp_path / "table", PHRASES), rule_counts=True)


def test_min_count_without_counts(tmp_path):
    """The line is named, though most have counts."""
    path, arpa = written(tmp_path / "table", PHRASES), written(tmp_path / "lm.arpa", ARPA)
    model = Model(read_phrase_table(path), NgramModel.load(arpa, may_write=False))
    PhraseDecoder(model, templates=[RuleId()])
    with pytest.raises(InputError) as error:
        PhraseDecoder(model, templates=[RuleId(min_count=2)])
    assert str(error.value) == (
        f"{path}:4: has no positive third count behind the alignment, and min_count of a template "
        "needs it; take a table with the counts of all phrase pairs, as train-model.perl writes "
        "it, or leave that option out"
    )
    whole = written(tmp_path / "table", PHRASES.replace("1 1 1 1\n", "1 1 1 1 ||| ||| 1 1 1\n"))
    model = Model(read_phrase_table(whole), model.language_model)
    PhraseDecoder(model, templates=[RuleId(min_count=2)])


@pytest.mark.parametrize("name", ["t.minphr", "t.binphr.idx", "t.minlexr", "t.binlexr.idx"])
def test_binary_tables_are_refused_by_name(tmp_path, name):
    written(tmp_path / name, "x")
    option = "reordering_table" if "lexr" in name else "phrase_table"
    message = f"text that it was made from is read; `train-model.*name it with model.{option}$"
    for path in (tmp_path / name, tmp_path / "t"):
        with pytest.raises(InputError, match=message):
            read_phrase_table(path)


@pytest.mark.parametrize(
    ("name", "scores", "orientations", "hierarchical"),
    [
        ("wbe-msd-bidirectional-fe-allff", 6, 3, False),
        ("msd-bidirectional-fe", 6, 3, False),
        ("hier-mslr-bidirectional-fe-allff", 8, 4, True),
        ("phrase-monotonicity-backward-f", 2, 2, False),
        ("leftright-forward-fe", 2, 2, False),
    ],
)
def test_reordering_types(name, scores, orientations, hierarchical):
    kind = ReorderingType.parse(name)
    assert (kind.scores, kind.orientations, kind.hierarchical) == (
        scores,
        orientations,
        hierarchical,
    )


@pytest.mark.parametrize("name", ["", "msd", "msd-bidirectional-fe-collapseff", "xyz-msd-fe", "fe"])
def test_bad_reordering_types(name):
    with pytest.raises(ValueError, match=r"reordering|type"):
        ReorderingType.parse(name)


INI = """\
# A comment
[input-factors]
0
[mapping]
0 T 0
[distortion-limit]
6
[feature]
UnknownWordPenalty
WordPenalty
PhrasePenalty
PhraseDictionaryMemory name=TranslationModel0 num-features=4 path=table.gz table-limit=30
LexicalReordering name=LexicalReordering0 num-features=6 type=wbe-msd-bidirectional-fe-allff \
path=reordering
Distortion
KENLM name=LM1 factor=0 path=lm.arpa order=5
[weight]
UnknownWordPenalty0= 1
WordPenalty0= -1
PhrasePenalty0= 0.2
TranslationModel0= 0.1 0.2 0.3 0.4
LexicalReordering0= 0.3 0.3 0.3 0.3 0.3 0.5
Distortion0= 0.3
LM1= 0.5
[stack]
200
"""


def test_moses_ini(tmp_path):
    ini = read_moses_ini(written(tmp_path / "moses.ini", INI))
    assert ini.limits == {"distortion_limit": 6, "stack_size": 200, "table_limit": 30}
    assert ini.file_of(ini.phrases) == tmp_path / "table.gz"
    assert ini.weights["LM0_0"] == 0.5
    assert [ini.weights[f"TranslationModel0_{i}"] for i in range(4)] == [0.1, 0.2, 0.3, 0.4]
    assert ini.weight_file is None
    assert len(ini.weights) == 15


def test_moses_ini_is_written_with_other_weights(tmp_path):
    ini = read_moses_ini(written(tmp_path / "moses.ini", INI))
    weights = {name: 1 / (3 + i) for i, name in enumerate(ini.weights)}
    write_moses_ini(tmp_path / "tuned.ini", ini, weights, "sparse")
    tuned = read_moses_ini(tmp_path / "tuned.ini")
    assert tuned.weights == weights
    assert tuned.limits == ini.limits
    assert tuned.weight_file == tmp_path / "sparse"
    assert "LM1= " in (tmp_path / "tuned.ini").read_text()


def test_all_of_moses_own(shared):
    for path in sorted((shared / "oracles" / "moses").glob("*.ini")):
        if "sparse" in path.name:
            with pytest.raises(
                InputError, match=r":\d+: the feature WordTranslationFeature is not"
            ):
                read_moses_ini(path)
        else:
            assert len(read_moses_ini(path).weights) == 15


@pytest.mark.parametrize(
    ("old", "new", "line", "message"),
    [
        ("LM1= 0.5\n", "", 15, "the feature LM1 has no weights; add `LM1= ...` to [weight]"),
        ("LM1= 0.5", "LM1= 0.5 1", 23, "LM1 has 2 weights, and 1 are needed"),
        ("LM1= 0.5", "LM1= x", 23, "'x' is no finite number"),
        ("LM1= 0.5", "LM1= 0.5\nLM2= 0.5", 24, "there is no feature LM2"),
        ("0.1 0.2 0.3 0.4", "0.1", 20, "TranslationModel0 has 1 weights, and 4 are needed"),
        ("PhraseDictionaryMemory", "PhraseDictionaryCompact", 12, "PhraseDictionaryMemory and its"),
        ("Distortion\n", "Distortion\nGeneration\n", 15, "the feature Generation is not supported"),
        ("[distortion-limit]\n6", "[distortion-limit]\nsix", 7, "'six' is no whole number"),
        ("type=wbe-msd-", "type=wbe-", 13, "the reordering type"),
        ("=6 type", "=3 type", 13, "LexicalReordering0 has 6 scores, and not num-features=3"),
        ("# A comment", "comment", 1, "stands before the first [section]"),
        ("[stack]", "[weight]", 24, "a second [weight] (the first is in line 16); leave one of"),
        ("[stack]", "[feature]", 24, "a second [feature] (the first is in line 8)"),
        ("[stack]", "[distortion-limit]", 24, "a second [distortion-limit] (the first is in line"),
        ("[distortion-limit]\n6", "[distortion-limit]", 6, "[distortion-limit] is empty; write"),
        ("[distortion-limit]\n6", "[distortion-limit]\n6\n7", 8, "[distortion-limit] has a sec"),
        ("[stack]\n200", "[weight-file]", 24, "[weight-file] is empty; write its value in the"),
        ("[stack]\n200", "[weight-file]\na\nb", 26, "[weight-file] has a second value; leave one"),
        ("Distortion\n", "Distortion\nDistortion name=D\n", 15, "a second Distortion is not sup"),
        ("Distortion\n", "Distortion name=D\n", 14, "Distortion must be called Distortion0; rem"),
        ("name=LM1", "name=TranslationModel0", 15, "a second feature is called TranslationModel0"),
        ("path=table.gz", "path=table.gz path=b", 12, "path= stands here twice; leave one of"),
        (
            "name=LexicalReordering0",
            "name=LM0",
            13,
            "the decoder has a feature LM0 itself; give Lex",
        ),
        (
            "name=TranslationModel0",
            "name=WordPenalty0",
            12,
            "the decoder has a feature WordPenalty0",
        ),
        (
            "name=LM1",
            "name=Distortion0",
            15,
            "the decoder has a feature Distortion0 itself; give K",
        ),
        ("LM1= 0.5", "LM1= 0.5\nLM1= 0.5", 24, "LM1 has weights already; remove one line"),
    ],
)
def test_bad_moses_ini(tmp_path, old, new, line, message):
    assert old in INI
    path = written(tmp_path / "moses.ini", INI.replace(old, new, 1))
    with pytest.raises(InputError) as error:
        read_moses_ini(path)
    assert str(error.value).startswith(f"{path}:{line}: {message}")


@pytest.mark.parametrize(
    ("old", "new", "limits"),
    [
        ("[distortion-limit]\n6", "[distortion-limit]\n-1", {"distortion_limit": -1}),
        ("[distortion-limit]\n6", "[distortion-limit]\n0", {"distortion_limit": 0}),
        ("table-limit=30", "table-limit=0", {"table_limit": NO_LIMIT}),
        ("[stack]", "[cube-pruning-pop-limit]\n70\n[stack]", {"pop_limit": 70}),
    ],
)
def test_limits(tmp_path, old, new, limits):
    ini = read_moses_ini(written(tmp_path / "moses.ini", INI.replace(old, new)))
    usual = {"distortion_limit": 6, "stack_size": 200, "table_limit": 30}
    assert ini.limits == usual | limits


@pytest.mark.parametrize(
    ("old", "new", "line", "message"),
    [
        ("\n6\n", "\n-2\n", 7, "distortion-limit must be 0 or more, or -1 for none, not -2"),
        ("-limit=30", "-limit=-1", 12, "table-limit must be 1 or more, or 0 for none, not -1"),
        ("\n200\n", "\n0\n", 25, "stack must be 1 or more, not 0"),
    ],
)
def test_bad_limits(tmp_path, old, new, line, message):
    path = written(tmp_path / "moses.ini", INI.replace(old, new))
    with pytest.raises(InputError) as error:
        read_moses_ini(path)
    assert str(error.value) == f"{path}:{line}: {message}"


def test_weights_of_a_moses_ini(tmp_path):
    path = written(tmp_path / "moses.ini", INI + "[weight-file]\nsparse\n")
    written(tmp_path / "sparse", "rule_id:ein~a 0.25\n")
    names, values = read_any_weights(path, phrase_decoder=True)
    weights = dict(zip(names, values.tolist(), strict=True))
    assert weights == {**read_moses_ini(path).weights, "rule_id:ein~a": 0.25}
    written(tmp_path / "sparse", "LM0_0 1\n")
    with pytest.raises(InputError, match=r"moses.ini:23: LM0_0 has a weight in .*sparse as well"):
        read_any_weights(path, phrase_decoder=True)


def test_the_model_of_a_moses_ini(tmp_path):
    written(tmp_path / "table.gz", PHRASES)
    written(tmp_path / "reordering", REORDERING)
    written(tmp_path / "lm.arpa", ARPA)
    ini = written(tmp_path / "moses.ini", INI)
    model = MosesModel(str(ini)).open(no_bitext)
    assert len(model.grammar) == 4
    tables = f"{tmp_path / 'table.gz'} with {tmp_path / 'reordering'}"
    assert model.grammar_part.name == f"{tables} as {TYPE}"
    # The decoder's limits are those of the file, unless its own options say otherwise.
    decoder = PhraseDecoder(model, stack_size=7)
    assert (decoder.distortion_limit, decoder.table_limit) == (6, 30)
    assert (decoder.stack_size, decoder.pop_limit) == (7, 500)
    with pytest.raises(ValueError, match="scores how phrases are reordered"):
        HieroDecoder(model)
    written(tmp_path / "lm.arpa", "mmap lm http://kheafield.com/code format version 5\n")
    with pytest.raises(InputError, match="is a binary language model"):
        MosesModel(str(ini)).open(no_bitext)


@pytest.mark.parametrize("kind", ["PhraseDictionaryCompact", "ProbingPT"])
def test_the_text_of_a_binary_table(tmp_path, kind):
    """What the file says of the table holds for its text, and its weights for anybody."""
    written(tmp_path / "text", PHRASES)
    written(tmp_path / "reordering", REORDERING)
    written(tmp_path / "lm.arpa", ARPA)
    text = INI.replace("PhraseDictionaryMemory", kind)
    ini = written(tmp_path / "moses.ini", text)
    names, _ = read_any_weights(ini)
    assert "TranslationModel0_3" in names
    model = MosesModel(str(ini), phrase_table=str(tmp_path / "text"))
    opened = model.open(no_bitext)
    assert opened.grammar.dense_names[:2] == ["TranslationModel0_0", "TranslationModel0_1"]
    assert opened.limits["table_limit"] == 30
    weights = Weights()
    weights.set(["TranslationModel0_1"], [0.75])
    (tmp_path / "run").mkdir()
    assert model.export(tmp_path / "run", weights) is None
    tuned = read_moses_ini(tmp_path / "run" / "moses.ini", binary=True)
    assert tuned.phrases.kind == kind
    assert tuned.weights["TranslationModel0_1"] == 0.75
    with pytest.raises(InputError, match=r":12: .*gz; name it with model.phrase_table$"):
        MosesModel(str(ini)).open(no_bitext)
    written(ini, text.replace("num-features=4", "num-features=3").replace(" 0.4\n", "\n"))
    with pytest.raises(InputError, match=r"text:1: has 4 scores, and not 3, as its settings say"):
        model.open(no_bitext)
    written(ini, text.replace(kind, "PhraseDictionaryMemory path=a\n" + kind, 1))
    with pytest.raises(InputError, match=r":13: a second phrase table is not supported"):
        model.open(no_bitext)


@pytest.mark.parametrize("weights", ["0.1 0.2 0.3", "0.1 0.2 0.3 0.4 0.5"])
def test_weights_for_other_scores_than_those_of_the_table(tmp_path, weights):
    """Without num-features= the table says how many there are."""
    written(tmp_path / "table.gz", PHRASES)
    written(tmp_path / "reordering", REORDERING)
    written(tmp_path / "lm.arpa", ARPA)
    text = INI.replace("num-features=4 ", "")
    ini = written(tmp_path / "moses.ini", text)
    assert len(MosesModel(str(ini)).open(no_bitext).grammar) == 4
    written(ini, text.replace("0.1 0.2 0.3 0.4", weights))
    with pytest.raises(InputError) as error:
        MosesModel(str(ini)).open(no_bitext)
    assert str(error.value) == (
        f"{ini}:20: TranslationModel0 has {len(weights.split())} weights, and "
        f"{tmp_path / 'table.gz'} has 4 scores; give each its weight"
    )

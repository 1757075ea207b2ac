"""Tables of rules and of phrases of other tools, ours, and what can be wrong with them."""

import gzip
import logging
import math

import numpy as np
import pytest
from small_lists import put
from test_grammar_extraction import sentence_rules

from torchtune_smt.core import textio
from torchtune_smt.core.archive import cache_path
from torchtune_smt.core.errors import InputError
from torchtune_smt.core.textio import read_lines
from torchtune_smt.core.vocabulary import Vocabulary
from torchtune_smt.decoders.phrase import PhraseDecoder
from torchtune_smt.features import RuleId
from torchtune_smt.grammar import extract_grammar, formats, read_grammar, write_grammar
from torchtune_smt.grammar.formats import read_phrase_table
from torchtune_smt.grammar.reordering import ReorderingType
from torchtune_smt.grammar.store import COPY
from torchtune_smt.lm.model import NgramModel
from torchtune_smt.models.base import Model

CDEC = """\
[X] ||| [X,1] europas ||| europe 's [X,1] ||| EgivenF=1.5 Lex=-0.25 ||| 1-0 1-1
[X] ||| [X,1] von [X,2] ||| [2] 's [1] ||| Lex=1e-3 EgivenF=2
[X] ||| haus ||| house ||| EgivenF=.5
[X] ||| haus ||| home ||| Lex=1e300 New=+7
[X] ||| ja ||| ||| EgivenF=0.1
[X] ||| nein ||| no |||
"""


def rules(grammar):
    """The rules as text, and their features that are not 0."""
    found = {}
    for r in range(len(grammar)):
        source, target = grammar.rule_text(r)
        values = zip(grammar.dense_names, grammar.dense[r].tolist(), strict=True)
        found[" ".join(source), " ".join(target)] = {n: v for n, v in values if v}
    return found


def write(folder, text, name="grammar"):
    return put(folder, {name: text})


def written(path, text):
    return put(path.parent, {path.name: text})


CDEC_RULES = {
    ("[1] europas", "europe 's [1]"): {"EgivenF": 1.5, "Lex": -0.25},
    ("[1] von [2]", "[2] 's [1]"): {"Lex": 1e-3, "EgivenF": 2.0},
    ("haus", "house"): {"EgivenF": 0.5},
    ("haus", "home"): {"Lex": 1e300, "New": 7.0},
    ("ja", ""): {"EgivenF": 0.1},
    ("nein", "no"): {},
}


@pytest.fixture(params=[1 << 20, 40], ids=["whole", "pieces"], autouse=True)
def piece(request, monkeypatch):
    """Texts are parsed as a whole, and a line or a few at a time."""
    if "shared" not in request.fixturenames:
        monkeypatch.setattr(formats, "PIECE", request.param)
        monkeypatch.setattr(textio, "_BLOCK", request.param)


def test_cdec(tmp_path):
    grammar = read_grammar(write(tmp_path, CDEC))
    assert grammar.dense_names == ["EgivenF", "Lex", "New"]
    assert rules(grammar) == CDEC_RULES
    packed = write(tmp_path, gzip.compress(CDEC.replace(" ", "\t").encode()), "grammar.gz")
    assert rules(read_grammar(packed)) == CDEC_RULES
    for name in ("copy", "copy.gz"):
        write_grammar(tmp_path / name, grammar)
        assert rules(read_grammar(tmp_path / name)) == CDEC_RULES
    text = "[X] ||| [X] a [X] ||| [2] b [1] ||| F=1\n[X] ||| a [X] ||| [1] b ||| F=2\n"
    found = rules(read_grammar(write(tmp_path, text)))
    assert found == {("[1] a [2]", "[2] b [1]"): {"F": 1.0}, ("a [1]", "[1] b"): {"F": 2.0}}


def test_rules_of_one_source_side_are_consecutive_in_the_given_order(tmp_path):
    text = "".join(f"[X] ||| {s} ||| {t} ||| F={v}\n" for s, t, v in ["ax1", "by4", "az3", "aw3"])
    grammar = read_grammar(write(tmp_path, text))
    assert "".join(grammar.rule_text(r)[1][0] for r in range(4)) == "xzwy"
    local = grammar.sentence_grammar(grammar.source_words.lookup(["a"]), 10)
    assert local.rule.tolist() == [0, 1, 2]


def test_values_without_names_and_with_semicolons(tmp_path):
    text = "[X] ||| a [X,1] ||| [X,1] b ||| 0.5 -2 F=3;G=2; 1.5;;\n[X] ||| a;b ||| c;d ||| 1\n"
    grammar = read_grammar(write(tmp_path, text))
    names = ["PhraseModel_0", "PhraseModel_1", "PhraseModel_2", "F", "G"]
    assert grammar.dense_names == names
    expected = dict(zip(names, [0.5, -2, 1.5, 3, 2], strict=True))
    assert rules(grammar) == {("a [1]", "[1] b"): expected, ("a;b", "c;d"): {names[0]: 1.0}}
    text = "[X] ||| a ||| b ||| 0.5 -2 F;G=3 1.5\n"
    joshua = read_grammar(write(tmp_path, text), "joshua")
    names = ["tm_pt_0", "tm_pt_1", "tm_pt_2", "F;G"]
    expected = dict(zip(names, [-0.5, 2, -1.5, 3], strict=True))
    assert joshua.dense_names == names and rules(joshua)["a", "b"] == expected
    with pytest.raises(InputError, match="F;G cannot be told from markup"):
        write_grammar(tmp_path / "out", joshua)


def test_moses(tmp_path):
    text = """\
[X][X] do not [X][X] [X] ||| [X][X] n' ai pas [X][X] [X] ||| 0.1 0.9 1 1e-5 ||| 0-0 3-4 ||| 1 1
[X][X] of [X][X] [X] ||| [X][X] 's [X][X] [X] ||| 0.5 0.5 0.5 0 ||| 2-0 1-1 0-2 ||| 2 3 2 ||| |||
house [X] ||| maison [X] ||| 1 1 1 1
the [X] ||| [X] ||| 0.25 1 1 1 |||
"""
    grammar = read_grammar(write(tmp_path, text))
    found = rules(grammar)
    first, second = ("[1] do not [2]", "[1] n' ai pas [2]"), ("[1] of [2]", "[2] 's [1]")
    assert set(found) == {first, second, ("house", "maison"), ("the", "")}
    expected = {"FgivenE": -1.0, "LexFgivenE": math.log10(0.9), "LexEgivenF": -5.0}
    assert found[first] == pytest.approx(expected)
    assert grammar.dense_names == ["FgivenE", "LexFgivenE", "EgivenF", "LexEgivenF"]
    # As in Moses, the natural logarithm of 0 is -100.
    assert found[second]["LexEgivenF"] == pytest.approx(-100 / math.log(10))
    five = read_grammar(write(tmp_path, "a [X] ||| b [X] ||| 1 1 1 1 2.718 ||| 0-0\n"))
    assert five.dense_names == [f"PhraseModel_{i}" for i in range(5)]


def test_a_grammar_is_read_from_its_copy_as_from_its_text(tmp_path, caplog):
    caplog.set_level(logging.WARNING)
    path = write(tmp_path, CDEC + CDEC.splitlines()[2] + "\n")
    copy = cache_path(path)

    def read(**options):
        grammar, alone = (read_grammar(path, cache=cache, **options) for cache in (True, False))
        for name, value in vars(alone).items():
            found = getattr(grammar, name)
            if isinstance(value, Vocabulary):
                found, value = (words.names(range(len(words))) for words in (found, value))
            assert getattr(found, "dtype", None) == getattr(value, "dtype", None)
            np.testing.assert_equal(found, value)
        return grammar

    read(may_write=False)
    assert not copy.exists()
    read()
    whole = copy.read_bytes()
    caplog.clear()
    first, _ = read(), read()
    assert first.feature_places["New"] == (path, 4)
    assert copy.read_bytes() == whole
    assert ["1 rules occur again" in message for message in caplog.messages] == [True] * 4
    # Damaged, of another text, or read in another format: it is made anew.
    copy.write_bytes(whole[:-9])
    read()
    assert copy.read_bytes() == whole
    read(format="joshua")
    assert copy.read_bytes() != whole
    write(tmp_path, CDEC.replace("house", "hut"))
    read()
    # It is used: what it says of values is taken.
    stored = COPY.read(copy)
    stored.arrays["dense"][0] += 1
    COPY.write(copy, stored.content, stored.arrays)
    changed = read_grammar(path, cache=True).dense - read_grammar(path).dense
    assert changed[0].all() and not changed[1:].any()


# Phrase tables

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


def entries(table):
    texts = [tuple(map(" ".join, table.rule_text(r))) for r in range(len(table))]
    return dict(zip(texts, table.dense.tolist(), strict=True))


def test_a_phrase_table(tmp_path):
    table = read_phrase_table(written(tmp_path / "table.gz", PHRASES))
    found = entries(table)
    assert list(found) == [("ein", "a"), ("ein", "one"), ("nun", ""), ("ein haus", "a house")]
    assert table.dense_names == [f"TranslationModel0_{i}" for i in range(4)]
    assert found["ein haus", "a house"] == pytest.approx(np.log([0.5, 0.25, 1, 0.125]))
    assert found["ein", "one"] == pytest.approx([math.log(1e-3), -100.0, *np.log([0.5, 0.5])])
    assert [table.links(r) for r in range(4)] == [[(0, 0)], [(0, 0)], [], [(0, 0), (1, 1)]]
    # Of another width, with counts.
    lines = [line.replace(" ||| 0-0", " 2.718 ||| 0-0") for line in PHRASES.splitlines()[:3]]
    path = written(tmp_path / "table.gz", "\n".join(lines))
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


def test_repeated_source_sides_have_one_kind_of_scores(tmp_path):
    path = written(tmp_path / "table", "a ||| x ||| 0.5\nb ||| y ||| 0.5\na ||| z ||| 0.5\n")
    lines = "a ||| 0.5 0.25\nb ||| 0.1 0.2\nc ||| 0.5 0.5\na ||| 0.5 0.25\n"
    options = {"reordering_type": "monotonicity-backward-f"}
    found = entries(read_phrase_table(path, reordering=written(tmp_path / "r", lines), **options))
    for source, target in ("ax", "az", "by"):
        expected = [0.5, 0.25] if source == "a" else [0.1, 0.2]
        assert found[source, target][1:] == pytest.approx(np.log(expected))
    other = written(tmp_path / "r", lines[:-3] + "75\n")
    with pytest.raises(InputError, match="r:4: .*other scores than line 1"):
        read_phrase_table(path, reordering=other, **options)


def test_tables_out_of_step(tmp_path):
    path = written(tmp_path / "table", PHRASES)
    other = written(tmp_path / "reordering", "\n".join(REORDERING.splitlines()[:2]))
    for match, options in (
        (f"{path}:3: has no scores in {other}", {"reordering_type": TYPE}),
        ("reordering:1: has 6 scores, and not 3", {"reordering_type": "msd-backward-fe"}),
        ("table:4: has no positive third count", {"reordering": None, "rule_counts": True}),
    ):
        with pytest.raises(InputError, match=match):
            read_phrase_table(path, **{"reordering": other} | options)


def test_what_occurs_again_is_dropped_counted_and_reported(tmp_path, caplog):
    lines = ["a ||| x ||| F=1", "b ||| x ||| F=2", "a ||| x ||| F=3", "a ||| y ||| F=4"]
    with caplog.at_level(logging.WARNING):
        grammar = read_grammar(write(tmp_path, "".join(f"[X] ||| {line}\n" for line in lines)))
        table = read_phrase_table(write(tmp_path, PHRASES + "ein ||| a ||| 1 1 1 1\n"))
    assert rules(grammar)["a", "x"] == {"F": 1.0}
    assert (len(grammar), grammar.n_duplicates) == (3, 1)
    assert entries(table)["ein", "a"] == pytest.approx(np.log([0.5] * 4))
    assert "1 rules occur again" in caplog.text and "1 phrase pairs occur again" in caplog.text


def test_min_count_without_counts(tmp_path):
    """The line is named, though most have counts."""
    path, arpa = written(tmp_path / "table", PHRASES), written(tmp_path / "lm.arpa", ARPA)
    model = Model(read_phrase_table(path), NgramModel.load(arpa, may_write=False))
    PhraseDecoder(model, templates=[RuleId()])
    with pytest.raises(InputError, match=f"{path}:4: has no positive third count .* min_count"):
        PhraseDecoder(model, templates=[RuleId(min_count=2)])
    whole = written(tmp_path / "table", PHRASES.replace("1 1 1 1\n", "1 1 1 1 ||| ||| 1 1 1\n"))
    model = Model(read_phrase_table(whole), model.language_model)
    PhraseDecoder(model, templates=[RuleId(min_count=2)])


@pytest.mark.parametrize("name", ["t.minphr", "t.binlexr.idx"])
def test_binary_tables_are_refused_by_name(tmp_path, name):
    written(tmp_path / name, "x")
    option = "reordering_table" if "lexr" in name else "phrase_table"
    message = f"text that it was made from is read; `train-model.*name it with model.{option}$"
    for path in (tmp_path / name, tmp_path / "t"):
        with pytest.raises(InputError, match=message):
            read_phrase_table(path)


def test_reordering_types():
    for name, expected in {
        "msd-bidirectional-fe": (6, 3, False),
        "hier-mslr-bidirectional-fe-allff": (8, 4, True),
        "phrase-monotonicity-backward-f": (2, 2, False),
        "leftright-forward-fe": (2, 2, False),
    }.items():
        kind = ReorderingType.parse(name)
        assert (kind.scores, kind.orientations, kind.hierarchical) == expected
    for name in ("", "msd", "msd-bidirectional-fe-collapseff", "msd-msd-backward-fe"):
        with pytest.raises(ValueError, match="reordering"):
            ReorderingType.parse(name)


# What is refused. No other numbers are taken than those of fuzz/test_readers.py.

GOOD = {
    "cdec": "[X] ||| good ||| good ||| F=1\n",
    "moses": "a [X] ||| b [X] ||| 1 ||| 0-0\n",
    "phrases": "",
}
GAPS = "[X][X] a [X][X] [X] ||| [X][X] [X][X] [X] ||| 1 ||| "
BAD = [
    ("cdec", "[X] ||| a ||| b\n", 2, "a field is missing: .X. ... source ... target ... features"),
    ("cdec", "[X] ||| ||| b ||| F=1\n", 2, "source side is empty"),
    ("cdec", "[X] ||| [X,1] ||| b [1] ||| F=1\n", 2, "non-terminal alone"),
    ("cdec", "[X] ||| a [X,1] ||| b ||| F=1\n", 2, "different numbers of non-terminals"),
    ("cdec", "[X] ||| [X] a [X,1] ||| [1] b [2] ||| F=1\n", 2, r"\[X,1\] occurs twice"),
    ("cdec", "[X] ||| a ||| b [1] ||| F=1\n", 2, r"\[1\] has no counterpart"),
    ("cdec", "[X] ||| a [X,1] b [X,2] ||| [1] [1] ||| F=1\n", 2, r"\[1\] occurs twice"),
    ("cdec", "[X] ||| [X,1] a [X,2] b [X,3] ||| [1] [2] [3] ||| F=1\n", 2, r"\[X,3\] is the third"),
    ("cdec", "[S] ||| [S,1] [X,2] ||| [1] [2] ||| F=1\n", 2, "left-hand side must be .X.*glue"),
    ("cdec", "[X] ||| a [NP,1] ||| b [1] ||| F=1\n", 2, r"\[NP,1\] has a category other than X"),
    ("cdec", "[X] ||| a ||| b ||| =1\n", 2, "=1 has no feature name"),
    ("cdec", GOOD["cdec"] + "[X] ||| a ||| c ||| F=1 #G=2\n", 3, "#G would be a comment"),
    ("cdec", "[X] ||| a ||| b ||| F=1 G=2 F=3\n", 2, "gives the feature F twice"),
    ("cdec", GOOD["cdec"] + "[X] ||| c ||| d ||| F=1e\n[X] |||\n", 3, "'1e' is no finite"),
    ("cdec", GOOD["cdec"] + "[X] |||\n[X] ||| c ||| d ||| F=1e\n", 3, "a field is missing"),
    ("moses", "a [X] ||| b ||| 1\n", 2, "must end with .X."),
    ("moses", "a [X] ||| b [X]\n", 2, "a field is missing: source .X."),
    ("moses", GAPS + "0-0 1-1\n", 2, "belong together"),
    ("moses", "a [X] ||| b [X] ||| 1 ||| 0-\n", 2, "0- is no alignment point"),
    ("moses", "a [X] ||| b [X] ||| -0.5 ||| 0-0\n", 2, "-0.5 is no probability"),
    ("moses", "c [X] ||| b [X] ||| 1 1 ||| 0-0\n", 2, "has 2 scores, and not 1"),
    ("moses", "c [X] ||| b [X] ||| 1 ||| 0-0 1-0\n", 2, "1-0 lies outside"),
    ("phrases", "ein ||| a\n", 1, "is missing: source ... target ... prob"),
    ("phrases", PHRASES + "x ||| y ||| 1 1 1\n", 5, "has 3 scores, and not 4"),
    ("phrases", PHRASES + " ||| y ||| 1 1 1 1\n", 5, "the source side is empty"),
    ("phrases", "x ||| y ||| \n", 1, "has no scores"),
    ("phrases", "a ||| b ||| 1 x\nc ||| d ||| 1\ne\n", 1, "'x' is no finite number"),
    ("phrases", "", None, "the table is empty"),
]


@pytest.mark.parametrize(("form", "text", "line", "message"), BAD)
def test_bad_lines(tmp_path, form, text, line, message):
    """Behind a good one, but for phrase tables."""
    path = write(tmp_path, GOOD[form] + text)
    with pytest.raises(InputError, match=message) as caught:
        read_phrase_table(path) if form == "phrases" else read_grammar(path)
    assert (caught.value.path, caught.value.line) == (path, line)


def test_bad_files(tmp_path):
    good = b"[X] ||| a ||| b ||| F=1\n"
    # A piece that is looked at for UTF-8 is shorter than this.
    long = (b"[X] ||| a ||| b ||| F=1" + b" " * 1000 + b"\n") * 17_000
    for content, line, message in (
        (b"", None, "empty"),
        (b"a b c\n", 1, "neither cdec's format"),
        (b"das haus ||| the house ||| 1 1 1 1\n", 1, "neither cdec's format"),
        (good + b"[X] ||| a ||| b ||| PhraseModel_0=1 2\n", None, "also occurs"),
        (b"[X] ||| a ||| b ||| " + b" ".join(b"F%d=1" % i for i in range(1001)), 1, "1000 diff"),
        (long + b"[X] ||| \xe4 ||| b ||| F=1\n", 17_001, "UTF-8"),
    ):
        with pytest.raises(InputError, match=message) as caught:
            read_grammar(write(tmp_path, content))
        assert caught.value.line == line


def test_what_is_written_is_read_back(tmp_path):
    sources = [f"a{i % 3} b c{i % 2}".split() for i in range(20)]
    targets = [f"x{i % 5} y z{i % 2}".split() for i in range(20)]
    extracted = extract_grammar(sources, targets, [[(0, 0), (1, 2), (2, 1)]] * 20, table_limit=2)
    write_grammar(tmp_path / "copy", extracted)
    copy = read_grammar(tmp_path / "copy")
    assert len(copy) < len(extracted)
    for words in sources:
        assert sentence_rules(extracted, words, 10) == sentence_rules(copy, words, 10)
    grammar = extract_grammar([["[1]"]], [["b"]], [[(0, 0)]])
    with pytest.raises(InputError, match=r"\[1\] cannot be told from markup"):
        write_grammar(tmp_path / "grammar", grammar)
    assert [path.name for path in tmp_path.iterdir()] == ["copy"]


def test_cdec_grammar_of_a_development_set(shared, cdec_grammar):
    """Rules and values of a large file, read by two parsers."""
    grammar = cdec_grammar
    assert (len(grammar), grammar.n_duplicates) == (689_142, 0)
    lines = read_lines(shared / "oracles" / "cdec" / "grammar.dev.gz")
    for r in range(0, len(grammar), 20):
        _, *sides, features, _ = lines[grammar.given[r]].split(" ||| ")
        plain = [" ".join(side).replace("[X,", "[") for side in map(str.split, sides)]
        assert plain == list(map(" ".join, grammar.rule_text(r)))
        pairs = (feature.split("=") for feature in features.split())
        values = zip(grammar.dense_names, grammar.dense[r].tolist(), strict=True)
        assert dict(values) == {name: float(value) for name, value in pairs}

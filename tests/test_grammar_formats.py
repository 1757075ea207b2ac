"""Rule tables of other tools, ours, and what can be wrong with them."""

from __future__ import annotations

import gzip
import logging
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchtune_smt.core.errors import InputError
from torchtune_smt.grammar import FileGrammar, extract_grammar, read_grammar, write_grammar

CDEC = """\
[X] ||| [X,1] europas ||| europe 's [X,1] ||| EgivenF=1.5 Lex=-0.25 ||| 1-0 1-1
[X] ||| [X,1] von [X,2] ||| [2] 's [1] ||| Lex=1e-3 EgivenF=2
[X] ||| haus ||| house ||| EgivenF=.5
[X] ||| haus ||| home ||| Lex=1e300 New=+7
[X] ||| ja ||| ||| EgivenF=0.1
[X] ||| nein ||| no |||
"""


def rules(grammar: FileGrammar) -> dict[tuple[str, str], dict[str, float]]:
    """The rules as text, and their features that are not 0."""
    found = {}
    for r in range(len(grammar)):
        source, target = grammar.rule_text(r)
        values = zip(grammar.dense_names, grammar.dense[r].tolist(), strict=True)
        found[" ".join(source), " ".join(target)] = {n: v for n, v in values if v}
    return found


def write(folder: Path, text: str | bytes, name: str = "grammar") -> Path:
    path = folder / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


CDEC_RULES = {
    ("[1] europas", "europe 's [1]"): {"EgivenF": 1.5, "Lex": -0.25},
    ("[1] von [2]", "[2] 's [1]"): {"Lex": 1e-3, "EgivenF": 2.0},
    ("haus", "house"): {"EgivenF": 0.5},
    ("haus", "home"): {"Lex": 1e300, "New": 7.0},
    ("ja", ""): {"EgivenF": 0.1},
    ("nein", "no"): {},
}


def test_cdec(tmp_path):
    grammar = read_grammar(write(tmp_path, CDEC))
    assert grammar.dense_names == ["EgivenF", "Lex", "New"]
    assert rules(grammar) == CDEC_RULES
    assert read_grammar(write(tmp_path, CDEC.rstrip("\n"))).n_duplicates == 0
    # As other systems and packers write it.
    windows = write(tmp_path, CDEC.replace("\n", "\r\n"))
    assert rules(read_grammar(windows)) == CDEC_RULES
    packed = write(tmp_path, gzip.compress(CDEC.replace(" ", "\t").encode()), "grammar.gz")
    assert rules(read_grammar(packed)) == CDEC_RULES


def test_rules_of_one_source_side_are_consecutive_in_the_given_or_the_wanted_order(tmp_path):
    text = "".join(f"[X] ||| {s} ||| {t} ||| F={v}\n" for s, t, v in ["ax1", "by4", "az3", "aw3"])
    grammar = read_grammar(write(tmp_path, text))
    assert [" ".join(grammar.rule_text(r)[1]) for r in range(4)] == ["x", "z", "w", "y"]
    grammar = read_grammar(write(tmp_path, text), table_limit=2, rank_by="F")
    assert [" ".join(grammar.rule_text(r)[1]) for r in range(4)] == ["z", "w", "x", "y"]
    local = grammar.sentence_grammar(grammar.source_words.lookup(["a"]), 10)
    assert local.rule.tolist() == [0, 1]
    with pytest.raises(InputError, match="rank_by: no feature 'G' among F"):
        read_grammar(write(tmp_path, text), rank_by="G")
    with pytest.raises(ValueError, match="holds no counts"):
        grammar.sentence_grammar(np.array([0], np.int32), 10, 0)


def test_values_with_semicolons(tmp_path):
    text = "[X] ||| a;b ||| c;d ||| F=1;G=2; 3;;H=4 ;\n"
    expected = {"PhraseModel_0": 3.0, "F": 1.0, "G": 2.0, "H": 4.0}
    assert rules(read_grammar(write(tmp_path, text))) == {("a;b", "c;d"): expected}
    joshua = read_grammar(write(tmp_path, "[X] ||| a ||| c ||| F;G=2\n"), "joshua")
    assert joshua.dense_names == ["F;G"]
    with pytest.raises(InputError, match="the feature name F;G cannot be written in cdec's"):
        write_grammar(tmp_path / "out", joshua)


def test_values_without_names(tmp_path):
    text = "[X] ||| a [X,1] ||| [X,1] b ||| 0.5 -2 F=3 1.5\n[X] ||| a ||| b ||| 1\n"
    grammar = read_grammar(write(tmp_path, text))
    names = ["PhraseModel_0", "PhraseModel_1", "PhraseModel_2", "F"]
    assert grammar.dense_names == names
    assert rules(grammar)["a [1]", "[1] b"] == dict(zip(names, [0.5, -2, 1.5, 3], strict=True))
    joshua = read_grammar(write(tmp_path, text), "joshua")
    names = ["tm_pt_0", "tm_pt_1", "tm_pt_2", "F"]
    assert rules(joshua)["a [1]", "[1] b"] == dict(zip(names, [-0.5, 2, -1.5, 3], strict=True))
    assert rules(joshua)["a", "b"] == {"tm_pt_0": -1.0}


def test_moses(tmp_path):
    text = """\
[X][X] do not [X][X] [X] ||| [X][X] n' ai pas [X][X] [X] ||| 0.1 0.9 1 1e-5 ||| 0-0 3-4 ||| 1 1
[X][X] of [X][X] [X] ||| [X][X] 's [X][X] [X] ||| 0.5 0.5 0.5 0 ||| 2-0 1-1 0-2 ||| 2 3 2 ||| |||
house [X] ||| maison [X] ||| 1 1 1 1
the [X] ||| [X] ||| 0.25 1 1 1 |||
"""
    found = rules(read_grammar(write(tmp_path, text)))
    names = ["FgivenE", "LexFgivenE", "EgivenF", "LexEgivenF"]
    assert set(found) == {
        ("[1] do not [2]", "[1] n' ai pas [2]"),
        ("[1] of [2]", "[2] 's [1]"),
        ("house", "maison"),
        ("the", ""),
    }
    values = found["[1] do not [2]", "[1] n' ai pas [2]"]
    expected = {"FgivenE": -1.0, "LexFgivenE": math.log10(0.9), "LexEgivenF": -5.0}
    assert values == pytest.approx(expected)
    assert list(read_grammar(write(tmp_path, text)).dense_names) == names
    # As in Moses, the natural logarithm of 0 is -100.
    assert found["[1] of [2]", "[2] 's [1]"]["LexEgivenF"] == pytest.approx(-100 / math.log(10))
    five = read_grammar(write(tmp_path, "a [X] ||| b [X] ||| 1 1 1 1 2.718 ||| 0-0\n"))
    assert five.dense_names == [f"PhraseModel_{i}" for i in range(5)]


def test_duplicates_are_dropped_counted_and_reported(tmp_path, caplog):
    lines = ["a ||| x ||| F=1", "b ||| x ||| F=2", "a ||| x ||| F=3", "a ||| y ||| F=4"]
    with caplog.at_level(logging.WARNING):
        grammar = read_grammar(write(tmp_path, "".join(f"[X] ||| {line}\n" for line in lines)))
    assert rules(grammar)["a", "x"] == {"F": 1.0}
    assert (len(grammar), grammar.n_duplicates) == (3, 1)
    assert "1 rules occur again" in caplog.text


@given(
    st.lists(
        st.one_of(st.floats(allow_nan=False, allow_infinity=False), st.integers()), max_size=20
    )
)
def test_numbers_are_read_exactly(tmp_path_factory, numbers):
    path = tmp_path_factory.mktemp("numbers") / "grammar"
    texts = [
        f(x) for x in numbers for f in (repr, "{:.6g}".format, "{:e}".format, "{:+.3f}".format)
    ]
    texts = [t for t in texts if math.isfinite(float(t))] or ["1"]
    write(path.parent, "".join(f"[X] ||| a ||| {i} ||| F={t}\n" for i, t in enumerate(texts)))
    assert read_grammar(path).dense[:, 0].tolist() == [float(t) for t in texts]


def test_gaps_of_cdec_without_numbers(tmp_path):
    text = "[X] ||| [X] a [X] ||| [2] b [1] ||| F=1\n[X] ||| a [X] ||| [1] b ||| F=2\n"
    found = rules(read_grammar(write(tmp_path, text)))
    assert found == {("[1] a [2]", "[2] b [1]"): {"F": 1.0}, ("a [1]", "[1] b"): {"F": 2.0}}


BAD = {
    "[X] ||| a ||| b\n": (2, "a field is missing: .X. ... source ... target ... features"),
    "\n": (2, "a field is missing"),
    "[X] ||| ||| b ||| F=1\n": (2, "source side is empty"),
    "[X] ||| [X,1] ||| b [1] ||| F=1\n": (2, "non-terminal alone"),
    "[X] ||| a [X,1] ||| b ||| F=1\n": (2, "different numbers of non-terminals"),
    "[X] ||| [X] a ||| [X] b ||| F=1\n": (2, "different numbers of non-terminals"),
    "[X] ||| [X] a [X,1] ||| [1] b [2] ||| F=1\n": (2, r"\[X,1\] occurs twice"),
    "[X] ||| a ||| b [1] ||| F=1\n": (2, r"\[1\] has no counterpart"),
    "[X] ||| a [X,1] ||| b [X,2] ||| F=1\n": (2, r"\[X,2\] has no counterpart"),
    "[X] ||| a [X,1] b [X,2] ||| [1] [1] ||| F=1\n": (2, r"\[1\] occurs twice"),
    "[X] ||| a [X,1] b [X,1] ||| [1] [2] ||| F=1\n": (2, r"\[X,1\] occurs twice"),
    "[X] ||| [X,1] a [X,2] b [X,3] ||| [1] [2] [3] ||| F=1\n": (2, r"\[X,3\] is the third"),
    "[S] ||| [S,1] [X,2] ||| [1] [2] ||| F=1\n": (2, "left-hand side must be .X.*glue"),
    "[X] ||| a [NP,1] ||| b [1] ||| F=1\n": (2, r"\[NP,1\] has a category other than X"),
    "[X] ||| a ||| b ||| F=\n": (2, "'' is no finite number"),
    "[X] ||| a ||| b ||| F=x1\n": (2, "'x1' is no finite number"),
    "[X] ||| a ||| b ||| F=1_0\n": (2, "'1_0' is no finite number"),
    "[X] ||| a ||| b ||| F=nan\n": (2, "'nan' is no finite number"),
    "[X] ||| a ||| b ||| F=1 G=-inf\n": (2, "'-inf' is no finite number"),
    "[X] ||| a ||| b ||| F=1e999\n": (2, "'1e999' is no finite number"),
    "[X] ||| a ||| b ||| =1\n": (2, "=1 has no feature name"),
    "[X] ||| a ||| b ||| F=1\n[X] ||| a ||| c ||| F=1 #G=2\n": (3, "name #G cannot be written"),
    "[X] ||| a ||| b ||| F=1 G=2 F=3\n": (2, "gives the feature F twice"),
    "[X] ||| a ||| b ||| F=1\n[X] ||| c ||| d ||| F=1e\n[X] |||\n": (3, "'1e' is no finite"),
    "[X] ||| a ||| b ||| F=1\n[X] |||\n[X] ||| c ||| d ||| F=1e\n": (3, "a field is missing"),
    "[X] a ||| b ||| c ||| F=1\n": (2, "left-hand side must be"),
}


@pytest.mark.parametrize("text", BAD)
def test_bad_lines_of_cdec(tmp_path, text):
    line, message = BAD[text]
    path = write(tmp_path, "[X] ||| good ||| good ||| F=1\n" + text)
    with pytest.raises(InputError, match=message) as caught:
        read_grammar(path)
    assert (caught.value.path, caught.value.line) == (path, line)
    assert str(caught.value).startswith(f"{path}:{line}: ")


BAD_MOSES = {
    "a [X] ||| b ||| 1": "must end with .X.",
    "a [X] ||| b [X]": "a field is missing: source .X.",
    "[X][X] a [X] ||| b [X] ||| 1 ||| 0-0": "different numbers",
    "a [X] ||| [X][X] b [X] ||| 1 ||| 0-0": "different numbers",
    "[X][X] a [X][X] [X] ||| [X][X] [X][X] [X] ||| 1 ||| 0-0 1-1": "which non-terminals belong",
    "[X][X] a [X][X] [X] ||| [X][X] [X][X] [X] ||| 1 ||| 0-0 2-0": "which non-terminals belong",
    "[X][NP] a [X] ||| [X][NP] [X] ||| 1 ||| 0-0": "category other than X",
    "a [X] ||| b [X] ||| 1 ||| 0-": "0- is no alignment point",
    "a [X] ||| b [X] ||| -0.5 ||| 0-0": "-0.5 is no probability",
    "[X][X] [X] ||| [X][X] [X] ||| 1 ||| 0-0": "non-terminal alone",
    "c [X] ||| b [X] ||| 1 1 ||| 0-0": "has 2 scores, and not 1, as the first line has",
    "c [X] ||| b [X] ||| ||| 0-0": "has 0 scores, and not 1, as the first line has",
    "c [X] ||| b [X] ||| X=0.5 ||| 0-0": "value 'X=0.5' is no finite number",
    "c [X] ||| b [X] ||| 1 ||| 0-0 1-0": "the alignment point 1-0 lies outside of the rule",
    "c [X] ||| b [X] ||| 1 ||| 0-1": "the alignment point 0-1 lies outside of the rule",
}


@pytest.mark.parametrize("line", BAD_MOSES)
def test_bad_lines_of_moses(tmp_path, line):
    path = write(tmp_path, f"a [X] ||| b [X] ||| 1 ||| 0-0\n{line}\n")
    with pytest.raises(InputError, match=BAD_MOSES[line]) as caught:
        read_grammar(path)
    assert caught.value.line == 2


def test_bad_files(tmp_path):
    good = b"[X] ||| a ||| b ||| F=1\n"
    for content, line, message in (
        (b"", None, "empty"),
        (b"a b c\n", 1, "neither cdec's format"),
        (b"das haus ||| the house ||| 1 1 1 1\n", 1, "neither cdec's format"),
        (good * 3 + b"[X] ||| a\xff ||| b ||| F=1\n", 4, "not valid UTF-8"),
        (good + b"[X] ||| a ||| b ||| PhraseModel_0=1 2\n", None, "also occurs"),
        (b"[X] ||| a ||| b ||| " + b" ".join(b"F%d=1" % i for i in range(1001)), 1, "1000 diff"),
    ):
        with pytest.raises(InputError, match=message) as caught:
            read_grammar(write(tmp_path, content))
        assert caught.value.line == line
    with pytest.raises(InputError, match="no such file"):
        read_grammar(tmp_path / "none")
    with pytest.raises(ValueError, match="format must be cdec, joshua or moses"):
        read_grammar(write(tmp_path, good), "xml")


def test_invalid_utf8_is_found_in_every_piece(tmp_path):
    line = b"[X] ||| a ||| b ||| F=1" + b" " * 1000 + b"\n"
    text = line * 17_000 + b"[X] ||| \xe4 ||| b ||| F=1\n"
    with pytest.raises(InputError, match="UTF-8") as caught:
        read_grammar(write(tmp_path, text))
    assert caught.value.line == 17_001


def test_what_is_written_is_read_back(tmp_path):
    grammar = read_grammar(write(tmp_path, CDEC))
    for name in ("copy", "copy.gz"):
        write_grammar(tmp_path / name, grammar)
        copy = read_grammar(tmp_path / name)
        assert rules(copy) == CDEC_RULES
    sources = [f"a{i % 3} b c{i % 2}".split() for i in range(20)]
    targets = [f"x{i % 5} y z{i % 2}".split() for i in range(20)]
    extracted = extract_grammar(sources, targets, [[(0, 0), (1, 2), (2, 1)]] * 20, table_limit=2)
    write_grammar(tmp_path / "copy", extracted)
    copy = read_grammar(tmp_path / "copy")
    assert len(copy) < len(extracted)
    for words in sources:
        first = extracted.sentence_grammar(extracted.source_words.lookup(words), 10)
        second = copy.sentence_grammar(copy.source_words.lookup(words), 10)
        texts = [
            {
                (tuple(source), tuple(target)): dict(zip(g.dense_names, values, strict=True))
                for r, values in zip(local.rule.tolist(), local.dense.tolist(), strict=True)
                for source, target in [g.rule_text(r)]
            }
            for g, local in ((extracted, first), (copy, second))
        ]
        assert texts[0] == texts[1]


def test_words_that_look_like_markup_are_not_written(tmp_path):
    grammar = extract_grammar([["[1]"]], [["b"]], [[(0, 0)]])
    with pytest.raises(InputError, match=r"the word \[1\] cannot be told from markup"):
        write_grammar(tmp_path / "grammar", grammar)
    assert not list(tmp_path.iterdir())


def test_cdec_grammar_of_a_development_set(shared):
    """Rules and values of a large file, read by two parsers."""
    path = shared / "oracles" / "cdec" / "grammar.dev.gz"
    grammar = read_grammar(path)
    assert (len(grammar), grammar.n_duplicates) == (689_142, 0)
    lines = {}
    with gzip.open(path, "rt", encoding="utf-8") as file:
        for line in file:
            _, source, target, features, _ = line.split(" ||| ")
            lines[source, target] = features
    for r in range(0, len(grammar), 20):
        source, target = (
            " ".join(f"[X,{t[1:]}" if t in ("[1]", "[2]") else t for t in side)
            for side in grammar.rule_text(r)
        )
        written = (feature.split("=") for feature in lines[source, target].split())
        expected = {name: float(value) for name, value in written}
        values = grammar.dense[r].tolist()
        assert dict(zip(grammar.dense_names, values, strict=True)) == expected

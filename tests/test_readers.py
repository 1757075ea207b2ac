"""What holds for every reader of text alike: blanks, line ends, byte order marks, numbers."""

from __future__ import annotations

import codecs
import gzip
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from test_metrics import kbest_of

from torchtune_smt.core.errors import InputError
from torchtune_smt.core.vocabulary import Vocabulary
from torchtune_smt.core.weights_io import read_weights
from torchtune_smt.data.bitext import read_corpus
from torchtune_smt.grammar import read_alignments, read_grammar
from torchtune_smt.grammar.formats import Format
from torchtune_smt.kbest.formats import read_lists
from torchtune_smt.kbest.moses_tuning_files import read_tuning_files
from torchtune_smt.kbest.stored_lists import StoredLists
from torchtune_smt.lm import NgramModel, estimate, read_arpa, write_arpa
from torchtune_smt.metrics import BleuPlusOne, ExternalScores
from torchtune_smt.tuners.grouping.groups import read_groups


def lists(stored: StoredLists) -> list[tuple[Any, ...]]:
    """The hypotheses of k-best lists, with their features."""
    found: list[tuple[Any, ...]] = []
    for kbest in stored.lists:
        assert kbest.features is not None
        for h in range(len(kbest)):
            ids, values = kbest.row(h)
            features = dict(zip(kbest.features.names(ids), values, strict=True))
            words = [] if kbest.words is None else kbest.words.names(kbest.hypothesis(h))
            statistics = [] if kbest.statistics is None else kbest.statistics[h].tolist()
            found.append((kbest.index, words, features, statistics))
    return found


def grammar(path: Path, format: Format) -> list[Any]:
    table = read_grammar(path, format)
    texts = [table.rule_text(rule) for rule in range(len(table))]
    return [table.dense_names, *zip(texts, table.dense.tolist(), strict=True)]


def arpa(path: Path) -> list[Any]:
    ngrams = read_arpa(path)
    return [ngrams.words.names(range(len(ngrams.words))), *(p.tolist() for p in ngrams.prob)]


def weights(path: Path) -> dict[str, float]:
    names, values = read_weights(path)
    return dict(zip(names.names(range(len(names))), values.tolist(), strict=True))


def groups(path: Path) -> list[Any]:
    features = Vocabulary()
    found, values = read_groups(path, features, 1)
    return [features.names(range(len(features))), found.group.tolist(), values.tolist()]


def tuning_files(path: Path) -> list[Any]:
    scores = path.with_name("scores.dat")
    scores.write_text(SCORES)
    return lists(read_tuning_files(path, scores))


def tuning_scores(path: Path) -> list[Any]:
    features = path.with_name("features.dat")
    features.write_text(FEATURES.format(word="a", number="1"))
    return lists(read_tuning_files(features, path))


# Each text has a word and a number to be put in.
FEATURES = "FEATURES_TXT_BEGIN_0 0 2 1 d\n{number}\n2 x_{word}=1\nFEATURES_TXT_END_0\n"
SCORES = "SCORES_TXT_BEGIN_0 0 2 9 BLEU\n1 2 0 1 0 0 0 0 3\n2 2 1 1 0 0 0 0 3 \nSCORES_TXT_END_0\n"
READERS: dict[str, tuple[str, Callable[[Path], Any]]] = {
    "bitext": ("{word} c\nd {word}\n", lambda path: read_corpus(path, [path]).references),
    "n-best list of Moses": (
        "0 ||| c {word} ||| D= 1 {number} W_{word}= 1 ||| 2\n0 ||| d ||| D= 1 2 ||| {number}\n",
        lambda path: lists(read_lists(path)),
    ),
    "n-best list of cdec": (
        "0 ||| c {word} ||| D={number} w:{word}=1 ||| 2\n0 ||| d ||| D=1 ||| {number}\n",
        lambda path: lists(read_lists(path)),
    ),
    "features.dat": (FEATURES, tuning_files),
    "external scores": (
        "0 ||| c {word} ||| {number}\n1 ||| d ||| 1\n",
        lambda path: ExternalScores(path).scores,
    ),
    "grammar of cdec": (
        "[X] ||| {word} c ||| d {word} ||| F={number} G_{word}=2\n[X] ||| c ||| d ||| F=1\n",
        lambda path: grammar(path, "cdec"),
    ),
    "grammar of Joshua": (
        "[X] ||| {word} c ||| d {word} ||| 2 {number}\n[X] ||| c ||| d ||| 1 2\n",
        lambda path: grammar(path, "joshua"),
    ),
    "grammar of Moses": (
        "{word} c [X] ||| d {word} [X] ||| {number} ||| 0-0\nc [X] ||| d [X] ||| 1 ||| 0-0\n",
        lambda path: grammar(path, "moses"),
    ),
    "ARPA": (
        "\\data\\\nngram 1=3\n\n\\1-grams:\n-{number}\t{word}\n-1\t<s>\n-1\t</s>\n\n\\end\\\n",
        arpa,
    ),
    "weights": ("F_{word} {number}\nG 1\n", weights),
    "groups": ("group\tweight\tsize\tfeature\n0\t{number}\t1\td\n1\t1\t1\tF_{word}\n", groups),
}
NUMBER = "0.5"
# No separators here, though some program or other takes them for blanks or line ends.
NO_BLANKS = ["\u00a0", "\u2009", "\u3000", "\u2028", "\x85", "\x0b", "\x0c", "\x1c", "\x1f"]
ALL = {
    **READERS,
    "alignment": ("0-0 1-1\n2-0\n0-1\n", lambda path: [a.tolist() for a in read_alignments(path)]),
    "scores.dat": (SCORES, tuning_scores),
}


def put(folder: Path, text: str | bytes, name: str = "file") -> Path:
    data = text.encode() if isinstance(text, str) else text
    path = folder / name
    path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    return path


def replaced(found: Any, old: str, new: str) -> Any:
    """Put another string into all strings of what was read."""
    if isinstance(found, dict):
        return {replaced(k, old, new): replaced(v, old, new) for k, v in found.items()}
    if isinstance(found, list | tuple):
        return type(found)(replaced(each, old, new) for each in found)
    return found.replace(old, new) if isinstance(found, str) else found


@pytest.mark.parametrize("name", READERS)
def test_only_blanks_and_tabs_separate_words(name: str, tmp_path: Path) -> None:
    text, read = READERS[name]
    expected = read(put(tmp_path, text.format(word="aXb", number=NUMBER)))
    for letter in NO_BLANKS:
        found = read(put(tmp_path, text.format(word=f"a{letter}b", number=NUMBER)))
        assert found == replaced(expected, "aXb", f"a{letter}b"), repr(letter)


@pytest.mark.parametrize("name", ALL)
def test_line_ends_and_byte_order_marks_change_nothing(name: str, tmp_path: Path) -> None:
    text, read = ALL[name]
    data = text.format(word="aüb", number=NUMBER).encode()
    expected = read(put(tmp_path, data))
    for end in (b"\n", b"\r\n", b"\r"):
        for mark in (b"", codecs.BOM_UTF8):
            variant = mark + data.replace(b"\n", end)
            assert read(put(tmp_path, variant)) == expected
            assert read(put(tmp_path, variant, "file.gz")) == expected
            assert read(put(tmp_path, variant.removesuffix(end))) == expected


@pytest.mark.parametrize("name", ALL)
def test_mixed_line_ends_are_refused_with_the_line(name: str, tmp_path: Path) -> None:
    text, read = ALL[name]
    data = text.format(word="aüb", number=NUMBER)
    first, second = data.split("\n", 1)
    with pytest.raises(InputError, match="file:2: has a line end of another kind than the lines"):
        read(put(tmp_path, f"{first}\r{second}"))


@pytest.mark.parametrize("name", [name for name in READERS if "{number}" in READERS[name][0]])
def test_numbers_are_plain_and_exact(name: str, tmp_path: Path) -> None:
    text, read = READERS[name]
    long = "0.1000000000000000055511151231257827021181583404541015625"
    for number, value in (
        (long, 0.1),
        ("5.000000000000000000000e-1", 0.5),
        ("00000000000000000001", 1.0),
    ):
        found = read(put(tmp_path, text.format(word="a", number=number)))
        assert found == read(put(tmp_path, text.format(word="a", number=repr(value))))
    bad = [
        "\u0661",
        "1\u0662",
        "1\u2028",
        "1\u00a0",
        "1_0",
        "nan",
        "inf",
        "0x1",
        "1e",
        "1e999",
        ".",
    ]
    for number in bad:
        with pytest.raises(InputError) as error:
            read(put(tmp_path, text.format(word="a", number=number)))
        assert error.value.line is not None
        assert str(error.value).isprintable()


@pytest.mark.parametrize(
    ("number", "good"),
    [("2", True), ("2.0000000000000000000000", True), ("99999999999999999999", False)]
    + [(bad, False) for bad in ("\u0662", "2_0", "2.5", "-2")],
)
def test_statistics_of_scores_dat(number: str, good: bool, tmp_path: Path) -> None:
    path = put(tmp_path, SCORES.replace("1 2 0", f"1 {number} 0"))
    if good:
        assert tuning_scores(path) == tuning_scores(put(tmp_path, SCORES))
    else:
        with pytest.raises(InputError, match="file:2: "):
            tuning_scores(path)


@pytest.mark.parametrize("number", ["9" * 20, "9" * 5000, "\u0660", "-1", "+1", "1_0", "0x0"])
def test_numbers_of_sentences(number: str, tmp_path: Path) -> None:
    moses = READERS["n-best list of Moses"][0].format(word="a", number=NUMBER)
    scores = READERS["external scores"][0].format(word="a", number=NUMBER)
    for read, text in (
        (lambda path: read_lists(path), re.sub("^0", number, moses)),
        (tuning_files, FEATURES.format(word="a", number=1).replace("_0 0 2", f"_0 {number} 2")),
        (tuning_scores, SCORES.replace("_0 0 2", f"_0 {number} 2")),
        (lambda path: ExternalScores(path), re.sub("^0", number, scores)),
        (lambda path: read_alignments(path), f"{number}-0\n"),
    ):
        with pytest.raises(InputError) as error:
            read(put(tmp_path, text))
        assert error.value.line == 1
        assert len(str(error.value)) < 1000


@pytest.mark.parametrize(
    "side", ["a [X] b [X] ||| c [X]", "a [X] ||| c [X] d [X]", "[X] a [X] ||| c [X]"]
)
def test_the_label_stands_at_the_end_of_a_side_alone(side: str, tmp_path: Path) -> None:
    good = "a [X] ||| c [X] ||| 1 ||| 0-0\n"
    path = put(tmp_path, f"{good}{side} ||| 1 ||| 0-0\n")
    with pytest.raises(InputError, match=r"file:2: \[X\] stands inside of a side"):
        read_grammar(path, "moses")


@pytest.mark.parametrize("letter", NO_BLANKS)
def test_a_hypothesis_like_its_reference_has_gain_1(letter: str, tmp_path: Path) -> None:
    sentence = f"10{letter}000 people live in X{letter}City ."
    text = put(tmp_path, f"{sentence}\n", "text")
    corpus = read_corpus(text, [text])
    (kbest,) = read_lists(put(tmp_path, f"0 ||| {sentence} ||| D=1 ||| 0\n")).lists
    bound = BleuPlusOne().bind(corpus.references, kbest.words)
    hypothesis = kbest.words.names(kbest.hypothesis(0))
    assert list(bound.gains(kbest_of(0, [hypothesis], kbest.words))) == [1.0]
    # The language model takes the same words.
    model_path = tmp_path / "lm.arpa"
    write_arpa(model_path, estimate(corpus.targets, 2, (0.5, 1.0, 1.5)))
    model = NgramModel.load(model_path, cache=False)
    assert model.score(corpus.targets[0])[1] == 0
    assert model.perplexity([sentence]) < 10

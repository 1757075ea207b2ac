"""What holds for every reader of text alike: blanks, line ends, byte order marks, numbers."""

from __future__ import annotations

import codecs
import gzip
import re
from pathlib import Path

import pytest
from fuzz_text import READERS, same
from lm_reference import perplexity
from small_lists import kbest_of

from torchtune_smt.core.errors import InputError
from torchtune_smt.data.bitext import read_corpus
from torchtune_smt.grammar import read_alignments, read_grammar
from torchtune_smt.kbest.forms import read_lists
from torchtune_smt.lm import NgramModel, estimate, write_arpa
from torchtune_smt.metrics import BleuPlusOne

# What is done to a text, and the line that its reader must name.
DAMAGE = {
    "other line end": (lambda data: data.replace(b"\n", b"\ra\n", 1), 2),
    "no UTF-8": (lambda data: data.replace(b"\n", b"\n\xff", 1), 2),
    "zero byte": (lambda data: data.replace(b"\n", b"\n\0", 1), 2),
}
# No separators, though some program or other takes them for blanks or line ends.
NO_BLANKS = ["\u00a0", "\u2009", "\u3000", "\u2028", "\x85", "\x0b", "\x0c", "\x1c", "\x1f"]
NUMBERS = ["0.1000000000000000055511151231257827021181583404541015625", "00000000000000000001"]
NUMBERS += ["5.000000000000000000000e-1", "2.0000000000000000000000", "+1", "-1", "2.5", ".5", "1."]
NUMBERS += ["9" * 20, "9" * 5000, "\u0661", "1\u0662", "1\u2028", "1\u00a0", "1_0", "nan", "inf"]
NUMBERS += ["0x1", "1e", "1e999", "."]


def put(folder: Path, data: bytes, name="file") -> Path:
    path = folder / name
    path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    return path


@pytest.mark.parametrize("name", READERS)
def test_damage_is_refused_with_its_line(name, tmp_path):
    text, read, _ = READERS[name]
    for what, (damaged, line) in DAMAGE.items():
        with pytest.raises(InputError) as error:
            read(put(tmp_path, damaged(text.encode())))
        assert (error.value.line, "file" in str(error.value)) == (line, True), what


@pytest.mark.parametrize("name", READERS)
def test_line_ends_and_byte_order_marks_change_nothing(name, tmp_path):
    text, read, _ = READERS[name]
    expected = read(put(tmp_path, text.encode()))
    for end in (b"\n", b"\r\n", b"\r"):
        for mark in (b"", codecs.BOM_UTF8):
            variant = mark + text.encode().replace(b"\n", end)
            assert read(put(tmp_path, variant)) == expected
            assert read(put(tmp_path, variant, "file.gz")) == expected
            assert read(put(tmp_path, variant.removesuffix(end))) == expected


@pytest.mark.parametrize("name", READERS)
def test_words_and_numbers_are_those_of_a_simple_reader(name, tmp_path):
    """Each letter that is no blank in a word, and each number in the place of each of a line."""
    text, read, simple = READERS[name]
    variants = [re.sub(r"([a-zü])([a-z])", rf"\1{letter}\2", text, count=1) for letter in NO_BLANKS]
    line = next(line for line in text.split("\n") if re.search("[0-9]", line) or len(line) > 12)
    for match in re.finditer(r"(?<![\w.~])-?[0-9.]+(e-?[0-9]+)?", line):
        at = text.index(line) + match.start()
        variants += [f"{text[:at]}{number}{text[at + len(match[0]) :]}" for number in NUMBERS]
    for variant in variants:
        try:
            assert same(
                lambda v=variant: read(put(tmp_path, v.encode())),
                lambda v=variant: simple(v.encode()),
            )
        except InputError as error:
            assert error.line is not None and str(error).isprintable() and len(str(error)) < 1000


@pytest.mark.parametrize("number", ["9" * 20, "9" * 5000, "\u0660", "-1", "+1", "1_0", "0x0"])
def test_numbers_of_sentences(number, tmp_path):
    for name in ("nbest-moses", "external-scores", "features.dat", "scores.dat"):
        text, read, _ = READERS[name]
        first = re.sub("^0 |(?<=_0 )0 ", f"{number} ", text, count=1)
        with pytest.raises(InputError) as error:
            read(put(tmp_path, first.encode()))
        assert error.value.line == 1
    with pytest.raises(InputError) as error:
        list(read_alignments(put(tmp_path, f"{number}-0\n".encode())))
    assert error.value.line == 1 and len(str(error.value)) < 1000


@pytest.mark.parametrize(
    "side", ["a [X] b [X] ||| c [X]", "a [X] ||| c [X] d [X]", "[X] a [X] ||| c [X]"]
)
def test_the_label_stands_at_the_end_of_a_side_alone(side, tmp_path):
    good = "a [X] ||| c [X] ||| 1 ||| 0-0\n"
    path = put(tmp_path, f"{good}{side} ||| 1 ||| 0-0\n".encode())
    with pytest.raises(InputError, match=r"file:2: \[X\]"):
        read_grammar(path, "moses")


@pytest.mark.parametrize("letter", NO_BLANKS)
def test_a_hypothesis_like_its_reference_has_gain_1(letter, tmp_path):
    sentence = f"10{letter}000 people live in X{letter}City ."
    text = put(tmp_path, f"{sentence}\n".encode(), "text")
    corpus = read_corpus(text, [text])
    (kbest,) = read_lists(put(tmp_path, f"0 ||| {sentence} ||| D=1 ||| 0\n".encode())).lists
    bound = BleuPlusOne().bind(corpus.references, kbest.words)
    hypothesis = kbest.words.names(kbest.hypothesis(0))
    assert list(bound.gains(kbest_of(0, [hypothesis], kbest.words))) == [1.0]
    # The language model takes the same words.
    model_path = tmp_path / "lm.arpa"
    write_arpa(model_path, estimate(corpus.targets, 2, (0.5, 1.0, 1.5)))
    model = NgramModel.load(model_path, cache=False)
    assert model.score(corpus.targets[0])[1] == 0
    assert perplexity(model, [sentence]) < 10

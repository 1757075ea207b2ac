"""Text: lines of files, words, fields and numbers, messages that quote them; memory."""

import bz2
import codecs
import contextlib
import gzip
import io
import lzma
import math
import re
import tracemalloc

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from torchtune_smt.core import textio
from torchtune_smt.core.errors import InputError, shown
from torchtune_smt.core.text import finite_number, is_word, split_fields, split_words, whole_number
from torchtune_smt.core.text_kernels import count_lines
from torchtune_smt.core.textio import (
    atomic_path,
    check_utf8,
    iterate_lines,
    lines_of,
    read_lines,
    read_text,
)
from torchtune_smt.data.bitext import read_corpus
from torchtune_smt.grammar import read_alignments
from torchtune_smt.metrics import ExternalScores

PIECES = ["a", "b c", "ü", "\u2028", "\x85", "\x0c", "\n", "\r\n", "\r", "\ufeff"]


def put(path, data):
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


class Pieces(io.BytesIO):
    """A pipe that gives a byte at a time."""

    def read1(self, size=-1, /):
        return super().read1(1)


def simple_lines(data):
    """The lines of a text, or the number of the line at which line ends are mixed."""
    text = data.removeprefix(codecs.BOM_UTF8).decode()
    ends = [(match[0] == "\r") for match in re.finditer("\r\n|\r|\n", text)]
    if True in ends and False in ends:
        return ends.index(not ends[0]) + 1
    lines = re.split("\r\n|\r|\n", text)
    return lines[:-1] if lines[-1] == "" else lines


@given(
    st.lists(st.sampled_from(PIECES), max_size=12).map("".join),
    st.integers(1, 5),
    st.sampled_from(["text", "text.gz"]),
)
def test_lines_are_the_same_however_they_end_and_are_read(tmp_path_factory, text, block, name):
    data = text.encode()
    path = put(tmp_path_factory.mktemp("text") / name, data)
    expected = simple_lines(data)
    with pytest.MonkeyPatch.context() as patch:
        # The byte order mark lies in the first block: no file is read in smaller ones.
        patch.setattr(textio, "_BLOCK", block + 2)
        if isinstance(expected, int):
            place = f"{path}:{expected}: has a line end of another kind"
            for read in (read_lines, read_text):
                with pytest.raises(InputError, match=f"^{re.escape(place)}"):
                    read(path)
            return
        assert read_lines(path) == expected
        assert list(lines_of(io.BytesIO(data), "standard input")) == expected
        assert read_text(path).decode() == "".join(f"{line}\n" for line in expected)


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_bad_utf8_is_located_with_every_line_end(tmp_path, end):
    path = tmp_path / "text"
    good = f"ü{end}" * 300_000
    path.write_bytes(good.encode() + b"a\xff" + end.encode() + b"b")
    with pytest.raises(InputError, match="text:300001: is not valid UTF-8"):
        read_lines(path)
    with pytest.raises(InputError, match="text:300001: is not valid UTF-8"):
        check_utf8(read_text(path), path)
    path.write_bytes(good.encode())
    check_utf8(read_text(path), path)


@pytest.mark.parametrize("name", ["", "/"])
def test_a_folder_is_not_written_over(tmp_path, name):
    """That is said before the work whose result it would be."""
    path = tmp_path / "there"
    path.mkdir()
    with pytest.raises(InputError, match="there/?: is a folder, and a file is to be written"):
        atomic_path(f"{path}{name}").__enter__()
    assert list(tmp_path.iterdir()) == [path]


WIDE = b"x" * (1 << 22)
NO_TEXT = [
    (gzip.compress(b"a text\n"), ": .*is packed with gzip; unpack it"),
    (lzma.compress(b"a text\n"), ": .*is packed with xz; unpack it"),
    (bz2.compress(b"a text\n"), ": .*is packed with bzip2; unpack it"),
    ("a b\nc\n".encode("utf-16-le"), ":1: has a zero byte, so it is no text"),
    (b"a\r\nb\0\r\n", ":2: has a zero byte, so it is no text"),
    (b"a\n" * (1 << 20) + b"\0", f":{(1 << 20) + 1}: has a zero byte, so"),
    (b"a\nb\n" + WIDE + b"x\n", ":3: has more than 4 MiB in this line"),
]


@pytest.mark.parametrize(("data", "message"), NO_TEXT)
def test_what_is_no_text(data, message, tmp_path, monkeypatch):
    monkeypatch.setattr(textio, "MAX_LINE", 1 << 22)
    # Packed with gzip twice, too.
    for name in ("text", "text.gz"):
        path = put(tmp_path / name, data)
        for read in (read_lines, read_text):
            with pytest.raises(InputError, match=name + message):
                read(path)
    if "packed" in message:
        with pytest.raises(InputError, match="pipe" + message):
            list(textio.blocks_of_lines("pipe", Pieces(data)))


def test_what_is_a_text_all_the_same(tmp_path, monkeypatch):
    monkeypatch.setattr(textio, "MAX_LINE", 1 << 22)
    assert read_lines(put(tmp_path / "text", b"BZhou is a name\n")) == ["BZhou is a name"]
    path = put(tmp_path / "long.gz", b"a\nb\n" + WIDE + b"\n" + WIDE)
    assert [len(line) for line in iterate_lines(path)] == [1, 1, 1 << 22, 1 << 22]
    # From a pipe that gives a byte at a time.
    text = "ein haus\n\nß\r\nb"
    for mark in (b"", codecs.BOM_UTF8):
        arrived = list(textio.blocks_of_lines("pipe", Pieces(mark + text.encode())))
        assert [line for lines in arrived for line in lines] == ["ein haus", "", "ß", "b"]
    assert list(textio.blocks_of_lines("pipe", Pieces(b""))) == []


def test_a_file_that_is_far_too_long_takes_no_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(textio, "_BLOCK", 1 << 16)
    n = 1 << 17
    # A small file of very many lines, which any reader of text takes for good.
    bomb, short = put(tmp_path / "bomb.gz", b"0-0\n" * n), put(tmp_path / "short", b"0-0\n" * 3)
    scores = put(tmp_path / "scores.gz", b"0 ||| the same hypothesis ||| 1\n" * (n // 4))
    tracemalloc.start()
    try:
        with pytest.raises(InputError, match=f"bomb.gz has {n} lines, short has 3"):
            read_corpus(short, [bomb])
        with pytest.raises(InputError, match=f"short has 3 lines, bomb.gz has {n}"):
            read_corpus(bomb, [short])
        with pytest.raises(InputError, match=f"has {n} lines, and the bitext 3 pairs"):
            read_alignments(bomb, [["a"]] * 3, [["a"]] * 3)
        assert sum(1 for _ in iterate_lines(bomb)) == n
        assert ExternalScores(scores).scores == {0: {"the same hypothesis": 1.0}}
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    # A list of all lines would take 8 MB.
    assert peak < 5e6


# Words, fields and numbers

# Characters that some program or other takes for a blank, or for a digit.
LETTERS = st.sampled_from("a| \t\u00a0\u2009\u3000\u2028\x85\x0b\x0c\x1c\x1f\ufeff\u0661")
LINES = st.text(LETTERS, max_size=12)


@given(LINES)
def test_words_are_separated_by_blanks_and_tabs_alone(line):
    words = re.findall("[^ \t]+", line)
    assert split_words(line) == words
    assert split_words(line + "\r\n") == words
    assert is_word(line) == (words == [line])
    data = np.frombuffer(f"{line}\n\n{line}\n".encode(), np.uint8)
    assert count_lines(data) == (3, 2 * len(words))


@given(LINES)
def test_fields_are_separated_by_the_word_of_three_bars(line):
    fields = split_fields(line)
    assert "|||".join(fields) == line
    expected = [[]]
    for word in re.findall("[^ \t]+", line):
        if word == "|||":
            expected.append([])
        else:
            expected[-1].append(word)
    assert [split_words(field) for field in fields] == expected


NUMBERS = st.text(st.sampled_from("0123456789+-.eE_ \u0661\u2028\u00a0nainfx"), max_size=7)


@given(NUMBERS)
@example("1e400")
@example("123456789")
def test_numbers_are_pythons_in_plain_ascii(text):
    whole = all("0" <= letter <= "9" for letter in text) and 0 < len(text) <= 9
    assert whole_number(text) == (int(text) if whole else None)
    number = None
    if all(letter in "0123456789+-.eE" for letter in text):
        with contextlib.suppress(ValueError):
            number = float(text) if math.isfinite(float(text)) else None
    assert finite_number(text) == number


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_what_is_written_is_read_back(number):
    assert finite_number(repr(number)) == number
    assert finite_number(f"{number:.400f}") == number


@given(st.text(st.one_of(LETTERS, st.characters()), max_size=40))
def test_a_message_is_one_printable_line(text):
    message = str(InputError(f"{text} is bad", path=f"a{text}", line=3))
    assert message.isprintable()
    if text.isprintable():
        assert message == f"a{text}:3: {text} is bad"


@pytest.mark.parametrize("long", ["x" * 10**7, "x y\n" * 10**6, "\r" * 10**6])
def test_what_is_quoted_is_shortened(long):
    message = f"the value '{long}' is no number; write another"
    assert len(shown(message)) < 7000
    assert shown(message).startswith(f"the value '{long[:1].replace(chr(13), chr(92) + 'r')}")
    assert shown(message).endswith("is no number; write another")
    tracemalloc.start()
    error = InputError(message, path="file", line=1)
    assert tracemalloc.get_traced_memory()[1] < 4 * len(message) + 10**6
    tracemalloc.stop()
    assert str(error) == f"file:1: {shown(message)}"
    # What people read is not.
    message = "has no weight for " + ", ".join(f"feature_{i}" for i in range(100))
    assert shown(message) == message

"""Text files: their lines, whatever these end with, and the memory that reading takes."""

import bz2
import codecs
import gzip
import io
import lzma
import re
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchtune_smt.core import textio
from torchtune_smt.core.errors import InputError
from torchtune_smt.core.text_kernels import count_lines
from torchtune_smt.core.textio import (
    UnequalLinesError,
    atomic_path,
    check_utf8,
    iterate_lines,
    lines_of,
    parallel_lines,
    read_lines,
    read_text,
)
from torchtune_smt.data.bitext import read_corpus
from torchtune_smt.grammar import read_alignments
from torchtune_smt.metrics import ExternalScores

PIECES = ["a", "b c", "ü", "\u2028", "\x85", "\x0c", "\n", "\r\n", "\r", "\ufeff"]


def simple_lines(data: bytes) -> list[str] | int:
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
def test_lines_are_the_same_however_they_end_and_are_read(
    tmp_path_factory: pytest.TempPathFactory, text: str, block: int, name: str
) -> None:
    data = text.encode()
    path = tmp_path_factory.mktemp("text") / name
    path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
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


@pytest.mark.parametrize(
    ("how", "pack"), [("gzip", gzip.compress), ("xz", lzma.compress), ("bzip2", bz2.compress)]
)
def test_packed_files_are_told_from_text(
    tmp_path: Path, how: str, pack: Callable[[bytes], bytes]
) -> None:
    packed = pack(b"a text\n")
    # Packed with gzip twice, too.
    for path, data in ((tmp_path / "text", packed), (tmp_path / "text.gz", gzip.compress(packed))):
        path.write_bytes(data)
        for read in (read_lines, read_text):
            with pytest.raises(InputError, match=f"is packed with {how}; unpack it"):
                read(path)
    (tmp_path / "text").write_text("BZhou is a name\n")
    assert read_lines(tmp_path / "text") == ["BZhou is a name"]


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_bad_utf8_is_located_with_every_line_end(tmp_path: Path, end: str) -> None:
    path = tmp_path / "text"
    good = f"ü{end}" * 300_000
    path.write_bytes(good.encode() + b"a\xff" + end.encode() + b"b")
    with pytest.raises(InputError, match="text:300001: is not valid UTF-8"):
        read_lines(path)
    with pytest.raises(InputError, match="text:300001: is not valid UTF-8"):
        check_utf8(read_text(path), path)
    path.write_bytes(good.encode())
    check_utf8(read_text(path), path)


class Pieces(io.BytesIO):
    """A pipe that gives a byte at a time."""

    def read1(self, size: int | None = -1, /) -> bytes:
        return super().read1(1)


def test_a_pipe_that_gives_a_byte_at_a_time() -> None:
    text = "ein haus\n\nß\r\nb"
    for mark in (b"", codecs.BOM_UTF8):
        arrived = list(textio.blocks_of_lines("pipe", Pieces(mark + text.encode())))
        assert [line for lines in arrived for line in lines] == ["ein haus", "", "ß", "b"]
    assert list(textio.blocks_of_lines("pipe", Pieces(b""))) == []
    for pack, how in ((gzip.compress, "gzip"), (bz2.compress, "bzip2"), (lzma.compress, "xz")):
        with pytest.raises(InputError, match=f"is packed with {how}"):
            list(textio.blocks_of_lines("pipe", Pieces(pack(b"a\n"))))


@pytest.mark.parametrize(
    ("data", "line"),
    [
        (b"a\nb\n" + bytes(20), 3),
        ("a b\nc\n".encode("utf-16-le"), 1),
        (b"a\r\nb\0\r\n", 2),
        (b"a\n" * (1 << 20) + b"\0", (1 << 20) + 1),
    ],
    ids=["tail", "utf-16", "inside", "late"],
)
def test_zero_bytes_are_no_text(tmp_path: Path, data: bytes, line: int) -> None:
    path = tmp_path / "text"
    path.write_bytes(data)
    for read in (read_lines, read_text):
        with pytest.raises(InputError, match=f"text:{line}: has a zero byte, so it is no text"):
            read(path)


def test_a_line_without_end_is_no_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(textio, "MAX_LINE", 1 << 22)
    path = tmp_path / "zeros.gz"
    path.write_bytes(gzip.compress(b"a\nb\n" + b"x" * ((1 << 22) + 1) + b"\n"))
    for read in (read_lines, read_text):
        with pytest.raises(InputError, match="zeros.gz:3: has more than 4 MiB in this line"):
            read(path)
    path.write_bytes(gzip.compress(b"a\nb\n" + b"x" * (1 << 22) + b"\n" + b"x" * (1 << 22)))
    assert [len(line) for line in iterate_lines(path)] == [1, 1, 1 << 22, 1 << 22]


@given(st.lists(st.integers(0, 4), min_size=1, max_size=4))
def test_parallel_lines(counts: list[int]) -> None:
    files = [[f"{f} {i}" for i in range(count)] for f, count in enumerate(counts)]
    rows = []
    try:
        for row in parallel_lines(files):
            rows.append(row)
        assert len(set(counts)) == 1
    except UnequalLinesError as error:
        assert error.counts == counts
        assert len(set(counts)) > 1
    assert rows == [tuple(lines[i] for lines in files) for i in range(min(counts))]


@given(st.text(st.sampled_from("ab \t\n\x00\x1f\x85"), max_size=40))
def test_room_for_lines_and_words(text: str) -> None:
    data = np.frombuffer(f"{text}\n".encode(), np.uint8)
    lines, words = count_lines(data)
    assert lines == text.count("\n") + 1
    assert words == len(re.findall("[^ \t\n]+", text))


N = 1 << 17


@pytest.fixture
def bomb(tmp_path: Path) -> Path:
    """A small file of very many lines, which any reader of text takes for good."""
    path = tmp_path / "bomb.gz"
    path.write_bytes(gzip.compress(b"0-0\n" * N))
    return path


def test_a_file_that_is_far_too_long_takes_no_memory(
    tmp_path: Path, bomb: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(textio, "_BLOCK", 1 << 16)
    short = tmp_path / "short"
    short.write_text("0-0\n" * 3)
    scores = tmp_path / "scores.gz"
    scores.write_bytes(gzip.compress(b"0 ||| the same hypothesis ||| 1\n" * (N // 4)))
    tracemalloc.start()
    try:
        with pytest.raises(InputError, match=f"bomb.gz has {N} lines, short has 3"):
            read_corpus(short, [bomb])
        with pytest.raises(InputError, match=f"short has 3 lines, bomb.gz has {N}"):
            read_corpus(bomb, [short])
        with pytest.raises(InputError, match=f"has {N} lines, and the bitext 3 pairs"):
            read_alignments(bomb, [["a"]] * 3, [["a"]] * 3)
        assert sum(1 for _ in iterate_lines(bomb)) == N
        assert ExternalScores(scores).scores == {0: {"the same hypothesis": 1.0}}
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    # The blocks and lines that are read at a time; a list of all lines would take 8 MB.
    assert peak < 5e6


@pytest.mark.parametrize("name", ["", "/"])
def test_a_folder_is_not_written_over(tmp_path: Path, name: str) -> None:
    path = tmp_path / "there"
    path.mkdir()
    begun = False
    with pytest.raises(InputError, match="there/?: is a folder, and a file is to be written"):
        with atomic_path(f"{path}{name}"):
            begun = True
    # Before the work whose result it would be.
    assert not begun
    assert list(tmp_path.iterdir()) == [path]

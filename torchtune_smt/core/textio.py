"""Reading text with its errors located, and writing files whole or not at all."""

from __future__ import annotations

import codecs
import gzip
import io
import os
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, zip_longest
from pathlib import Path
from types import MappingProxyType
from typing import IO, Final, TypeVar

import numpy as np

from torchtune_smt.core.errors import InputError, NotWrittenError, cure_of
from torchtune_smt.core.leftovers import part_of, replace_folder

AnyPath = str | os.PathLike[str]

MAX_LINE: Final = 1 << 26
"""Bytes of a line that are read; more are no text."""

# How files begin that no text is in before they are unpacked.
_PACKED: Final = {
    b"\x1f\x8b": "gzip",
    b"\xfd7zXZ\x00": "xz",
    b"BZh": "bzip2",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"PK\x03\x04": "zip",
}
# Bytes at the beginning of a file that tell whether it is packed, or has a byte order mark.
_TELLING: Final = 10

# What is wrong with a line that is no text.
NOT_UTF8: Final = "is not valid UTF-8; convert the file to UTF-8"
_ZERO_BYTE: Final = (
    "has a zero byte, so it is no text, but packed with tar, in UTF-16, or damaged; unpack it, "
    "convert it to UTF-8, or copy it again"
)
_MIXED_ENDS: Final = (
    "has a line end of another kind than the lines before (\\r alone, and \\n); convert all of "
    "them to \\n, and to a blank what ends no line"
)
# Bytes that are read at a time.
_BLOCK: Final = 1 << 20


def read_bytes(path: AnyPath) -> bytes:
    """Return the content of a file, unpacked if its name ends in ``.gz``; see `reading`."""
    return b"".join(_blocks(path))


def read_packed(path: AnyPath) -> bytes:
    """Return the bytes of a file as they are; raise InputError if it cannot be read."""
    with reading(path):
        return Path(path).read_bytes()


def read_text(
    path: AnyPath,
    *,
    refused: Mapping[bytes, str] = MappingProxyType({}),
    packed: bytes | None = None,
) -> bytearray:
    r"""Return the content of a text file (plain or ``.gz``) for a kernel that parses it.

    A byte order mark is left out, every line ends with ``\n``, the last one, too. Whether it is
    UTF-8 is not looked at; see `check_utf8`.

    refused: what is wrong with files that begin so: they are none of text.
    packed: those of `read_packed`, if the file was read already.

    Raises InputError: the file cannot be read, the text is packed otherwise, line ends are mixed,
        or a line has more than `MAX_LINE` bytes.
    """
    return next(text_pieces(path, sys.maxsize, refused, packed), bytearray())


def text_pieces(
    path: AnyPath,
    size: int,
    refused: Mapping[bytes, str] = MappingProxyType({}),
    packed: bytes | None = None,
) -> Iterator[bytearray]:
    """Yield what `read_text` returns in pieces of whole lines, each of `size` bytes or more."""
    blocks = _blocks(path, None if packed is None else io.BytesIO(packed))
    first = next(blocks, b"")
    for begin, message in refused.items():
        if first.startswith(begin):
            raise InputError(message, path=path)
    # A bytearray, since numba compiles anew for arrays that are read-only.
    text = bytearray()
    for block in _whole_lines(_plain(chain([first], blocks), path)):
        text += block
        if len(text) >= size and text.endswith(b"\n"):
            yield text
            text = bytearray()
    if text and not text.endswith(b"\n"):
        text += b"\n"
    if text:
        yield text


def check_utf8(text: bytearray, path: AnyPath, before: int = 0) -> None:
    """Raise InputError with the first line of a text, behind so many lines, that is not UTF-8."""
    view, begin = memoryview(text), 0
    while begin < len(text):
        # Pieces that fit into a cache.
        end = text.rfind(b"\n", begin, begin + (1 << 18)) + 1 or text.find(b"\n", begin) + 1
        try:
            str(view[begin:end], "utf-8")
        except UnicodeDecodeError as error:
            line = before + text.count(b"\n", 0, begin + error.start) + 1
            raise InputError(NOT_UTF8, path=path, line=line) from None
        begin = end


def iterate_lines(path: AnyPath) -> Iterator[str]:
    r"""Yield the lines of a UTF-8 file (plain or ``.gz``), which is read piece by piece.

    Lines end with ``\n``, ``\r\n`` or ``\r``; a byte order mark is left out.

    Raises InputError: as `read_text`, or with the line that is not valid UTF-8.
    """
    return _lines(_blocks(path), path)


def read_lines(path: AnyPath) -> list[str]:
    """Return the lines of a UTF-8 file in a list; see `iterate_lines`."""
    return list(iterate_lines(path))


def lines_of(file: IO[bytes], name: AnyPath) -> Iterator[str]:
    """Yield the lines of a file that is open; errors call it `name`. See `iterate_lines`."""
    return _lines(iter(lambda: file.read(_BLOCK), b""), name)


@dataclass(frozen=True)
class BadLine:
    """A line that is no text, and what is wrong with it."""

    content: bytes
    error: InputError

    def __str__(self) -> str:
        return self.content.decode("utf-8", "surrogateescape")


def blocks_of_lines(
    path: AnyPath, pipe: io.BufferedIOBase | None = None
) -> Iterator[list[str | BadLine]]:
    """Yield the lines of a file some at a time, with those that are no text in their places.

    pipe: a pipe or a terminal, which errors call `path`: its lines come as they arrive.
    """
    blocks = _blocks(path) if pipe is None else iter(lambda: pipe.read1(_BLOCK), b"")
    number = 1
    for text in _whole_lines(_plain(blocks, path, strict=False)):
        contents = text.removesuffix(b"\n").split(b"\n")
        yield [_line(content, path, number + i) for i, content in enumerate(contents)]
        number += len(contents)


def _line(content: bytes, path: AnyPath, number: int) -> str | BadLine:
    wrong = _ZERO_BYTE if b"\0" in content else _MIXED_ENDS if b"\r" in content else ""
    if not wrong:
        try:
            return content.decode("utf-8")
        except UnicodeDecodeError:
            wrong = NOT_UTF8
    return BadLine(content, InputError(wrong, path=path, line=number))


Line = TypeVar("Line")


class UnequalLinesError(Exception):
    """Files that belong together have different numbers of lines, `counts`."""

    def __init__(self, counts: list[int]) -> None:
        super().__init__(counts)
        self.counts = counts


def parallel_lines(files: Sequence[Iterable[Line]]) -> Iterator[tuple[Line, ...]]:
    """Yield line n of all files; UnequalLinesError comes after the last one of the shortest."""
    iterators = [iter(lines) for lines in files]
    for number, row in enumerate(zip_longest(*iterators)):
        if None in row:
            more = [sum(1 for _ in lines) for lines in iterators]
            raise UnequalLinesError(
                [number + (line is not None) + n for line, n in zip(row, more, strict=True)]
            )
        yield row


def _blocks(path: AnyPath, file: IO[bytes] | None = None) -> Iterator[bytes]:
    """Yield the content of a file in blocks, unpacked if its name ends in ``.gz``."""
    with reading(path), Path(path).open("rb") if file is None else file as packed:
        unpacked = gzip.GzipFile(fileobj=packed) if Path(path).suffix == ".gz" else packed
        while block := unpacked.read(_BLOCK):
            yield block


def check_plain(path: AnyPath) -> None:
    """Raise InputError if what lies at a path is no file or folder: it may have no end."""
    path = Path(path)
    if path.exists() and not path.is_file() and not path.is_dir():
        raise InputError("is no plain file; copy what comes from it to one", path=path)


@contextmanager
def reading(path: AnyPath) -> Iterator[None]:
    """Turn what keeps a file from being read into InputError."""
    try:
        yield
    except FileNotFoundError:
        raise InputError("no such file; check the path", path=path) from None
    except IsADirectoryError:
        raise InputError("is a folder, and a file was expected", path=path) from None
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise InputError(
            f"is no whole gzip file ({error}); copy it again, or call it by a name without .gz if "
            "it is not packed",
            path=path,
        ) from None
    except OSError as error:
        cure = cure_of(error)
        message = f"cannot be read: {error.strerror}" + (f"; {cure}" if cure else "")
        raise InputError(message, path=path) from None


@contextmanager
def writing(path: AnyPath) -> Iterator[None]:
    """Turn what keeps a file or a folder from being written into InputError, but a closed pipe."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        cure = cure_of(error, "choose a folder that you may write to")
        message = f"cannot be written ({error.strerror}); {cure}"
        raise NotWrittenError(message, path=path) from None


def _plain(blocks: Iterable[bytes], path: AnyPath, *, strict: bool = True) -> Iterator[bytes]:
    r"""Yield the blocks of a text without a byte order mark, each line end as ``\n``.

    If `strict`, InputError is raised at a zero byte, and at a line end of another kind than those
    before. Otherwise a ``\r`` among lines that end with ``\n`` is within its line.
    """
    line, length = 1, 0  # of the line that is open
    kind = held = b""
    for number, block in enumerate(chain(_with_whole_start(blocks), [b""])):
        last = not block
        if number == 0:
            _refuse_packed(block, path)
        block = held + (block.removeprefix(codecs.BOM_UTF8) if number == 0 else block)
        held = b""
        if block.endswith(b"\r") and not last:
            # Only the next block tells what kind of line end this is.
            block, held = block[:-1], b"\r"
        if b"\r" in block:
            block = block.replace(b"\r\n", b"\n")
        line_feed, lone = block.find(b"\n"), block.find(b"\r")
        if not kind and max(line_feed, lone) >= 0:
            returns = line_feed < 0 or (strict and 0 <= lone < line_feed)
            kind = b"\r" if returns else b"\n"
        other = line_feed if kind == b"\r" else lone
        if kind == b"\r":
            block = block.replace(b"\r", b"\n")
        if strict and b"\0" in block:
            line += block.count(b"\n", 0, block.index(b"\0"))
            raise InputError(_ZERO_BYTE, path=path, line=line)
        if other >= 0 and (strict or kind == b"\r"):
            yield block[:other]
            line += block.count(b"\n", 0, other)
            raise InputError(_MIXED_ENDS, path=path, line=line)
        end = block.find(b"\n")
        if length + (end if end >= 0 else len(block)) > MAX_LINE:
            raise InputError(
                f"has more than {MAX_LINE >> 20} MiB in this line; is it a text file?",
                path=path,
                line=line,
            )
        length = length + len(block) if end < 0 else len(block) - block.rfind(b"\n") - 1
        # In a fifth of the time that `bytes.count` takes.
        line += int(np.count_nonzero(np.frombuffer(block, np.uint8) == ord("\n")))
        yield block


def _with_whole_start(blocks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield blocks; the first one has what tells what a file is, if a pipe gives it in pieces."""
    start, remaining = b"", iter(blocks)
    for block in remaining:
        start += block
        if len(start) >= _TELLING or b"\n" in start:
            break
    if start:
        yield start
    yield from remaining


def _refuse_packed(block: bytes, path: AnyPath) -> None:
    for begin, how in _PACKED.items():
        # A word may begin as bzip2 does.
        if block.startswith(begin) and (how != "bzip2" or block[4:10] == b"1AY&SY"):
            raise InputError(
                f"is packed with {how}; unpack it, or pack it with gzip under a name that ends in "
                ".gz",
                path=path,
            )


def _lines(blocks: Iterable[bytes], path: AnyPath) -> Iterator[str]:
    line = 1
    for text in _whole_lines(_plain(blocks, path)):
        try:
            lines = text.decode("utf-8").removesuffix("\n").split("\n")
        except UnicodeDecodeError as error:
            line += text.count(b"\n", 0, error.start)
            raise InputError(NOT_UTF8, path=path, line=line) from None
        yield from lines
        line += len(lines)


def _whole_lines(blocks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the lines that end in each of some blocks of a text."""
    rest = b""
    for block in chain(filter(None, blocks), [b""]):
        rest += block
        end = rest.rfind(b"\n") + 1 if block else len(rest)
        if end:
            yield rest[:end]
        rest = rest[end:]


def check_written(written: Mapping[str, str | None], read: Iterable[AnyPath] = ()) -> None:
    """Raise InputError where a file that is to be written is read, or is to be written twice.

    written: the value of each option that names a file; as in `read`, ``-`` is none.
    """
    taken = {os.path.realpath(path): "a file that is read" for path in read if str(path) != "-"}
    for option, path in written.items():
        # A pipe or a device may be written to as often as one likes.
        if path in (None, "-") or (os.path.exists(path) and not Path(path).is_file()):
            continue
        place = os.path.realpath(path)
        if place in taken:
            raise InputError(f"{option} is {taken[place]}: choose another name for it", path=path)
        taken[place] = f"what {option} names, too"


@contextmanager
def atomic_path(path: AnyPath, *, own: bool = False) -> Iterator[Path]:
    """Yield a path beside `path`; what was written there takes its place at the end.

    When the block raises, the file beside is removed and `path` stays as it was. What a killed
    process has left of its own is removed, too. Of a link, the file that it leads to is replaced.
    A device or a pipe is yielded itself, to be written to: nothing can take its place.

    own: whether this package gave the file its name, and not the user: what else has this name in
        a folder that others may write to, such as a link, makes room.

    Raises InputError: the path is a folder, its folder cannot be written to, or the disk is full.
    """
    if os.path.isdir(path) and not (own and os.path.islink(path)):
        raise InputError("is a folder, and a file is to be written; name a file", path=path)
    if not own and os.path.exists(path) and not os.path.isfile(path):
        with writing(path):
            yield Path(path)
        return
    place = Path(os.path.realpath(path)) if os.path.islink(path) and not own else Path(path)
    with writing(place), part_of(place, folder=False) as beside:
        yield beside
        with beside.open("rb+") as file:
            os.fsync(file.fileno())
        beside.chmod(0o666 & ~_umask())
        beside.replace(place)


@contextmanager
def atomic_folder(path: AnyPath, check: Callable[[], None] = lambda: None) -> Iterator[Path]:
    """Yield an empty folder beside `path`, which takes its place at the end with what is in it.

    See `atomic_path`.

    check: raises at the end if a folder that is there must stay.
    """
    # Where a link leads is what is replaced.
    path = Path(os.path.realpath(path))
    with writing(path), part_of(path, folder=True) as beside:
        yield beside
        beside.chmod(0o777 & ~_umask())
        replace_folder(path, beside, check)


@contextmanager
def atomic_writer(path: AnyPath, *, own: bool = False) -> Iterator[IO[str]]:
    """Yield a text file that becomes `path` when whole; see `atomic_path`.

    It is packed if the name ends in ``.gz``, without the time: equal text gives equal bytes.
    """
    with atomic_path(path, own=own) as beside, beside.open("wb") as raw:
        gz = Path(path).suffix == ".gz"
        with gzip.GzipFile("", "wb", 6, raw, mtime=0) if gz else raw as file:
            # Bytes of a line that is copied are written as they are.
            with io.TextIOWrapper(file, "utf-8", "surrogateescape", newline="\n") as text:
                yield text


@contextmanager
def output_to(path: str | None) -> Iterator[IO[str]]:
    """Yield what `atomic_writer` does, or the standard output for None and ``-``."""
    if path in (None, "-"):
        yield sys.stdout
    else:
        with atomic_writer(path) as file:
            yield file


def _umask() -> int:
    umask = os.umask(0)
    os.umask(umask)
    return umask

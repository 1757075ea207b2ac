"""Reading text with its errors located, and writing files whole or not at all."""

from __future__ import annotations

import errno
import gzip
import io
import os
import shutil
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from torchtune_smt.errors import InputError


def read_bytes(path: str | os.PathLike[str]) -> bytes:
    """Return the content of a file, unpacked if its name ends in ``.gz``.

    Raises
    ------
    InputError
        The file is missing, unreadable, or not whole.
    """
    return unpacked(read_packed(path), path)


def read_packed(path: str | os.PathLike[str]) -> bytes:
    """Return the bytes of a file as they are.

    Raises
    ------
    InputError
        The file is missing or unreadable.
    """
    with reading(path):
        return Path(path).read_bytes()


@contextmanager
def reading(path: str | os.PathLike[str]) -> Iterator[None]:
    """Turn what keeps a file from being read into InputError."""
    try:
        yield
    except FileNotFoundError:
        raise InputError("no such file; check the path", path=path) from None
    except IsADirectoryError:
        raise InputError("is a folder, and a file was expected", path=path) from None
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", path=path) from None


def unpacked(data: bytes, path: str | os.PathLike[str]) -> bytes:
    """Return the bytes of a file unpacked if its name ends in ``.gz``.

    Raises
    ------
    InputError
        They are not whole.
    """
    if Path(path).suffix != ".gz":
        return data
    try:
        return gzip.decompress(data)
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"is no whole gzip file ({error}); copy it again", path=path) from None


def read_lines(path: str | os.PathLike[str]) -> list[str]:
    r"""Return the lines of a UTF-8 file (plain or ``.gz``), split at ``\n`` only.

    Raises
    ------
    InputError
        As `read_bytes`, or with the line that is not valid UTF-8.
    """
    return split_lines(read_bytes(path), path)


def split_lines(data: bytes, path: str | os.PathLike[str]) -> list[str]:
    """Return the lines of the content of a file; `path` is what errors call it.

    Raises
    ------
    InputError
        A line is not valid UTF-8.
    """
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise InputError(
            "is not valid UTF-8; convert the file to UTF-8", path=path, line=line
        ) from None
    lines = text.split("\n")
    if lines[-1] == "":
        lines.pop()
    return [line.removesuffix("\r") for line in lines]


@contextmanager
def atomic_path(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a path beside `path`; what was written there takes its place at the end.

    When the block raises, the file beside is removed and `path` stays as it was.

    Raises
    ------
    InputError
        The folder cannot be written to, or the disk is full.
    """
    path = Path(path)
    beside = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
        os.close(handle)
        beside = Path(name)
        yield beside
        with beside.open("rb+") as file:
            os.fsync(file.fileno())
        umask = os.umask(0)
        os.umask(umask)
        beside.chmod(0o666 & ~umask)
        beside.replace(path)
    except OSError as error:
        raise _not_written(path, error) from None
    finally:
        if beside is not None:
            beside.unlink(missing_ok=True)


@contextmanager
def atomic_folder(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield an empty folder beside `path`, which takes its place at the end with what is in it.

    When the block raises, the folder beside is removed and `path` stays as it was.

    Raises
    ------
    InputError
        The folder cannot be written.
    """
    path = Path(path)

    def beside(suffix: str) -> Path:
        return Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}.", suffix=suffix))

    new = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        new = beside(".part")
        yield new
        umask = os.umask(0)
        os.umask(umask)
        new.chmod(0o777 & ~umask)
        if path.exists():
            # A folder cannot be replaced in one step: the old one makes room first.
            old = beside(".old")
            path.replace(old)
            new.replace(path)
            # Whoever works with it may write a file there just now.
            shutil.rmtree(old, ignore_errors=True)
        else:
            new.replace(path)
    except OSError as error:
        raise _not_written(path, error) from None
    finally:
        if new is not None:
            shutil.rmtree(new, ignore_errors=True)


@contextmanager
def atomic_writer(path: str | os.PathLike[str]) -> Iterator[IO[str]]:
    """Yield a text file (gzip if the name ends in ``.gz``) that becomes `path` when whole.

    The gzip header carries no time, so equal text gives equal bytes.
    """
    with atomic_path(path) as beside, beside.open("wb") as raw:
        if Path(path).suffix == ".gz":
            with gzip.GzipFile("", "wb", 6, raw, mtime=0) as packed:
                with io.TextIOWrapper(packed, encoding="utf-8", newline="\n") as text:
                    yield text
        else:
            with io.TextIOWrapper(raw, encoding="utf-8", newline="\n") as text:
                yield text


def _not_written(path: Path, error: OSError) -> InputError:
    """Return the error of a file or folder that could not be written."""
    full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    cure = "make room on the disk" if full else "choose a folder that you may write to"
    return InputError(f"cannot be written ({error.strerror}); {cure}", path=path)

"""One format for all binary files that a run or a model keeps: JSON and named arrays.

A file has one part, or several that were appended one after the other. Layout of a part: magic,
length of the header (uint64), checksum of the header, header (JSON: kind, version, checksum of the
part before, content, and name, type, shape and checksum of each array), then the arrays in this
order. Parts, headers and arrays begin at multiples of `ALIGNMENT` bytes, with zeros between. Where
an array lies is not stored but follows from the sizes before.

Checksums are XXH3 of 128 bits: they are computed faster than memory is read (checksums.py of the
benchmarks), so a file is verified at the speed of the disk. No objects are made of it.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import math
import mmap
import os
import struct
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final, NamedTuple, NoReturn, TypeVar

import numpy as np
import xxhash
from numpy.typing import NDArray

from torchtune_smt import __version__
from torchtune_smt.core.errors import InputError
from torchtune_smt.core.textio import (
    AnyPath,
    atomic_path,
    atomic_writer,
    check_plain,
    read_bytes,
    reading,
    writing,
)

# Bytes: a line of the processor's cache, which records of tables must not straddle.
ALIGNMENT: Final = 64
DAMAGED: Final = "the saved state is damaged"
_EARLY: Final = "is damaged: it ends too early"

_MAGIC: Final = b"\x93torchtune-smt\r\n"
_DIGEST: Final = 16
_FIRST: Final = len(_MAGIC) + 8 + _DIGEST
_TYPES: Final = frozenset("|b1 |i1 |u1 <i2 <u2 <i4 <u4 <i8 <u8 <f4 <f8".split())
# Bytes that are verified before their pages are let go. Of a smaller file nothing is remembered.
_PIECE: Final = 1 << 24
# Nanoseconds after which who writes to a file gives it another time.
_SETTLED: Final = 2 * 10**9
# Files that are remembered as verified, at most.
_REMEMBERED: Final = 1000
_NO_ARRAYS: Final[Mapping[str, NDArray[Any]]] = {}

T = TypeVar("T")


@contextmanager
def well_formed() -> Iterator[None]:
    """Turn what Python says of a tree that has another form into ValueError."""
    try:
        yield
    except (KeyError, TypeError, IndexError, AttributeError, OverflowError, RecursionError):
        raise ValueError(DAMAGED) from None


def whole(value: Any, least: int, most: int = 2**62) -> int:
    """Return an integer that is in a range; raise ValueError if it is not."""
    if type(value) is not int or not least <= value <= most:
        raise ValueError(DAMAGED)
    return value


def real(value: Any) -> float:
    """Return a finite number; raise ValueError if it is none."""
    if type(value) not in (int, float) or not math.isfinite(value):
        raise ValueError(DAMAGED)
    return float(value)


class OtherVersionError(InputError):
    """A file is of another version of the package."""


class _CutOffError(InputError):
    """A file ends before a part of it does."""


class Stored(NamedTuple):
    """What a part of a file holds.

    content: JSON.
    arrays: private copies in memory that is mapped: to change one does not change the file, and
        processes share what they do not change.
    checksum: of the header, which has those of all it holds.
    after: the checksum of the part before.
    end: where the part ends in the file.
    trusted: whether a command of the user has accepted it, so that nothing of it need be checked.
    record: the file of the user's caches that says so from now on, if there is to be one.
    """

    content: Any
    arrays: dict[str, NDArray[Any]]
    checksum: str
    after: str
    end: int
    trusted: bool
    record: Path | None

    def accept(self) -> None:
        """Say that its reader found it sound, and has written nothing to its arrays.

        A large file is remembered in the caches of the user, and trusted by the next command, and
        by workers of this one.
        """
        if self.trusted:
            return
        for array in self.arrays.values():
            _let_go(array)
        if self.record is not None:
            with suppress(OSError):
                make_cache_folder(self.record.parent)
                self.record.touch()
                remove_old(self.record.parent, _REMEMBERED, 0)


class Mark(NamedTuple):
    """How far a file that grows was written: its bytes, and the checksum of its last part."""

    size: int = 0
    checksum: str = ""


@dataclass(frozen=True)
class Archive:
    """A kind of file, written whole or not at all, and read if all of it is as it was written.

    What is damaged, something else, or of another version is an InputError.

    kind: what it is, in words of the user.
    version: of this kind of file.
    cure: for messages: what to do about a file that is damaged or of another version.
    """

    kind: str
    version: int
    cure: str

    def write(
        self, path: AnyPath, content: object, arrays: Mapping[str, NDArray[Any]] = _NO_ARRAYS
    ) -> str:
        """Write a file of one part, whole or not at all; return its checksum."""
        with atomic_path(path, own=True) as beside, beside.open("wb") as file:
            return self._write(file, content, arrays, "")

    def append(
        self,
        path: AnyPath,
        mark: Mark,
        content: object,
        arrays: Mapping[str, NDArray[Any]] = _NO_ARRAYS,
        *,
        durable: bool = True,
    ) -> Mark:
        """Write a part behind a mark; return the mark behind it. What lay there before is lost.

        What is before the mark is neither read nor written.

        durable: whether to wait for the disk, without which a power cut may leave a damaged part.

        Raises InputError: it cannot be written, as on a full disk; nothing lies behind the mark
            then.
        """
        with writing(path):
            try:
                with open(os.open(path, os.O_RDWR | os.O_CREAT, 0o666), "r+b") as file:
                    file.seek(mark.size)
                    file.write(bytes(-mark.size % ALIGNMENT))
                    digest = self._write(file, content, arrays, mark.checksum)
                    size = file.tell()
                    file.truncate()
                    if durable:
                        os.fsync(file.fileno())
            except OSError:
                # Where there is no room, what is of no use gives back its own.
                with suppress(OSError):
                    os.truncate(path, mark.size)
                raise
        return Mark(size, digest)

    def read(self, path: AnyPath) -> Stored:
        """Map a file of one part, and verify it in one sequential pass, unless it is trusted."""
        mapped, status = _map(path)
        with self.checking(path):
            stored = self._part(path, mapped, 0, status)
        if stored.end != len(mapped):
            self._refuse(path, "is damaged")
        return stored

    def parts(self, path: AnyPath, after: str = "", mark: Mark | None = None) -> list[Stored]:
        """Return the parts of a file that was appended to, verified.

        after: the checksum of the mark behind which the first one was written.
        mark: behind the last one. Without it, all are returned but a last one that is not whole, as
            its writer was killed; and none if the first one was written behind another mark.
        """
        mapped, status = _map(path)
        mapped = mapped if mark is None else mapped[: mark.size]
        result: list[Stored] = []
        end, before = 0, after
        while end < len(mapped):
            try:
                with self.checking(path):
                    found = self._part(path, mapped, end + -end % ALIGNMENT, status)
            except _CutOffError:
                if mark is None:
                    break
                raise
            if found.after != before:
                if mark is None and not result:
                    break
                self._refuse(path, "is damaged")
            result.append(found)
            end, before = found.end, found.checksum
        if mark is not None and before != mark.checksum:
            self._refuse(path, "is damaged, or of another run")
        return result

    def write_copy(
        self,
        source: AnyPath,
        key: Mapping[str, Any],
        content: Mapping[str, Any],
        arrays: Mapping[str, NDArray[Any]],
    ) -> None:
        """Write what was made of a file beside it (`cache_path`), with what it was made from.

        Where it cannot be written (a folder that is read-only, a full disk) it is made each time.
        """
        with suppress(InputError):
            self.write(cache_path(source), {"key": dict(key), **content}, arrays)

    def read_copy(
        self, source: AnyPath, key: Mapping[str, Any], make: Callable[[Stored], T]
    ) -> T | None:
        """Return what `make` makes of what `write_copy` wrote with an equal key.

        Returns None where there is no copy, or it has another key or version, or is damaged: it, or
        `make`, raises ValueError. Its arrays are private views of the file: processes share them.
        """
        try:
            with well_formed():
                stored = self.read(cache_path(source))
                if stored.content["key"] != key:
                    return None
                made = make(stored)
        except ValueError:
            return None
        stored.accept()
        return made

    def is_at(self, path: AnyPath) -> bool:
        """Return whether a file says that it is of this kind, damaged or not."""
        try:
            check_plain(path)
            with open(path, "rb") as file:
                start = file.read(1024)
        except (OSError, InputError):
            return False
        return start.startswith(_MAGIC) and json.dumps({"kind": self.kind})[:-1].encode() in start

    def write_json(self, path: AnyPath, content: Mapping[str, Any]) -> str:
        """Write a file without arrays that people read, too; return its checksum."""
        content = {"version": self.version, **content}
        digest = _checksum_of_json(content)
        with atomic_writer(path, own=True) as file:
            json.dump({**content, "checksum": digest}, file, indent=1)
            file.write("\n")
        return digest

    def read_json(self, path: AnyPath) -> dict[str, Any]:
        """Return what `write_json` wrote, and the checksum under ``checksum``."""
        check_plain(path)
        with self.checking(path):
            content = json.loads(read_bytes(path))
            found, digest = content["version"], content.pop("checksum", None)
            if type(found) is int:
                self._check_version(path, found)
            if digest != _checksum_of_json(content):
                raise ValueError
        return {**content, "checksum": digest}

    @contextmanager
    def checking(self, path: AnyPath) -> Iterator[None]:
        """Refuse a file whose content makes a reader raise ValueError, or has another form."""
        try:
            with well_formed():
                yield
        except InputError:
            raise
        except ValueError:
            self._refuse(path, f"is damaged: it is no whole {self.kind}")

    def _refuse(self, path: AnyPath, what: str, kind: type[InputError] = InputError) -> NoReturn:
        raise kind(f"{what}; {self.cure}", path=path) from None

    def _check_version(self, path: AnyPath, found: object) -> None:
        if found != self.version:
            said = f"of version {found}, and this package reads version {self.version}"
            self._refuse(path, f"is a {self.kind} {said}", OtherVersionError)

    def _write(
        self, file: IO[bytes], content: object, arrays: Mapping[str, NDArray[Any]], after: str
    ) -> str:
        # One after the other: those of `ArraysOnDisk` take memory while they are in use.
        parts = [
            {
                "name": name,
                "type": _type_name(array.dtype),
                "shape": array.shape,
                "checksum": checksum(_bytes(array)),
            }
            for name, array in arrays.items()
        ]
        said = {"kind": self.kind, "version": self.version, "after": after, "content": content}
        header = json.dumps({**said, "arrays": parts}).encode()
        digest = xxhash.xxh3_128(header).digest()
        file.write(_MAGIC + struct.pack("<Q", len(header)) + digest)
        file.write(header)
        for array in arrays.values():
            file.write(bytes(-file.tell() % ALIGNMENT))
            file.write(_bytes(array).data)
        return digest.hex()

    def _part(
        self, path: AnyPath, mapped: memoryview, begin: int, status: os.stat_result
    ) -> Stored:
        """Return the part of a mapped file that begins somewhere."""
        size, first = len(mapped), begin + _FIRST
        if bytes(mapped[begin : begin + len(_MAGIC)]) != _MAGIC[: max(size - begin, 0)]:
            self._refuse(path, f"is damaged, or no {self.kind} of this version of the package")
        if size < first:
            self._refuse(path, _EARLY, _CutOffError)
        (length,) = struct.unpack_from("<Q", mapped, begin + len(_MAGIC))
        digest = bytes(mapped[first - _DIGEST : first])
        end = first + length
        if end > size:
            self._refuse(path, _EARLY, _CutOffError)
        if xxhash.xxh3_128(mapped[first:end]).digest() != digest:
            self._refuse(path, "is damaged")
        header = json.loads(bytes(mapped[first:end]))
        if header["kind"] != self.kind:
            self._refuse(path, f"is no {self.kind}")
        self._check_version(path, header["version"])
        record = self._record(status, digest.hex())
        trusted = record is not None and record.exists()
        arrays: dict[str, NDArray[Any]] = {}
        for part in header["arrays"]:
            kind, shape = _type(part["type"]), tuple(part["shape"])
            start = end + -end % ALIGNMENT
            end = start + math.prod(shape) * kind.itemsize
            if end > size:
                self._refuse(path, _EARLY, _CutOffError)
            array = np.frombuffer(mapped, np.uint8, end - start, start)
            if not trusted and _checksum_of_pages(array) != part["checksum"]:
                self._refuse(path, f"is damaged in its part {part['name']!r}")
            arrays[part["name"]] = array.view(kind).reshape(shape)
        content, after = header["content"], header.get("after", "")
        return Stored(content, arrays, digest.hex(), after, end, trusted, record)

    def _record(self, status: os.stat_result, digest: str) -> Path | None:
        """Return the file that says that a large one was verified and accepted, once it was.

        Its name says all that would be another one if the file, or what checks it, were: also when
        the file was last changed in any way (ns), which nobody can set back. None for a file that
        could be written to now, and have the same time.
        """
        folder, times = cache_folder("verified"), (status.st_mtime_ns, status.st_ctime_ns)
        settled = time.time_ns() - max(times) > _SETTLED
        if folder is None or status.st_size < _PIECE or not settled:
            return None
        file = status.st_dev, status.st_ino, status.st_size, *times, digest
        return folder / checksum(repr((__version__, self.kind, self.version, *file)).encode())


class ArraysOnDisk(MutableMapping[str, NDArray[Any]]):
    """Arrays by their names, each in a file, of which who asks gets a private copy that is mapped.

    folder: where the files are; whoever made it removes it.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._kinds: dict[str, tuple[np.dtype[Any], tuple[int, ...]]] = {}

    def __setitem__(self, name: str, array: NDArray[Any]) -> None:
        path = self._folder / name
        with writing(path), path.open("wb") as file:
            file.write(_bytes(array).data)
        self._kinds[name] = array.dtype, array.shape

    def __getitem__(self, name: str) -> NDArray[Any]:
        kind, shape = self._kinds[name]
        if 0 in shape:
            return np.empty(shape, kind)
        return np.memmap(self._folder / name, kind, "c", shape=shape).view(np.ndarray)

    def __delitem__(self, name: str) -> None:
        del self._kinds[name]
        (self._folder / name).unlink()

    def __iter__(self) -> Iterator[str]:
        return iter(self._kinds)

    def __len__(self) -> int:
        return len(self._kinds)


def cache_folder(kind: str) -> Path | None:
    """Return the folder of the user's caches of one kind; None if there is no place for it.

    It need not be there, and is below ``XDG_CACHE_HOME``, by default ``~/.cache``.
    """
    caches = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(caches) / "torchtune_smt" / kind if os.path.isabs(caches) else None


def make_cache_folder(folder: Path) -> None:
    """Make such a folder, for the user alone; raise OSError if it cannot be made."""
    folder.parents[1].mkdir(parents=True, exist_ok=True)
    for path in (folder.parent, folder):
        path.mkdir(mode=0o700, exist_ok=True)


def remove_old(folder: Path, kept: int, most: int) -> None:
    """Remove the files of a folder that were not used for longest.

    kept: so many files stay,
    most: of so many bytes together.

    Raises OSError: one cannot be removed.
    """
    files = [(file.stat(), file) for file in folder.iterdir()]
    files.sort(key=lambda one: one[0].st_mtime, reverse=True)
    for number, (status, file) in enumerate(files):
        most -= status.st_size
        if number >= kept or most < 0:
            file.unlink()


def _bytes(array: NDArray[Any]) -> NDArray[np.uint8]:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def cache_path(source: AnyPath) -> Path:
    """Return where the binary copy of a text file lies: beside it."""
    source = Path(source)
    return source.with_name(source.name + ".cache")


def checksum(data: Any) -> str:
    """Return the checksum (32 hexadecimal digits) of bytes or of a contiguous array."""
    return xxhash.xxh3_128(data).hexdigest()


def _checksum_of_pages(array: NDArray[np.uint8]) -> str:
    """Return the checksum of an array of a mapped file, of which no more than a piece is held."""
    all_of_it = xxhash.xxh3_128()
    for begin in range(0, array.size, _PIECE):
        piece = array[begin : begin + _PIECE]
        all_of_it.update(piece.data)
        _let_go(piece)
    return all_of_it.hexdigest()


def _let_go(array: NDArray[Any]) -> None:
    """Give back the pages of a mapped file that nobody has written to: they are read again."""
    begin, end = array.ctypes.data, array.ctypes.data + array.nbytes
    begin += -begin % mmap.PAGESIZE
    if end - begin >= _PIECE // 2:
        libc = ctypes.CDLL(None)
        libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
        libc.madvise(begin, (end - begin) // mmap.PAGESIZE * mmap.PAGESIZE, mmap.MADV_DONTNEED)


def file_checksum(path: AnyPath) -> str:
    """Return the checksum of the content of a file.

    Raises InputError: it is missing or unreadable, or no plain file.
    """
    check_plain(path)
    with reading(path), open(path, "rb", buffering=0) as file:
        return hashlib.file_digest(file, xxhash.xxh3_128).hexdigest()


def _checksum_of_json(content: Mapping[str, Any]) -> str:
    return checksum(json.dumps(content, sort_keys=True).encode())


def _map(path: AnyPath) -> tuple[memoryview, os.stat_result]:
    """Map a file into memory, where writing changes a copy of the page.

    `mmap.mmap` would hold a handle for as long as the file is mapped, and a run maps more files
    than a process may have open.
    """
    check_plain(path)
    with reading(path), open(path, "rb") as file:
        status = os.fstat(file.fileno())
        if not status.st_size:
            return memoryview(b""), status
        libc = ctypes.CDLL(None, use_errno=True)
        libc.mmap.restype = ctypes.c_void_p
        libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long)
        libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
        access = mmap.PROT_READ | mmap.PROT_WRITE
        address = libc.mmap(None, status.st_size, access, mmap.MAP_PRIVATE, file.fileno(), 0)
        if address == ctypes.c_void_p(-1).value:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    pages = (ctypes.c_char * status.st_size).from_address(address)
    # Whatever array is left when the interpreter ends may still be read.
    weakref.finalize(pages, libc.munmap, address, status.st_size).atexit = False
    return memoryview(pages).cast("B"), status


def _type_name(dtype: np.dtype[Any]) -> object:
    if dtype.names is None:
        return dtype.str
    return [[name, dtype[name].base.str, list(dtype[name].shape)] for name in dtype.names]


def _type(name: Any) -> np.dtype[Any]:
    """Return the type of a plain number, or of a record of such; no objects are made."""
    fields = [["", name, []]] if isinstance(name, str) else name
    if not all(plain in _TYPES for _, plain, _ in fields):
        raise TypeError(name)
    if isinstance(name, str):
        return np.dtype(name)
    return np.dtype([(field, plain, tuple(shape)) for field, plain, shape in fields])

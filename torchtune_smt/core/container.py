"""One format for all binary files: named arrays and some JSON, each part with its checksum.

Layout: magic, length of the header (uint64), checksum of the header, header (JSON: kind, version,
content, and name, type, shape and checksum of each array), then the arrays in this order. Header
and arrays begin at multiples of `ALIGNMENT` bytes, with zeros between; the file ends with the last
array. Where an array lies is not stored but follows from the sizes before it.

Checksums are XXH3 of 128 bits: they are computed faster than memory is read (checksums.py of the
benchmarks), so a file is verified at the speed of the disk. They find damage, no matter how little,
but no malice: whoever reads a container checks what it says all the same.
"""

from __future__ import annotations

import ctypes
import json
import math
import mmap
import os
import struct
import weakref
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Final, NamedTuple, NoReturn

import numpy as np
import xxhash
from numpy.typing import NDArray

from torchtune_smt.core.errors import InputError
from torchtune_smt.core.textio import atomic_path, check_plain, reading

# Bytes: a line of the processor's cache, which records of tables must not straddle.
ALIGNMENT: Final = 64

_MAGIC: Final = b"\x93torchtune-smt\r\n"
_DIGEST: Final = 16
_TYPES: Final = frozenset("|b1 |i1 |u1 <i2 <u2 <i4 <u4 <i8 <u8 <f4 <f8".split())


class FileIdentity(NamedTuple):
    """What tells a file on this machine from others, and from itself once it was written to.

    Attributes
    ----------
    device, inode, size, time : int
        As the system knows it; `time` of the last change of its content, in nanoseconds.
    checksum : str
        Of the header.
    """

    device: int
    inode: int
    size: int
    time: int
    checksum: str


# Files that this process has read and found to be what they should; those that others have.
_accepted: set[FileIdentity] = set()
_trusted: set[FileIdentity] = set()


def accepted_files() -> frozenset[FileIdentity]:
    """Return the containers that this process has read and accepted."""
    return frozenset(_accepted)


@contextmanager
def trusting(files: Iterable[FileIdentity]) -> Iterator[None]:
    """Do not verify again what another process on this machine has accepted.

    Of such a file no more is read than what is used. One that was changed since, or is on another
    machine, is verified.
    """
    before = set(_trusted)
    _trusted.update(files)
    try:
        yield
    finally:
        _trusted.clear()
        _trusted.update(before)


class Container(NamedTuple):
    """What a file holds.

    Attributes
    ----------
    content : object
        JSON.
    arrays : dict of str to array
        Private copies in memory that is mapped: to change one does not change the file, and
        processes share what they do not change.
    checksum : str
        Of the header, which has those of all parts: equal for equal content, and for no other.
    identity : FileIdentity
    trusted : bool
        Whether somebody has accepted it, so that nothing of it need be checked; see `trusting`.
    """

    content: Any
    arrays: dict[str, NDArray[Any]]
    checksum: str
    identity: FileIdentity
    trusted: bool

    def accept(self) -> None:
        """Say that it is sound in all that a reader of its kind of file checks."""
        _accepted.add(self.identity)


def checksum(data: Any) -> str:
    """Return the checksum (32 hexadecimal digits) of bytes or of a contiguous array."""
    return xxhash.xxh3_128(data).hexdigest()


def file_checksum(path: str | os.PathLike[str]) -> str:
    """Return the checksum of the content of a file.

    Raises
    ------
    InputError
        It is missing or unreadable, or no plain file.
    """
    check_plain(path)
    whole = xxhash.xxh3_128()
    room = bytearray(1 << 20)
    with reading(path), open(path, "rb", buffering=0) as file:
        while count := file.readinto(room):
            whole.update(memoryview(room)[:count])
    return whole.hexdigest()


def is_container(path: str | os.PathLike[str], kind: str) -> bool:
    """Return whether a file says that it is a container of this kind, damaged or not."""
    try:
        check_plain(path)
        with open(path, "rb") as file:
            start = file.read(1024)
    except (OSError, InputError):
        return False
    return start.startswith(_MAGIC) and json.dumps({"kind": kind})[:-1].encode() in start


def write_container(
    path: str | os.PathLike[str],
    kind: str,
    version: int,
    content: object,
    arrays: Mapping[str, NDArray[Any]],
) -> str:
    """Write a file, whole or not at all; return its checksum.

    Parameters
    ----------
    kind : str
        What it is, in words of the user.
    version : int
        Of this kind of file.
    content : object
        JSON.
    arrays : dict of str to array

    Raises
    ------
    InputError
        The file cannot be written.
    """
    with atomic_path(path, own=True) as beside, beside.open("wb") as file:
        return write_parts(file, kind, version, content, arrays)


def write_parts(
    file: IO[bytes],
    kind: str,
    version: int,
    content: object,
    arrays: Mapping[str, NDArray[Any]],
) -> str:
    """Write to an empty file that is open what `write_container` does; return its checksum."""
    contiguous = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    parts = [
        {
            "name": name,
            "type": _type_name(array.dtype),
            "shape": arrays[name].shape,
            "checksum": checksum(array.reshape(-1).view(np.uint8)),
        }
        for name, array in contiguous.items()
    ]
    header = json.dumps(
        {"kind": kind, "version": version, "content": content, "arrays": parts}
    ).encode()
    digest = xxhash.xxh3_128(header).digest()
    file.write(_MAGIC + struct.pack("<Q", len(header)) + digest)
    file.write(header)
    for array in contiguous.values():
        file.write(bytes(-file.tell() % ALIGNMENT))
        file.write(array.reshape(-1).view(np.uint8).data)
    return digest.hex()


def read_container(
    path: str | os.PathLike[str], kind: str, version: int, *, cure: str
) -> Container:
    """Map a file into memory and verify it, in one sequential pass, unless it is trusted.

    Parameters
    ----------
    kind, version
        What is expected.
    cure : str
        For messages: what to do about a file that is damaged or of another version.

    Raises
    ------
    InputError
        The file is missing, is not as it was written, is something else, or of another version.
    """
    path = Path(path)

    def refuse(what: str) -> NoReturn:
        raise InputError(f"{what}; {cure}", path=path)

    check_plain(path)
    with reading(path), path.open("rb") as file:
        status = os.fstat(file.fileno())
        size = status.st_size
        mapped = _map(file.fileno(), size) if size else memoryview(b"")
    first = len(_MAGIC) + 8 + _DIGEST
    if size < first or bytes(mapped[: len(_MAGIC)]) != _MAGIC:
        refuse(f"is damaged, or no {kind} of this version of the package")
    (length,) = struct.unpack_from("<Q", mapped, len(_MAGIC))
    digest = bytes(mapped[first - _DIGEST : first])
    if length > size - first or xxhash.xxh3_128(mapped[first : first + length]).digest() != digest:
        refuse("is damaged")
    try:
        header = json.loads(bytes(mapped[first : first + length]))
        found_kind, found_version = header["kind"], header["version"]
        if found_kind == kind and found_version == version:
            parts = [_part(part) for part in header["arrays"]]
            content = header["content"]
    except (ValueError, KeyError, TypeError, RecursionError):
        refuse("is damaged")
    if found_kind != kind:
        refuse(f"is no {kind}")
    if found_version != version:
        refuse(f"is a {kind} of version {found_version}, and this package reads version {version}")
    identity = FileIdentity(status.st_dev, status.st_ino, size, status.st_mtime_ns, digest.hex())
    trusted = identity in _trusted
    arrays: dict[str, NDArray[Any]] = {}
    end = first + length
    for part in parts:
        begin = end + -end % ALIGNMENT
        end = begin + part.nbytes
        if end > size or part.name in arrays:
            refuse("is damaged")
        whole = np.frombuffer(mapped, np.uint8, part.nbytes, begin)
        if not trusted and checksum(whole) != part.checksum:
            refuse(f"is damaged in its part {part.name!r}")
        arrays[part.name] = whole.view(part.type).reshape(part.shape)
    if end != size:
        refuse("is damaged: it does not end where it should")
    return Container(content, arrays, digest.hex(), identity, trusted)


def _map(handle: int, size: int) -> memoryview:
    """Map a file into memory, where writing changes a copy of the page.

    `mmap.mmap` would hold a handle for as long as the file is mapped, and a run maps more files
    than a process may have open.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long)
    libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
    address = libc.mmap(None, size, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE, handle, 0)
    if address == ctypes.c_void_p(-1).value:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    pages = (ctypes.c_char * size).from_address(address)
    # Whatever array is left when the interpreter ends may still be read.
    weakref.finalize(pages, libc.munmap, address, size).atexit = False
    return memoryview(pages).cast("B")


class _Part(NamedTuple):
    """The description of an array in a header."""

    name: str
    type: np.dtype[Any]
    shape: tuple[int, ...]
    checksum: str

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.type.itemsize


def _part(part: Any) -> _Part:
    """Check the description of an array; raise ValueError, KeyError or TypeError if it is none."""
    name, shape, digest = part["name"], part["shape"], part["checksum"]
    if not isinstance(name, str) or not isinstance(digest, str) or not isinstance(shape, list):
        raise TypeError
    if not all(_is_length(length) for length in shape) or len(shape) > 8:
        raise ValueError
    return _Part(name, _type(part["type"]), tuple(shape), digest)


def _type_name(dtype: np.dtype[Any]) -> object:
    """Return what `_type` makes a type of."""
    if dtype.names is None:
        return dtype.str
    fields = [(name, *_field(dtype[name])) for name in dtype.names]
    return [list(field) for field in fields]


def _field(dtype: np.dtype[Any]) -> tuple[str, list[int]]:
    base, shape = dtype.subdtype or (dtype, ())
    return base.str, list(shape)


def _type(name: Any) -> np.dtype[Any]:
    """Return the type of a plain number, or of a record of such."""
    if isinstance(name, str):
        return np.dtype(_plain_type(name))
    fields: list[tuple[str, str, tuple[int, ...]]] = []
    for field, plain, shape in name:
        if not isinstance(field, str) or not all(_is_length(n) for n in shape) or len(shape) > 1:
            raise TypeError
        fields.append((field, _plain_type(plain), tuple(shape)))
    return np.dtype(fields)


def _plain_type(name: Any) -> str:
    if name not in _TYPES:
        raise TypeError
    return str(name)


def _is_length(value: object) -> bool:
    return type(value) is int and 0 <= value < 2**48

"""A binary copy of a model beside its ARPA file, mapped into memory at load.

Layout: magic, length of the header (uint64), header (JSON: version, the source's size and time,
order, and each array's name, dtype, length and offset), then the raw arrays, aligned to 64 bytes.
"""

from __future__ import annotations

import json
import mmap
import struct
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchtune_smt.errors import InputError
from torchtune_smt.lm.tables import ALIGNMENT, ENTRY, NODE, LmTables
from torchtune_smt.textio import atomic_path
from torchtune_smt.vocabulary import Vocabulary

# To be raised whenever the tables' arrays or records, their meaning or the hash function change.
VERSION = 2

_MAGIC = b"tsmt-lm\n"
_WORDS = "words."
_RECORDS = {"table": ENTRY, "nodes": NODE}


def cache_path(source: str | PathLike[str]) -> Path:
    """Return where the binary copy of an ARPA file lies."""
    source = Path(source)
    return source.with_name(source.name + ".cache")


def write_cache(
    source: str | PathLike[str], order: int, words: Vocabulary, tables: LmTables
) -> bool:
    """Write the binary copy of the model that was read from `source`.

    Returns False where it cannot be written (a folder that is read-only, a full disk): the model
    is then built from the ARPA each time, and nothing else changes.
    """
    arrays: dict[str, NDArray[Any]] = {_WORDS + name: a for name, a in words.to_arrays().items()}
    arrays |= tables._asdict()
    layout, end = [], 0
    for name, array in arrays.items():
        layout.append((name, array.dtype.str, array.size, end))
        end += -(-array.nbytes // ALIGNMENT) * ALIGNMENT
    header = json.dumps(
        {"version": VERSION, "source": _identity(source), "order": order, "arrays": layout}
    ).encode()
    # JSON may end in blanks: they make the arrays begin at a multiple of the alignment.
    header += b" " * (-(len(_MAGIC) + 8 + len(header)) % ALIGNMENT)
    try:
        with atomic_path(cache_path(source)) as beside, beside.open("wb") as file:
            file.write(_MAGIC + struct.pack("<Q", len(header)) + header)
            for array in arrays.values():
                file.write(np.ascontiguousarray(array).data)
                file.write(bytes(-array.nbytes % ALIGNMENT))
    except (InputError, OSError):
        return False
    return True


def read_cache(source: str | PathLike[str]) -> tuple[int, Vocabulary, LmTables] | None:
    """Return (order, words, tables) of the binary copy of `source`.

    Returns None where there is no copy, or it belongs to other content, to another version, or
    is not whole. The arrays are private views of the file: processes share its memory.
    """
    try:
        with cache_path(source).open("rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        if mapped[: len(_MAGIC)] != _MAGIC:
            return None
        (length,) = struct.unpack_from("<Q", mapped, len(_MAGIC))
        first = len(_MAGIC) + 8 + length
        header = json.loads(mapped[len(_MAGIC) + 8 : first])
        if header["version"] != VERSION or header["source"] != _identity(source):
            return None
        arrays = {
            name: np.frombuffer(mapped, _RECORDS.get(name, dtype), size, first + offset)
            for name, dtype, size, offset in header["arrays"]
        }
        tables = LmTables(**{name: arrays[name] for name in LmTables._fields})
        words = Vocabulary.from_arrays(
            {name[len(_WORDS) :]: a for name, a in arrays.items() if name.startswith(_WORDS)}
        )
        return int(header["order"]), words, tables
    except (OSError, ValueError, KeyError, TypeError, struct.error):
        return None


def _identity(source: str | PathLike[str]) -> dict[str, int]:
    """Return what tells whether a file has changed."""
    status = Path(source).stat()
    return {"size": status.st_size, "mtime_ns": status.st_mtime_ns}

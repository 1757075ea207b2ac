"""A binary copy of a model beside its ARPA file, mapped into memory at load.

It belongs to the content of the ARPA file, which is known by its checksum.
"""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import Final

from torchtune_smt.core.container import read_container, write_container
from torchtune_smt.core.errors import InputError
from torchtune_smt.core.vocabulary import Vocabulary
from torchtune_smt.lm.tables import LmTables, check_tables

# To be raised whenever the tables' arrays or records, their meaning or the hash function change.
_VERSION: Final = 3
_KIND: Final = "copy of a language model"
_WORDS: Final = "words."


def cache_path(source: str | PathLike[str]) -> Path:
    """Return where the binary copy of an ARPA file lies."""
    source = Path(source)
    return source.with_name(source.name + ".cache")


def write_cache(
    source: str | PathLike[str], checksum: str, order: int, words: Vocabulary, tables: LmTables
) -> bool:
    """Write the binary copy of the model that was read from `source`.

    Returns False where it cannot be written (a folder that is read-only, a full disk): the model
    is then built from the ARPA each time, and nothing else changes.

    Parameters
    ----------
    checksum : str
        Of the bytes that the model was made from: the file may be another one by now.
    """
    arrays = words.to_arrays(_WORDS) | tables._asdict()
    content = {"source": checksum, "order": order}
    try:
        write_container(cache_path(source), _KIND, _VERSION, content, arrays)
    except InputError:
        return False
    return True


def read_cache(
    source: str | PathLike[str], checksum: str
) -> tuple[int, Vocabulary, LmTables] | None:
    """Return (order, words, tables) of the binary copy of `source`.

    Returns None where there is no copy, or it belongs to other content, to another version, or
    is damaged. The arrays are private views of the file: processes share its memory.

    Parameters
    ----------
    checksum : str
        Of the content of `source`.
    """
    try:
        copy = read_container(cache_path(source), _KIND, _VERSION, cure="it is built again")
        order = copy.content["order"]
        if copy.content["source"] != checksum:
            return None
        tables = LmTables(**{name: copy.arrays[name] for name in LmTables._fields})
        words = Vocabulary.from_arrays(copy.arrays, _WORDS)
        if not copy.trusted:
            check_tables(tables, order, words)
        copy.accept()
    except (ValueError, KeyError, TypeError):
        return None
    return order, words, tables

"""Tokens of files, kept by their content in the user's folder of caches."""

from __future__ import annotations

import functools
import importlib.util
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import numpy as np

from torchtune_smt.core.archive import (
    Archive,
    Stored,
    cache_folder,
    cache_path,
    checksum,
    file_checksum,
    make_cache_folder,
    remove_old,
)
from torchtune_smt.core.resources import PACKAGE
from torchtune_smt.core.textio import iterate_lines
from torchtune_smt.data.preprocess import Preprocessor

COPY: Final = Archive("copy of tokens", 1, "they are made again")
KEPT: Final = 100
"""Files that stay when a new one is written, the last used ones, of so many bytes at most."""
MOST: Final = 1 << 30


def tokens_of(path: str | os.PathLike[str], text: Preprocessor) -> Iterable[list[str]]:
    """Return the tokens of each line of a file; see `iterate_lines` for errors.

    They are kept where what splits the lines is more than blanks, and the file can be read twice.
    """
    made = map(text.tokens, iterate_lines(path))
    folder = cache_folder("texts")
    moses = (text.tokenize or text.normalize) and text.compounds is None
    if not (moses and folder and Path(path).is_file()):
        return made
    key = {"file": file_checksum(path), "made": _made_by(), "text": repr(text)}
    copy = folder / checksum(repr(key).encode())
    found = COPY.read_copy(copy, key, _lines)
    if found is None:
        return _keeping(made, Path(path), copy, key)
    with suppress(OSError):
        os.utime(cache_path(copy))
    return found


def _lines(copy: Stored) -> list[list[str]]:
    """Return the tokens of a copy."""
    lines = copy.arrays["text"].tobytes().decode().split("\n")
    return [line.split(" ") if line else [] for line in lines[:-1]]


def _keeping(
    made: Iterable[list[str]], path: Path, copy: Path, key: dict[str, Any]
) -> Iterator[list[str]]:
    """Yield tokens, and keep them when all are made, and the file is still what it was."""
    lines = []
    for words in made:
        # Now, as whoever gets them may change them.
        lines.append(" ".join(words) + "\n")
        yield words
    with suppress(UnicodeError, OSError):
        text = np.frombuffer("".join(lines).encode(), np.uint8)
        if text.size > MOST or file_checksum(path) != key["file"]:
            return
        make_cache_folder(copy.parent)
        COPY.write_copy(copy, key, {}, {"text": text})
        remove_old(copy.parent, KEPT, MOST)


@functools.cache
def _made_by() -> str:
    """Return a hash of all that makes tokens of lines: the code, here and in sacremoses."""
    files = [PACKAGE / "core" / "text.py", PACKAGE / "data" / "preprocess.py"]
    moses = importlib.util.find_spec("sacremoses")
    for place in (moses and moses.submodule_search_locations) or ():
        files += sorted(Path(place).glob("*.py"))
    return checksum(repr((sys.version, *(file.read_bytes() for file in files))).encode())

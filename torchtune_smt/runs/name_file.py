"""The names of a run's features, in a file of their own that is only appended to."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, Final

import numpy as np
import xxhash

from torchtune_smt.core.arrays import Int64, UInt8
from torchtune_smt.core.checks import DAMAGED, well_formed, whole
from torchtune_smt.core.errors import InputError
from torchtune_smt.core.offsets import offsets
from torchtune_smt.core.textio import check_plain, open_own, reading, writing
from torchtune_smt.core.vocabulary import Vocabulary

# Stands behind each name, and in no UTF-8.
_END: Final = 0xFF
# Names that are written at a time, which bounds the memory that it takes.
_PIECE: Final = 1 << 16


class NameFile:
    """The names of features, in the order of their ids.

    Names, which may be millions, are most of what a run has to save, and those that are there
    stay as they are. So a checkpoint has no names, but says how much of this file is its own, with
    a checksum. What lies behind that was appended by a process that died before its next
    checkpoint; nobody reads it, and the next names take its place.

    Parameters
    ----------
    path : path
        Nothing is read or written before `append` or `read`.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        # What is in the file and belongs to the run.
        self._names = 0
        self._size = 0
        self._checksum = xxhash.xxh3_128()

    @classmethod
    def of(cls, checkpoint: str | os.PathLike[str]) -> NameFile:
        """Return the file that lies beside a checkpoint."""
        return cls(Path(checkpoint).with_suffix(".names"))

    def append(self, features: Vocabulary) -> dict[str, Any]:
        """Write the names that are new; return what a checkpoint is to say of the file.

        Returns
        -------
        dict of str to object
            ``count`` of names, ``size`` in bytes and ``checksum`` of what belongs to the run.

        Raises
        ------
        InputError
            The file cannot be written, as on a full disk; what was in it is still there.
        """
        arrays = features.to_arrays()
        letters, begin = arrays["letters"], arrays["begin"]
        count, size, checksum = begin.size - 1, self._size, self._checksum.copy()
        if count > self._names or not size:
            with writing(self.path), self._behind() as file:
                for first in range(self._names, count, _PIECE):
                    piece = _ended(letters, begin[first : first + _PIECE + 1])
                    file.write(piece.data)
                    checksum.update(piece.data)
                    size += piece.size
            self._names, self._size, self._checksum = count, size, checksum
        return {"count": count, "size": size, "checksum": checksum.hexdigest()}

    def read(self, recorded: Any, cure: str) -> Vocabulary:
        """Return the names that belong to a checkpoint; `append` then goes on behind them.

        Parameters
        ----------
        recorded : object
            What `append` has returned.
        cure : str
            For messages: what to do about a file that is damaged.

        Raises
        ------
        ValueError
            `append` cannot have returned that.
        InputError
            The file is missing, too short, or not as it was written.
        """
        with well_formed():
            count, size = whole(recorded["count"], 0), whole(recorded["size"], 0)
            digest = recorded["checksum"]
        if not self.path.exists():
            raise InputError(
                "is missing, and has the names of the checkpoint beside it; put it back, or "
                f"{cure}",
                path=self.path,
            )
        check_plain(self.path)
        with reading(self.path):
            there = self.path.stat().st_size
            text = np.fromfile(self.path, np.uint8, min(size, there))
        if text.size < size:
            raise InputError(
                f"is damaged: it has {there:,} bytes, and {size:,} belong to the checkpoint beside "
                f"it; {cure}",
                path=self.path,
            )
        checksum = xxhash.xxh3_128(text.data)
        if checksum.hexdigest() != digest:
            raise InputError(f"is damaged; {cure}", path=self.path)
        features = _names(text)
        if len(features) != count:
            raise ValueError(DAMAGED)
        self._names, self._size, self._checksum = count, size, checksum
        return features

    @contextmanager
    def _behind(self) -> Iterator[IO[bytes]]:
        """Yield the file, where what belongs to the run ends; the rest is replaced."""
        with open(open_own(self.path, os.O_RDWR), "r+b") as file:
            file.seek(self._size)
            try:
                yield file
                file.truncate()
                os.fsync(file.fileno())
            except OSError:
                # Where there is no room, what is of no use gives back its own.
                with suppress(OSError):
                    os.truncate(self.path, self._size)
                raise


def _ended(letters: UInt8, begin: Int64) -> UInt8:
    """Return names, each with `_END` behind it.

    Parameters
    ----------
    letters : uint8 array
    begin : int64 [names + 1]
        Of each name, and where the last one ends.
    """
    first = int(begin[0])
    ends = begin[1:] - first + np.arange(begin.size - 1)
    text: UInt8 = np.empty(int(begin[-1]) - first + ends.size, np.uint8)
    is_letter = np.ones(text.size, np.bool_)
    is_letter[ends] = False
    text[is_letter] = letters[first : begin[-1]]
    text[ends] = _END
    return text


def _names(text: UInt8) -> Vocabulary:
    """Return the names in what `_ended` gave; raise ValueError if it cannot have."""
    if text.size and text[-1] != _END:
        raise ValueError(DAMAGED)
    is_end = text == _END
    ends = np.flatnonzero(is_end)
    begin = offsets(np.diff(ends, prepend=-1) - 1)
    return Vocabulary.from_arrays({"letters": text[~is_end], "begin": begin})

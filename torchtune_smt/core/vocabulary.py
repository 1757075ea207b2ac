"""Strings and their dense integer ids: words and feature names alike."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchtune_smt.core.arrays import Int32, Int64, UInt8
from torchtune_smt.core.offsets import are_offsets, offsets
from torchtune_smt.core.sequences import SequenceTable


class Vocabulary(SequenceTable[np.uint8]):
    """A growing set of strings, each with an id: 0, 1, 2, ... in the order of first sight.

    Parameters
    ----------
    names : iterable of str
        Interned at once, in this order.
    """

    def __init__(self, names: Iterable[str] = ()) -> None:
        super().__init__(np.uint8)
        self.intern(list(names))

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and bool(self.lookup([name])[0] >= 0)

    def __getitem__(self, id: int) -> str:
        if not 0 <= id < self._count:
            raise IndexError(f"id {id} is not in 0..{self._count - 1}")
        return self._symbols[self._begin[id] : self._begin[id + 1]].tobytes().decode("utf-8")

    def names(self, ids: Iterable[int]) -> list[str]:
        """Return the strings of some ids."""
        return [self[int(id)] for id in ids]

    def named(self, ids: Iterable[int], values: NDArray[Any]) -> dict[str, Any]:
        """Return the values of some ids by their names."""
        return dict(zip(self.names(ids), values.tolist(), strict=True))

    def id(self, name: str) -> int:
        """Return the id of a string.

        Raises
        ------
        KeyError
            The string is unknown.
        """
        id = int(self.lookup([name])[0])
        if id < 0:
            raise KeyError(name)
        return id

    def intern(self, names: Sequence[str]) -> Int32:
        """Return the ids (int32, one a string), adding the strings that are new."""
        return self.intern_spans(*_pack(names))

    def lookup(self, names: Sequence[str]) -> Int32:
        """Return the ids (int32, one a string), -1 where a string is unknown."""
        return self.lookup_spans(*_pack(names))

    def spans(self, ids: Int64) -> tuple[UInt8, Int64, Int64]:
        """Return where some names stand: a buffer that is shared, their begins and ends."""
        return self._symbols, self._begin[ids], self._begin[ids + 1]

    def copy(self) -> Vocabulary:
        """Return a vocabulary with the same names and ids, which grows on its own."""
        result = Vocabulary()
        result.intern_spans(*self.spans(np.arange(self._count)))
        return result

    def to_arrays(self, prefix: str = "") -> dict[str, NDArray[Any]]:
        """Return the names as arrays: ``letters`` (uint8) and ``begin`` (int64, one longer).

        They share memory, and stay as they are when names are added. Nobody may change them.
        """
        return {f"{prefix}letters": self.symbols, f"{prefix}begin": self.begin}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]], prefix: str = "") -> Vocabulary:
        """Return the vocabulary that `to_arrays` took apart.

        Raises
        ------
        ValueError, KeyError
            The arrays, which may come from a file, are no vocabulary.
        """
        letters, begin = arrays[f"{prefix}letters"], arrays[f"{prefix}begin"]
        if not _are_names(letters, begin):
            raise ValueError("the stored vocabulary has names that are none")
        vocabulary = cls()
        vocabulary.intern_spans(letters, begin[:-1], begin[1:])
        if len(vocabulary) != begin.size - 1:
            raise ValueError("the stored vocabulary holds a name twice")
        return vocabulary

    def since(self, first: int) -> dict[str, NDArray[Any]]:
        """Return the names from an id on as arrays: ``letters`` (uint8) and ``length`` (int32)."""
        begin = self._begin[first : self._count + 1]
        length = np.diff(begin).astype(np.int32)
        return {"letters": self._symbols[begin[0] : begin[-1]], "length": length}

    @classmethod
    def of_parts(cls, parts: Sequence[Mapping[str, NDArray[Any]]]) -> Vocabulary:
        """Return the vocabulary of what `since` gave, one part behind the other.

        Raises
        ------
        ValueError, KeyError, TypeError
            The arrays, which may come from a file, are no vocabulary.
        """
        letters = np.concatenate([np.empty(0, np.uint8), *(part["letters"] for part in parts)])
        length = np.concatenate([np.empty(0, np.int32), *(part["length"] for part in parts)])
        if length.dtype != np.int32:
            raise ValueError("the stored vocabulary has names of no length")
        return cls.from_arrays({"letters": letters, "begin": offsets(length)})


def _are_names(letters: NDArray[Any], begin: NDArray[Any]) -> bool:
    """Return whether arrays are strings of UTF-8, one behind the other."""
    if letters.dtype != np.uint8 or letters.ndim != 1 or not are_offsets(begin, letters.size):
        return False
    try:
        str(letters.data, "utf-8")
    except UnicodeDecodeError:
        return False
    # No name begins with a byte that goes on with a letter.
    return bool((letters[begin[begin < letters.size]] & 0xC0 != 0x80).all())


def _pack(names: Sequence[str]) -> tuple[UInt8, Int64, Int64]:
    """Return strings as one UTF-8 buffer with the spans' begins and ends."""
    encoded = [name.encode("utf-8") for name in names]
    bounds = offsets([len(text) for text in encoded])
    # A bytearray, since numba compiles anew for arrays that are read-only.
    buffer = np.frombuffer(bytearray().join(encoded), np.uint8)
    return buffer, bounds[:-1], bounds[1:]

"""The steps since a checkpoint, a file each: what a killed run need not compute again."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any, Final, NamedTuple

from torchtune_smt.core.checks import DAMAGED, well_formed
from torchtune_smt.core.container import read_container, write_parts
from torchtune_smt.core.errors import InputError
from torchtune_smt.core.leftovers import remove
from torchtune_smt.core.state import packed, unpacked
from torchtune_smt.core.textio import writing
from torchtune_smt.core.vocabulary import Vocabulary

_VERSION: Final = 1
_KIND: Final = "step of a run"
_CURE: Final = "remove it, and the run takes this step and those behind it again"


class Step(NamedTuple):
    """What was done by a step.

    Attributes
    ----------
    path : Path
        Of its file.
    names : Vocabulary
        Of features that are new since the step before.
    change : object
        What was given.
    """

    path: Path
    names: Vocabulary
    change: Any

    @contextmanager
    def checked(self) -> Iterator[None]:
        """Turn ValueError, as what is in the file cannot have been given, into InputError."""
        try:
            yield
        except ValueError:
            raise InputError(f"{DAMAGED}; {_CURE}", path=self.path) from None


class StepFiles:
    """The files of the steps since a checkpoint.

    A checkpoint has all weights, which may be millions; a step has those of its mini-batch. Those
    of an earlier checkpoint, which a process left that died before it could remove them, say so,
    and nobody reads them.

    Parameters
    ----------
    folder : path
        Nothing is read or written before `begin`, `append` or `read`.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        # Of the checkpoint; without one no step can be kept.
        self._checkpoint: str | None = None
        self._names = 0
        self._count = 0

    @classmethod
    def of(cls, checkpoint: str | os.PathLike[str]) -> StepFiles:
        """Return the files that lie beside a checkpoint."""
        return cls(Path(checkpoint).with_suffix(".steps"))

    def begin(self, checkpoint: str, names: int) -> None:
        """Forget the steps before a checkpoint.

        Parameters
        ----------
        checkpoint : str
            Its checksum.
        names : int
            How many features have a name in it.
        """
        self._checkpoint, self._names, self._count = checkpoint, names, 0
        self.remove()

    def append(self, features: Vocabulary, change: Any) -> bool:
        """Keep a step; returns False where there is no checkpoint that it could follow.

        Raises
        ------
        InputError
            The file cannot be written, as on a full disk; the earlier ones are still there.
        """
        if self._checkpoint is None:
            return False
        with writing(self.folder):
            self.folder.mkdir(exist_ok=True)
        tree, arrays = packed(change)
        found = features.to_arrays()
        begin = found["begin"][self._names :]
        arrays["letters"] = found["letters"][begin[0] : begin[-1]]
        arrays["begin"] = begin - begin[0]
        content = {"checkpoint": self._checkpoint, "change": tree}
        path = self.folder / str(self._count + 1)
        # Whole or not at all where the process is killed. A power cut may leave a damaged one: to
        # wait for the disk at each step would cost more than to take that one again.
        part = path.with_suffix(".part")
        with writing(path):
            try:
                part.unlink(missing_ok=True)
                with part.open("xb") as file:
                    write_parts(file, _KIND, _VERSION, content, arrays)
                part.replace(path)
            finally:
                part.unlink(missing_ok=True)
        self._names = len(features)
        self._count += 1
        return True

    def read(self, checkpoint: str) -> Iterator[Step]:
        """Yield the steps since a checkpoint, by its checksum.

        Raises
        ------
        InputError
            A file is damaged.
        """
        for number in count(1):
            path = self.folder / str(number)
            if not path.exists():
                return
            stored = read_container(path, _KIND, _VERSION, cure=_CURE)
            try:
                with well_formed():
                    if stored.content["checkpoint"] != checkpoint:
                        return
                    names = Vocabulary.from_arrays(stored.arrays)
                    change = unpacked(stored.content["change"], stored.arrays)
            except ValueError:
                raise InputError(f"{DAMAGED}; {_CURE}", path=path) from None
            yield Step(path, names, change)

    def remove(self) -> None:
        """Remove the files."""
        if self.folder.is_dir():
            remove(self.folder)

"""Files that a command would write over what it reads, or over another one that it writes."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from torchtune_smt.core.errors import InputError


def check_written(
    written: Mapping[str, str | None], read: Iterable[str | os.PathLike[str]] = ()
) -> None:
    """Raise InputError where a file that is to be written is read, or is to be written twice.

    Parameters
    ----------
    written : mapping of str to str, or None
        The value of each option that names a file to write.
    read : iterable of paths
        Files that the command reads; ``-`` is none.
    """
    taken = {os.path.realpath(path): "a file that is read" for path in read if str(path) != "-"}
    for option, path in written.items():
        # A pipe or a device may be written to as often as one likes.
        if path is None or (os.path.exists(path) and not Path(path).is_file()):
            continue
        place = os.path.realpath(path)
        if place in taken:
            raise InputError(f"{option} is {taken[place]}: choose another name for it", path=path)
        taken[place] = f"what {option} names, too"

"""The user's folder of caches, where what takes long is kept from one command to the next."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder(kind: str) -> Path | None:
    """Return the folder for one kind of things, which need not be there; None if there is no place.

    It is below ``XDG_CACHE_HOME``, by default ``~/.cache``.
    """
    caches = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(caches) / "torchtune_smt" / kind if os.path.isabs(caches) else None


def make_cache_folder(folder: Path) -> None:
    """Make such a folder, for the user alone.

    Raises OSError: it cannot be made.
    """
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

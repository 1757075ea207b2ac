"""Parts that another model has already: shared with it, instead of made once more.

A part depends on the text and on some of the settings alone (`folder.part_digests`), so models of
one bitext often have some in common. They share files by hard links: none is ever changed in its
place, and one that is removed or replaced in one folder stays as it is in the others.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from torchtune_smt.core.container import file_checksum
from torchtune_smt.core.errors import InputError
from torchtune_smt.core.leftovers import remove
from torchtune_smt.core.manifest import read_manifest
from torchtune_smt.core.textio import check_plain
from torchtune_smt.lm.cache import cache_path
from torchtune_smt.models.folder import MANIFEST, VERSION, part_digests


def file_checksums(folder: Path, parts: Iterable[str]) -> dict[str, str]:
    """Return the checksums of the files of some parts, by their names in the folder."""
    return {
        str(file.relative_to(folder)): file_checksum(file)
        for part in parts
        for file in _files(folder / part)
    }


class Taken(NamedTuple):
    """The model that has a part, and the checksum of the part in its manifest."""

    folder: Path
    checksum: str


def take_over(part: str, digest: str, folder: Path, new: Path) -> Taken | None:
    """Share a part with a model that has it; return None if there is none.

    Parameters
    ----------
    part : str
        Its name in a model folder.
    digest : str
        Of what it is made from; see `part_digests`.
    folder : path
        Where the model is going to be. Those beside it are looked at, and the one that is there.
    new : path
        Where it is written meanwhile.
    """
    for path in sorted(folder.parent.glob(f"*/{MANIFEST}")):
        # One that is damaged, or replaced just now, has nothing to share.
        with suppress(InputError, OSError, ValueError, KeyError, TypeError):
            manifest = read_manifest(path, VERSION)
            if part_digests(manifest)[part] != digest:
                continue
            for file in _files(path.parent / part):
                _link(file, new / file.relative_to(path.parent))
                with suppress(OSError, InputError):
                    _link(cache_path(file), new / cache_path(file).relative_to(path.parent))
            found = file_checksums(new, [part])
            named = dict(manifest["files"])
            if found == {n: named[n] for n in named if n.partition("/")[0] == part}:
                return Taken(path.parent, str(manifest["parts"][part]))
        remove(new / part)
        remove(cache_path(new / part))
    return None


def _files(part: Path) -> list[Path]:
    """Return the files of a part, without binary copies and what is being written."""
    files = sorted(part.iterdir()) if part.is_dir() else [part]
    return [file for file in files if file.suffix not in (".cache", ".part")]


def _link(file: Path, other: Path) -> None:
    """Make a file another name of one that is there; a copy, where that cannot be."""
    # `Path.resolve` raises RuntimeError for a link to itself.
    file = Path(os.path.realpath(file, strict=True))
    check_plain(file)
    other.parent.mkdir(exist_ok=True)
    try:
        os.link(file, other)
    except OSError:
        shutil.copyfile(file, other)

"""JSON files that say what a folder holds, with a checksum of what they say."""

from __future__ import annotations

import json
from os import PathLike
from typing import Any

from torchtune_smt.core.container import checksum
from torchtune_smt.core.textio import atomic_writer, check_plain, read_bytes


class OtherVersionError(ValueError):
    """A manifest is of another version of the package."""


def write_manifest(path: str | PathLike[str], version: int, content: dict[str, Any]) -> str:
    """Write a manifest, whole or not at all; return its checksum.

    Raises
    ------
    InputError
        The file cannot be written.
    """
    content = {"version": version, **content}
    digest = _checksum(content)
    with atomic_writer(path, own=True) as file:
        json.dump({**content, "checksum": digest}, file, indent=1)
        file.write("\n")
    return digest


def read_manifest(path: str | PathLike[str], version: int) -> dict[str, Any]:
    """Return what `write_manifest` wrote, and the checksum under ``checksum``.

    Raises
    ------
    InputError
        The file is missing or unreadable, or no plain file.
    OtherVersionError
        It is of another version.
    ValueError
        It is damaged.
    """
    check_plain(path)
    try:
        content = json.loads(read_bytes(path))
        found = content["version"]
        digest = content.pop("checksum", None)
    except (KeyError, TypeError, AttributeError, RecursionError):
        raise ValueError("no manifest") from None
    if type(found) is int and found != version:
        raise OtherVersionError(f"version {found}")
    if digest != _checksum(content):
        raise ValueError("its checksum does not hold")
    return {**content, "checksum": digest}


def _checksum(content: dict[str, Any]) -> str:
    return checksum(json.dumps(content, sort_keys=True).encode())

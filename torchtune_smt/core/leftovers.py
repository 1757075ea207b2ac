"""What is being written beside its place, and what kills have left of it.

A file or folder that becomes ``NAME`` is written as ``.NAME.********.part``, and its process holds
a lock on it. Locks end with their process, however it ends: what nobody holds is nobody's, and the
next that writes ``NAME`` removes it. A folder that has made room for a new one is called
``.NAME.********.old`` for a moment; if the process dies in that moment, it gets its place back.

What has such a name and is a link, a pipe, a device, or somebody else's, was not made here: it is
left alone, and nobody waits for it.
"""

from __future__ import annotations

import fcntl
import os
import re
import secrets
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

# Who opens a pipe to read from it waits for whoever writes to it.
_TO_HOLD: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


@contextmanager
def part_of(path: Path, *, folder: bool) -> Iterator[Path]:
    """Yield a new file or folder beside `path`, held by this process; removed if it is left."""
    path.parent.mkdir(parents=True, exist_ok=True)
    clear(path)
    part = _beside(path, "part")
    handle = None
    try:
        while handle is None:
            handle = _make_and_hold(part, folder)
        yield part
    finally:
        remove(part)
        if handle is not None:
            os.close(handle)


def replace_folder(path: Path, new: Path, check: Callable[[], None] = lambda: None) -> None:
    """Give a folder the place of another one, unless `check` raises, or of none."""
    if not path.exists():
        new.rename(path)
        return
    handle = os.open(path, _TO_HOLD)
    try:
        with suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX)
        check()
        old, rest = _beside(path, "old"), _beside(path, "part")
        # A folder cannot be replaced in one step: the old one makes room first.
        path.rename(old)
        new.rename(path)
        # From here on it is no longer whole, and must not come back.
        old.rename(rest)
        # Whoever works with it may write a file there just now.
        shutil.rmtree(rest, ignore_errors=True)
    finally:
        os.close(handle)


def restored(path: Path, last: str = "") -> Path:
    """Return the path of a folder, put back if a process died while it was being replaced.

    last: the file that such folders get last: what lacks it is not whole, and not put back.
    """
    place = Path(os.path.realpath(path))
    if not place.exists():
        for old in _matching(place, "old"):
            with _nobodys(old) as free, suppress(OSError):
                if free and old.is_dir() and (not last or (old / last).is_file()):
                    old.rename(place)
    return path


def clear(path: Path) -> None:
    """Remove what processes that are gone have left of `path`."""
    # One that has made room may be all that there is.
    for part in _matching(path, "part|old" if path.exists() else "part"):
        with _nobodys(part) as free:
            if free:
                remove(part)


def remove(path: Path) -> None:
    """Remove a file or a folder, as far as that can be done."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink()


def name_when_whole(name: str) -> str:
    """Return the name of a file or folder without what it has more while it is being written."""
    return re.sub(r"\.(.+)\.\w{8}\.(part|old)", r"\1", name)


def _beside(path: Path, suffix: str) -> Path:
    return path.with_name(f".{path.name}.{secrets.token_hex(4)}.{suffix}")


def _matching(path: Path, suffix: str) -> list[Path]:
    """Return what lies beside `path` with a name of `_beside`."""
    name = re.compile(rf"\.{re.escape(path.name)}\.\w{{8}}\.({suffix})")
    try:
        return [path.with_name(other) for other in os.listdir(path.parent) if name.fullmatch(other)]
    except OSError:
        return []


def _make_and_hold(part: Path, folder: bool) -> int | None:
    """Return a handle that holds the lock, or None if somebody has just removed the part."""
    with suppress(FileExistsError):
        if folder:
            part.mkdir(0o700)
        else:
            part.touch(0o600, exist_ok=False)
    try:
        handle = os.open(part, _TO_HOLD)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        return None
    except OSError:
        # There are no locks here, and so nobody removes anything.
        return handle
    if os.fstat(handle).st_nlink == 0:
        os.close(handle)
        return None
    return handle


@contextmanager
def _nobodys(path: Path) -> Iterator[bool]:
    """Yield whether a file or folder is ours and no process holds it, and hold it meanwhile."""
    try:
        handle = os.open(path, _TO_HOLD)
    except OSError:
        yield False
        return
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            status = os.fstat(handle)
            kept = stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)
            free = kept and status.st_uid == os.geteuid()
        except OSError:
            free = False
        yield free
    finally:
        os.close(handle)

"""What may lie where a file or a folder is expected: links, pipes, devices, and each other."""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path

from targets import Different

TEXT = "what the user has written\n"
KINDS = (
    *("thesis", "hard link", "elsewhere", "moved", "nowhere", "loop", "/dev/zero", "/dev/full"),
    *("pipe", "pipe behind a link", "socket", "folder", "file", "missing"),
)


class Surroundings:
    """A folder of the user's beside the one that is worked in; nothing may change there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._inside: dict[str, bytes] = {}

    def plant(self, path: Path, kind: str) -> None:
        """Put something of another kind in the place of what is at a path, if there is anything."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir()
        (self.folder / "thesis").write_text(TEXT)
        os.mkfifo(self.folder / "pipe")
        if path.exists():
            shutil.move(path, self.folder / "moved")
        else:
            (self.folder / "moved").write_text(TEXT)
        (self.folder / "elsewhere").mkdir()
        (self.folder / "elsewhere" / "1").write_text(TEXT)
        if kind == "hard link":
            path.hardlink_to(self.folder / "thesis")
        elif kind == "pipe":
            os.mkfifo(path)
        elif kind == "socket":
            os.mknod(path, stat.S_IFSOCK | 0o600)
        elif kind == "folder":
            path.mkdir()
        elif kind == "file":
            path.write_text("another\n")
        elif kind == "loop":
            path.symlink_to(path)
        elif kind != "missing":
            # A device; one of the folder's; or, to nowhere, none of them.
            path.symlink_to(self.folder / kind.removesuffix(" behind a link"))
        self._inside = self._content()

    def check(self) -> None:
        """Raise Different if something has changed."""
        if self._content() != self._inside:
            raise Different("something of the user's has changed")

    def _content(self) -> dict[str, bytes]:
        every = sorted(self.folder.rglob("*"))
        return {str(path): path.read_bytes() if path.is_file() else b"" for path in every}

"""Commands as somebody runs them in a terminal, of 80 columns and 24 rows."""

from __future__ import annotations

import errno
import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
from pathlib import Path

import short_example

COLUMNS = 80


def in_terminal(
    command: str, *arguments: str, folder: Path, keys: bytes = b"", stop_at: bytes = b""
) -> tuple[int, str]:
    """Run a command in a pseudo terminal; return its exit code, and all that has been written.

    That is as a person sees it at the end: what is written over is gone, and a line that is wider
    than the terminal is still one line.

    keys: what is typed while it runs.
    stop_at: Ctrl-C is typed when this has been written.
    """
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, COLUMNS, 0, 0))
    done = subprocess.Popen(
        [sys.executable, short_example.__file__, command, *arguments],
        cwd=folder,
        env=os.environ | {"TERM": "xterm", "COLUMNS": str(COLUMNS)},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        preexec_fn=_take_terminal,
    )
    os.close(theirs)
    if keys:
        os.write(ours, keys)
    written = bytearray()
    while True:
        try:
            some = os.read(ours, 65536)
        except OSError as error:
            # The other end is closed.
            assert error.errno == errno.EIO
            break
        if not some:
            break
        written += some
        if stop_at and stop_at in written:
            os.write(ours, b"\x03")
            stop_at = b""
    os.close(ours)
    return done.wait(60), screen(written.decode())


def _take_terminal() -> None:
    """Let Ctrl-C in the terminal be a signal, which a shell's jobs in the background ignore."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def screen(written: str) -> str:
    """Return what lines show after carriage returns, cursor movements and erasures."""
    lines: list[list[str]] = [[]]
    row = column = 0
    for part in re.findall(r"\x1b\[[0-9;?]*[A-Za-z]|.|\n", written, re.DOTALL):
        if part == "\n":
            row, column = row + 1, 0
            if row == len(lines):
                lines.append([])
        elif part == "\r":
            column = 0
        elif part.endswith("A") and len(part) > 1:
            row = max(0, row - int(part[2:-1] or 1))
        elif part.endswith("K") and len(part) > 1:
            del lines[row][column:]
        elif len(part) > 1:
            assert part.endswith("m"), f"{part!r} changes the terminal"
        else:
            line = lines[row]
            line += [" "] * (column - len(line))
            line[column : column + 1] = [part]
            column += 1
    return "\n".join("".join(line).rstrip() for line in lines)

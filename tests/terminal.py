"""Commands as somebody runs them in a terminal, of 80 columns and 24 rows."""

import contextlib
import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import threading
from functools import cache

import short_example  # noqa: F401
from tqdm import tqdm

from torchtune_smt import cli

COLUMNS = 80


def in_terminal(command, *arguments, folder, keys=b"", stop_at=b""):
    """Run a command in a pseudo terminal; return its exit code, and all that has been written.

    That is as a person sees it at the end: what is written over is gone, and a line that is wider
    than the terminal is still one line.

    keys: what is typed while it runs.
    stop_at: Ctrl-C is typed when this has been written.
    """
    server = _server(folder)
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, COLUMNS, 0, 0))
    job = [command, *arguments], str(folder), os.ttyname(theirs)
    print(json.dumps(job), file=server.stdin, flush=True)
    if keys:
        os.write(ours, keys)
    written, code = bytearray(), None
    while ready := select.select([ours, server.stdout], [], [], None if code is None else 0.1)[0]:
        if ours in ready:
            written += os.read(ours, 65536)
        else:
            code = int(server.stdout.readline())
        if stop_at and stop_at in written:
            os.write(ours, b"\x03")
            stop_at = b""
    os.close(ours)
    os.close(theirs)
    return code, screen(written.decode())


@cache
def _server(folder):
    """Start a process that loads everything once, by a first command, and is forked for others."""
    from commands import MODEL, SMALL

    # A process with threads cannot be forked.
    alone = {f"{name}_NUM_THREADS": "1" for name in ("OMP", "OPENBLAS", "MKL", "NUMBA")}
    environment = os.environ | alone | {"TERM": "xterm", "COLUMNS": str(COLUMNS)}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    first = ["train", *MODEL, *SMALL, "tuner.epochs=1", "threads=1", "hydra.run.dir=loading"]
    return subprocess.Popen(
        [sys.executable, __file__, *first], env=environment, cwd=folder, **pipes
    )


def _serve():
    # Its own lock is shared by all forks, and one that is stopped may keep it; the thread that
    # watches over bars may hold any while a fork is made.
    tqdm.set_lock(threading.RLock())
    tqdm.monitor_interval = 0
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
        cli.main(sys.argv[1:])
    for line in sys.stdin:
        arguments, folder, terminal = json.loads(line)
        pid = os.fork()
        if pid == 0:
            code = 99
            try:
                # The first terminal that a session opens is its own.
                os.setsid()
                handle = os.open(terminal, os.O_RDWR)
                for number in range(3):
                    os.dup2(handle, number)
                sys.stdin, sys.stdout = open(0), open(1, "w", buffering=1)  # noqa: SIM115
                sys.stderr = open(2, "w", buffering=1)  # noqa: SIM115
                os.chdir(folder)
                # Which a shell's jobs in the background ignore.
                signal.signal(signal.SIGINT, signal.default_int_handler)
                sys.argv = ["torchtune-smt", *arguments]
                code = cli.main(arguments)
            except SystemExit as error:
                # As the interpreter does.
                code = error.code if isinstance(error.code, int) else int(error.code is not None)
                if isinstance(error.code, str):
                    print(error.code, file=sys.stderr)
            finally:
                sys.stdout.flush()
                os._exit(code)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)


def screen(written):
    """Return what lines show after carriage returns, cursor movements and erasures."""
    lines = [[]]
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


if __name__ == "__main__":
    _serve()

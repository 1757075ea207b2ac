"""Commands in forks of this process, which are killed or stopped, or lose a worker."""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from torchtune_smt.cli import main as command

# Seconds in which all processes of a command that has ended are to have ended, too.
_TO_END: Final = 30.0


@dataclass(frozen=True)
class Blow:
    """What happens to a command: it is killed, or `stop` is sent, or a worker is killed.

    moment: when, in seconds of its CPU time, which does not depend on what else runs.
    stop: Ctrl-C goes to its workers, too, as in a terminal.
    lines: the moment is one of the wall clock instead, counted from when `log` has so many lines: a
        command whose workers compute takes little time itself.
    worker: draws a worker, which is killed as soon as there is one. Needs `lines`.
    """

    moment: float
    stop: signal.Signals | None = None
    lines: int | None = None
    log: Path | None = None
    worker: random.Random | None = None

    def __str__(self) -> str:
        what = "a worker killed" if self.worker else self.stop.name if self.stop else "killed"
        where = "" if self.lines is None else f" after line {self.lines}"
        return f"{what} {self.moment:.3f} s{where}"


class End(NamedTuple):
    """How a command ended.

    code: its exit code, or the negative number of the signal that killed it.
    killed: whether its blow killed it.
    lost: how many of its workers were killed.
    left: the commands of its processes that live on.
    cpu, wall: what it took, in seconds of CPU time and by the wall clock.
    """

    code: int
    killed: bool
    lost: int
    left: list[str]
    cpu: float
    wall: float


def call(arguments: Sequence[str]) -> int:
    """Run a command in this process; return its exit code."""
    try:
        return command(arguments)
    except SystemExit as error:
        if isinstance(error.code, str):
            print(error.code, file=sys.stderr)
            return 1
        return error.code or 0


def fork(arguments: Sequence[str], log: Path, blow: Blow | None = None) -> End:
    """Run a command in a fork, with a session of its own, and wait until it has ended."""
    sys.stdout.flush()
    sys.stderr.flush()
    begin = time.monotonic()
    pid = os.fork()
    if pid == 0:
        code = 99
        try:
            os.setsid()
            handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.dup2(handle, 1)
            os.dup2(handle, 2)
            if blow is not None and blow.lines is None:
                _wind(blow)
            code = call(arguments)
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(code)
    lost = 0
    try:
        if blow is not None and blow.lines is not None:
            lost = _strike(pid, blow)
        _, status, used = os.wait4(pid, 0)
    except BaseException:
        # Ctrl-C does not reach another session.
        os.kill(pid, signal.SIGKILL)
        raise
    code = os.waitstatus_to_exitcode(status)
    killed = blow is not None and code in (-signal.SIGPROF, -signal.SIGKILL)
    cpu, wall = used.ru_utime + used.ru_stime, time.monotonic() - begin
    return End(code, killed, lost, _left(pid), cpu, wall)


def _wind(blow: Blow) -> None:
    """Have a blow befall this process."""
    stop = blow.stop
    if stop is None:
        # As SIGKILL: nothing in the process learns of it.
        signal.signal(signal.SIGPROF, signal.SIG_DFL)
    else:
        signal.signal(signal.SIGPROF, lambda *_: os.kill(os.getpid(), stop))
    signal.setitimer(signal.ITIMER_PROF, blow.moment)


def _strike(pid: int, blow: Blow) -> int:
    """Have a blow befall a process, if it has not ended; return how many workers were killed."""
    moment = None
    while os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        now = time.monotonic()
        if (
            moment is None
            and blow.log.exists()
            and blow.log.read_bytes().count(b"\n") >= blow.lines
        ):
            moment = now + blow.moment
        if moment is not None and now >= moment:
            if blow.worker is None:
                send = os.killpg if blow.stop == signal.SIGINT else os.kill
                send(pid, blow.stop or signal.SIGKILL)
                return 0
            if workers := [p for p, text in _session(pid).items() if "spawn_main" in text]:
                os.kill(blow.worker.choice(workers), signal.SIGKILL)
                return 1
        time.sleep(0.002)
    return 0


def _left(pid: int) -> list[str]:
    """Return the processes of a session whose first one has ended, and kill them, too."""
    end = time.monotonic() + _TO_END
    while (left := _session(pid)) and time.monotonic() < end:
        time.sleep(0.02)
    for other in left:
        os.kill(other, signal.SIGKILL)
    return list(left.values())


def _session(pid: int) -> dict[int, str]:
    """Return the living processes of a session, with their commands."""
    found = {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            state, _, _, session = (path / "stat").read_text().rpartition(")")[2].split()[:4]
            if int(session) == pid and state != "Z":
                found[int(path.name)] = (path / "cmdline").read_text().replace("\0", " ")
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found

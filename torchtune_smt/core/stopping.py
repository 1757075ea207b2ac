"""Ctrl-C and SIGTERM: a command cleans up, says in one line how to go on, and ends.

An interrupt may arrive anywhere, in the middle of an import or of numba's loading of a kernel, and
what comes out then is not always what went in: C code answers with SystemError, a finaliser drops
it. So it counts that a signal came, not which exception arrives.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, Final

# Seconds until an interrupt that a finaliser has dropped comes again.
_AGAIN: Final = 0.05
# Files of functions that numba calls to make Python objects of what a kernel returns, among them
# the code of named tuples. It crashes where one of them fails.
_FRAGILE: Final = (str(Path("numba", "core", "serialize.py")), "<string>")
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)

# What is said when whoever read the output has closed it, as `head` does.
CLOSED: Final = "nobody reads the output any more (broken pipe)"

_received: signal.Signals | None = None


class Stopped(KeyboardInterrupt):
    """A signal asked the command to stop; the text says how to go on."""


@contextmanager
def advice_when_stopped(advice: Callable[[], str]) -> Iterator[None]:
    """Let `advice` say how to go on if a signal ends the block, and nothing in it has said so."""
    try:
        yield
    except BaseException as error:
        if _received is None or (isinstance(error, Stopped) and str(error)):
            raise
        raise Stopped(advice()) from None


def run_stoppable(name: str, command: Callable[[], int]) -> int:
    """Run a command and return its exit code: 128 and the signal's number if one stopped it.

    name: what the line that says so begins with.
    """
    global _received
    if threading.current_thread() is not threading.main_thread():
        return command()
    _received = None
    # What the parent ignores, as `nohup` does, stays ignored.
    before = {s: h for s in _SIGNALS if (h := signal.getsignal(s)) is not signal.SIG_IGN}
    hook = sys.unraisablehook
    try:
        for number in before:
            signal.signal(number, _stop)
        sys.unraisablehook = _stop_again
        return command()
    except BaseException as error:
        if _received is None:
            raise
        # From here on all is over: another Ctrl-C would only show where.
        for number in before:
            signal.signal(number, signal.SIG_IGN)
        before.clear()
        text = str(error) if isinstance(error, Stopped) else ""
        # A terminal has shown ^C, perhaps behind a line that was not at its end.
        begin = "\n" if _received == signal.SIGINT and sys.stderr.isatty() else ""
        print(f"{begin}{name}: stopped{text and '; '}{text}", file=sys.stderr)
        return 128 + _received
    finally:
        # The next command in this process has not been stopped.
        _received = None
        sys.unraisablehook = hook
        for number, handler in before.items():
            signal.signal(number, handler)


def raise_if_stopped() -> None:
    """Raise Stopped if a signal came, and an exception that it became is about to be reported."""
    if _received is not None:
        raise Stopped


def discard_output() -> None:
    """Let what is still to be written to a closed pipe go nowhere: it would fail again at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _stop(number: int, frame: FrameType | None) -> None:
    global _received
    _received = signal.Signals(number)
    caller = None
    while frame is not None:
        if frame.f_code.co_filename.endswith(_FRAGILE):
            caller = frame.f_back
        elif caller is not None:
            break
        frame = frame.f_back
    if caller is None:
        raise Stopped
    # What is sent while a kernel runs arrives there: the caller gets it at its next line.
    sys.settrace(lambda *_: None)
    caller.f_trace = _stop_caller


def _stop_caller(*_: Any) -> None:
    sys.settrace(None)
    raise Stopped


def _stop_again(dropped: Any) -> None:
    """Interrupt again after an interrupt that Python could not raise."""
    if _received is None:
        sys.__unraisablehook__(dropped)
    else:
        threading.Timer(_AGAIN, signal.raise_signal, [_received]).start()

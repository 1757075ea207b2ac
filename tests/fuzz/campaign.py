"""Runs cases in a process of its own, which may crash, and tells apart what became of them."""

from __future__ import annotations

import faulthandler
import os
import resource
import signal
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from targets import Check, Different, load_targets

from torchtune_smt.core.errors import InputError

# Seconds of wall-clock time; opening a target may compile kernels.
_TO_OPEN = 900.0
_FOR_A_CASE = 60.0
# Bytes of address space: a damaged size must not take the machine's memory.
_MEMORY = 16 << 30

GOOD = ("refused", "same", "taken")
BAD = ("different", "crash", "hang", "traceback")


@dataclass
class Findings:
    """What became of the cases of one target.

    counts: numbers of cases by what became of them: `GOOD` and `BAD`.
    bad: case, what, and detail of each that is bad.
    seconds: CPU time of the cases.
    """

    counts: Counter[str] = field(default_factory=Counter)
    bad: list[tuple[int, str, str]] = field(default_factory=list)
    seconds: float = 0.0

    def __iadd__(self, other: Findings) -> Findings:
        self.counts += other.counts
        self.bad += other.bad
        self.seconds += other.seconds
        return self

    def report(self, target: str) -> str:
        """Return the bad cases, and how to run one again."""
        lines = [
            f"{target} {case}: {what}\n{detail}".rstrip() for case, what, detail in self.bad[:10]
        ]
        more = len(self.bad) - len(lines)
        lines += [f"... and {more} more"] * (more > 0)
        return "\n".join([*lines, f"again: python tests/fuzz/run.py {target} --case NUMBER"])


class Campaign:
    """A process that runs cases, started anew after each crash and hang.

    modules: those that have the targets.
    for_a_case: seconds after which a case hangs.
    """

    def __init__(self, modules: list[str], *, for_a_case: float = _FOR_A_CASE) -> None:
        self._modules, self._for_a_case = modules, for_a_case
        self._process: Any = None
        self._opened: set[str] = set()
        # What a process that is killed leaves behind lies where it is cleared.
        self._folder = tempfile.TemporaryDirectory(prefix="fuzz-", ignore_cleanup_errors=True)

    def __enter__(self) -> Campaign:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()
        self._folder.cleanup()

    def run(self, target: str, cases: Iterable[int], *, seconds: float = float("inf")) -> Findings:
        """Run cases of a target, until they have taken so much CPU time."""
        findings = Findings()
        for case in cases:
            what, detail, used = self.run_case(target, case)
            findings.counts[what] += 1
            findings.seconds += used
            if what in BAD:
                findings.bad.append((case, what, detail))
            if findings.seconds > seconds:
                break
        return findings

    def run_case(self, target: str, case: int) -> tuple[str, str, float]:
        """Run one case; return what became of it, what there is to say, and its CPU time."""
        if target not in self._opened:
            what, detail, _ = self._ask(target, None, _TO_OPEN)
            if what != "opened":
                raise RuntimeError(f"{target} cannot be opened: {what}\n{detail}")
            self._opened.add(target)
        return self._ask(target, case, self._for_a_case)

    def _ask(self, target: str, case: int | None, limit: float) -> tuple[str, str, float]:
        if self._process is None:
            # No fork: this process has threads.
            context = get_context("spawn")
            self._asked, theirs = context.Pipe()
            arguments = theirs, self._modules, self._folder.name
            self._process = context.Process(target=_answer, args=arguments, daemon=True)
            self._process.start()
            theirs.close()
        self._asked.send((target, case))
        if not self._asked.poll(limit):
            self._stop()
            return "hang", f"no answer within {limit:.0f} seconds", limit
        try:
            found: tuple[str, str, float] = self._asked.recv()
            return found
        except EOFError:
            self._process.join()
            code = self._process.exitcode
            self._stop()
            return "crash", signal.Signals(-code).name if code < 0 else f"exit code {code}", 0.0

    def _stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._asked.close()
        self._process = None
        self._opened.clear()


def _answer(questions: Connection, modules: list[str], folder: str) -> None:
    """Answer until nobody asks any more: each question is a target and a case, or None to open."""
    faulthandler.enable()
    # Whatever is printed is none of a test's output.
    os.dup2(2, 1)
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    tempfile.tempdir = os.environ["TMPDIR"] = folder
    targets = load_targets(modules)
    checks: dict[str, Check] = {}
    while True:
        try:
            name, case = questions.recv()
        except EOFError:
            return
        begin = time.process_time()
        if case is None:
            checks[name] = targets[name].open(Path(tempfile.mkdtemp(prefix=name)))
            what, detail = "opened", ""
        else:
            what, detail = _outcome(checks[name], case)
        questions.send((what, detail, time.process_time() - begin))


def _outcome(check: Check, case: int) -> tuple[str, str]:
    """Return what became of a case, and what there is to say about it."""
    try:
        return check(case), ""
    except InputError as error:
        return "refused", str(error)
    except Different as error:
        return "different", str(error)
    except BaseException:
        return "traceback", traceback.format_exc()

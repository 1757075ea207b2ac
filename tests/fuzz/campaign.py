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

from targets import Check, Different, all_modules, load_targets

from torchtune_smt.core.errors import InputError

# Seconds of wall-clock time; opening a target may compile kernels.
_TO_OPEN, _FOR_A_CASE = 900.0, 60.0
# Bytes of address space: a damaged size must not take the machine's memory.
_MEMORY = 16 << 30

GOOD = ("refused", "same", "taken")
BAD = ("different", "crash", "hang", "traceback")


@dataclass
class Findings:
    """What became of the cases of one target: how many ended how, the bad ones, and CPU time."""

    counts: Counter[str] = field(default_factory=Counter)
    bad: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def __iadd__(self, other: Findings) -> Findings:
        self.counts += other.counts
        self.bad += other.bad
        self.seconds += other.seconds
        return self

    def __str__(self) -> str:
        kinds = ", ".join(f"{self.counts[what]:,} {what}" for what in (*GOOD, *BAD))
        return f"{self.counts.total():,} cases: {kinds} ({self.seconds:.0f} s)"

    def report(self) -> str:
        """Return the first bad cases, and how to run one again."""
        again = "again: python tests/fuzz/run.py TARGET --case NUMBER"
        return "\n".join([*self.bad[:10], f"{len(self.bad)} in all", again])


class Campaign:
    """A process that runs cases, started anew after each crash and hang."""

    def __init__(self) -> None:
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
        """Run cases of a target, until they have taken so much CPU time, and 20 at least."""
        findings = Findings()
        for case in cases:
            what, detail, used = self.run_case(target, case)
            findings.counts[what] += 1
            findings.seconds += used
            if what in BAD:
                findings.bad.append(f"{target} {case}: {what}\n{detail}".rstrip())
            # The first ones may compile kernels.
            if findings.seconds > seconds and findings.counts.total() >= 20:
                break
        return findings

    def run_case(self, target: str, case: int) -> tuple[str, str, float]:
        """Run one case; return what became of it, what there is to say, and its CPU time."""
        if target not in self._opened:
            what, detail, _ = self._ask(target, None, _TO_OPEN)
            if what != "opened":
                raise RuntimeError(f"{target} cannot be opened: {what}\n{detail}")
            self._opened.add(target)
        return self._ask(target, case, _FOR_A_CASE)

    def _ask(self, target: str, case: int | None, limit: float) -> tuple[str, str, float]:
        if self._process is None:
            # No fork: this process has threads.
            context = get_context("spawn")
            self._asked, theirs = context.Pipe()
            arguments = theirs, self._folder.name
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


def _answer(questions: Connection, folder: str) -> None:
    """Answer until nobody asks any more: each question is a target and a case, or None to open."""
    faulthandler.enable()
    # Whatever is printed is none of a test's output.
    os.dup2(2, 1)
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    tempfile.tempdir = os.environ["TMPDIR"] = folder
    targets = load_targets(all_modules())
    checks: dict[str, Check] = {}
    while True:
        try:
            name, case = questions.recv()
        except EOFError:
            return
        begin, what, detail = time.process_time(), "opened", ""
        try:
            if case is None:
                checks[name] = targets[name].open(Path(tempfile.mkdtemp(prefix=name)))
            else:
                what = checks[name](case)
        except InputError as error:
            what, detail = "refused", str(error)
        except Different as error:
            what, detail = "different", str(error)
        except BaseException:
            what, detail = "traceback", traceback.format_exc()
        questions.send((what, detail, time.process_time() - begin))

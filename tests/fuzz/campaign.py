"""Runs cases in a worker process, and tells apart what became of them."""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

_WORKER = Path(__file__).parent / "worker.py"
# Seconds of wall-clock time; opening a target may compile kernels.
_TO_OPEN = 900.0
_FOR_A_CASE = 60.0

GOOD = ("refused", "same", "taken")
BAD = ("different", "crash", "hang", "traceback")


@dataclass
class Findings:
    """What became of the cases of one target.

    Attributes
    ----------
    counts : Counter of str
        Numbers of cases by what became of them: `GOOD` and `BAD`.
    bad : list of (case, what, detail)
    seconds : float
        CPU time of the cases.
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
    """A worker process, started anew after each crash and hang.

    Parameters
    ----------
    modules : list of str
        Those that have the targets.
    for_a_case : float
        Seconds after which a case hangs.
    """

    def __init__(self, modules: list[str], *, for_a_case: float = _FOR_A_CASE) -> None:
        self._modules = modules
        self._for_a_case = for_a_case
        self._process: subprocess.Popen[bytes] | None = None
        self._opened: set[str] = set()
        self._folder = Path(tempfile.mkdtemp(prefix="fuzz-"))
        self._errors = self._folder / "errors"

    def __enter__(self) -> Campaign:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()
        shutil.rmtree(self._folder, ignore_errors=True)

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
        self._open(target)
        return self._ask(f"{target} {case}", self._for_a_case)

    def _open(self, target: str) -> None:
        if self._process is not None and target in self._opened:
            return
        what, detail, _ = self._ask(f"{target} open", _TO_OPEN)
        if what != "opened":
            raise RuntimeError(f"{target} cannot be opened: {what}\n{detail}")
        self._opened.add(target)

    def _ask(self, question: str, limit: float) -> tuple[str, str, float]:
        process = self._process or self._start()
        assert process.stdin is not None and process.stdout is not None
        try:
            process.stdin.write(question.encode() + b"\n")
            process.stdin.flush()
            ready, _, _ = select.select([process.stdout], [], [], limit)
        except BrokenPipeError:
            ready = [process.stdout]
        if not ready:
            self._stop()
            return "hang", f"no answer within {limit:.0f} seconds", limit
        answer = process.stdout.readline()
        if answer:
            what, detail, seconds = json.loads(answer)
            return what, detail, seconds
        code = process.wait()
        name = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        detail = f"{name}\n{self._errors.read_text('utf-8', 'replace')[-4000:]}"
        self._stop()
        return "crash", detail, 0.0

    def _start(self) -> subprocess.Popen[bytes]:
        with self._errors.open("wb") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-X", "faulthandler", str(_WORKER), *self._modules],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                # What a process that is killed leaves behind lies where it is cleared.
                env=os.environ | {"TMPDIR": str(self._folder)},
            )
        return self._process

    def _stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
        self._process = None
        self._opened.clear()

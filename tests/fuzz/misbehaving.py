"""Targets whose cases do all that can happen, to see that it is told apart."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from targets import Check, Different, Target, Verdict

from torchtune_smt.core.errors import InputError

CASES = ("same", "refused", "different", "traceback", "crash", "hang", "left", "refused", "same")


def _open(folder: Path) -> Check:
    def check(case: int) -> Verdict:
        print("said by what is fuzzed")
        what = CASES[case]
        if what == "refused":
            raise InputError("is bad", path="x")
        if what == "different":
            raise Different("2 instead of 1")
        if what == "traceback":
            return {"a": 1}["b"]  # type: ignore[return-value]
        if what == "crash":
            os.kill(os.getpid(), signal.SIGSEGV)
        if what == "left":
            os._exit(3)
        while what == "hang":
            pass
        return "same"

    assert not any(folder.iterdir())
    return check


TARGETS = {"misbehaving": Target(_open)}

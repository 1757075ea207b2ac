"""A few kills of each tuner, of parallel runs and of a build; `make kills` does more."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from kill_kinds import KINDS

# The others take longer.
QUICK = "stale"


@pytest.mark.parametrize(
    "kind", [pytest.param(k, marks=[] if k == QUICK else pytest.mark.slow) for k in KINDS]
)
def test_killed_runs_and_builds_end_as_undisturbed_ones(kind: str) -> None:
    """A run takes long where workers are opened."""
    kills = "1" if KINDS[kind].workers else "3"
    script = Path(__file__).with_name("kills.py")
    done = subprocess.run(
        [sys.executable, script, kind, "--kills", kills],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.fullmatch(rf"{kind}: \d+ cases, .* 0 bad\n", done.stdout)

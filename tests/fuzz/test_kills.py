"""A few kills of each tuner and of a build; `make kills` does more."""

import subprocess
import sys
from pathlib import Path

import pytest
from kills import KINDS


@pytest.mark.slow
def test_killed_runs_and_builds_end_as_undisturbed_ones() -> None:
    script = Path(__file__).with_name("kills.py")
    done = subprocess.run(
        [sys.executable, script, "--kills", "3"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert [line.partition(":")[0] for line in lines] == list(KINDS)
    assert all(line.endswith(" 0 bad") for line in lines)

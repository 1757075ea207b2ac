"""A few kills of tuners and of a build; `make kills` does more."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

# One of each loop. tests/test_resume.py stops all tuners where they have saved their run, and what
# becomes of workers in processes that are killed is in test_engines.py and test_parallel_cli.py.
FEW = ["online", "grouping", "stale", "build"]


@pytest.mark.slow
def test_killed_runs_and_builds_end_as_undisturbed_ones() -> None:
    """One process does them all: it loads the compiled kernels once."""
    script = Path(__file__).with_name("kills.py")
    command = [sys.executable, script, *FEW, "--kills", "1"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    said = done.stdout.splitlines()
    assert [line.partition(":")[0] for line in said] == FEW
    assert all(re.fullmatch(r"\w+: \d+ cases, .* 0 bad", line) for line in said)

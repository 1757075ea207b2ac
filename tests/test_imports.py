"""What a command does not need is not imported: imports are most of the time of a short one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

# Runs a command in a process of its own, and prints the top-level modules that it has imported.
SCRIPT = """
import sys
from torchtune_smt.cli import main
try:
    code = main(sys.argv[1:])
except SystemExit as error:
    code = error.code
print("imported", *sorted({name.partition(".")[0] for name in sys.modules}), file=sys.stderr)
sys.exit(code)
"""
HEAVY = {"torch", "tensorboard", "sacremoses", "thot", "PIL", "matplotlib"}


def imported(repository: Path, folder: Path, *arguments: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *arguments],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(repository)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    last = done.stderr.splitlines()[-1].split()
    assert last[0] == "imported"
    return set(last[1:])


@pytest.mark.parametrize("command", ["train", "build-model", "translate", "rerank", "evaluate"])
def test_help_needs_hydra_alone(command: str, repository: Path, tmp_path: Path) -> None:
    found = imported(repository, tmp_path, command, "--help")
    assert "hydra" in found
    assert not found & (HEAVY | {"numba", "numpy", "scipy"})


def test_the_list_of_commands_needs_nothing(repository: Path, tmp_path: Path) -> None:
    assert not imported(repository, tmp_path, "--help") & (HEAVY | {"numba", "numpy", "hydra"})


def test_evaluate(repository: Path, tmp_path: Path) -> None:
    (tmp_path / "a").write_text("the dog\n")
    found = imported(
        repository, tmp_path, "evaluate", "systems=[a]", "references=[a]", "samples=10"
    )
    assert not found & HEAVY

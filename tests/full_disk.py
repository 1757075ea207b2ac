"""A disk of its own that gets full in the middle of a run, and then has room again.

``python full_disk.py DISK OUT train.py ARGUMENT...``, in a mount namespace of its own (`unshare`).
DISK, an empty folder, becomes a small disk, and the run's folder is DISK/run. It is filled as soon
as the run has been saved. When the run has ended, there is room again, and it is resumed. Into OUT
go what both printed, and the folder.
"""

from __future__ import annotations

import json
import os
import runpy
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

FILLER = "filler"
CHILD = "RUN_IN_DISK"


def fill(disk: Path) -> None:
    """Leave no page of a disk free."""
    with (disk / FILLER).open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(1 << 12))
        except OSError:
            pass


def run(script: str) -> None:
    """Run a script in this process, on a disk that gets full after the first checkpoint."""
    from torchtune_smt.runs import checkpoint

    save, saved = checkpoint.save_checkpoint, 0

    def save_and_fill(path: Path, *values: Any) -> str:
        nonlocal saved
        checksum = save(path, *values)
        saved += 1
        if saved == 1:
            fill(Path(path).parent.parent)
        return checksum

    checkpoint.save_checkpoint = save_and_fill  # type: ignore[assignment]
    sys.argv.pop(0)
    runpy.run_path(script, run_name="__main__")


def finished(command: list[str], environment: dict[str, str]) -> tuple[int, str, str]:
    """Run a command; return its exit code and what it has printed."""
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, done.stderr


def main(disk: Path, out: Path, command: list[str]) -> None:
    """Mount the disk, run, and resume."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "none", disk], check=True)
    first = [sys.executable, __file__, *command, f"hydra.run.dir={disk / 'run'}"]
    stopped = finished(first, os.environ | {CHILD: "1"})
    (disk / FILLER).unlink()
    shutil.copytree(disk / "run", out / "stopped")
    again = [sys.executable, command[0], f"resume={disk / 'run'}"]
    resumed = finished(again, dict(os.environ))
    shutil.copytree(disk / "run", out / "resumed")
    (out / "results.json").write_text(json.dumps([stopped, resumed]))


if __name__ == "__main__":
    if CHILD in os.environ:
        run(sys.argv[1])
    else:
        main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])

"""A disk of its own that gets full in the middle of a run.

``python full_disk.py DISK OUT train.py ARGUMENT...``, in a mount namespace of its own (`unshare`).
DISK, an empty folder, becomes a small disk, and the run's folder is DISK/run. It is filled as soon
as the run has been saved. Into OUT go what the run printed, and its folder.
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
    import short_example  # noqa: F401

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


def main(disk: Path, out: Path, command: list[str]) -> None:
    """Mount the disk, and run."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "none", disk], check=True)
    first = [sys.executable, __file__, *command, f"hydra.run.dir={disk / 'run'}"]
    environment = os.environ | {CHILD: "1"}
    done = subprocess.run(first, env=environment, capture_output=True, text=True, check=False)
    shutil.copytree(disk / "run", out / "stopped")
    (out / "results.json").write_text(json.dumps([done.returncode, done.stderr]))


if __name__ == "__main__":
    if CHILD in os.environ:
        run(sys.argv[1])
    else:
        main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])

"""Runs a script on a disk that gets full as soon as the run has been saved.

``python full_disk.py train.py ARGUMENT...``; the run's folder lies at the top of the disk.
"""

from __future__ import annotations

import contextlib
import runpy
import sys
from pathlib import Path

import short_example  # noqa: F401

from torchtune_smt.runs import checkpoint

save = checkpoint.save_checkpoint


def save_and_fill(path, *values):
    """Save the run, and leave no page of the disk free."""
    checksum = save(path, *values)
    checkpoint.save_checkpoint = save
    with contextlib.suppress(OSError), open(Path(path).parents[1] / "filler", "wb", 0) as file:
        while True:
            file.write(bytes(1 << 12))
    return checksum


if __name__ == "__main__":
    checkpoint.save_checkpoint = save_and_fill
    sys.argv.pop(0)
    runpy.run_path(sys.argv[0], run_name="__main__")

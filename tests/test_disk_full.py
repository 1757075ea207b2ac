"""A disk that is full at a checkpoint: one sentence, and the last checkpoint goes on."""

from __future__ import annotations

import errno
import multiprocessing
import os
from pathlib import Path

import pytest
from commands import MODEL, SMALL, Run, run_command, train

from torchtune_smt.runs.folder import CHECKPOINT

OPTIONS = {
    "serial": ["features=rule_id", "tuner.checkpoint_minutes=0", "threads=2"],
    "shards": ["features=rule_id", "parallel=itermix", "parallel.shards=3", "engine.workers=1"],
}


@pytest.mark.parametrize("name", OPTIONS)
def test_the_last_checkpoint_is_kept(
    name: str, place: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = OPTIONS[name]
    whole = train(place, f"room_enough_{name}", *options)
    written: list[bytes] = []
    replace = Path.replace

    def full(self: Path, target: Path) -> Path:
        if target.name == CHECKPOINT:
            if len(written) == 2:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            written.append(self.read_bytes())
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", full)
    stopped = run_command(
        "train", *MODEL, *SMALL, *options, f"hydra.run.dir=disk_full_{name}", folder=place
    )
    monkeypatch.undo()
    folder = place / f"disk_full_{name}"
    path = folder / CHECKPOINT
    assert stopped.code == 1
    # Behind the progress that was shown.
    assert stopped.err.splitlines()[-1] == (
        f"error: {path}: cannot be written (No space left on device); make room on the disk"
    )
    assert "Traceback" not in stopped.err and stopped.err.count("error:") == 1
    assert path.read_bytes() == written[-1] != written[0]
    assert not [file for file in folder.rglob("*") if file.suffix == ".part"]
    assert multiprocessing.active_children() == []
    resumed = run_command("train", f"resume={folder}", folder=place).check()
    assert "resuming in epoch" in resumed.out
    weights = folder / "weights.txt.gz"
    assert weights.read_bytes() == (whole.folder / "weights.txt.gz").read_bytes()

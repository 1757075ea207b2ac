"""A disk that is full: one sentence, no process is left, and the last checkpoint goes on."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import full_disk
import pytest
from commands import MODEL, SMALL, run_command, train

# A disk of its own, which nobody but the processes in it sees.
OF_ITS_OWN = ["unshare", "--map-root-user", "--mount"]
MARK = "FULL_DISK"
REAL = {
    "stale": ["parallel=stale", "parallel.workers=2", "tuner.batch_size=5"],
    # One checkpoint an epoch, and a line of the log for each of 30 steps between.
    "log": ["tuner.batch_size=1", "tuner.checkpoint_minutes=60"],
}
FILES = {"log": r"metrics\.jsonl|tensorboard"}


def marked(mark):
    """Return the commands of processes that were started with a mark, and of theirs."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if f"{MARK}={mark}".encode() in (folder / "environ").read_bytes().split(b"\0"):
                found.append((folder / "cmdline").read_text().replace("\0", " "))
        except OSError:
            continue
    return found


@pytest.fixture
def disk(tmp_path):
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = [*OF_ITS_OWN, "mount", "-t", "tmpfs", "none", str(folder)]
    try:
        able = subprocess.run(mount, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        able = False
    if not able:
        pytest.skip("this machine lets its users mount no disk")
    return folder


@pytest.mark.parametrize("name", REAL)
def test_a_real_disk(name, place, run, disk, tmp_path, repository):
    stopped, options = tmp_path / "stopped", [*MODEL, *SMALL, *REAL[name]]
    options += ["features=rule_id", "data.test=null", "threads=1"]
    paths = [str(repository), os.environ.get("PYTHONPATH", "")]
    train_py, run_dir = str(repository / "train.py"), f"hydra.run.dir={disk}/run"
    command = shlex.join([sys.executable, full_disk.__file__, train_py, *options, run_dir])
    mount = f"mount -t tmpfs -o size=64m none {disk}"
    script = f"{mount}; {command}; code=$?; cp -r {disk}/run {stopped}; exit $code"
    done = subprocess.run(
        [*OF_ITS_OWN, "sh", "-c", script],
        cwd=place,
        env=os.environ | {MARK: str(tmp_path), "PYTHONPATH": os.pathsep.join(filter(None, paths))},
        capture_output=True,
        text=True,
        check=False,
    )
    code, said = done.returncode, done.stderr
    file = FILES.get(name, r"checkpoint\.(pt|names|steps)|metrics\.jsonl|tensorboard")
    assert code == 1 and "Traceback" not in said and said.count("error:") == 1, said
    assert re.fullmatch(
        rf"error: {re.escape(str(disk))}/run/({file}): cannot be written "
        r"\(No space left on device\); make room on the disk, and go on with resume=.*",
        said.splitlines()[-1],
    ), said
    assert not [path for path in stopped.rglob("*") if path.suffix == ".part"]
    # Where there is room again.
    resumed = run_command("train", f"resume={stopped}", folder=place).check()
    assert "resuming in epoch" in resumed.out
    weights = (stopped / "weights.txt.gz").read_bytes()
    if name != "stale":
        whole = train(place, f"whole_{name}", *options)
        assert weights == (whole.folder / "weights.txt.gz").read_bytes()
    assert marked(str(tmp_path)) == []

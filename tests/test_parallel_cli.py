"""Parallel strategies by the command line, on the bundled example."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from commands import MODEL, SMALL, Run, run_command, train, train_until_saved

OPTIONS = [*MODEL, *SMALL, "data.test=null", "parallel.shards=3"]
ITERSEL = ["parallel=itersel", "parallel.features=200", "tuner.result=last"]
NAMES = ["weights.txt.gz", "dev.translations.txt"]
# train.py, which dies when it has saved its run.
KILLED_ONCE_SAVED = """
import os, runpy, signal, sys
import short_example
from torchtune_smt.runs import checkpoint

def save_and_die(*values, save=checkpoint.save_checkpoint):
    save(*values)
    os.kill(os.getpid(), signal.SIGKILL)

checkpoint.save_checkpoint = save_and_die
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.fixture(scope="module")
def one_worker(place: Path) -> list[bytes]:
    """What a run with one worker has written."""
    options = ["data.test=null", "parallel.shards=3", "engine.workers=1"]
    run = train(place, "one_worker", *ITERSEL, *options)
    for tag in ("train/loss", "train/gain", "parallel/shard_features", "parallel/begin"):
        assert sum(tag in line for line in run.metrics()) == 6
    parts = [line for line in run.metrics() if "parallel/seconds" in line]
    assert all(0 < line["parallel/seconds_learning"] < line["parallel/seconds"] for line in parts)
    tag = "parallel/utilisation"
    shares = [line[tag] for line in run.metrics() if tag in line]
    assert len(shares) == 2 and all(0 < share <= 1 for share in shares)
    assert "  shard 3: 10 sentences, gain 0." in run.outcome.out
    return [(run.folder / name).read_bytes() for name in NAMES]


def test_workers_have_the_dimension_of_the_driver(place: Path) -> None:
    """It is not counted again, in charts that another decoder has met or not."""
    options = ["optimizer=fobos_oscar", "regularizer=oscar", "parallel=itermix"]
    options += ["data.test=null", "tuner.epochs=1", "engine.workers=1"]
    run = train(place, "oscar", *options, "parallel.shards=2")
    found = re.search(r"OSCAR's d = ([\d,]+) \(features of the charts\)", run.outcome.out)
    assert found is not None
    given = f"regularizer.dimension={found[1].replace(',', '')}"
    same = train(place, "oscar_given", *options, "parallel.shards=2", given)
    assert same.weights.read_bytes() == run.weights.read_bytes()


def processes(folder: Path, what: str = "") -> list[int]:
    """The processes of a run, by their working directory, whose command has some text."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            state = (path / "stat").read_text().rpartition(")")[2].split()[0]
            here = (path / "cwd").resolve() == folder.resolve()
            if state != "Z" and here and what in (path / "cmdline").read_text():
                found.append(int(path.name))
        except OSError:
            continue
    return found


def test_killed_and_resumed(
    repository: Path, place: Path, one_worker: list[bytes], tmp_path: Path
) -> None:
    """Two workers, one of which is killed, and then the driver: the same bytes.

    Sentences have a deadline here, and nobody comes near it.
    """
    (tmp_path / "outputs").symlink_to(place / "outputs")
    command = [sys.executable, "-c", KILLED_ONCE_SAVED, repository / "train.py"]
    options = [*OPTIONS, *ITERSEL, "decoder.seconds=1000"]
    driver = subprocess.Popen(
        [*command, *options, "engine.workers=2", "hydra.run.dir=run"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": f"{repository}{os.pathsep}{repository / 'tests'}"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    while not (workers := processes(tmp_path, "spawn_main")):
        assert driver.poll() is None, driver.communicate()
        time.sleep(0.01)
    os.kill(workers[0], signal.SIGKILL)
    assert "another takes its place" in driver.communicate()[1]
    assert driver.returncode == -signal.SIGKILL
    for _ in range(200):
        if not processes(tmp_path):
            break
        time.sleep(0.05)
    assert processes(tmp_path) == []
    # What another has written there names no place to compute.
    recorded = tmp_path / "run" / ".hydra" / "overrides.yaml"
    recorded.write_text(recorded.read_text() + "- engine=ray\n- engine.address=127.0.0.1:1\n")
    outcome = run_command("train", "resume=run", "engine.workers=1", folder=tmp_path).check()
    assert "resuming in epoch 1, after 10 sentences" in outcome.out
    assert "engine.address=127.0.0.1:1;" in outcome.err
    assert [(tmp_path / "run" / name).read_bytes() for name in NAMES] == one_worker


def test_stale_gradients_are_applied_once(place: Path) -> None:
    """Also those of mini-batches that were under way when the process was killed."""
    options = ["data.test=null", "parallel=stale", "parallel.workers=3", "tuner.batch_size=2"]
    run = train(place, "stale", *options)
    options += ["tuner.checkpoint_minutes=100", "hydra.run.dir=stale_killed"]
    train_until_saved(place, *MODEL, *SMALL, *options, saves=4)
    outcome = run_command("train", "resume=stale_killed", folder=place).check()
    assert "resuming in epoch 1, after 8 sentences" in outcome.out
    resumed = Run(place, "stale_killed", outcome)
    for one in (run, resumed):
        steps = [line["step"] for line in one.metrics() if "train/staleness" in line]
        assert steps == [*range(2, 61, 2)]
        assert "steps by staleness 0: " in one.outcome.out
        counts = [
            sum(count for tag, count in line.items() if tag.startswith("staleness/"))
            for line in one.metrics()
            if "staleness/0" in line
        ]
        assert counts == [15, 15]


REFUSED = {
    "parallel=mix tuner=pro": "parallel: Mix spreads the mini-batches of an epoch",
    "parallel=decode": "parallel: Decode decodes all sentences with the same weights",
    "engine.workers=2": "parallel=serial has no shards .* engine.workers=2 would change",
    "parallel=stale loss=perceptron loss.reduction=each": "loss.reduction=each takes",
    "parallel=mix tuner.checkpoint_minutes=1": "parallel=mix saves the run after each",
    "parallel=itersel parallel.threshold=1": "parallel: give one of features, threshold",
    "parallel=mix parallel.shards=31": "parallel.shards=31, and there are 30 sentences",
    "parallel=mix optimizer=sgd regularizer=none optimizer.average=step tuner.result=average": (
        "optimizer.average=step: under parallel=mix each shard has an optimizer of its own"
    ),
    "parallel=itermix optimizer=rda": "RDA forgets the sparse weights .* take parallel=mix",
    "parallel=itermix tuner.towards=start": "tuner.towards=start: under parallel=itermix",
}


@pytest.mark.parametrize("options", REFUSED)
def test_what_does_not_go_together(place: Path, options: str) -> None:
    arguments = [*MODEL, "tuner.sentences=30", "hydra.run.dir=refused", *options.split()]
    outcome = run_command("train", *arguments, folder=place)
    assert outcome.code == 1
    assert re.search(REFUSED[options], outcome.err), outcome.err

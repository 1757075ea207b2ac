"""Runs of rows: begun, taken up again, and swept; hardly any tuning."""

import json
import signal
import sys
from dataclasses import replace

import pytest
from command_line import ended
from runs import Run, complete, read_log, sweep
from stand_ins import FakeTrain

from torchtune_smt.core.errors import InputError


@pytest.fixture
def run(tmp_path):
    return Run(tmp_path / "row", ("data=example", "tuner=pro"))


def record(run: Run) -> list[dict[str, float]]:
    parts: list[dict[str, float]] = json.loads((run.folder / "run.json").read_text())["parts"]
    return parts


def test_a_run_is_done_once(run):
    train = FakeTrain()
    assert complete(run, start=train)
    assert complete(run, start=train)
    (command,) = train.commands
    given = ["data=example", "tuner=pro", f"hydra.run.dir={run.folder}"]
    assert command == [sys.executable, "train.py", *given]
    assert len(record(run)) == 1
    assert read_log(run.folder) == (2, 1, 31.0, 2)


def test_a_stopped_run_is_taken_up_again(run):
    train = FakeTrain(dies=["row"])
    assert not complete(run, start=train)
    assert run.stopped
    parts = record(run)
    parts[0]["seconds"] = 90.0
    text = json.dumps({"overrides": list(run.overrides), "parts": parts})
    (run.folder / "run.json").write_text(text)
    assert complete(run, start=train)
    assert train.commands[1][1:] == ["train.py", f"resume={run.folder}"]
    assert len(record(run)) == 2
    assert run.cpu_minutes >= 0
    assert 1.5 <= run.minutes < 1.6
    assert run.dates[0] <= run.dates[1]


def test_without_a_checkpoint_it_starts_anew(run):
    train = FakeTrain(dies=["row"], keeps=False)
    assert not complete(run, start=train)
    (run.folder / "tensorboard").mkdir()
    assert complete(run, start=train)
    assert train.commands[1] == train.commands[0]
    assert len(record(run)) == 1
    assert not (run.folder / "tensorboard").exists()
    assert (run.folder / "train.log").read_bytes() == b"begun\n" * 2


def test_other_options_are_noticed(run):
    assert complete(run, start=FakeTrain())
    with pytest.raises(InputError, match="was run with data=example tuner=pro, and now"):
        complete(replace(run, overrides=("data=example", "tuner=mert")), start=FakeTrain())


def test_other_weights_at_the_start_are_noticed(run, tmp_path):
    first = tmp_path / "first.txt"
    run = replace(run, overrides=("data=example", "init=file", f"init.file={first}"))
    train = FakeTrain(dies=["row"], keeps=False)
    # What has kept nothing may start from others.
    for weights in ("a 1\n", "a 2\n"):
        first.write_text(weights)
        complete(run, start=train)
    assert run.finished and len(train.commands) == 2
    first.write_text("a 3\n")
    with pytest.raises(InputError, match=r"row: was started from other weights than .*first.txt"):
        complete(run, start=train)


def test_sweep(run):
    train = FakeTrain()
    values = [1e-4, 3e-8, 1.0]
    points = sweep("regularizer.strength", values, run, start=train)
    assert [p.folder.name for p in points] == ["0.0001", "3e-08", "1.0"]
    (command,) = train.commands
    given = ["data=example", "tuner=pro", "regularizer.strength=0.0001,3e-08,1.0"]
    given += [f"hydra.sweep.dir={run.folder}", "hydra.sweep.subdir=${regularizer.strength}"]
    assert command[1:] == ["train.py", "-m", *given]
    assert points[0].overrides == (*run.overrides, "regularizer.strength=0.0001")
    assert [len(record(p)) for p in points] == [1, 1, 1]


def test_a_sweep_goes_on_where_it_was(run):
    train = FakeTrain(dies=["0.2"])
    values = [0.1, 0.2, 0.3]
    # The one that dies is left for the next time, and the others are done.
    points = sweep("regularizer.strength", values, run, start=train)
    assert [p.folder.name for p in points] == ["0.1", "0.3"]
    points = sweep("regularizer.strength", values, run, start=train)
    assert [p.folder.name for p in points] == ["0.1", "0.2", "0.3"]
    assert train.commands[-1][1:] == ["train.py", f"resume={run.folder / '0.2'}"]
    assert len(train.commands) == 2
    assert sweep("regularizer.strength", values, run, start=train) == points
    assert len(train.commands) == 2


def test_a_script_that_is_told_to_stop_says_so(monkeypatch, capsys):
    """The rows' own processes have time to end."""
    monkeypatch.setattr("sys.argv", ["scripts/better.py"])
    left = []

    def work():
        try:
            signal.raise_signal(signal.SIGTERM)
        finally:
            left.append("ended")

    assert ended(work) == 128 + signal.SIGTERM
    assert (left, capsys.readouterr().err) == (["ended"], "better.py: stopped\n")
    assert ended(lambda: ["hiero, seed 1"]) == 1
    assert capsys.readouterr().err == "error: rows that failed: hiero, seed 1\n"
    assert ended(list) == 0

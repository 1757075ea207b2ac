"""A run's folder belongs to one run."""

import fcntl
import os
import shutil
from pathlib import Path

import pytest
import yaml
from commands import MODEL, SMALL, content, run_command

from torchtune_smt.core.errors import InputError
from torchtune_smt.core.textio import read_lines
from torchtune_smt.runs.folder import RunFolder, empty
from torchtune_smt.runs.records import recorded_overrides

OPTIONS = [*MODEL, *SMALL, "tuner.epochs=1", "data.test=null", "features=dense", "threads=1"]


def train(place, *options):
    return run_command("train", *OPTIONS, *options, folder=place)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A place with the model, and one finished run in the folder `done`."""
    place = tmp_path_factory.mktemp("runs")
    train(place, "hydra.run.dir=done").check()
    return place


OVER = [*OPTIONS, "hydra.run.dir=done"]
# Commands on a finished run, and what is said.
REFUSED = [
    ("holds a finished run; choose another hydra.run.dir", [*OVER, "seed=2"]),
    ("this run is finished", ["resume=done", "decoder.unknown=drop"]),
    ("decoder.unknown = ", ["resume=done", "decoder.unknown=drop", "tuner.epochs=2"]),
    ("lr must be", [*OVER, "overwrite=true", "optimizer.lr=-1"]),
    ("there is no option optimizer.momentum", [*OVER, "overwrite=true", "optimizer.momentum=1"]),
    ("records of a run always lie", [*OVER, "hydra.output_subdir=.hydra", "seed=7"]),
    ("1 runs failed", [*OPTIONS, "-m", "hydra.sweep.dir=.", "hydra.sweep.subdir=done", "seed=7"]),
    # Options of folders that would do nothing.
    ("hydra.run.dir=x is of a single run", ["-m", "seed=1", "hydra.run.dir=x"]),
    ("hydra.sweep.dir=x is of sweeps", ["hydra.sweep.dir=x"]),
    ("hydra.run.dir=x: resume goes on in the run's own folder", ["resume=done", "hydra.run.dir=x"]),
    ("overwrite=true: resume goes on", ["resume=done", "overwrite=true"]),
    ("hydra.job.chdir=true: paths are those seen from", ["hydra.job.chdir=true"]),
    ("nowhere: holds no run", ["resume=nowhere"]),
    ("leave -m out", ["resume=done", "tuner.epochs=2,3", "-m"]),
]


@pytest.mark.parametrize(("said", "given"), REFUSED)
def test_a_refused_command_leaves_what_a_run_recorded(finished, said, given):
    """Hydra's records of it, too, which resume= and translate read."""
    before = content(finished / "done")
    outcome = run_command("train", *given, folder=finished)
    assert outcome.code == 1 and said in outcome.err
    after = content(finished / "done")
    # What was said is added to it.
    assert after.pop("train.log").startswith(before.pop("train.log"))
    assert after == before
    assert not (finished / "x").exists()


def test_a_stopped_run_is_not_written_over(finished, tmp_path):
    (tmp_path / "checkpoint.pt").write_bytes(b"some")
    train(finished, f"hydra.run.dir={tmp_path}").refused(
        f"go on with resume={tmp_path} threads=1, or empty it with overwrite=true"
    )
    assert content(tmp_path) == {"checkpoint.pt": b"some"}
    other = finished / "a, b"
    other.mkdir()
    (other / "checkpoint.pt").write_bytes(b"some")
    outcome = train(finished, "hydra.run.dir='a, b'")
    # What a shell gives to Hydra as one value.
    assert "go on with resume=\"'a, b'\" threads=1, or empty it with overwrite=true" in outcome.err


def test_overwrite_leaves_one_run(finished):
    run = Path(shutil.copytree(finished / "done", finished / "twice"))
    (run / "lists" / "learning" / "iteration-0001").mkdir(parents=True)
    (run / "lists" / ".iteration-0002.12345678.part").mkdir()
    for name in ("notes", "lists/dev.nbest"):
        (run / name).write_text("mine")
    lines = len(read_lines(run / "metrics.jsonl"))
    train(finished, "hydra.run.dir=twice", "overwrite=true").check()
    assert len(read_lines(run / "metrics.jsonl")) == lines
    events = [len(list((f / "tensorboard").iterdir())) for f in (run, finished / "done")]
    assert events[0] == events[1]
    assert (run / "weights.txt.gz").read_bytes() == (finished / "done/weights.txt.gz").read_bytes()
    assert (run / "notes").read_text() == "mine"
    assert content(run / "lists") == {"dev.nbest": b"mine"}
    assert not (run / "lists" / "learning").exists()


def test_a_command_that_goes_on_records_what_it_was_given(finished):
    shutil.copytree(finished / "done", finished / "longer")
    more = ["tuner.epochs=2", "tuner.checkpoint_minutes=5"]
    run_command("train", "resume=longer", *more, folder=finished).check()
    recorded = recorded_overrides(finished / "longer")
    assert "tuner.epochs=2" in recorded
    assert "tuner.checkpoint_minutes=5" in recorded
    assert set(OPTIONS) - set(recorded) == {"tuner.epochs=1", "threads=1"}
    for name in ("config.yaml", "hydra.yaml"):
        assert yaml.safe_load((finished / "longer" / ".hydra" / name).read_text())
    # Without any, what was recorded is what it goes on with.
    outcome = run_command("train", "resume=longer", folder=finished)
    assert "this run is finished" in outcome.err
    assert recorded_overrides(finished / "longer") == recorded


def test_a_sweep_goes_on_when_a_run_fails_and_ends_with_a_table(finished):
    def sweep(*options):
        folder = ["hydra.sweep.dir=sweep", "data.test=dev"]
        outcome = run_command("train", "-m", *OPTIONS, *folder, *options, folder=finished)
        rows = [line for line in outcome.out.splitlines() if line.startswith("| ")]
        return outcome, [row.split("|")[1].strip() for row in rows]

    outcome, labels = sweep("optimizer.lr=0.1,-1,0.2", "report=true")
    said = [line for line in outcome.out.splitlines() if line.startswith("run ")]
    assert [f"optimizer.lr={lr}" in line for lr, line in zip((0.1, -1, 0.2), said, strict=True)]
    # Behind the table and what is said of the report.
    *_, report, last = outcome.err.splitlines()
    assert outcome.code == 1 and report.startswith("report: ")
    assert last.startswith("error: 1 of 3 runs failed: ") and "optimizer.lr=-1" in last
    assert labels == ["system", "optimizer.lr=0.1", "optimizer.lr=0.2"]
    # Hydra's own is read by nobody.
    own = content(finished / "sweep", "multirun.yaml")
    assert sorted(path.name for path in (finished / "sweep").glob("*/")) == ["0", "2"]
    # Another one in its folder fails, and has no table; unless it is written over.
    outcome, labels = sweep("optimizer.lr=0.3")
    assert outcome.code == 1 and "1 of 1 runs failed" in outcome.err
    assert "choose another hydra.sweep.dir (or hydra.sweep.subdir)" in outcome.err
    assert labels == [] and content(finished / "sweep", "multirun.yaml") == own
    outcome, labels = sweep("optimizer.lr=0.4", "overwrite=true")
    recorded = [recorded_overrides(finished / "sweep" / name) for name in ("0", "2")]
    assert recorded[0][-2:] == ["optimizer.lr=0.4", "overwrite=True"]
    assert "optimizer.lr=0.2" in recorded[1] and "0.2" not in labels


def test_what_a_run_left_before_its_first_checkpoint_does_not_mix(finished, tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"step": 0, "bleu/dev": 1.0}\n')
    (tmp_path / "tensorboard").mkdir()
    (tmp_path / "tensorboard" / "events.out.old").write_text("")
    (tmp_path / ".hydra").mkdir()
    (tmp_path / ".hydra" / "overrides.yaml").write_text("[]")
    train(finished, f"hydra.run.dir={tmp_path}").check()
    lines = read_lines(tmp_path / "metrics.jsonl")
    assert len(lines) == len(read_lines(finished / "done" / "metrics.jsonl"))
    assert '"bleu/dev": 1.0}' not in lines[0]
    assert not (tmp_path / "tensorboard" / "events.out.old").exists()


def test_a_folder_where_a_run_is_at_work(finished, tmp_path):
    handle = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)
    (tmp_path / "checkpoint.pt").write_bytes(b"some")
    for options in ([f"hydra.run.dir={tmp_path}", "overwrite=true"], [f"resume={tmp_path}"]):
        train(finished, *options).refused("another run is at work in this folder")
        assert content(tmp_path) == {"checkpoint.pt": b"some"}
    os.close(handle)


@pytest.mark.parametrize("keep", [False, True])
def test_what_a_kill_at_the_very_end_leaves_is_removed(finished, keep):
    run = finished / f"end-{keep}"
    lists = ["tuner=mert", "tuner.iterations=1", f"tuner.keep_lists={keep}"]
    small = ["data.test=null", "features=dense", "threads=1", "decoder.k=5", "decoder.pop_limit=5"]
    arguments = [*MODEL, *small, *lists, f"hydra.run.dir={run}"]
    run_command("train", *arguments, folder=finished).check()
    if not keep:
        (run / "lists").mkdir()
        (run / "lists" / "iteration-0001").write_bytes(b"some")
    for name in ("checkpoint.pt", "checkpoint.names"):
        (run / name).write_bytes(b"some")
    run_command("train", f"resume={run}", folder=finished).refused("this run is finished")
    assert (run / "checkpoint.pt").exists() == (run / "checkpoint.names").exists() == keep
    assert (run / "lists").exists() == keep


def test_emptying_touches_nothing_else(tmp_path):
    own = "config.yaml dev.translations.txt weights.txt.gz checkpoint.pt checkpoint.names"
    for name in f"{own} weights.txt train.de".split():
        (tmp_path / name).write_text("")
    empty(tmp_path)
    assert set(content(tmp_path)) == {"weights.txt", "train.de"}
    # Without a run, all is the user's.
    (tmp_path / "moses.ini").write_text("")
    empty(tmp_path)
    assert set(content(tmp_path)) == {"weights.txt", "train.de", "moses.ini"}


USERS = "config.yaml moses.ini a.translations.txt train.log metrics.jsonl checkpoint.names "
USERS += "tensorboard/mine lists/iteration-1 lists/mine/iteration-7"


@pytest.mark.parametrize("name", USERS.split())
def test_files_of_the_users_own_are_not_written_over(tmp_path, name):
    path, own = tmp_path / name, RunFolder(tmp_path)
    path.parent.mkdir(exist_ok=True, parents=True)
    path.write_text("mine")
    with pytest.raises(InputError, match="is of no run, and one in this"):
        own.check_foreign()
    if name == "config.yaml":
        for more in ([], ["overwrite=true"]):
            outcome = train(tmp_path, f"hydra.run.dir={tmp_path}", *more)
            assert (outcome.code, outcome.out) == (1, "") and "is of no run" in outcome.err
            assert content(tmp_path) == {name: b"mine"}
    # Of a run that has not come far, or that is left alone in any case, it may be.
    if path.parent == tmp_path:
        own.check_foreign([path])
    (tmp_path / ".hydra").mkdir()
    (tmp_path / ".hydra" / "overrides.yaml").write_text("[]")
    own.check_foreign()


def test_a_model_does_not_lie_where_a_run_does(tmp_path):
    """Each would keep the other one out of the folder for ever."""
    (tmp_path / "link").symlink_to("run")
    RunFolder(tmp_path / "run").check_model_apart(tmp_path / "run" / "model")
    outcome = train(tmp_path, "model.folder=link", "hydra.run.dir=run", "overwrite=true")
    assert (outcome.code, outcome.out) == (1, "") and "is model.folder and" in outcome.err
    assert [path.name for path in tmp_path.iterdir()] == ["link"]


def test_a_folder_whose_name_is_not_utf8(tmp_path):
    """Files of a run have its name; nothing is left behind in the folder."""
    folder = tmp_path / os.fsdecode(b"l\xe4tin")
    folder.mkdir()
    run_command("train", "hydra.run.dir=run", folder=folder).refused(
        "l\\udce4tin/run: this name is not valid UTF-8"
    )
    assert not list(folder.iterdir())

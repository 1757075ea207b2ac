"""The loop of rounds, with a tuner that can be followed by hand, and those who are told of it."""

import io
import json
import re
import sys
from contextlib import redirect_stderr, redirect_stdout

import numpy as np
import pytest
from commands import MODEL, SMALL, run_command
from tqdm import tqdm

from torchtune_smt.core.errors import DivergenceError, InputError
from torchtune_smt.core.textio import read_lines
from torchtune_smt.core.weights import Weights
from torchtune_smt.runs.checkpoint import Checkpoints, load_checkpoint
from torchtune_smt.runs.console import Console
from torchtune_smt.runs.log import RunLog
from torchtune_smt.runs.rounds import Callback, Rounds
from torchtune_smt.runs.transcript import transcript
from torchtune_smt.tuners.base import Report, Tuner


class Steps(Tuner):
    """Adds 1 to the weight in each step, three steps a round, and ends after some rounds."""

    unit = "epoch"
    results = ("best", "last", "average")

    def __init__(self, last=10):
        super().__init__()
        self.weights = Weights(["w"])
        self.last = last
        self.taken = 0

    def round(self, number, done=0):
        for step in range(done, 3 if number <= self.last else 0):
            self.show("stepping", step + 1, 3, "step")
            self.weights.parameter.data += 1
            self.taken += 1
            kind = "part" if step == 1 else "step"
            yield Report(kind, {"train/step": step}, f"step {step}", sentences=5)

    def summary(self, kept):
        return Report("round", {"more": float(kept)}, "kept" if kept else "not kept")

    def state_dict(self):
        return {"taken": self.taken}

    def load_state_dict(self, state_dict):
        self.taken = state_dict["taken"]


def run_of(scores, *callbacks, last=10, **options):
    """A run in which the weights after a number of rounds have these scores."""
    tuner = Steps(last)
    return Rounds(
        tuner,
        lambda: scores[int(tuner.weights.parameter[0]) // 3],
        rounds=len(scores) - 1,
        callbacks=callbacks,
        **options,
    )


class Dies(Callback):
    """Ends a run after some reports, or at a place of it."""

    def __init__(self, reports=0, at=None):
        self.left, self.at = reports, at

    def on_report(self, report, run):
        self.left -= 1
        if self.left == 0 or (run.progress.round, run.progress.done) == self.at:
            raise KeyboardInterrupt


class Told(Callback):
    def __init__(self):
        self.calls = []

    def on_start(self, run):
        self.calls.append(("start",))

    def on_report(self, report, run):
        progress = run.progress
        self.calls.append((report.kind, report.round, progress.round, progress.done))

    def on_work(self, what, done, total, unit):
        self.calls.append((what, done, total, unit))

    def on_end(self, run):
        self.calls.append(("end",))


@pytest.mark.parametrize(
    ("scores", "best", "weight"),
    [([1, 2, 5, 3], 2, 6), ([4, 2, 3, 4], 0, 0), ([0, 1, 2, 3], 3, 9)],
)
def test_the_best_round_is_kept(scores, best, weight):
    told = Told()
    run = run_of(scores, told)
    progress = run.run()
    assert progress is run.progress and progress.best is not None
    assert (progress.best.round, progress.best.score) == (best, scores[best])
    assert run.tuner.weights.parameter.tolist() == [weight]
    assert (progress.round, progress.sentences, progress.last) == (4, 45, scores[-1])
    assert told.calls[:8] == [
        ("start",),
        ("stepping", 1, 3, "step"),
        ("step", 1, 1, 1),
        ("stepping", 2, 3, "step"),
        ("part", 1, 1, 2),
        ("stepping", 3, 3, "step"),
        ("step", 1, 1, 3),
        ("round", 1, 2, 0),
    ]
    assert told.calls[-1] == ("end",)


def test_which_weights_are_kept_and_when_it_ends():
    for scores, options, ended, weight in (
        ([1, 2, 5, 3], {"result": "last"}, 4, 9.0),
        ([1, 2, 5, 3], {"result": "average"}, 4, 6.0),
        ([1, 2, 0, 0, 9], {"patience": 2}, 4, 3.0),
        # Nothing is left to do.
        ([1, 2, 3, 4], {"last": 2}, 3, 6.0),
    ):
        run = run_of(scores, **options)
        assert run.run().round == ended
        assert run.tuner.weights.parameter.tolist() == [weight]
    for scores, when in (([float("nan"), 1], "before the first"), ([1, 2, -1e999], "round 2")):
        with pytest.raises(ValueError, match=f"the score .*{when} .* must be a finite number"):
            run_of(scores).run()
    run = run_of([1, 2])
    run.evaluate = lambda: run.tuner.weights.parameter.data.mul_(float("inf")).nan_to_num(0).item()
    with pytest.raises(DivergenceError, match="not finite.*lower the learning rate"):
        run.run()
    for option, said in (
        ({"rounds": 0}, "epochs must be a whole number, 1 or more, not 0"),
        ({"patience": 0}, "patience must be .*, or null, not 0"),
        ({"result": "median"}, "result must be best, last or average, not 'median'"),
    ):
        with pytest.raises(ValueError, match=said):
            Rounds(Steps(), lambda: 0.0, **option)


@pytest.mark.parametrize(
    ("at", "options", "ends"),
    [
        ((3, 1), {"rounds": 2}, "epochs must be at least 3, not 2: the run is in epoch 3"),
        ((3, 0), {"rounds": 1}, "epochs must be at least 2, not 1: the run has had 2"),
        ((4, 2), {"patience": 3}, "patience must be above 3, or null, not 3: .*in epoch 4"),
        ((3, 1), {"rounds": 3}, 9.0),
        ((3, 0), {"rounds": 2}, 6.0),
        ((3, 0), {"patience": 1}, 6.0),
    ],
)
def test_a_run_does_not_end_before_where_it_is(tmp_path, at, options, ends):
    """It has stopped somewhere, and goes on with other options."""
    scores, path = [5.0, 4.0, 3.0, 2.0, 1.0], tmp_path / "checkpoint"
    with pytest.raises(KeyboardInterrupt):
        run_of(scores, Checkpoints(path, {}, minutes=0), Dies(at=at), result="last").run()
    run = run_of(scores, result="last")
    load_checkpoint(path, run.tuner.weights, run, {})
    vars(run).update(options)
    before = run.tuner.weights.parameter.tolist()
    if isinstance(ends, str):
        with pytest.raises(ValueError, match=ends):
            run.run()
    else:
        run.run()
    assert run.tuner.weights.parameter.tolist() == (before if isinstance(ends, str) else [ends])


def test_when_it_is_saved_and_what(tmp_path):
    """After a round and a part, but not after each step."""
    saved = []
    path = tmp_path / "checkpoint"

    class Sees(Callback):
        def on_report(self, report, run):
            if path.exists():
                saved.append((run.progress.round, run.progress.done))
                path.unlink()

    run_of([0, 1, 2], Checkpoints(path, {}, minutes=60), Sees()).run()
    assert saved == [(1, 2), (2, 0), (2, 2), (3, 0)]
    # What cannot be is said before anything is done.
    run = run_of([1, 2], Checkpoints(path, {}))
    run.tuner.state_dict = lambda: {"moved": np.zeros(2)}
    with pytest.raises(InputError, match=r"of Steps .*\(a ndarray .* saved, as moved\)"):
        run.run()
    assert run.tuner.taken == 0


def test_what_is_shown(monkeypatch):
    class Interrupted(io.StringIO):
        def write(self, text):
            super().write(text)
            raise KeyboardInterrupt

    out, err = io.StringIO(), io.StringIO()
    monkeypatch.setattr("sys.stdout", out)
    monkeypatch.setattr("sys.stderr", err)
    run_of([1, 2, 1.5], Console()).run()
    rounds = ["epoch 1: dev BLEU 2.00, kept", "epoch 2: dev BLEU 1.50, not kept"]
    assert out.getvalue().splitlines() == ["step 1", rounds[0], "step 1", rounds[1]]
    # A bar is for terminals.
    run_of([1, 2, 1.5], Console(15)).run()
    assert err.getvalue() == ""
    monkeypatch.setattr(err, "isatty", lambda: True)
    run_of([1, 2, 1.5], Console(15)).run()
    assert "epoch 2, step 2" in err.getvalue() and "30/30" in err.getvalue()
    # Whatever was written before an interrupt has its end: what follows has its own line.
    monkeypatch.setattr("sys.stdout", out := Interrupted())
    with pytest.raises(KeyboardInterrupt):
        run_of([1, 2, 1.5], Console()).run()
    assert out.getvalue() == "step 1\n"


def test_what_is_recorded(tmp_path):
    with RunLog(tmp_path) as log:
        run = run_of([1, 2, 1.5], log)
        run.run()
        assert run.progress.records == log.records == 10
    lines = [json.loads(line) for line in read_lines(tmp_path / "metrics.jsonl")]
    assert lines[:5] == [
        {"step": 5, "train/step": 0},
        {"step": 10, "train/step": 1},
        {"step": 15, "train/step": 2},
        {"step": 15, "bleu/dev": 2, "more": 1.0},
        {"step": 15, "weight/w": 3.0, "active/dense": 1.0},
    ]


def test_a_tuner_and_a_callback_of_the_users(place, repository):
    """Those of docs/extend.md, by name, on the command line."""
    page = (repository / "docs" / "extend.md").read_text("utf-8")
    for name in ("my_callback", "my_tuner"):
        shown = re.search(rf"`{name}.py`:\n\n```python\n(.*?)```", page, re.DOTALL)
        (place / f"{name}.py").write_text(shown[1])
    options = [*MODEL, *SMALL, "features=dense", "tuner.epochs=3"]
    walk = ["tuner._target_=my_tuner.Walk", "+tuner.size=0.01"]
    notes = "callbacks=[{_target_:my_callback.Notes,path:notes}]"
    out = (
        run_command("train", *options, *walk, notes, "hydra.run.dir=walk", folder=place).check().out
    )
    assert "tuning on 30 sentences of dev, up to 3 epochs" in out
    lines = [json.loads(line) for line in read_lines(place / "walk" / "metrics.jsonl")]
    assert [line["step"] for line in lines if "walk/length" in line] == [30, 60, 90]
    noted = [line.split() for line in read_lines(place / "notes")]
    assert [number for number, _ in noted] == ["1", "2", "3"]
    assert all(f"epoch {number}: dev BLEU {score}" in out for number, score in noted)
    for more, said in {
        "tuner._target_=torchtune_smt.losses.Hinge": "losses.Hinge is no tuner",
        "callbacks=[a]": "callbacks must be a list of classes, as in [{_",
        "callbacks=[{_target_:builtins.dict}]": "callbacks: dict has no 'on_start'; is it meant",
    }.items():
        run_command("train", *walk, more, "hydra.run.dir=no_walk", folder=place).refused(said)


def test_the_log_of_a_run(run):
    text = (run.folder / "train.log").read_text()
    printed = [line for line in run.outcome.out.splitlines() if line.startswith(("epoch", "dev"))]
    assert {*printed} <= {*text.splitlines()} and "\r" not in text + run.outcome.err


def test_bars_are_not_taken_down(tmp_path):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    out, err = Terminal(), Terminal()
    with redirect_stdout(out), redirect_stderr(err):
        with transcript() as taken:
            print("first")
            taken.open(tmp_path / "log", append=False)
            bar = tqdm(total=3, file=sys.stderr, disable=None, mininterval=0)
            bar.update(1)
            tqdm.write("between", file=sys.stdout)
            bar.update(2)
            bar.close()
            print("warned", file=sys.stderr)
        print("after")
    assert "3/3" in err.getvalue()
    assert read_lines(tmp_path / "log") == ["first", "between", "warned"]
    with (
        redirect_stdout(out),
        pytest.raises(ValueError, match="bad"),
        transcript() as taken,
    ):
        taken.open(tmp_path / "log", append=True)
        raise ValueError("bad")
    assert read_lines(tmp_path / "log")[-1] == "ValueError: bad"

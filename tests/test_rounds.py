"""The loop of rounds, with a tuner that can be followed by hand, and those who are told of it."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import MODEL, SMALL, run_command

from torchtune_smt.core.errors import InputError
from torchtune_smt.core.textio import read_lines
from torchtune_smt.core.weights import Weights
from torchtune_smt.runs.checkpoint import Checkpoints, load_checkpoint
from torchtune_smt.runs.console import Console
from torchtune_smt.runs.log import RunLog
from torchtune_smt.runs.rounds import Callback, Rounds
from torchtune_smt.tuners.base import Report, Tuner


class Steps(Tuner):
    """Adds 1 to the weight in each step, three steps a round, and ends after some rounds."""

    unit = "epoch"
    results = ("best", "last", "average")

    def __init__(self, last: int = 10) -> None:
        super().__init__()
        self.weights = Weights(["w"])
        self.last = last
        self.taken = 0

    def round(self, number: int, done: int = 0) -> Iterator[Report]:
        for step in range(done, 3 if number <= self.last else 0):
            self.show("stepping", step + 1, 3, "step")
            self.weights.parameter.data += 1
            self.taken += 1
            kind = "part" if step == 1 else "step"
            yield Report(kind, {"train/step": step}, f"step {step}", sentences=5)

    def summary(self, kept: bool) -> Report:
        return Report("round", {"more": float(kept)}, "kept" if kept else "not kept")

    def state_dict(self) -> dict[str, Any]:
        return {"taken": self.taken}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.taken = state_dict["taken"]


def run_of(scores: list[float], *callbacks: Callback, last: int = 10, **options: Any) -> Rounds:
    """A run in which the weights after a number of rounds have these scores."""
    tuner = Steps(last)
    return Rounds(
        tuner,
        lambda: scores[int(tuner.weights.parameter[0]) // 3],
        rounds=len(scores) - 1,
        callbacks=callbacks,
        **options,
    )


class Told(Callback):
    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def on_start(self, run: Rounds) -> None:
        self.calls.append(("start",))

    def on_report(self, report: Report, run: Rounds) -> None:
        progress = run.progress
        self.calls.append((report.kind, report.round, progress.round, progress.done))

    def on_work(self, what: str, done: int, total: int, unit: str) -> None:
        self.calls.append((what, done, total, unit))

    def on_end(self, run: Rounds) -> None:
        self.calls.append(("end",))


@pytest.mark.parametrize(
    ("scores", "best", "weight"),
    [([1, 2, 5, 3], 2, 6), ([4, 2, 3, 4], 0, 0), ([0, 1, 2, 3], 3, 9)],
)
def test_the_best_round_is_kept(scores: list[float], best: int, weight: int) -> None:
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


@pytest.mark.parametrize(
    ("scores", "when"), [([float("nan"), 1], "before the first round"), ([1, 2, -1e999], "round 2")]
)
def test_a_score_that_cannot_be_compared_is_refused(scores: list[float], when: str) -> None:
    with pytest.raises(ValueError, match=f"the score .*{when} is .*, and must be a finite number"):
        run_of(scores).run()


def test_last_and_average() -> None:
    for result, weight in {"last": 9.0, "average": 6.0}.items():
        run = run_of([1, 2, 5, 3], result=result)
        run.run()
        assert run.tuner.weights.parameter.tolist() == [weight]


def test_patience_and_a_tuner_that_has_nothing_left() -> None:
    assert run_of([1, 2, 0, 0, 9], patience=2).run().round == 4
    run = run_of([1, 2, 3, 4], last=2)
    assert run.run().round == 3
    assert run.tuner.weights.parameter.tolist() == [6.0]


def test_callbacks_end_with_an_exception() -> None:
    class Breaks(Callback):
        def on_report(self, report: Report, run: Rounds) -> None:
            raise KeyError("mine")

    told = Told()
    with pytest.raises(KeyError, match="mine"):
        run_of([1, 2], told, Breaks()).run()
    assert [call[0] for call in told.calls] == ["start", "stepping", "step", "end"]


@pytest.mark.parametrize("stop", range(1, 8))
def test_taken_up_where_it_was_saved(stop: int, tmp_path: Path) -> None:
    class Dies(Callback):
        left = stop

        def on_report(self, report: Report, run: Rounds) -> None:
            self.left -= 1
            if self.left == 0:
                raise KeyboardInterrupt

    scores = [0.0, 3.0, 2.0, 1.0]
    path = tmp_path / "checkpoint"
    with pytest.raises(KeyboardInterrupt):
        run_of(scores, Checkpoints(path, {}, minutes=0), Dies(), result="average").run()
    told = Told()
    again = run_of(scores, told, result="average")
    load_checkpoint(path, again.tuner.weights, again, {})
    progress = again.run()
    assert again.tuner.weights.parameter.tolist() == [6.0]
    assert isinstance(again.tuner, Steps) and again.tuner.taken == 9
    assert (progress.round, progress.sentences, progress.last) == (4, 45, 1.0)
    assert progress.best is not None and progress.best.round == 1
    assert len([call for call in told.calls if call[0] in ("step", "part", "round")]) == 12 - stop


def test_a_run_does_not_end_before_where_it_is(tmp_path: Path) -> None:
    class Dies(Callback):
        at = (0, 0)

        def on_report(self, report: Report, run: Rounds) -> None:
            if (run.progress.round, run.progress.done) == self.at:
                raise KeyboardInterrupt

    def taken_up(at: tuple[int, int], **options: Any) -> Rounds:
        """A run that has stopped somewhere, with other options."""
        scores, path, dies = [5.0, 4.0, 3.0, 2.0, 1.0], tmp_path / "checkpoint", Dies()
        dies.at = at
        with pytest.raises(KeyboardInterrupt):
            run_of(scores, Checkpoints(path, {}, minutes=0), dies, result="last").run()
        run = run_of(scores, result="last")
        load_checkpoint(path, run.tuner.weights, run, {})
        vars(run).update(options)
        return run

    for at, options, message in (
        ((3, 1), {"rounds": 2}, "epochs must be at least 3, not 2: the run is in epoch 3"),
        ((3, 0), {"rounds": 1}, "epochs must be at least 2, not 1: the run has had 2"),
        ((4, 2), {"patience": 3}, "patience must be above 3, or null, not 3: .*in epoch 4"),
    ):
        run = taken_up(at, **options)
        before = run.tuner.weights.parameter.tolist()
        with pytest.raises(ValueError, match=message):
            run.run()
        assert run.tuner.weights.parameter.tolist() == before
    for at, options, weight in (
        ((3, 1), {"rounds": 3}, 9.0),
        ((3, 0), {"rounds": 2}, 6.0),
        ((3, 0), {"patience": 1}, 6.0),
    ):
        run = taken_up(at, **options)
        run.run()
        assert run.tuner.weights.parameter.tolist() == [weight]


def test_when_it_is_saved(tmp_path: Path) -> None:
    """After a round and a part, but not after each step."""
    saved: list[tuple[int, int]] = []
    path = tmp_path / "checkpoint"

    class Sees(Callback):
        def on_report(self, report: Report, run: Rounds) -> None:
            if path.exists():
                saved.append((run.progress.round, run.progress.done))
                path.unlink()

    run_of([0, 1, 2], Checkpoints(path, {}, minutes=60), Sees()).run()
    assert saved == [(1, 2), (2, 0), (2, 2), (3, 0)]


def test_what_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    out, err = io.StringIO(), io.StringIO()
    monkeypatch.setattr("sys.stdout", out)
    monkeypatch.setattr("sys.stderr", err)
    run_of([1, 2, 1.5], Console()).run()
    lines = [
        "step 1",
        "epoch 1: dev BLEU 2.00, kept",
        "step 1",
        "epoch 2: dev BLEU 1.50, not kept",
    ]
    assert out.getvalue().splitlines() == lines
    assert err.getvalue() == ""
    # A bar is for terminals.
    run_of([1, 2, 1.5], Console(15)).run()
    assert err.getvalue() == ""
    monkeypatch.setattr(err, "isatty", lambda: True)
    run_of([1, 2, 1.5], Console(15)).run()
    assert "epoch 2, step 2" in err.getvalue() and "30/30" in err.getvalue()


def test_an_interrupt_leaves_whole_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever was written before it has its end: the message that follows has its own line."""

    class Interrupted(io.StringIO):
        def write(self, text: str) -> int:
            super().write(text)
            raise KeyboardInterrupt

    out = Interrupted()
    monkeypatch.setattr("sys.stdout", out)
    with pytest.raises(KeyboardInterrupt):
        run_of([1, 2, 1.5], Console()).run()
    assert out.getvalue() == "step 1\n"


def test_what_is_recorded(tmp_path: Path) -> None:
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


# By name, on the command line.

MINE = """
from torchtune_smt.runs.rounds import Callback

class Notes(Callback):
    def __init__(self, path):
        self.path = path

    def on_report(self, report, run):
        if report.kind == "round":
            with open(self.path, "a") as file:
                file.write(f"{report.round} {run.progress.last:.2f}\\n")
"""


def test_a_callback_of_the_users(place: Path) -> None:
    (place / "my_callback.py").write_text(MINE)
    options = [*MODEL, *SMALL, "features=dense", "hydra.run.dir=noted"]
    mine = "callbacks=[{_target_:my_callback.Notes,path:notes}]"
    out = run_command("train", *options, mine, folder=place).check().out
    notes = read_lines(place / "notes")
    assert [line.split()[0] for line in notes] == ["1", "2"]
    for line in notes:
        number, score = line.split()
        assert f"epoch {number}: dev BLEU {score}," in out
    options[-1] = "hydra.run.dir=not_noted"
    bad = run_command("train", *options, "callbacks=[{_target_:my_callback.No}]", folder=place)
    assert bad.code == 1 and "callbacks" in bad.err and "Traceback" not in bad.err
    word = run_command("train", *options, "callbacks=[a]", folder=place)
    assert word.code == 1 and "callbacks must be a list of classes, as in [{_" in word.err
    wrong = run_command("train", *options, "callbacks=[{_target_:builtins.dict}]", folder=place)
    assert "callbacks: dict has no 'on_start'; is it meant here?" in wrong.err


WALK = """
import numpy as np
from torchtune_smt.tuners.base import Report, Tuner

class Walk(Tuner):
    unit = "epoch"

    def __init__(self, weights, sentences, seed, size):
        super().__init__()
        self.weights, self.sentences, self.seed, self.size = weights, sentences, seed, size

    def round(self, number, done=0):
        draw = np.random.default_rng((self.seed, number))
        move = self.size * draw.normal(size=self.weights.n_dense)
        values = self.weights.parameter.data
        values[: move.size] += values.new_tensor(move)
        yield Report("step", {"walk/length": float(abs(move).sum())}, sentences=len(self.sentences))
"""


def test_what_a_tuner_remembers_can_be_saved(tmp_path: Path) -> None:
    """It is said before anything is done, and not at the first checkpoint."""
    run = run_of([1, 2], Checkpoints(tmp_path / "checkpoint", {}))
    run.tuner.state_dict = lambda: {"moved": np.zeros(2)}  # type: ignore[method-assign]
    with pytest.raises(InputError, match=r"of Steps .*\(a ndarray .* saved, as moved\)"):
        run.run()
    assert run.tuner.taken == 0  # type: ignore[attr-defined]


def test_a_tuner_of_the_users(place: Path) -> None:
    (place / "my_tuner.py").write_text(WALK)
    options = [*MODEL, *SMALL, "features=dense", "hydra.run.dir=walk", "tuner.epochs=3"]
    mine = ["tuner._target_=my_tuner.Walk", "+tuner.size=0.01"]
    out = run_command("train", *options, *mine, folder=place).check().out
    assert "tuning on 30 sentences of dev, up to 3 epochs" in out and "epoch 3: dev BLEU" in out
    lines = [json.loads(line) for line in read_lines(place / "walk" / "metrics.jsonl")]
    assert [line["step"] for line in lines if "walk/length" in line] == [30, 60, 90]
    for more, said in {
        "loss=hinge": "tuner._target_=my_tuner.Walk takes no loss, and loss=hinge would change",
        "tuner.batch_size=3": "batch_size",
        "tuner._target_=my_tuner.np": "tuner._target_=my_tuner.np",
        "tuner._target_=torchtune_smt.losses.Hinge": "losses.Hinge is no tuner",
    }.items():
        options[-2] = "hydra.run.dir=no_walk"
        bad = run_command("train", *options, *mine, more, folder=place)
        assert bad.code == 1 and said in bad.err and "Traceback" not in bad.err, bad.err

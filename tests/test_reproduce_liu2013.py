"""The reproduction of Liu et al. (2013): commands, resumption, tables; hardly any tuning."""

from __future__ import annotations

import csv
import json
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import IO, ClassVar

import numpy as np
import pytest

from torchtune_smt.cli.systems import WITHOUT_EFFECT
from torchtune_smt.core.errors import InputError
from torchtune_smt.core.vocabulary import Vocabulary
from torchtune_smt.core.weights import Weights
from torchtune_smt.kbest.sentences import Sentences
from torchtune_smt.tuners.feature_groups import FeatureGroups, save_groups

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "scripts" / "reproduce"))
import command_line
import liu2013
import runs
import tables
import tuned
from alike import NOT_COUNTED, settings, shared
from diagnosis import TAGS, Diagnosis, plot_diagnosis, read_diagnosis
from forecast import Measured, hours, print_hours, read_measured
from liu2013 import Result
from published import read_results
from runs import Run, complete, read_log, sweep
from tables import Published, Section


class FakeTrain:
    """Stands for train.py: writes what it would, and dies on the way where it is told to."""

    pid = -1

    def __init__(self, *, dies: Sequence[str] = (), keeps: bool = True) -> None:
        self.commands: list[list[str]] = []
        self.dies = set(dies)
        self.keeps = keeps
        self.code = 0

    def __call__(self, arguments: Sequence[str], log: IO[bytes]) -> FakeTrain:
        self.commands.append(list(arguments))
        log.write(b"begun\n")
        self.code = 0
        words = dict(a.partition("=")[::2] for a in arguments)
        if "-m" in arguments:
            option = words["hydra.sweep.subdir"].removeprefix("${").removesuffix("}")
            folders = [Path(words["hydra.sweep.dir"], v) for v in words[option].split(",")]
        else:
            folders = [Path(words.get("resume") or words["hydra.run.dir"])]
        for folder in folders:
            if not self.train(folder):
                self.code = 1
        return self

    def train(self, folder: Path) -> bool:
        folder.mkdir(parents=True, exist_ok=True)
        if folder.name in self.dies:
            self.dies.remove(folder.name)
            if self.keeps:
                (folder / "checkpoint.pt").touch()
            (folder / "metrics.jsonl").write_text("half\n")
            return False
        lines = [
            {"step": 0, "bleu/dev": 30.0},
            {"step": 1, "bleu/dev": 31.0},
            {"step": 2, "bleu/dev": 30.5},
            {"step": 2, "bleu/dev_tuned": 31.0, "best_iteration": 1},
        ]
        (folder / "metrics.jsonl").write_text("".join(json.dumps(x) + "\n" for x in lines))
        (folder / "checkpoint.pt").unlink(missing_ok=True)
        (folder / "weights.txt").write_text("LanguageModel 0.5\nrule_id:a 0.25\n")
        subprocess.run(["gzip", "-f", folder / "weights.txt"], check=True)
        return True

    def wait(self, timeout: float | None = None) -> int:
        return self.code

    def terminate(self) -> None:
        raise AssertionError("it has ended")


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path / "row", ("data=example", "tuner=pro"))


def record(run: Run) -> list[dict[str, float]]:
    parts: list[dict[str, float]] = json.loads((run.folder / "run.json").read_text())["parts"]
    return parts


def test_a_run_is_done_once(run: Run) -> None:
    train = FakeTrain()
    assert complete(run, start=train)
    assert complete(run, start=train)
    (command,) = train.commands
    assert command == [
        sys.executable,
        "train.py",
        "data=example",
        "tuner=pro",
        f"hydra.run.dir={run.folder}",
    ]
    assert len(record(run)) == 1
    assert read_log(run.folder) == (2, 1, 31.0, 2)


def test_a_stopped_run_is_taken_up_again(run: Run) -> None:
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


def test_classes_are_named_again_when_a_run_is_taken_up(run: Run) -> None:
    named = "features.templates=[{_target_:torchtune_smt.features.RuleId}]"
    run = replace(run, overrides=("data=example", named))
    train = FakeTrain(dies=["row"])
    assert not complete(run, start=train)
    assert complete(run, start=train)
    assert train.commands[1][1:] == ["train.py", f"resume={run.folder}", named]


def test_without_a_checkpoint_it_starts_anew(run: Run) -> None:
    train = FakeTrain(dies=["row"], keeps=False)
    assert not complete(run, start=train)
    (run.folder / "tensorboard").mkdir()
    assert complete(run, start=train)
    assert train.commands[1] == train.commands[0]
    assert len(record(run)) == 1
    assert not (run.folder / "tensorboard").exists()
    assert (run.folder / "train.log").read_bytes() == b"begun\n" * 2


def test_other_options_are_noticed(run: Run) -> None:
    assert complete(run, start=FakeTrain())
    with pytest.raises(InputError, match="was run with data=example tuner=pro, and now"):
        complete(replace(run, overrides=("data=example", "tuner=mert")), start=FakeTrain())


def test_other_weights_at_the_start_are_noticed(run: Run, tmp_path: Path) -> None:
    first = tmp_path / "first.txt"
    run = replace(run, overrides=("data=example", "init=file", f"init.file={first}"))
    train = FakeTrain(dies=["row"], keeps=False)
    # What has kept nothing may start from others.
    for weights in ("a 1\n", "a 2\n"):
        first.write_text(weights)
        complete(run, start=train)
    assert run.finished and len(train.commands) == 2
    first.unlink()
    assert complete(run, start=train)
    first.write_text("a 3\n")
    with pytest.raises(InputError, match=r"row: was started from other weights than .*first.txt"):
        complete(run, start=train)
    # What was run before there were checksums is taken to have started from what there is.
    known = json.loads((run.folder / "run.json").read_text())
    del known["start"]
    (run.folder / "run.json").write_text(json.dumps(known))
    assert complete(run, start=train)
    first.write_text("a 4\n")
    with pytest.raises(InputError, match="was started from other weights"):
        complete(run, start=train)
    # Neither is one taken up again that was stopped.
    (run.folder / "weights.txt.gz").unlink()
    (run.folder / "checkpoint.pt").touch()
    with pytest.raises(InputError, match="was started from other weights"):
        complete(run, start=train)
    assert len(train.commands) == 2


def test_time_of_a_killed_run_is_written_down(run: Run) -> None:
    class Killed(FakeTrain):
        def wait(self, timeout: float | None = None) -> int:
            if self.code < 3:
                self.code += 1
                raise subprocess.TimeoutExpired("train.py", timeout or 0)
            raise KeyboardInterrupt

        def terminate(self) -> None:
            self.wait = lambda timeout=None: -15  # type: ignore[method-assign]

    train = Killed(dies=["row"])
    with pytest.raises(KeyboardInterrupt):
        complete(run, start=train, tick=0.0)
    (part,) = record(run)
    assert part["seconds"] > 0


def test_sweep(run: Run) -> None:
    train = FakeTrain()
    values = [1e-4, 3e-8, 1.0]
    points = sweep("regularizer.strength", values, run, start=train)
    assert [p.folder.name for p in points] == ["0.0001", "3e-08", "1.0"]
    (command,) = train.commands
    assert command[1:] == [
        "train.py",
        "-m",
        "data=example",
        "tuner=pro",
        "regularizer.strength=0.0001,3e-08,1.0",
        f"hydra.sweep.dir={run.folder}",
        "hydra.sweep.subdir=${regularizer.strength}",
    ]
    assert points[0].overrides == (*run.overrides, "regularizer.strength=0.0001")
    assert [len(record(p)) for p in points] == [1, 1, 1]


def test_a_sweep_goes_on_where_it_was(run: Run) -> None:
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


def options(tmp_path: Path, *arguments: str) -> liu2013.Options:
    given = liu2013.parse(["--folder", str(tmp_path), *arguments])
    return liu2013.as_options(given)


def test_rows_are_those_of_the_paper() -> None:
    published = {key: row.published for key, row in liu2013.ROWS.items() if row.published}
    assert len(published) == 7
    assert published["oscar"] == Published(503, 425, 46.9, 41.8, 1256)
    trained = [row for row in liu2013.ROWS.values() if "train" in row.tuning_set]
    assert sorted(row.language_models for row in trained) == ["folds"] * 11 + ["full"] * 3
    for key, row in liu2013.ROWS.items():
        if row.language_models == "full":
            assert row.overrides == tuple(
                o.replace("=folds", "=full")
                for o in liu2013.ROWS[key.removesuffix("_full")].overrides
            )


@pytest.mark.parametrize("key", liu2013.ROWS)
def test_overrides_are_options_of_train(key: str, tmp_path: Path) -> None:
    from tuned import configuration

    row = liu2013.ROWS[key]
    chosen = [f"{option}=0.01" for option in row.swept]
    given = options(tmp_path, "--small")
    cfg = configuration([*liu2013.row_overrides("fisher", row, 3, given), *chosen])
    assert cfg.seed == 3
    assert cfg.data.name == "fisher"
    assert cfg.tuner.iterations == 3
    assert cfg.tuner.patience == 3
    assert cfg.lm == (row.language_models or "folds")
    if "train" in row.tuning_set:
        assert cfg.tuner.sentences == 200
    else:
        assert cfg.tuner.sentences is None


def test_the_experiments_have_the_model_of_the_rows(tmp_path: Path) -> None:
    """One file says what it is; whatever stands behind an experiment goes before it."""
    from tuned import configuration

    rows = configuration(liu2013.corpus_overrides("fisher", options(tmp_path))).model
    assert (rows.aligner, rows.unaligned_edges, rows.rule_counts) == ("fast_align", False, False)
    assert rows.folder != configuration(["data=fisher"]).model.folder
    for experiment in ("liu2013", "liu2013_grouping"):
        given = ["data=fisher", f"experiment={experiment}"]
        assert configuration(given).model == rows
        assert configuration([*given, "model=hiero"]).model.aligner == "eflomal"


def test_all_sentences(tmp_path: Path) -> None:
    row = liu2013.ROWS["pro_train"]
    chosen = options(tmp_path, "--train-sentences", "0", "--iterations", "2", "--set", "a.b=1")
    overrides = liu2013.row_overrides("multi30k", row, 1, chosen)
    assert not [o for o in overrides if o.startswith("tuner.sentences")]
    assert "a.b=1" in overrides
    assert "tuner.iterations=2" in overrides


def test_iterations_of_rows_on_dev_alone(tmp_path: Path) -> None:
    given = ["--iterations", "3", "--dev-only-iterations", "60"]
    chosen = options(tmp_path, *given)
    of = {
        key: liu2013.row_overrides("fisher", liu2013.ROWS[key], 1, chosen) for key in liu2013.ROWS
    }
    long = {key for key, overrides in of.items() if "tuner.iterations=60" in overrides}
    assert long == {"mert_dev", "pro_dev", "pro_dev_id", "l1_dev_id", "mira_dev"}
    assert all("tuner.iterations=3" in of[key] for key in of.keys() - long)
    assert chosen.command.endswith(" --iterations 3 --dev-only-iterations 60")
    alike = options(tmp_path, "--iterations", "3")
    assert alike.dev_only_iterations == 3
    assert "dev-only" not in alike.command


def test_seeds_are_done_one_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[tuple[int, str]] = []
    # The script changes it.
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        liu2013, "do_row", lambda key, corpus, name, seed, given: done.append((seed, key))
    )
    monkeypatch.setattr(liu2013, "Corpus", lambda overrides, small: FakeCorpus())
    given = ["--small", "--rows", "pro_dev", "oscar", "--seeds", "1", "2"]
    failed = liu2013.do_rows(liu2013.parse([*given, "--folder", str(tmp_path)]))
    assert done == [(seed, key) for seed in (1, 2) for key in ("pro_dev", "oscar")]
    assert len(failed) == 4


def test_command_says_nothing_of_the_machine(tmp_path: Path) -> None:
    arguments = ["--corpora", "fisher", "--sweep", "--lambda2s", "1e-8", "--train-sentences", "500"]
    chosen = options(tmp_path, *arguments, "--publish", str(tmp_path), "--seeds", "2")
    assert chosen.command == (
        "python scripts/reproduce/liu2013.py --corpora fisher --train-sentences 500 --sweep "
        "--strengths 1e-05 0.0001 0.001 --rates 0.001 0.003 0.01 --lambda2s 1e-08 "
        "--fractions 0.02 0.1 0.5 --seeds 2"
    )
    assert chosen.grids["regularizer.lambda2"] == [1e-8]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--strengths", "0.1"], "--strengths needs --sweep"),
        (["--lambda2s", "1e-9"], "--lambda2s needs --sweep"),
        (["--sweep-iterations", "2"], "--sweep-iterations needs --sweep"),
        (["--sweep", "--sweep-iterations", "0"], "--sweep-iterations must be 1"),
        (["--iterations", "0"], "--iterations must be 1"),
        (["--dev-only-iterations", "0"], "--dev-only-iterations must be 1"),
        (["--threads", "0"], "--threads must be 1"),
        (["--train-sentences", "-1"], "--train-sentences must be 0"),
        (["--seeds", "1", "1"], "--seeds must be"),
    ],
)
def test_bad_command_lines(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        liu2013.parse(arguments)
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


def test_a_mistyped_override_of_all_rows(capsys: pytest.CaptureFixture[str]) -> None:
    code = command_line.ended(lambda: [str(tuned.configuration(["nosuch.option=3"]))])
    assert code == 1
    assert capsys.readouterr().err == "error: --set: Could not override 'nosuch.option'.\n"


def test_a_choice_from_shorter_runs(tmp_path: Path) -> None:
    chosen = options(tmp_path, "--sweep", "--sweep-iterations", "2")
    run = Run(tmp_path / "l1", ("tuner=stochastic", "tuner.iterations=15", "seed=1"))
    shorter = liu2013.sweep_run(run, chosen)
    assert shorter.overrides == ("tuner=stochastic", "tuner.iterations=2", "seed=1")
    train = FakeTrain(dies=["l1"], keeps=False)
    assert len(sweep("regularizer.strength", [0.1, 0.2], shorter, start=train)) == 2
    # A run that has to start anew leaves them where they are.
    assert not complete(run, start=train)
    assert complete(run, start=train)
    assert len(sweep("regularizer.strength", [0.1, 0.2], shorter, start=train)) == 2
    assert len(train.commands) == 3
    assert "--sweep-iterations 2 --strengths" in chosen.command
    assert liu2013.sweep_run(run, options(tmp_path, "--sweep")) == run


def test_a_forecast_of_what_is_not_done(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    measured = {("fisher", "oscar"): Measured(3.0, 2000), ("fisher", "pro_dev"): Measured(2.0, 0)}
    assert hours(measured, "fisher", "oscar", 6000, 10) == pytest.approx(1.5)
    assert hours(measured, "fisher", "oscar", 200, 10) == pytest.approx(0.5)
    assert hours(measured, "fisher", "pro_dev", 6000, 15) == pytest.approx(0.5)
    assert hours(measured, "multi30k", "oscar", 2000, 10) is None
    (tmp_path / "multi30k" / "pro_dev").mkdir(parents=True)
    chosen = options(tmp_path, "--sweep", "--sweep-iterations", "2", "--train-sentences", "0")
    overrides = list(liu2013.row_overrides("multi30k", liu2013.ROWS["pro_dev"], 1, chosen))
    result("pro_dev", overrides=overrides).save(tmp_path / "multi30k" / "pro_dev")
    rows = liu2013.forecasts(["pro_dev", "oscar", "oscar_minimum"], ["multi30k"], chosen)
    print_hours(rows, Path("table.csv"))
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "multi30k/pro_dev: done"
    # As OSCAR's: 15 iterations, and two for each of three values. Only what it does with training
    # data grows with it; PRO on dev has 60 iterations, where it had ten.
    assert lines[1].partition(": ")[2] == lines[2].partition(": ")[2]
    measured = read_measured(liu2013.MEASURED)
    minutes, dev = (measured["multi30k", row].cpu_minutes for row in ("oscar", "pro_dev"))
    expected = ((minutes - 10 * dev) * 29_000 / 2000 + 60 * dev) * 21 / 60
    assert f"{expected:.2f} CPU hours" in lines[1]
    # Two options of L1, and two seeds.
    given = ["--sweep", "--sweep-iterations", "2", "--train-sentences", "2000", "--seeds", "1", "2"]
    found = list(liu2013.forecasts(["l1_train_id"], ["multi30k"], options(tmp_path, *given)))
    assert [said for said, _, _ in found] == [
        "multi30k/l1_train_id",
        "multi30k/l1_train_id, seed 2",
    ]
    assert found[0][2] == pytest.approx(measured["multi30k", "l1_train_id"].cpu_minutes * 27 / 60)
    assert found[1][2] == pytest.approx(measured["multi30k", "l1_train_id"].cpu_minutes * 15 / 60)
    assert "CPU hours at most" in lines[3]


def test_done_is_what_would_be_run_now(tmp_path: Path) -> None:
    def done(*arguments: str) -> set[tuple[str, int]]:
        given = options(tmp_path, "--seeds", "1", "2", "--train-sentences", "0", *arguments)
        rows = [(key, seed) for key in ("pro_dev", "oscar", "oscar_single") for seed in (1, 2)]
        return {one for one in rows if liu2013.is_done(one[0], "fisher", one[1], given)}

    def save(key: str, seed: int, chosen: str, **more: object) -> None:
        given = options(tmp_path, "--train-sentences", "0")
        overrides = liu2013.row_overrides("fisher", liu2013.ROWS[key], seed, given)
        values = {"overrides": [*overrides, *chosen.split()], "chosen": chosen, "seed": seed}
        result(key, **values | more).save(liu2013.place(tmp_path / "fisher", key, seed))

    default, best = "regularizer.lambda2=3e-8", "regularizer.lambda2=3e-09"
    save("pro_dev", 1, "")
    save("oscar", 1, default)
    save("oscar_single", 1, default)
    save("oscar_single", 2, best)
    first = {("pro_dev", 1), ("oscar", 1), ("oscar_single", 1)}
    assert done() == first
    assert done("--set", "decoder.pop_limit=30") == done("--iterations", "7") == set()
    assert done("--train-sentences", "5000") == {("pro_dev", 1)}
    # With --sweep it has to have been chosen from these values.
    sweep = ["--sweep", "--lambda2s", "3e-9", "3e-8"]
    assert done(*sweep) == first - {("oscar", 1)}
    save("oscar", 1, best, points=POINTS)
    assert done(*sweep) == {("pro_dev", 1), ("oscar", 1), ("oscar_single", 2)}
    assert ("oscar", 1) not in done("--sweep")


def result(row: str, **changes: object) -> Result:
    described = liu2013.ROWS[row]
    values = {
        "row": row,
        "corpus": "multi30k",
        "method": described.method,
        "tuning_set": described.tuning_set,
        "features": described.features,
        "language_models": described.language_models,
        "training_sentences": 2000 if "train" in described.tuning_set else 0,
        "active": 10,
        "reused": 9,
        "atomic": 10,
        "iterations": 7,
        "best": 4,
        "dev": 41.0,
        "devtest": 30.125,
        "test": 40.5,
        "minutes": 3.25,
        "cpu_minutes": 2.0,
        "begin": "2026-01-01",
        "end": "2026-01-02",
        "command": "python scripts/reproduce/liu2013.py --corpora multi30k",
        "seed": 1,
        "overrides": ["data=multi30k"],
        "versions": {"torch": "2.13.0"},
    }
    return Result(**(values | changes))  # type: ignore[arg-type]


POINTS = [
    {"option": f"regularizer.lambda2={value}", "dev": 41.0, "devtest": devtest, "active": active}
    | {"minutes": 2.5, "cpu_minutes": 1.5}
    for value, devtest, active in (("3e-09", 30.0, 900), ("3e-08", 31.0, 800))
]


def store(folder: Path) -> dict[str, Result]:
    results = {
        "pro_dev": result("pro_dev"),
        "mert_dev": result("mert_dev", p_devtest=0.5, p_test=0.0009),
        "oscar": result(
            "oscar",
            active=503,
            atomic=12345,
            reused=425,
            test=41.5,
            p_test=0.04,
            p_devtest=0.06,
            chosen="regularizer.lambda2=3e-08",
            points=POINTS,
        ),
    }
    for key, r in results.items():
        r.save(folder / "multi30k" / key)
    return results


def test_tables(tmp_path: Path) -> None:
    results = store(tmp_path / "runs")
    assert Result.load(tmp_path / "runs" / "multi30k" / "oscar") == results["oscar"]
    liu2013.write_tables(tmp_path / "runs", tmp_path / "out")
    text = (tmp_path / "out" / "table.md").read_text()
    lines = text.splitlines()
    assert "    python scripts/reproduce/liu2013.py --corpora multi30k" in lines
    assert "Run on 2026-01-01 to 2026-01-02; seed 1; torch 2.13.0." in lines
    begins = [
        "| MERT | dev | default | | 10 |",
        "| PRO | dev",
        "| OSCAR, `lambda2=3e-08` | train (2,000 s",
    ]
    places = [next(i for i, x in enumerate(lines) if x.startswith(b)) for b in begins]
    assert places == sorted(places)
    assert lines[places[0]].endswith("| 30.12 | 0.500 | 40.50 | **0.001** | 4 of 7 | 3.2 | 2.0 |")
    assert "| 30.12 | baseline | 40.50 | baseline |" in lines[places[1]]
    assert "| 503 groups of 12,345 features | 425 |" in lines[places[2]]
    assert any(
        "`regularizer.lambda2=3e-08` * | 41.00 | 31.00 | 800 | 2.5 | 1.5 |" in x for x in lines
    )
    assert any(x.endswith("| 503 | 425 | 46.9 | 41.8 | 1,256 |") for x in lines)
    assert not re.search(r"/(home|tmp|root)", text)
    assert {line.count("|") for line in lines[places[0] - 2 : places[-1] + 1]} == {14}
    with (tmp_path / "out" / "table.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["row"] for row in rows] == ["mert_dev", "pro_dev", "oscar"]
    assert float(rows[2]["test"]) == 41.5
    assert json.loads(rows[2]["points"]) == POINTS
    assert rows[1]["p_test"] == ""
    assert (tmp_path / "out" / "bleu-by-features.png").read_bytes().startswith(b"\x89PNG")
    assert len(list((tmp_path / "out").iterdir())) == 3


class FakeCorpus:
    """Stands for the corpus: p is the difference of the numbers in the files."""

    def p_value(self, name: str, baseline: Path, path: Path) -> float:
        return abs(float(baseline.read_text()) - float(path.read_text()))


def translate_rows(folder: Path) -> None:
    for key, value in (("pro_dev", 0.5), ("mert_dev", 0.25), ("oscar", 0.375)):
        (folder / key / tuned.DEVTEST).write_text(f"{value}\n")
        (folder / key / tuned.TEST).write_text(f"{value / 2}\n")


def compared(folder: Path) -> dict[str, tuple[float | None, float | None, str]]:
    liu2013.compare_rows(FakeCorpus(), folder)  # type: ignore[arg-type]
    found = {key: Result.load(folder / key) for key in ("mert_dev", "oscar")}
    return {k: (r.p_devtest, r.p_test, r.significance) for k, r in found.items() if r}


def test_p_values_of_another_test_are_computed_again(tmp_path: Path) -> None:
    folder = tmp_path / "multi30k"
    old = store(tmp_path)
    # As they stand in the folder of an older version.
    for key in ("mert_dev", "oscar"):
        values = asdict(old[key]) | {"compared": [30.125, 40.5]}
        del values["significance"]
        (folder / key / tables.RESULT).write_text(json.dumps(values))
    translate_rows(folder)
    expected = {
        "mert_dev": (0.25, 0.125, "randomization"),
        "oscar": (0.125, 0.0625, "randomization"),
    }
    assert compared(folder) == expected
    # They are not computed without need.
    (folder / "oscar" / tuned.TEST).write_text("0.25\n")
    assert compared(folder) == expected
    Result(**asdict(old["pro_dev"]) | {"test": 1.0}).save(folder / "pro_dev")
    assert compared(folder) == expected | {"oscar": (0.125, 0.0, "randomization")}


class FakeDevtest:
    """Stands for the corpus: BLEU on devtest falls with the distance from what is best."""

    best: ClassVar = {"regularizer.strength": 1e-4, "optimizer.lr": 0.003}

    def score(self, name: str, overrides: Sequence[str], folder: Path) -> float:
        given = dict(option.split("=") for option in overrides)
        found = ((option, float(given.get(option, 0.01))) for option in self.best)
        return 50.0 - sum(abs(np.log(value / self.best[option])) for option, value in found)


def test_options_are_chosen_one_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train = FakeTrain()
    monkeypatch.setattr(liu2013, "sweep", partial(sweep, start=train))
    chosen = options(tmp_path, "--sweep", "--sweep-iterations", "2", "--seeds", "1", "2")
    row = liu2013.ROWS["l1_dev_id"]
    run = Run(tmp_path / "l1_dev_id", liu2013.row_overrides("example", row, 1, chosen))
    found = liu2013.choose(row, FakeDevtest(), run, chosen)  # type: ignore[arg-type]
    assert found is not None
    points, said, last, _ = found
    assert said == "regularizer.strength=0.0001 optimizer.lr=0.003"
    assert len(points) == 6
    assert last == Run(run.folder, (*run.overrides, *said.split()))
    # One of the last ones may be made longer.
    kept = ["tuner.keep_lists=true" in command for command in train.commands]
    assert kept == [False, True]
    # All values of the second option were tried with the best of the first.
    folder = run.folder / runs.SWEEP / "optimizer.lr"
    record = json.loads((folder / "0.01" / runs.RECORD).read_text())
    assert record["overrides"][-2:] == ["regularizer.strength=0.0001", "optimizer.lr=0.01"]


def test_seeds_have_rows_of_their_own_and_one_mean(tmp_path: Path) -> None:
    folder = tmp_path / "multi30k"
    for seed in (1, 2, 3):
        for key, test in (("pro_dev", 40.0 + seed), ("oscar", 50.0 + 2 * seed)):
            values = {"seed": seed, "test": test, "devtest": 30.0, "dev": 41.5}
            result(key, **values).save(liu2013.place(folder, key, seed))
    result("mert_dev").save(folder / "mert_dev")
    liu2013.write_tables(tmp_path, tmp_path / "out")
    text = (tmp_path / "out" / "table.md").read_text()
    (mean,) = (line for line in text.splitlines() if line.startswith("| OSCAR") and " ± " in line)
    # Of 20 divisions of six runs, two differ as much.
    assert mean == (
        "| OSCAR train, dev +group lm=folds | 1, 2, 3 | 41.50 ± 0.00 | 30.00 ± 0.00 | 1.000 "
        "| 54.00 ± 2.00 | 0.100 |"
    )
    assert "| PRO dev default | 1, 2, 3 | 41.50 ± 0.00 | 30.00 ± 0.00 | baseline |" in text
    assert "MERT dev default | 1" not in text
    # The table itself has the first seeds, the file all of them.
    assert sum(line.startswith("| OSCAR |") for line in text.splitlines()) == 1
    with (tmp_path / "out" / "table.csv").open(encoding="utf-8", newline="") as file:
        assert len(list(csv.DictReader(file))) == 7
    assert "Not run: `pro_train`," in text
    assert "\n\nSeeds that were not run: `mert_dev` (2, 3).\n" in text
    assert "\n\nNothing has been run of fisher.\n\n## multi30k\n" in text


def test_rows_of_a_part_of_the_data_have_folders_of_their_own(tmp_path: Path) -> None:
    part, everything = (options(tmp_path, "--train-sentences", n) for n in ("5000", "0"))
    for key, folders in {
        "oscar": ["oscar-5000", "oscar"],
        "pro_dev": ["pro_dev", "pro_dev"],
    }.items():
        row = liu2013.ROWS[key]
        for given, folder in zip((part, everything), folders, strict=True):
            size = liu2013.part_of("multi30k", row, given)
            assert liu2013.place(tmp_path, key, 1, size) == tmp_path / folder
            assert liu2013.place(tmp_path, key, 2, size) == tmp_path / f"{folder}-seed2"
            overrides = liu2013.row_overrides("multi30k", row, 1, given)
            assert ("tuner.sentences=5000" in overrides) == folder.endswith("-5000")
    # So many are all.
    row = liu2013.ROWS["oscar"]
    assert liu2013.part_of("multi30k", row, options(tmp_path, "--train-sentences", "29000")) == 0
    assert liu2013.part_of("fisher", row, options(tmp_path, "--train-sentences", "18871")) == 18871


ROW_OF = "data=multi30k", "model=liu2013", "decoder.pop_limit=30", "data.test=null"


def overrides_of(row: str, seed: int, **changes: object) -> dict[str, object]:
    """Return what a result of `row` has, as a command with some options would do it."""
    shared = list(ROW_OF)
    shared[2:3] = [f"{k}={v}" for k, v in ({"decoder.pop_limit": 30} | changes).items() if v]
    return {"seed": seed, "overrides": [*shared, f"seed={seed}", *liu2013.ROWS[row].overrides]}


def test_results_of_different_experiments_have_no_common_mean(tmp_path: Path) -> None:
    folder = tmp_path / "multi30k"
    for seed in (1, 2, 3):
        values = {"test": 40.0 + seed, "devtest": 30.0, "dev": 41.5}
        # Neither threads nor memory count.
        for key, more in (("pro_dev", {}), ("oscar", {"decoder.keep_mb": seed, "threads": seed})):
            given = overrides_of(key, seed, **more) | values
            given |= {} if key == "pro_dev" else {"training_sentences": 5000}
            part = 0 if key == "pro_dev" else 5000
            result(key, **given).save(liu2013.place(folder, key, seed, part))
        # Another setting with other seeds than its baseline, which has none.
        given = overrides_of("mert_dev", seed, **{"decoder.pop_limit": 30 if seed < 2 else None})
        result("mert_dev", **given | values).save(liu2013.place(folder, "mert_dev", seed))
    full = overrides_of("oscar", 1) | {"training_sentences": 29_000, "test": 60.0}
    result("oscar", **full).save(folder / "oscar")
    liu2013.write_tables(tmp_path, tmp_path / "out")
    lines = (tmp_path / "out" / "table.md").read_text().splitlines()
    means = [line for line in lines if " ± " in line]
    assert means == [
        "| MERT dev default, without `decoder.pop_limit=30` | 2, 3 | 41.50 ± 0.00 | 30.00 ± 0.00 "
        "| not compared | 42.50 ± 0.71 | not compared |",
        "| PRO dev default | 1, 2, 3 | 41.50 ± 0.00 | 30.00 ± 0.00 | baseline | 42.00 ± 1.00 "
        "| baseline |",
        "| OSCAR train (5,000 sentences), dev +group lm=folds | 1, 2, 3 | 41.50 ± 0.00 "
        "| 30.00 ± 0.00 | 1.000 | 42.00 ± 1.00 | 1.000 |",
    ]
    rows = [line.partition(" | +group")[0] for line in lines if line.startswith("| OSCAR | ")]
    sizes = ["29,000", "5,000"]
    assert rows == [f"| OSCAR | train ({n} sentences), dev" for n in sizes]
    begins = (
        "| MERT, `decoder.pop_limit=30` | dev",
        "| MERT, without `decoder.pop_limit=30` | dev",
    )
    assert all(any(line.startswith(begin) for line in lines) for begin in begins)
    with (tmp_path / "out" / "table.csv").open(encoding="utf-8", newline="") as file:
        assert len(list(csv.DictReader(file))) == 10
    pair = result("random_pairs", training_sentences=5000, seed=2)
    pair.save(folder / "random_pairs-5000-seed2")
    result("oscar_ten", training_sentences=29_000).save(tmp_path / "example" / "oscar_ten")
    liu2013.write_tables(tmp_path, tmp_path / "out")
    text = (tmp_path / "out" / "table.md").read_text()
    assert (
        "Seeds that were not run: `random_pairs`, 29,000 training sentences (1); `random_pairs`, "
        "5,000 training sentences (1, 3)."
    ) in text
    # What only the example has is no experiment.
    (tmp_path / "multi30k").rename(tmp_path / "away")
    (tmp_path / "out" / "table.csv").unlink()
    liu2013.write_tables(tmp_path, tmp_path / "out")
    assert "Nothing has been run" not in (tmp_path / "out" / "table.md").read_text()


def test_rows_are_compared_with_the_baseline_that_has_their_options(tmp_path: Path) -> None:
    folder = tmp_path / "multi30k"
    rows = {
        ("pro_dev", 1): {},
        ("mert_dev", 1): {"decoder.keep_mb": 5},
        ("pro_dev_id", 1): {"decoder.pop_limit": 200},
        ("mert_dev", 2): {},
    }
    for (key, seed), more in rows.items():
        at = liu2013.place(folder, key, seed)
        old = {"p_test": 0.5, "p_devtest": 0.5, "significance": "randomization"}
        result(key, **overrides_of(key, seed, **more) | (old if seed == 1 else {})).save(at)
        for file in (tuned.DEVTEST, tuned.TEST):
            (at / file).write_text("0.25\n" if key == "pro_dev" else "0.75\n")
    liu2013.compare_rows(FakeCorpus(), folder)  # type: ignore[arg-type]
    found = {key: Result.load(liu2013.place(folder, *key)) for key in rows}
    said = {key: (one.p_devtest, one.p_test, one.significance) for key, one in found.items() if one}
    assert said[("mert_dev", 1)] == (0.5, 0.5, "randomization")
    nothing = (None, None, "not compared")
    assert said[("pro_dev_id", 1)] == said[("mert_dev", 2)] == nothing
    # With a baseline, there is something to compare.
    at = liu2013.place(folder, "pro_dev", 2)
    result("pro_dev", **overrides_of("pro_dev", 2)).save(at)
    for file in (tuned.DEVTEST, tuned.TEST):
        (at / file).write_text("0.5\n")
    liu2013.compare_rows(FakeCorpus(), folder)  # type: ignore[arg-type]
    again = Result.load(liu2013.place(folder, "mert_dev", 2))
    assert again is not None and again.p_test == 0.25
    # It stays when that is gone.
    (at / tables.RESULT).unlink()
    liu2013.compare_rows(FakeCorpus(), folder)  # type: ignore[arg-type]
    assert Result.load(liu2013.place(folder, "mert_dev", 2)) == again


def test_what_options_count() -> None:
    assert set(WITHOUT_EFFECT) < NOT_COUNTED
    given = ["data=fisher", "threads=1", "a.b=3e-8", "engine.workers=2", "c=true", "c=false"]
    other = ["c=false", "+a.b=3e-08", "data=fisher", "decoder.keep_mb=3", "seed=2", "threads=2"]
    assert (
        settings(given) == settings(other) == {("data", "fisher"), ("a.b", "3e-08"), ("c", "false")}
    )
    assert settings([*given, "decoder.k=10"]) != settings(given)
    assert shared(["a=1", "data.test=null", "tuner=pro"]) == {("a", "1")} == shared(["a=1"])


def test_results_of_a_part_that_had_no_folder_of_their_own(tmp_path: Path) -> None:
    result("oscar", seed=2).save(tmp_path / "oscar-seed2")
    result("oscar", seed=1).save(tmp_path / "oscar")
    result("oscar", seed=1, test=2.0).save(tmp_path / "oscar-2000")
    result("oscar_single").save(tmp_path / "oscar_single-2000")
    found = liu2013.results_of(tmp_path)
    assert [(*key, path.name) for key, (_, path) in found.items()] == [
        ("oscar", 2000, 1, "oscar-2000"),
        ("oscar", 2000, 2, "oscar-seed2"),
        ("oscar_single", 2000, 1, "oscar_single-2000"),
    ]


def test_a_row_says_what_its_run_does_of_its_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where its run is one of a sweep, which has a folder of its own."""
    chosen = options(tmp_path, "--sweep", "--lambda2s", "3e-9", "3e-8")
    last = Run(tmp_path / "sweep" / "3e-08", ())
    FakeTrain().train(last.folder)
    with (last.folder / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"step": 3, "diagnosis/fired_last": 0.25}) + "\n")
    for folder in (last.folder, tmp_path / "example" / "oscar"):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / tuned.DEVTEST).touch()
    found = [], "regularizer.lambda2=3e-08", last, ()
    monkeypatch.setattr(liu2013, "choose", lambda *_: found)
    monkeypatch.setattr(liu2013, "complete", lambda *_: True)
    monkeypatch.setattr(liu2013, "training_sentences", lambda *_: 2000)
    monkeypatch.setattr(
        liu2013,
        "measured",
        lambda kind, *_, **said: result(said["row"], diagnosis=said["diagnosis"]),
    )
    done = liu2013.do_row("oscar", FakeCorpus(), "example", 1, chosen)  # type: ignore[arg-type]
    assert done is not None
    assert done.diagnosis == {"diagnosis/fired_last": [None, None, 0.25]}


def test_a_picture_of_the_chance_in_groups(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    of_groups = {"overrides": ["data=multi30k", "data.test=null", "tuner=grouping"]}
    diagnosis = {"diagnosis/overlap_features": [0.1], "diagnosis/fired_last": [None, 0.9]}
    row = tmp_path / "multi30k" / "oscar"
    result("oscar", **of_groups, diagnosis=diagnosis).save(row)
    picture = tmp_path / "out" / "chance-in-groups.png"
    liu2013.write_tables(tmp_path, picture.parent)
    assert picture.read_bytes().startswith(b"\x89PNG")
    # On another machine, what the table says is drawn, too.
    again = Result.load(row)
    assert again is not None and again.diagnosis == diagnosis
    (row / tables.RESULT).unlink()
    beside = tmp_path / "multi30k" / "random_pairs"
    result("random_pairs", **of_groups, diagnosis=diagnosis).save(beside)
    drawn: list[dict[str, list[Diagnosis]]] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(liu2013, "plot_diagnosis", lambda _, found: drawn.append(found))
        liu2013.write_tables(tmp_path, picture.parent)
    (shown,) = drawn
    named = ["multi30k: OSCAR train, dev", "multi30k: groups of random pairs train, dev"]
    assert [name.partition(" +group")[0] for name in shown] == named
    assert list(shown.values()) == [[diagnosis]] * 2
    assert capsys.readouterr().out == ""
    # A table that does not say what its picture shows.
    table = picture.parent / "table.csv"
    rows = [replace(one, diagnosis={}) for one in read_results(table, Result)]
    tables.write_csv(table, [Section("multi30k", "", rows)])
    picture.write_bytes(b"as it was")
    liu2013.write_tables(tmp_path, picture.parent)
    assert picture.read_bytes() == b"as it was"
    said = f"{picture} stays as it was: table.csv does not have what multi30k/oscar say there\n"
    assert capsys.readouterr().out == said
    picture.unlink()
    liu2013.write_tables(tmp_path, picture.parent)
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_the_picture_has_numbers_at_their_iterations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also after an iteration without groups, and where nothing is said of the last steps."""
    import matplotlib.pyplot as plt

    monkeypatch.setattr(plt, "close", lambda figure: None)
    lines: list[dict[str, float]] = [{"step": 0, "bleu/dev": 30.0}]
    for iteration in range(1, 5):
        said = {"diagnosis/overlap_features": 0.1 * iteration} if iteration != 3 else {}
        lines += [{"step": 300 * iteration - 100, **said}]
        lines += [{"step": 300 * iteration, "bleu/dev": 31.0}]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    mixed = read_diagnosis(tmp_path)
    assert mixed == {"diagnosis/overlap_features": [0.1, 0.2, None, 0.4]}
    assert read_diagnosis(tmp_path / "elsewhere") == {}
    online: Diagnosis = {tag: [None, 0.5] for tag in TAGS}
    plot_diagnosis(tmp_path / "picture.png", {"mix": [mixed], "online": [online, online]})
    overlap, last = plt.gcf().axes
    assert [line.get_xdata().tolist() for line in overlap.lines] == [[1, 2, 3, 4], [1, 2], [1, 2]]
    np.testing.assert_array_equal(overlap.lines[0].get_ydata(), [0.1, 0.2, np.nan, 0.4])
    assert [text.get_text() for text in overlap.get_legend().get_texts()] == ["mix", "online"]
    assert [text.get_text() for text in last.get_legend().get_texts()] == ["online"]
    assert len(last.lines) == 2
    monkeypatch.undo()
    plt.close("all")


def test_rows_of_another_seed_take_over_what_was_chosen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[Run] = []
    monkeypatch.setattr(liu2013, "complete", lambda run, _: bool(found.append(run)))
    chosen = options(tmp_path, "--sweep", "--seeds", "1", "2", "--train-sentences", "0")
    of_all = list(liu2013.corpus_overrides("multi30k", chosen))
    first = result("oscar", chosen="regularizer.lambda2=3e-09", overrides=of_all)
    first.save(tmp_path / "multi30k" / "oscar")
    for key in ("oscar", "random_pairs", "clusters"):
        liu2013.do_row(key, FakeCorpus(), "multi30k", 2, chosen)  # type: ignore[arg-type]
    assert [run.folder.name for run in found] == [
        "oscar-seed2",
        "random_pairs-seed2",
        "clusters-seed2",
    ]
    assert [run.overrides[-1] for run in found[:2]] == ["regularizer.lambda2=3e-09"] * 2
    assert not [o for o in found[2].overrides if o.startswith("regularizer.")]
    assert all("seed=2" in run.overrides for run in found)


def test_what_is_to_be_taken_over_has_to_be_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found: list[Run] = []
    monkeypatch.setattr(liu2013, "complete", lambda run, _: bool(found.append(run)))
    given = ["--sweep", "--seeds", "1", "2", "--set", "decoder.pop_limit=30"]

    def refused(key: str, seed: int, *arguments: str) -> None:
        chosen = options(tmp_path, *given, *arguments)
        cure = "takes over what oscar chooses with seed 1, .*: run --rows oscar too"
        with pytest.raises(InputError, match=cure):
            liu2013.do_row(key, FakeCorpus(), "multi30k", seed, chosen)  # type: ignore[arg-type]

    refused("oscar_single", 1)
    refused("oscar", 2)
    # Neither other options nor another part of the data will do.
    of_all = list(liu2013.corpus_overrides("multi30k", options(tmp_path, *given)))
    there = result("oscar", chosen="regularizer.lambda2=3e-09", overrides=of_all)
    there.save(tmp_path / "multi30k" / "oscar-2000")
    refused("oscar_single", 1, "--set", "decoder.pop_limit=200")
    refused("oscar_single", 1, "--train-sentences", "5000")
    assert not found
    chosen = options(tmp_path, *given, "--set", "decoder.pop_limit=30", "decoder.keep_mb=3")
    liu2013.do_row("oscar_single", FakeCorpus(), "multi30k", 1, chosen)  # type: ignore[arg-type]
    assert found.pop().overrides[-1] == "regularizer.lambda2=3e-09"
    assert capsys.readouterr().out == ""
    # A table of another machine will do, with the same options and the same part of the data.
    (tmp_path / "multi30k" / "oscar-2000" / tables.RESULT).unlink()
    published = tmp_path / "published"
    published.mkdir()
    tables.write_csv(published / liu2013.CSV, [Section("multi30k", "", [there])])
    given += ["--publish", str(published)]
    refused("oscar_single", 1, "--set", "decoder.pop_limit=200")
    refused("oscar_single", 1, "--train-sentences", "5000")
    for seed in (1, 2):
        chosen = options(tmp_path, *given)
        liu2013.do_row("oscar_single", FakeCorpus(), "multi30k", seed, chosen)  # type: ignore[arg-type]
        assert found.pop().overrides[-1] == "regularizer.lambda2=3e-09"
    # Without --sweep there is a default, and it is said.
    plain = options(tmp_path, "--train-sentences", "0")
    liu2013.do_row("oscar_single", FakeCorpus(), "multi30k", 1, plain)  # type: ignore[arg-type]
    assert found.pop().overrides[-1] == "regularizer.lambda2=3e-8"
    assert capsys.readouterr().out == "  regularizer.lambda2=3e-8, by default\n"


def test_rows_that_others_take_over_come_first() -> None:
    keys = ["oscar_single", "l1_train_id_full", "pro_dev", "oscar", "oscar_shuffled"]
    assert liu2013.in_turn(keys) == [
        *("oscar", "oscar_single", "l1_train_id_full", "pro_dev", "oscar_shuffled"),
    ]


def test_a_row_that_is_refused_leaves_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    done: list[str] = []

    def do_row(key: str, *_: object) -> Result:
        done.append(key)
        if key == "mert_dev":
            raise InputError("was run with other options")
        return result(key, corpus="example")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(liu2013, "do_row", do_row)
    monkeypatch.setattr(liu2013, "Corpus", lambda overrides, small: FakeCorpus())
    given = liu2013.parse(
        ["--small", "--rows", "mert_dev", "pro_dev", "--folder", str(tmp_path / "out")]
    )
    assert command_line.ended(lambda: liu2013.do_rows(given)) == 1
    assert done == ["mert_dev", "pro_dev"]
    out, err = capsys.readouterr()
    assert "mert_dev, seed 1\n  failed; was run with other options\n" in out
    assert "devtest 30.12, test 40.50" in out
    assert err == "error: rows that failed: example/mert_dev, seed 1\n"


def test_rows_without_translations_say_so(tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "multi30k"
    store(tmp_path / "runs")
    translate_rows(folder)
    (folder / "oscar" / tuned.TEST).unlink()
    assert compared(folder) == {
        "mert_dev": (0.25, 0.125, "randomization"),
        "oscar": (None, None, "not computed again"),
    }
    liu2013.write_tables(tmp_path / "runs", tmp_path / "out")
    text = (tmp_path / "out" / "table.md").read_text()
    (row,) = (line for line in text.splitlines() if line.startswith("| OSCAR, "))
    assert "| 30.12 | not computed again | 41.50 | not computed again |" in row
    with (tmp_path / "out" / "table.csv").open(encoding="utf-8", newline="") as file:
        rows = {row["row"]: row for row in csv.DictReader(file)}
    assert [rows["oscar"][c] for c in ("p_devtest", "p_test")] == ["", ""]
    assert rows["oscar"]["significance"] == "not computed again"
    assert rows["mert_dev"]["significance"] == "randomization"


def test_the_test_of_rows(tmp_path: Path) -> None:
    """The reproduction's p-values are those of the package."""

    class Example(tuned.Corpus):
        def __init__(self) -> None:
            self._sets = {"test": Sentences.of([["x"]] * 2, [[["a", "b"]], [["c", "d", "e"]]])}

    # Case is ignored, so one of two sentences differs: no arrangement differs more, or less.
    (tmp_path / "one").write_text("A b\nc d e\n")
    (tmp_path / "two").write_text("a b\nc d x\n")
    assert Example().p_value("test", tmp_path / "one", tmp_path / "two") == 1


def test_groups_without_a_weight_are_not_active(tmp_path: Path) -> None:
    """Their features are in the file of groups, and not in that of weights."""
    weights = Weights(["dense"])
    weights.set(["dense", "a"], [0.5, 0.25])
    names = Vocabulary(["dense", "a", "b"])
    save_groups(
        tmp_path / tuned.GROUPS,
        FeatureGroups.of(np.array([-1, 0, 1]), 1),
        np.array([0.5, 0.25, 0.0]),
        names,
    )

    class Nothing(tuned.Corpus):
        def __init__(self) -> None:
            self._sets = {"test": Sentences.of([], [])}

        def _system(self, *_: object) -> tuple[object, Weights]:
            return SimpleNamespace(features=weights.features), weights

    found = Nothing().test([], tmp_path, tmp_path / tuned.TEST)
    assert found == tuned.Features(active=2, reused=0, atomic=2)


def test_no_rows_no_tables(tmp_path: Path) -> None:
    liu2013.write_tables(tmp_path / "runs", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_damaged_result(tmp_path: Path) -> None:
    (tmp_path / tables.RESULT).write_text("{}")
    with pytest.raises(InputError, match="is no result of a row"):
        Result.load(tmp_path)


def test_sections_in_one_table(tmp_path: Path) -> None:
    one, two = result("pro_dev"), result("pro_dev", corpus="fisher", command="other")
    text = tables.markdown(
        "title", ["a note"], [Section("a", "x", [one]), Section("b", "y", [two])], {}, "pro_dev"
    )
    assert text.startswith("# title\n\na note\n\n## a\n\nx\n\n")
    assert text.count("| PRO | dev | default |") == 2
    assert Path(__file__).resolve().parents[1] == runs.REPOSITORY


@pytest.mark.slow
def test_two_rows(tmp_path: Path) -> None:
    model = ["model.order=3", "model.folds=3", "model.iterations=2", "decoder.pop_limit=5"]
    arguments = ["--small", "--rows", "mert_dev", "pro_dev", "--iterations", "1"]
    command = [sys.executable, "scripts/reproduce/liu2013.py", *arguments]
    command += ["--folder", tmp_path / "runs", "--publish", tmp_path / "out"]
    command += ["--set", f"model.folder={tmp_path / 'model'}", *model]
    done = subprocess.run(
        command, cwd=runs.REPOSITORY, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for row in ("mert_dev", "pro_dev"):
        found = Result.load(tmp_path / "runs" / "example" / row)
        assert found is not None
        assert found.active == found.reused == found.atomic == 10
        assert 0 < found.test < 100
        assert found.cpu_minutes > 0
        assert found.minutes > 0
        assert (found.p_test is None) == (row == liu2013.BASELINE)
    text = (tmp_path / "out" / "table.md").read_text()
    assert text == (tmp_path / "runs" / "table.md").read_text()
    assert "| MERT | dev | default |" in text

"""The reproduction of Liu et al. (2013): its command, and what its rows run."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import command_line
import liu2013
import pytest
import runs
import tuned
from liu2013_results import Result
from liu2013_rows import BASELINE, ROWS, corpus_overrides, part_of, place, row_overrides
from runs import Run
from stand_ins import FakeCorpus, FakeTrain, options, result
from tables import Published

from torchtune_smt.core.errors import InputError


def test_rows_are_those_of_the_paper() -> None:
    published = {key: row.published for key, row in ROWS.items() if row.published}
    assert len(published) == 7
    assert published["oscar"] == Published(503, 425, 46.9, 41.8, 1256)
    trained = [row for row in ROWS.values() if "train" in row.tuning_set]
    assert sorted(row.language_models for row in trained) == ["folds"] * 11 + ["full"] * 3
    for key, row in ROWS.items():
        if row.language_models == "full":
            assert row.overrides == tuple(
                o.replace("=folds", "=full") for o in ROWS[key.removesuffix("_full")].overrides
            )


@pytest.mark.parametrize("key", ROWS)
def test_overrides_are_options_of_train(key: str, tmp_path: Path) -> None:
    from tuned import configuration

    row = ROWS[key]
    chosen = [f"{option}=0.01" for option in row.swept]
    given = options(tmp_path, "--small")
    cfg = configuration([*row_overrides("fisher", row, 3, given), *chosen])
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

    rows = configuration(corpus_overrides("fisher", options(tmp_path))).model
    assert (rows.aligner, rows.unaligned_edges, rows.rule_counts) == ("fast_align", False, False)
    assert rows.folder != configuration(["data=fisher"]).model.folder
    for experiment in ("liu2013", "liu2013_grouping"):
        given = ["data=fisher", f"experiment={experiment}"]
        assert configuration(given).model == rows
        assert configuration([*given, "model=hiero"]).model.aligner == "eflomal"


def test_all_sentences(tmp_path: Path) -> None:
    row = ROWS["pro_train"]
    chosen = options(tmp_path, "--train-sentences", "0", "--iterations", "2", "--set", "a.b=1")
    overrides = row_overrides("multi30k", row, 1, chosen)
    assert not [o for o in overrides if o.startswith("tuner.sentences")]
    assert "a.b=1" in overrides
    assert "tuner.iterations=2" in overrides


def test_iterations_of_rows_on_dev_alone(tmp_path: Path) -> None:
    given = ["--iterations", "3", "--dev-only-iterations", "60"]
    chosen = options(tmp_path, *given)
    of = {key: row_overrides("fisher", ROWS[key], 1, chosen) for key in ROWS}
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
        "python scripts/experiments/reproduce/liu2013.py --corpora fisher "
        "--train-sentences 500 --sweep "
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


def test_rows_of_a_part_of_the_data_have_folders_of_their_own(tmp_path: Path) -> None:
    part, everything = (options(tmp_path, "--train-sentences", n) for n in ("5000", "0"))
    for key, folders in {
        "oscar": ["oscar-5000", "oscar"],
        "pro_dev": ["pro_dev", "pro_dev"],
    }.items():
        row = ROWS[key]
        for given, folder in zip((part, everything), folders, strict=True):
            size = part_of("multi30k", row, given)
            assert place(tmp_path, key, 1, size) == tmp_path / folder
            assert place(tmp_path, key, 2, size) == tmp_path / f"{folder}-seed2"
            overrides = row_overrides("multi30k", row, 1, given)
            assert ("tuner.sentences=5000" in overrides) == folder.endswith("-5000")
    # So many are all.
    row = ROWS["oscar"]
    assert part_of("multi30k", row, options(tmp_path, "--train-sentences", "29000")) == 0
    assert part_of("fisher", row, options(tmp_path, "--train-sentences", "18871")) == 18871


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


@pytest.mark.slow
def test_two_rows(tmp_path: Path) -> None:
    model = ["model.order=3", "model.iterations=2", "decoder.pop_limit=5"]
    arguments = ["--small", "--rows", "mert_dev", "pro_dev", "--iterations", "1"]
    command = [sys.executable, "scripts/experiments/reproduce/liu2013.py", *arguments]
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
        assert (found.p_test is None) == (row == BASELINE)
    text = (tmp_path / "out" / "table.md").read_text()
    assert text == (tmp_path / "runs" / "table.md").read_text()
    assert "| MERT | dev | default |" in text

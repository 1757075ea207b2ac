"""Rows of reproductions: options that train has, command lines, what is done; no tuning."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import better
import green2013
import green2013_moses
import green2013_results
import green2013_rows
import liu2013
import liu2013_forecast
import liu2013_rows
import measured
import pytest
import runs
import simianer2012
import simianer2012_results
import simianer2012_rows
from liu2013_results import Result
from liu2013_rows import place, row_overrides
from runs import Log
from stand_ins import FakeCorpus, options, result, trained
from tuned import configuration

SPARSE = {"dense": [], "+PT": ["RuleId"], "+AL+LO": ["WordAlignment", "LexReordering"]}
EVERYTHING = ["RuleId", "WordAlignment", "LexReordering"]


def liu(folder: Path) -> Iterator[tuple[list[str], Callable[[Any], bool]]]:
    given = options(folder, "--small", "--set", "decoder.max_words=7")
    for row in liu2013_rows.ROWS.values():
        chosen = [f"{option}=0.01" for option in row.swept]
        size = 200 if "train" in row.tuning_set else None
        rounds = (60, None) if row.method.endswith("60 iterations") else (3, 3)
        yield (
            [*row_overrides("fisher", row, 3, given), *chosen],
            lambda cfg, row=row, rest=(*rounds, size): (
                (cfg.tuner.iterations, cfg.tuner.patience, cfg.tuner.sentences) == rest
                and cfg.lm == (row.language_models or "folds")
            ),
        )


def green(folder: Path) -> Iterator[tuple[list[str], Callable[[Any], bool]]]:
    arguments = ["--folder", str(folder), "--epochs", "4", "--set", "decoder.max_words=7"]
    given = green2013.as_options(green2013.parse(arguments))
    dev = [folder / "dev_small.es", folder / "dev_small.en.0"]
    for number, (key, row) in enumerate(green2013_rows.ROWS.items()):
        strategy = {"stale": "Stale", "itermix": "IterMix"}.get(key, "Serial")
        each = "epoch" if key == "once_an_epoch" else "step"
        one = row.sets[number % len(row.sets)]
        size = green2013_rows.SIZES["fisher"][one] if one.startswith("train") else None
        files = "dev" if one == "dev_large" else [str(path) for path in dev]
        yield (
            [*green2013_rows.row_overrides("fisher", f"{one}/{key}", 3, dev, given)],
            lambda cfg, row=row, size=size, files=files, strategy=strategy, each=each: (
                (cfg.data.dev, cfg.tuner.sentences, cfg.lm) == (files, size, "folds")
                and cfg.tuner["epochs" if row.online else "iterations"] == 4
                and cfg.parallel._target_.endswith(f".{strategy}")
                and templates(cfg) == SPARSE.get(row.features, EVERYTHING)
                and (not row.online or cfg.optimizer.regularize_each == each)
            ),
        )


def moses(folder: Path) -> Iterator[tuple[list[str], Callable[[Any], bool]]]:
    lm = folder / "lm.arpa.gz"
    given = green2013_moses.Options(folder / "out", folder, lm, folder, ("decoder.max_words=7",))
    for key, row in green2013_moses.ROWS.items():
        yield (
            [*green2013_moses.overrides(key, 3, given)],
            lambda cfg, row=row: (
                cfg.model.phrase_table.endswith("phrase-table.dev.gz")
                and templates(cfg) == SPARSE.get(row.features, EVERYTHING)
            ),
        )


def simianer(folder: Path) -> Iterator[tuple[list[str], Callable[[Any], bool]]]:
    arguments = ["--folder", str(folder), *"--small --workers 2 --set decoder.max_words=7".split()]
    given = simianer2012.as_options(simianer2012.parse(arguments))
    for row in simianer2012_rows.ROWS.values():
        start = str(folder / "fisher" / f"{row.start}-seed3" / "weights.txt.gz")
        algorithm = row.algorithm[-1] if "+" in row.algorithm else row.algorithm[0]
        strategy = {"2": "Mix", "3": "IterMix", "4": "IterSel"}.get(algorithm, "Serial")
        if "a" in row.algorithm and row.on_train:
            strategy = "IterMix"
        labels = str(folder / "fisher" / "data" / "train.domains")
        shards = (None, labels) if row.by_domain else (2, None)
        yield (
            [*simianer2012_rows.row_overrides("fisher", row, 3, given)],
            lambda cfg, row=row, start=start, strategy=strategy, shards=shards: (
                cfg.tuner.tune_on == row.tuning_set.split()[-1]
                and cfg.init.file == (start if row.start else None)
                and cfg.parallel._target_.endswith(f".{strategy}")
                and ("solver" not in cfg.tuner or cfg.tuner.solver.C == 0.01)
                and (
                    not row.on_train
                    or "a" in row.algorithm
                    or (cfg.tuner.sentences, cfg.parallel.shards, cfg.parallel.labels)
                    == (60, *shards)
                )
            ),
        )


def better_rows(folder: Path) -> Iterator[tuple[list[str], Callable[[Any], bool]]]:
    arguments = ["--folder", str(folder), "--small"]
    given = better.parse([*arguments, "--set", "++decoder.max_words=7"])
    for key, row in better.ROWS.items():
        overrides = better.overrides_of("fisher", row, given)
        yield (
            [*overrides, *["init.file=x"] * ("started" in key), "seed=3"],
            lambda cfg, key=key: (
                ("hiero" in cfg.decoder, cfg.data.split_compounds is not None)
                == ("joint" in key, key.endswith("_de"))
                and cfg.tuner["iterations" if "mira" in key or "mert" in key else "epochs"] == 2
                and (not cfg.features.templates) == any(o in key for o in ("mira", "mert", "dense"))
                and cfg.metric._target_.endswith(".NakovBleu")
            ),
        )


def templates(cfg: Any) -> list[str]:
    return [str(t["_target_"]).rpartition(".")[2] for t in cfg.features.templates]


@pytest.mark.parametrize("rows", [liu, green, moses, simianer, better_rows])
def test_rows_are_options_of_train(rows, tmp_path):
    for overrides, expected in rows(tmp_path):
        cfg = configuration(overrides)
        assert (cfg.seed, cfg.decoder.max_words, cfg.data.test) == (3, 7, None), overrides
        assert rows is moses or cfg.data.name == "fisher", overrides
        assert expected(cfg), overrides
        assert str(runs.REPOSITORY) not in " ".join(overrides)


def test_the_experiments_have_the_model_of_the_rows(tmp_path):
    """One file says what it is; whatever stands behind an experiment goes before it."""
    rows = configuration(liu2013_rows.corpus_overrides("fisher", options(tmp_path))).model
    assert (rows.aligner, rows.unaligned_edges, rows.rule_counts) == ("fast_align", False, False)
    assert rows.folder != configuration(["data=fisher"]).model.folder
    for experiment in ("liu2013", "liu2013_grouping"):
        given = ["data=fisher", f"experiment={experiment}"]
        assert configuration(given).model == rows
        assert configuration([*given, "model=hiero"]).model.aligner == "eflomal"


def test_the_experiment_of_both_decoders_is_that_of_the_rows():
    file = ["data=fisher", "init.file={hiero:a,phrase:b}"]
    row = configuration([*better.ROWS["joint_started"].overrides, *file])
    assert configuration(["experiment=joint", *file]) == row


def test_order_of_rows(tmp_path):
    """Rows come behind those that they start from; a set of Green et al. has its own seeds."""
    keys = simianer2012_rows.with_starts(["4_then_dev_sparse", "4_started_sparse"])
    assert keys == ["1_dev_default", "4_train_sparse", "4_started_sparse", "4_then_dev_sparse"]
    assert liu2013_rows.in_turn(["oscar_single", "pro_dev", "oscar", "oscar_shuffled"]) == [
        *("oscar", "oscar_single", "pro_dev", "oscar_shuffled"),
    ]
    chosen = green2013.as_options(green2013.parse(["--folder", str(tmp_path)]))
    found = green2013_rows.runs_of("multi30k", ["adagrad_pt"], ["train5k", "dev"], chosen)
    row = "dev/adagrad_pt"
    assert found == [("train5k/adagrad_pt", 1), (row, 1), (row, 2), (row, 3)]


# Command lines


SAID = {
    liu2013: "--corpora fisher --train-sentences 500 --sweep --strengths 1e-05 0.0001 0.001 "
    "--rates 0.001 0.003 0.01 --lambda2s 1e-08 --fractions 0.02 0.1 0.5 --seeds 2",
    green2013: "--tables own --corpora fisher --sets dev --seeds 1 2",
    simianer2012: "--corpora fisher --epochs 3 --seeds 1 2 --workers 2",
}


@pytest.mark.parametrize("script", SAID)
def test_a_command_says_nothing_of_the_machine(script, tmp_path):
    given = [*SAID[script].split(), "--folder", str(tmp_path), "--publish", str(tmp_path)]
    command = f"python scripts/experiments/reproduce/{script.__name__}.py {SAID[script]}"
    assert script.as_options(script.parse(given)).command == command


# Rows are done


def test_rows_are_done_once(tmp_path, monkeypatch):
    """And compared; a later forecast is judged by the table that is written of them."""
    monkeypatch.setattr(measured, "read_log", lambda folder: Log(2, 1, 31.0, 1234))
    for script in (green2013, simianer2012):
        monkeypatch.setattr(script, "complete", trained)
    arguments = ["--folder", str(tmp_path), "--epochs", "2"]
    own = green2013.as_options(green2013.parse(arguments))
    sample = [*arguments, "--train-sentences", "500"]
    simianer = simianer2012.as_options(simianer2012.parse(sample))
    keys = ["2_train_sparse", "3_train_sparse", "4_train_sparse", "1_dev_default"]
    rows = [("dev/mira_dense", 1), ("dev/mira_dense", 2), ("dev/stale", 1), ("train5k/stale", 1)]
    corpora: list[Any] = [FakeCorpus(), FakeCorpus()]
    for _ in range(2):
        for row, seed in rows:
            assert green2013.do_row(row, corpora[0], "multi30k", seed, own)
            green2013_results.compare_rows(corpora[0], "multi30k", own)
        for key in keys:
            assert simianer2012.do_row(key, corpora[1], "multi30k", 1, simianer)
    assert corpora[0].tried == [f"{row.partition('/')[2]}/seed{seed}" for row, seed in rows]
    assert corpora[1].tried == [f"multi30k/{key}-seed1" for key in keys]
    simianer2012_results.compare_rows(corpora[1], simianer.folder, "multi30k")
    found = simianer2012_results.Result.load(
        simianer2012_rows.place(simianer.folder, "multi30k", "4_train_sparse", 1)
    )
    assert found is not None and (found.out, found.iterations, found.minutes) == (32.0, 2, 4.0)
    assert found.differs == pytest.approx({"2_train_sparse": 0.5, "3_train_sparse": 0.25})
    stale = green2013_results.Result.load(green2013_rows.place(own, "multi30k", "train5k/stale", 1))
    # Of the same seed, on the small dev set; seconds of each epoch are those of its log.
    assert stale is not None and stale.compared == [30.0, 0.25] and stale.p_test == 0.75
    assert stale.seconds == [10.0, 5.0]
    green2013_results.write_tables(own, tmp_path / "out")
    text, path = (tmp_path / "out" / "own.md").read_text(), tmp_path / "out" / "own.csv"
    missing = text.partition("Missing, as they were not run: ")[2].splitlines()[0]
    assert "dev/mira_dense (seed 3)" in missing and "train5k/stale" not in missing
    # A picture is of rivals, and there are none yet.
    picture = path.with_name("own-bleu-by-time.png")
    assert not picture.exists()
    assert green2013.do_row("dev/itermix", corpora[0], "multi30k", 1, own)
    green2013_results.write_tables(own, tmp_path / "out")
    assert picture.stat().st_size > 0


@pytest.mark.slow
def test_two_rows(tmp_path):
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
        assert found.cpu_minutes > 0 and found.minutes > 0
        assert (found.p_test is None) == (row == liu2013_rows.BASELINE)
    text = (tmp_path / "out" / "table.md").read_text()
    assert text == (tmp_path / "runs" / "table.md").read_text()
    assert "| MERT | dev | default |" in text


def test_done_is_what_would_be_run_now(tmp_path):
    given = options(tmp_path, "--train-sentences", "0")
    overrides = [*row_overrides("fisher", liu2013_rows.ROWS["pro_dev"], 1, given)]
    result("pro_dev", overrides=overrides).save(place(tmp_path / "fisher", "pro_dev", 1))
    for arguments, seed, done in (("", 1, True), ("", 2, False), ("--iterations 7", 1, False)):
        asked = options(tmp_path, "--train-sentences", "0", *arguments.split())
        assert liu2013_forecast.is_done("pro_dev", "fisher", seed, asked) == done

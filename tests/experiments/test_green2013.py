"""The reproduction of Green et al. (2013) with own tables: options, rows, the table; no tuning."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import green2013
import green2013_results
import green2013_rows
import measured
import pytest
from commands import example_source, example_target
from domains import dataset_of, read_set
from forecast import print_hours, read_measured
from green2013_results import Result
from green2013_rows import ROWS, SETS, SIZES
from runs import Log, Run
from tuned import Features, configuration

from torchtune_smt.core.errors import InputError
from torchtune_smt.data.bitext import Corpus


def options(folder: Path, *arguments: str) -> green2013_rows.Options:
    return green2013.as_options(green2013.parse(["--folder", str(folder), *arguments]))


@pytest.mark.parametrize("key", ROWS)
def test_overrides_are_options_of_train(key: str, tmp_path: Path) -> None:
    row, chosen = ROWS[key], options(tmp_path, "--epochs", "4", "--set", "decoder.k=7")
    dev = [tmp_path / "dev_small.es", tmp_path / "dev_small.en.0"]
    for one in row.sets:
        cfg = configuration(green2013_rows.row_overrides("fisher", f"{one}/{key}", 3, dev, chosen))
        assert cfg.decoder["_target_"].endswith("PhraseDecoder") and cfg.decoder.k == 7
        assert cfg.model["_target_"].endswith("PhraseModel")
        assert cfg.model.folder == str(tmp_path / "own" / "fisher" / "model")
        assert (cfg.data.name, cfg.data.test, cfg.seed) == ("fisher", None, 3)
        assert cfg.data.dev == ("dev" if one == "dev_large" else [str(path) for path in dev])
        assert cfg.tuner["epochs" if row.online else "iterations"] == 4
        templates = [str(t["_target_"]).rpartition(".")[2] for t in cfg.features.templates]
        wanted = {"dense": [], "+PT": ["RuleId"], "+AL+LO": ["WordAlignment", "LexReordering"]}
        everything = ["RuleId", "WordAlignment", "LexReordering"]
        assert templates == wanted.get(row.features, everything)
        on_train = one.startswith("train")
        assert cfg.tuner.tune_on == ("train" if on_train else "dev")
        assert cfg.tuner.sentences == (SIZES["fisher"][one] if on_train else None)
        assert cfg.lm == "folds"
        if row.online:
            metric = "NakovBleu" if key.endswith("tuned") else "BleuPlusOne"
            assert cfg.metric._target_.endswith(f".{metric}")
            assert (cfg.optimizer.lr, cfg.regularizer.strength) == (0.02, 0.1)
            assert cfg.optimizer.regularize_dense
            each = "epoch" if key == "once_an_epoch" else "step"
            assert cfg.optimizer.regularize_each == each
        strategy = {"stale": "Stale", "itermix": "IterMix"}.get(key, "Serial")
        assert cfg.parallel._target_.endswith(f".{strategy}")


def test_seeds_of_a_set(tmp_path: Path) -> None:
    chosen = options(tmp_path)
    found = green2013_rows.runs_of("multi30k", ["adagrad_pt"], ["train5k", "dev"], chosen)
    row = "dev/adagrad_pt"
    assert found == [("train5k/adagrad_pt", 1), (row, 1), (row, 2), (row, 3)]
    # Seeds that are given hold for all sets.
    chosen = options(tmp_path, "--seeds", "5")
    assert green2013_rows.runs_of("multi30k", ["stale"], SETS, chosen) == [
        ("dev/stale", 5),
        ("train5k/stale", 5),
    ]


def test_the_larger_dev_set_is_fishers_alone() -> None:
    for name in SIZES:
        rows = green2013_rows.rows_of(name, ["mira_dense", "adagrad_pt"], SETS)
        assert ("dev_large/mira_dense" in rows) == (name == "fisher")
        assert "dev/mira_dense" in rows and "train5k/mira_dense" not in rows
        assert ("train15k/adagrad_pt" in rows) == (name != "callhome")


def test_the_small_dev_set_is_drawn_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = options(tmp_path)
    assert green2013_rows.small_dev("example", chosen) == []
    monkeypatch.setitem(SIZES["example"], "dev_large", 100)
    monkeypatch.setattr(green2013_rows, "SMALL_DEV_SENTENCES", 10)
    files = green2013_rows.small_dev("example", chosen)
    names = ["dev_small.de", "dev_small.en.0", "dev_small.en.1"]
    assert [path.name for path in files] == names
    lines = [path.read_text("utf-8").splitlines() for path in files]
    sides = example_source("dev"), example_target("dev"), example_target("dev", 1)
    rows = list(zip(*sides, strict=True))
    places = [rows.index(row) for row in zip(*lines, strict=True)]
    assert len(set(places)) == 10 and places == sorted(places)
    assert green2013_rows.small_dev("example", options(tmp_path)) == files
    assert [path.read_text("utf-8").splitlines() for path in files] == lines


def test_callhome_keeps_a_test_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(green2013_rows, "dataset_of", lambda name: dataset_of("example"))
    sizes = {"CALLHOME_TEST": 30, "CALLHOME_DEV": 20, "CALLHOME_GAP": 5, "SMALL_DEV_SENTENCES": 10}
    for name, size in sizes.items():
        monkeypatch.setattr(green2013_rows, name, size)
    monkeypatch.setattr(
        green2013_rows, "write_set", lambda at, one, corpus, _: found.update({one: corpus})
    )
    found: dict[str, Corpus] = {}
    green2013_rows.write_callhome(options(tmp_path))
    n = len(read_set(dataset_of("example"), "train").source)
    assert [found[one].lines[0] for one in ("train", "dev_callhome", "devtest")] == [
        1,
        n - 54,
        n - 29,
    ]
    assert [found[one].lines[-1] for one in ("train", "dev_callhome", "devtest")] == [
        n - 60,
        n - 35,
        n,
    ]
    assert (len(found["dev"].source), len(found["test"].source)) == (10, 100)
    # What is tuned on CALLHOME stops by CALLHOME, and is compared with what Fisher's dev tunes.
    rows = green2013_rows.runs_of("callhome", list(ROWS), ["dev", "train5k"], options(tmp_path))
    overrides = [
        green2013_rows.row_overrides("callhome", *row, [], options(tmp_path)) for row in rows
    ]
    assert ["data.dev=dev_callhome" in of for of in overrides] == [False] * 9 + [True] * 2
    assert green2013_results.baseline_of(rows[-1][0]) == "dev/mira_dense"


class FakeCorpus:
    """Stands for the corpus: BLEU is the number in a file, p a tenth of the difference of two."""

    def __init__(self) -> None:
        self.tried: list[str] = []

    def score(self, name: str, overrides: object, folder: Path) -> float:
        (folder / f"{name}.translations.txt").write_text(f"{30 + len(self.tried)}\n")
        return 30.0 + len(self.tried)

    def test(self, overrides: object, folder: Path, output: Path) -> Features:
        self.tried.append(f"{folder.parent.name}/{folder.name}")
        output.write_text(f"{40 + 0.25 * len(self.tried)}\n")
        return Features(1234, 10, 1234)

    def bleu(self, name: str, path: Path) -> float:
        return float(path.read_text())

    def p_value(self, name: str, one: Path, other: Path) -> float:
        return abs(float(one.read_text()) - float(other.read_text())) / 10


def test_rows_are_done_once_and_missing_ones_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def trained(run: Run) -> bool:
        run.folder.mkdir(parents=True, exist_ok=True)
        parts = [{"begin": "2026-01-01", "end": "2026-01-02", "seconds": 240, "cpu": 120}]
        record = {"overrides": list(run.overrides), "parts": parts}
        (run.folder / "run.json").write_text(json.dumps(record))
        lines: list[dict[str, float]] = [{"step": 0, "bleu/dev": 30.0}]
        for epoch in (1, 2):
            lines.append({"step": 100 * epoch, "speed/sentences_per_second": 10.0 * epoch})
            lines.append({"step": 100 * epoch, "bleu/dev": 30.0 + epoch})
        (run.folder / "metrics.jsonl").write_text("".join(json.dumps(x) + "\n" for x in lines))
        return True

    monkeypatch.setattr(green2013, "complete", trained)
    monkeypatch.setattr(measured, "read_log", lambda folder: Log(2, 1, 31.0, 1234))
    corpus, chosen = FakeCorpus(), options(tmp_path, "--epochs", "2")
    rows = [("dev/mira_dense", 1), ("dev/mira_dense", 2), ("dev/stale", 1), ("train5k/stale", 1)]
    for _ in range(2):
        for row, seed in rows:
            assert green2013.do_row(row, corpus, "multi30k", seed, chosen)  # type: ignore[arg-type]
            green2013_results.compare_rows(corpus, "multi30k", chosen)  # type: ignore[arg-type]
    assert corpus.tried == [f"{row.partition('/')[2]}/seed{seed}" for row, seed in rows]
    green2013_results.write_tables(chosen, tmp_path / "out")
    text = (tmp_path / "out" / "own.md").read_text()
    lines = text.splitlines()
    start = lines.index(next(line for line in lines if line.startswith("| dev")))
    method = "AdaGrad, L1, stale gradients, 2 workers | +PT+AL+LO"
    assert lines[start : start + 5] == [
        "| dev (1,014) | k-best MIRA | dense | 1 | 1,234 | 10 | 31.00 | 30.00 | baseline | 40.25 "
        "| baseline | 1 of 2 | 7.5 | 2.0 |",
        "| dev (1,014) | k-best MIRA | dense | 2 | 1,234 | 10 | 31.00 | 31.00 | baseline | 40.50 "
        "| baseline | 1 of 2 | 7.5 | 2.0 |",
        "| dev (1,014) | k-best MIRA | dense | mean | 1,234 | | 31.00 | 30.50 | | 40.38 | | | 7.5 "
        "| 2.0 |",
        f"| dev (1,014) | {method} | 1 | 1,234 | 10 | 31.00 | 32.00 | 0.200 (0.400) | 40.75 "
        "| 0.050 (0.100) | 1 of 2 | 7.5 | 2.0 |",
        # Of the same seed, on the small dev set.
        f"| train (5,000 sentences) | {method} | 1 | 1,234 | 10 | 31.00 | 33.00 | 0.300 (0.400) "
        "| 41.00 | 0.075 (0.100) | 1 of 2 | 7.5 | 2.0 |",
    ]
    assert "| 1 | 0: 30.00; 10: 31.00; 15: 32.00 |" in text
    # A picture is of rivals, and there are none.
    assert not (tmp_path / "out" / "own-bleu-by-time.png").exists()
    missing = text.partition("Missing, as they were not run: ")[2].splitlines()[0]
    assert "dev/mira_dense (seed 3)" in missing and "dev/stale (seed 2, 3)" in missing
    assert "train5k/itermix (seed 1)" in missing and "train5k/stale" not in missing
    assert "dev_large" not in missing
    with (tmp_path / "out" / "own.csv").open(encoding="utf-8", newline="") as file:
        written = list(csv.DictReader(file))
    assert [(line["row"], int(line["seed"])) for line in written] == rows
    assert json.loads(written[0]["seconds"]) == [10.0, 5.0]
    # Other translations of the baseline are compared with anew.
    baseline = Result.load(green2013_rows.place(chosen, "multi30k", "dev/mira_dense", 1))
    assert baseline is not None
    baseline.test = 40.0
    baseline.save(green2013_rows.place(chosen, "multi30k", "dev/mira_dense", 1))
    green2013_results.compare_rows(corpus, "multi30k", chosen)  # type: ignore[arg-type]
    compared = Result.load(green2013_rows.place(chosen, "multi30k", "train5k/stale", 1))
    assert compared is not None and compared.compared == [30.0, 40.0]
    # What was measured says how long others take: a minute a round.
    path = tmp_path / "out" / "own.csv"
    keys = ["mira_dense", "pro_pt", "stale"]
    found = green2013.forecasts(keys, ["multi30k"], ["dev", "train5k"], path, options(tmp_path))
    print_hours(found, "own.csv")
    found = green2013.forecasts(["adagrad_pt"], ["multi30k"], ["train15k"], path, options(tmp_path))
    print_hours(found, "own.csv")
    found = green2013.forecasts(["stale"], ["fisher"], ["train5k"], path, options(tmp_path))
    print_hours(found, "own.csv")
    assert capsys.readouterr().out.splitlines() == [
        "multi30k/dev/mira_dense, seed 1: done",
        "multi30k/dev/mira_dense, seed 2: done",
        "multi30k/dev/mira_dense, seed 3: 0.25 CPU hours",
        *[f"multi30k/dev/pro_pt, seed {n}: 0.25 CPU hours" for n in (1, 2, 3)],
        "multi30k/dev/stale, seed 1: done",
        *[f"multi30k/dev/stale, seed {n}: 0.13 CPU hours" for n in (2, 3)],
        "multi30k/train5k/stale, seed 1: done",
        "1.27 CPU hours at most, judged by own.csv",
        # 8 epochs, of a row of the same kind, on three times as many sentences.
        "multi30k/train15k/adagrad_pt, seed 1: 0.40 CPU hours",
        "0.40 CPU hours at most, judged by own.csv",
        "fisher/train5k/stale, seed 1: not known",
        "0.00 CPU hours at most, judged by own.csv, and 1 runs of which nothing is known",
    ]
    assert green2013.do_row("dev/itermix", corpus, "multi30k", 1, chosen)  # type: ignore[arg-type]
    green2013_results.write_tables(chosen, tmp_path / "rivals")
    assert (tmp_path / "rivals" / "own-bleu-by-time.png").stat().st_size > 0
    timed = [
        r
        for r in green2013_results.results_of(chosen, "multi30k")
        if r.row.endswith(("stale", "mix"))
    ]
    (panel,) = green2013_results._panels(timed).items()
    assert panel[0] == "multi30k, dev (1,014)" and len(panel[1]) == 2


def test_the_command_says_nothing_of_the_machine(tmp_path: Path) -> None:
    arguments = ["--tables", "own", "--corpora", "fisher", "--sets", "dev", "--seeds", "1", "2"]
    assert options(tmp_path, *arguments, "--publish", str(tmp_path)).command == (
        "python scripts/experiments/reproduce/green2013.py "
        "--tables own --corpora fisher --sets dev --seeds 1 2"
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--tables", "own", "--small", "--sets", "dev_large"], "none of these --rows"),
        (["--tables", "own", "--rows", "arow_pt_al_lo"], "none of these --rows"),
        (["--tables", "moses", "--rows", "stale"], "none of these --rows"),
        (
            [
                "--tables",
                "own",
                "--corpora",
                "multi30k",
                "--rows",
                "mert_dense",
                "--sets",
                "train5k",
            ],
            "none of",
        ),
        (["--seeds", "1", "1"], "--seeds must be"),
        (["--seeds", "-1"], "--seeds must be"),
        (["--epochs", "0"], "--epochs must be"),
        (["--measured", "nowhere.csv"], "there is no file nowhere.csv"),
    ],
)
def test_bad_command_lines(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        green2013.parse(arguments)
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


def test_a_forecast_from_another_kind_of_table(tmp_path: Path) -> None:
    (tmp_path / "other.csv").write_text("row,seconds\nstale,1\n")
    with pytest.raises(InputError, match=r"other.csv: has no column corpus; name a table"):
        read_measured(tmp_path / "other.csv")


def test_the_small_example_has_no_tables_of_moses(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        green2013.parse(["--small"])
    assert "give --tables own" in capsys.readouterr().err
    given = green2013.parse(["--small", "--tables", "own"])
    assert green2013.as_options(given).epochs == 2


def test_old_rows_with_mosess_tables_keep_their_places(tmp_path: Path) -> None:
    """Both kinds share a folder."""
    given = green2013.parse(["--folder", str(tmp_path)])
    own = green2013_rows.place(green2013.as_options(given), "multi30k", "dev/mira_dense", 1)
    moses = green2013.green2013_moses.place(green2013.as_moses_options(given), "mira_dense", 1)
    assert own == tmp_path / "own" / "multi30k" / "dev" / "mira_dense" / "seed1"
    assert moses == tmp_path / "multi30k" / "mira_dense" / "seed1"

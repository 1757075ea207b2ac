"""The reproduction of Green et al. (2013) with Moses's tables: no tuning."""

import csv
from dataclasses import replace

import green2013_moses
import pytest
from forecast import read_measured
from green2013_moses import ROWS, Options, Result


@pytest.fixture
def options(tmp_path):
    return Options(tmp_path / "out", tmp_path, tmp_path / "lm.arpa.gz", tmp_path, ())


RESULT = Result(
    row="mira_dense",
    corpus="multi30k",
    seed=1,
    active=0,
    iterations=9,
    best=6,
    dev=40.86,
    test=40.5,
    cpu_minutes=3.0,
    begin="2026-11-22",
    end="2026-11-22",
    overrides="tuner=mira",
)


def test_tables(options):
    """Means over seeds, Moses's figures, and the rows that are missing."""
    for key, seed, test, p in (
        ("mira_dense", 1, 40.5, None),
        ("mira_dense", 2, 40.7, None),
        ("adagrad_pt_al_lo", 1, 41.25, 0.012),
    ):
        folder = green2013_moses.place(options, key, seed)
        folder.mkdir(parents=True)
        replace(RESULT, row=key, seed=seed, test=test, p=p).save(folder)
    found = green2013_moses.results(options)
    assert [len(found[key]) for key in ROWS].count(0) == len(ROWS) - 2
    green2013_moses.write(found, options.folder, options)
    text = (options.folder / "table.md").read_text("utf-8")
    assert (
        "| k-best MIRA | dense | 2 | 0 | 40.86 | 40.70 | baseline | 6 of 9 | 3.0 | 40.61 |" in text
    )
    assert "| k-best MIRA | dense | mean | | 40.86 | 40.60 |" in text
    assert "| +PT+AL+LO | 1 | 0 | 40.86 | 41.25 | **0.012** (**0.012**) |" in text
    missing = text.partition("Missing, as they were not run: ")[2]
    assert missing.startswith("MERT, dense; PRO, dense; AdaGrad, dense;")
    with (options.folder / "table.csv").open(encoding="utf-8", newline="") as file:
        lines = list(csv.DictReader(file))
    assert [line["test"] for line in lines] == ["40.5", "40.7", "41.25"]
    # What a later forecast is judged by.
    measured = read_measured(options.folder / "table.csv")
    assert measured["multi30k", "mira_dense"].cpu_minutes == pytest.approx(3.0 / 9)


def test_a_tuner_against_mosess(options, tmp_path):
    """The translations of Moses's weights against the mean of seeds."""
    (tmp_path / "test.en").write_text("a b c d e f\n" * 50, "utf-8")
    for key, seed, worse in (("mert_dense", 1, 0), ("mert_dense", 2, 0), ("pro_dense", 1, 30)):
        folder = green2013_moses.place(options, key, seed)
        folder.mkdir(parents=True)
        replace(RESULT, row=key, seed=seed).save(folder)
        lines = ["a b c d x f\n"] * worse + ["a b c d e f\n"] * (50 - worse)
        (folder / "test.translations.txt").write_text("".join(lines), "utf-8")
    for key in ("mert_dense", "pro_dense"):
        folder = green2013_moses.mosess(options, key)
        folder.mkdir()
        (folder / "test.translations.txt").write_text("a b c d e f\n" * 50, "utf-8")
    lines = green2013_moses.against_moses(green2013_moses.results(options), options)
    assert "| MERT | 40.24 | 100.00 | 100.00 | 2 | 1.000 (1.000) |" in lines
    (pro,) = (line for line in lines if line.startswith("| PRO"))
    assert float(pro.split("|")[4]) < 90 and pro.split("|")[6] == " **< 0.001** (**< 0.001**) "

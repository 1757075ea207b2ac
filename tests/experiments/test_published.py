"""Rows of published tables: read as they were written, and kept where they are not done again."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import green2013
import green2013_results
import green2013_rows
import liu2013_results
import pytest
import simianer2012_results
import simianer2012_rows
import tables
from liu2013_results import write_tables
from liu2013_rows import BASELINE, place
from published import merged, read_results

from torchtune_smt.core.errors import InputError

RESULTS = Path(__file__).resolve().parents[2] / "docs" / "results"


def result(row: str, seed: int = 1, **given: object) -> simianer2012_results.Result:
    described = {
        "row": row,
        "corpus": "fisher",
        "method": "4",
        "tuning_set": "train",
        "features": "+id,ng,shape",
        "language_models": "folds",
        "training_sentences": 17_259,
        "active": 3,
        "reused": 2,
        "atomic": 3,
        "iterations": 3,
        "best": 2,
        "dev": 31.5,
        "devtest": 30.25,
        "test": 1 / 3,
        "minutes": 1.5,
        "cpu_minutes": 0.1,
        "begin": "2026-01-01",
        "end": "2026-01-02",
        "command": "python this.py",
        "seed": seed,
        "overrides": ["seed=1", "features=sparse"],
        "versions": {"torch": "2.13.0"},
        "differs": {"1_dev_sparse": 0.01},
    }
    return simianer2012_results.Result(**described | given)  # type: ignore[arg-type]


def write(path: Path, *results: simianer2012_results.Result) -> None:
    tables.write_csv(path, [tables.Section("fisher", "", list(results))])


def test_what_is_written_is_read(tmp_path: Path) -> None:
    given = [
        result("4_train_sparse"),
        result("1_dev_sparse", differs={}, p_test=0.5, points=[{"option": "a=1", "dev": 1.0}]),
        result("mira_dev_sparse", language_models="", overrides=[], significance="randomisation"),
    ]
    write(tmp_path / "table.csv", *given)
    assert read_results(tmp_path / "table.csv", simianer2012_results.Result) == given
    assert read_results(tmp_path / "none.csv", simianer2012_results.Result) == []


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("simianer2012/table.csv", simianer2012_results.Result),
        ("green2013/own.csv", green2013_results.Result),
        ("liu2013/table.csv", liu2013_results.Result),
        ("liu2013/controls/table.csv", liu2013_results.Result),
    ],
)
def test_published_tables_are_written_again_as_they_are(
    path: str, kind: type[tables.Result], tmp_path: Path
) -> None:
    found = read_results(RESULTS / path, kind)
    tables.write_csv(tmp_path / "table.csv", [tables.Section("", "", list(found))])
    assert (tmp_path / "table.csv").read_text() == (RESULTS / path).read_text()
    assert found


def test_rows_of_another_table_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    write(path, result("4_train_sparse"), result("1_dev_sparse"))
    lines = path.read_text().splitlines()
    path.write_text("\n".join([lines[0], lines[1].replace("17259", "many"), lines[2]]) + "\n")
    with pytest.raises(InputError, match=r"table.csv:2: is no row of this table .*many"):
        read_results(path, simianer2012_results.Result)
    path.write_text(f"{lines[0]}\n{lines[1]}\n{lines[2]},more\n")
    with pytest.raises(InputError, match=r"table.csv:3: .*number of columns"):
        read_results(path, simianer2012_results.Result)


def test_rows_that_are_not_done_again_stay(tmp_path: Path) -> None:
    before = [result("4_train_sparse"), result("1_dev_sparse", seed=2), result("1_dev_sparse")]
    write(tmp_path / "table.csv", *before)
    again = result("1_dev_sparse", test=40.0)
    done = {("1_dev_sparse", 1): again, ("1_dev_sparse", 2): before[1]}
    found = merged(done, tmp_path / "table.csv", simianer2012_results.Result, "fisher")
    assert found.results == {("4_train_sparse", 1): before[0], **done}
    assert found.before == {(one.row, one.seed): one for one in before}
    # With seed 2 nothing is different.
    assert found.changed == {("1_dev_sparse", 1)}
    other = merged(done, tmp_path / "table.csv", simianer2012_results.Result, "multi30k")
    assert other == (done, {}, set())


def test_the_table_of_simianer_keeps_published_rows(tmp_path: Path) -> None:
    output = tmp_path / "published"
    output.mkdir()
    both = {"1_dev_sparse": 0.01, "mira_dev_sparse": 0.02}
    old = [
        result("1_dev_sparse", method="1", differs={"4_train_sparse": 0.01}),
        result("4_train_sparse", differs=both, differs_out=dict(both)),
        result("mira_dev_sparse", method="m", differs={"4_train_sparse": 0.02}),
    ]
    write(output / "table.csv", *old)
    folder = tmp_path / "here"
    again = result("1_dev_sparse", method="1", test=40.0, differs={})
    place = simianer2012_rows.place(folder, "fisher", "1_dev_sparse", 1)
    place.mkdir(parents=True)
    again.save(place)
    simianer2012_results.write_tables(folder, output)
    found = read_results(output / "table.csv", simianer2012_results.Result)
    # The p-value of the difference from what 1_dev_sparse was before is gone.
    left = {"mira_dev_sparse": 0.02}
    kept = dataclasses.replace(old[1], differs=left, differs_out=left)
    assert found == [again, kept, old[2]]
    # A row that comes out as it was keeps its comparisons, and has more.
    new = {"4_train_sparse": 0.03}
    same = dataclasses.replace(old[2], differs=new, differs_out=new)
    place = simianer2012_rows.place(folder, "fisher", same.row, 1)
    place.mkdir(parents=True)
    same.save(place)
    published = {"1_dev_sparse": 0.01, "4_then_dev_sparse": 0.5}
    write(output / "table.csv", old[0], old[1], dataclasses.replace(old[2], differs=published))
    simianer2012_results.write_tables(folder, output)
    found = read_results(output / "table.csv", simianer2012_results.Result)
    kept_too = {"4_then_dev_sparse": 0.5, **new}
    assert found == [again, kept, dataclasses.replace(same, differs=kept_too)]
    write(output / "table.csv", again, kept, old[2])
    (place / tables.RESULT).unlink()
    simianer2012_results.write_tables(folder, output)
    text = (output / "table.md").read_text()
    assert (
        "Not compared, as they were not done on one machine: "
        "1 with 4 (+id,ng,shape, seed 1); 1 with m (+id,ng,shape, seed 1); "
    ) not in text
    said = "Not compared, as they were not done on one machine: 1 with 4 (+id,ng,shape, seed 1); "
    assert f"{said}1 with m (+id,ng,shape, seed 1)." in text
    missing = text.partition("Seeds that were not run: ")[2].splitlines()[0]
    assert missing.startswith("4, +id,ng,shape (2, 3); 4+m, +id,ng,shape (1, 2, 3); ")
    assert "over seeds" not in text
    # With two seeds of a row there is a mean.
    more = result("4_train_sparse", seed=2, test=2 / 3)
    place = simianer2012_rows.place(folder, "fisher", more.row, 2)
    place.mkdir(parents=True)
    more.save(place)
    simianer2012_results.write_tables(folder, output)
    text = (output / "table.md").read_text()
    mean = "| 4 | +id,ng,shape | 1, 2 | 30.25 ± 0.00 | 0.50 ± 0.24 | 0.00 ± 0.00 |"
    assert mean in text.splitlines()


def plain() -> dict[str, Any]:
    """What any result has."""
    fields = {f.name for f in dataclasses.fields(tables.Result)}
    return {k: v for k, v in dataclasses.asdict(result("x")).items() if k in fields}


def test_the_table_of_liu_keeps_published_rows(tmp_path: Path) -> None:
    described = plain() | {"significance": "randomization", "p_test": 0.01, "p_devtest": 0.5}

    def row(name: str, seed: int = 1, **given: object) -> liu2013_results.Result:
        return liu2013_results.Result(**described | {"row": name, "seed": seed} | given)

    old = [row(BASELINE), row("oscar"), row("oscar", 2), row("random_pairs")]
    output = tmp_path / "published"
    output.mkdir()
    tables.write_csv(output / "table.csv", [tables.Section("fisher", "", old)])
    again = [row(BASELINE, test=35.0), row("oscar", 3)]
    for one in again:
        folder = place(tmp_path / "here" / "fisher", one.row, one.seed)
        folder.mkdir(parents=True)
        one.save(folder)
    write_tables(tmp_path / "here", output)
    found = read_results(output / "table.csv", liu2013_results.Result)
    void: dict[str, Any] = {"p_test": None, "p_devtest": None, "significance": "not compared"}
    first = dataclasses.replace(old[1], **void)
    last = dataclasses.replace(old[3], **void)
    assert found == [again[0], first, old[2], again[1], last]
    text = (output / "table.md").read_text()
    assert "| not compared |" in text and "| 1, 2, 3 |" in text
    assert "`random_pairs`" not in text.partition("Not run: ")[2].splitlines()[0]


def test_a_part_of_the_data_does_not_replace_all_of_it(tmp_path: Path) -> None:
    described = plain() | {"p_test": 0.01, "p_devtest": 0.5, "overrides": ["decoder.pop_limit=30"]}

    def row(name: str, **given: object) -> liu2013_results.Result:
        return liu2013_results.Result(**described | {"row": name} | given)

    other = {"overrides": ["decoder.pop_limit=200"]}
    old = [row(BASELINE), row("oscar"), row("random_pairs", **other)]
    output = tmp_path / "published"
    output.mkdir()
    tables.write_csv(output / "table.csv", [tables.Section("fisher", "", old)])
    part = row("oscar", training_sentences=5000)
    part.save(place(tmp_path / "here" / "fisher", "oscar", 1, 5000))
    write_tables(tmp_path / "here", output)
    void: dict[str, Any] = {"p_test": None, "p_devtest": None, "significance": "not compared"}
    found = read_results(output / "table.csv", liu2013_results.Result)
    assert found == [*old[:2], part, dataclasses.replace(old[2], **void)]


def test_the_table_of_green_keeps_published_rows(tmp_path: Path) -> None:
    described = plain() | {
        "tuning_set": "dev (1,000)",
        "training_sentences": 0,
        "corpus": "multi30k",
    }
    described |= {"significance": "randomisation", "p_test": 0.01, "p_devtest": 0.5}

    def row(name: str, **given: object) -> green2013_results.Result:
        return green2013_results.Result(**described | {"row": name} | given)

    baseline = f"dev/{green2013_rows.BASELINE}"
    old = [row(baseline), row("dev/adagrad_pt"), row("dev/adagrad_pt", seed=2)]
    output = tmp_path / "published"
    output.mkdir()
    tables.write_csv(output / "own.csv", [tables.Section("multi30k", "", list(old))])
    options = green2013.as_options(green2013.parse(["--folder", str(tmp_path / "here")]))
    again = row(baseline, test=35.0)
    place = green2013_rows.place(options, "multi30k", baseline, 1)
    place.mkdir(parents=True)
    again.save(place)
    green2013_results.write_tables(options, output)
    found = read_results(output / "own.csv", green2013_results.Result)
    void = {"p_test": None, "p_devtest": None, "significance": "not compared"}
    assert found == [again, dataclasses.replace(old[1], **void), old[2]]  # type: ignore[arg-type]

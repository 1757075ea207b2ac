"""Results of rows of Liu et al. (2013): compared, in tables and in pictures."""

from __future__ import annotations

import csv
import json
import re
from dataclasses import asdict, replace
from itertools import combinations
from pathlib import Path
from types import SimpleNamespace

import liu2013_results
import numpy as np
import pytest
import runs
import tables
import tuned
from alike import NOT_COUNTED, settings, shared
from diagnosis import TAGS, Diagnosis, plot_diagnosis, read_diagnosis
from hypothesis import given
from hypothesis import strategies as st
from liu2013_results import Result, compare_rows, results_of, write_tables
from liu2013_rows import ROWS, place
from published import read_results
from stand_ins import POINTS, FakeCorpus, result
from tables import Section
from tuned import configuration

from torchtune_smt.core.errors import InputError
from torchtune_smt.core.vocabulary import Vocabulary
from torchtune_smt.core.weights import Weights
from torchtune_smt.kbest.sentences import Sentences
from torchtune_smt.runs.outputs import WITHOUT_EFFECT
from torchtune_smt.tuners.grouping.groups import FeatureGroups, save_groups


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


@given(st.lists(st.floats(0, 1), max_size=8))
def test_holms_correction_is_the_closed_test(values: list[float]) -> None:
    """Each hypothesis falls where all sets of hypotheses with it fall by Bonferroni's test."""
    sets = [s for n in range(1, len(values) + 1) for s in combinations(range(len(values)), n)]
    closed = [
        min(1.0, max(len(s) * min(values[j] for j in s) for s in sets if i in s))
        for i in range(len(values))
    ]
    assert tables.holm(values) == pytest.approx(closed)


def test_rounds_that_bind() -> None:
    batch, online = (configuration([option]) for option in ("tuner=pro", "tuner=online"))
    assert (batch.tuner.iterations, online.tuner.epochs) == (tables.ITERATIONS, tables.EPOCHS)
    for overrides, most in (("tuner=pro", 15), ("x=y", 8), ("tuner=pro tuner.iterations=4", 4)):
        assert tables.rounds_cell(most, most, overrides.split()) == f"{most} of {most}, bind"
        assert tables.rounds_cell(most - 1, most, overrides.split()) == f"{most - 1} of {most}"
    overrides = ["tuner=grouping", "tuner.iterations=5", "tuner.dev.iterations=60"]
    assert tables.rounds_cell(2, 5, overrides) == "2 of 5 × 60"


def test_tables(tmp_path: Path) -> None:
    results = store(tmp_path / "runs")
    assert Result.load(tmp_path / "runs" / "multi30k" / "oscar") == results["oscar"]
    write_tables(tmp_path / "runs", tmp_path / "out")
    text = (tmp_path / "out" / "table.md").read_text()
    lines = text.splitlines()
    assert "    python scripts/experiments/reproduce/liu2013.py --corpora multi30k" in lines
    assert "Run on 2026-01-01 to 2026-01-02; seed 1; torch 2.13.0." in lines
    begins = [
        "| MERT | dev | default | | 10 |",
        "| PRO | dev",
        "| OSCAR, `lambda2=3e-08` | train (2,000 s",
    ]
    places = [next(i for i, x in enumerate(lines) if x.startswith(b)) for b in begins]
    assert places == sorted(places)
    end = "| 30.12 | 0.500 (0.500) | 40.50 | **0.001** (**0.002**) | 4 of 7 | 3.2 | 2.0 |"
    assert lines[places[0]].endswith(end)
    assert "| 30.12 | baseline | 40.50 | baseline |" in lines[places[1]]
    assert "| 503 groups of 12,345 features | 425 |" in lines[places[2]]
    assert any(
        "`regularizer.lambda2=3e-08` * (end) | 41.00 | 31.00 | 800 | 2.5 | 1.5 |" in x
        for x in lines
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


def test_a_choice_that_lies_at_an_end_says_so(tmp_path: Path) -> None:
    more = [POINTS[0] | {"option": f"optimizer.lr={rate}"} for rate in ("0.01", "0.1", "0.003")]
    chosen = "regularizer.lambda2=3e-07 optimizer.lr=0.01"
    tried = [*POINTS, POINTS[0] | {"option": "regularizer.lambda2=3e-07"}, *more]
    result("l1_dev_id", chosen=chosen, points=tried).save(tmp_path / "multi30k" / "l1_dev_id")
    alone = {"chosen": "regularizer.lambda2=3e-08", "points": POINTS[1:]}
    result("oscar", **alone).save(tmp_path / "multi30k" / "oscar")
    write_tables(tmp_path, tmp_path)
    lines = (tmp_path / "table.md").read_text().splitlines()
    values = [line.split(" | ")[1] for line in lines if "=" in line and line.count(" | ") == 6]
    assert sorted(value for value in values if "*" in value) == [
        "`optimizer.lr=0.01` *",
        "`regularizer.lambda2=3e-07` * (end)",
        # Of one value nothing is chosen.
        "`regularizer.lambda2=3e-08` *",
    ]
    assert len(values) == 7


def translate_rows(folder: Path) -> None:
    for key, value in (("pro_dev", 0.5), ("mert_dev", 0.25), ("oscar", 0.375)):
        (folder / key / tuned.DEVTEST).write_text(f"{value}\n")
        (folder / key / tuned.TEST).write_text(f"{value / 2}\n")


def compared(folder: Path) -> dict[str, tuple[float | None, float | None, str]]:
    compare_rows(FakeCorpus(), folder)  # type: ignore[arg-type]
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


def test_seeds_have_rows_of_their_own_and_one_mean(tmp_path: Path) -> None:
    folder = tmp_path / "multi30k"
    for seed in (1, 2, 3):
        for key, test in (("pro_dev", 40.0 + seed), ("oscar", 50.0 + 2 * seed)):
            values = {"seed": seed, "test": test, "devtest": 30.0, "dev": 41.5}
            result(key, **values).save(place(folder, key, seed))
    result("mert_dev").save(folder / "mert_dev")
    write_tables(tmp_path, tmp_path / "out")
    text = (tmp_path / "out" / "table.md").read_text()
    (mean,) = (line for line in text.splitlines() if line.startswith("| OSCAR") and " ± " in line)
    # Of 20 divisions of six runs, two differ as much.
    assert mean == (
        "| OSCAR train, dev +group lm=folds | 1, 2, 3 | 41.50 ± 0.00 | 30.00 ± 0.00 "
        "| 1.000 (1.000) | 54.00 ± 2.00 | 0.100 (0.100) |"
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


ROW_OF = "data=multi30k", "model=liu2013", "decoder.pop_limit=30", "data.test=null"


def overrides_of(row: str, seed: int, **changes: object) -> dict[str, object]:
    """Return what a result of `row` has, as a command with some options would do it."""
    shared = list(ROW_OF)
    shared[2:3] = [f"{k}={v}" for k, v in ({"decoder.pop_limit": 30} | changes).items() if v]
    return {"seed": seed, "overrides": [*shared, f"seed={seed}", *ROWS[row].overrides]}


def test_results_of_different_experiments_have_no_common_mean(tmp_path: Path) -> None:
    folder = tmp_path / "multi30k"
    for seed in (1, 2, 3):
        values = {"test": 40.0 + seed, "devtest": 30.0, "dev": 41.5}
        # Neither threads nor memory count.
        for key, more in (("pro_dev", {}), ("oscar", {"decoder.keep_mb": seed, "threads": seed})):
            given = overrides_of(key, seed, **more) | values
            given |= {} if key == "pro_dev" else {"training_sentences": 5000}
            part = 0 if key == "pro_dev" else 5000
            result(key, **given).save(place(folder, key, seed, part))
        # Another setting with other seeds than its baseline, which has none.
        given = overrides_of("mert_dev", seed, **{"decoder.pop_limit": 30 if seed < 2 else None})
        result("mert_dev", **given | values).save(place(folder, "mert_dev", seed))
    full = overrides_of("oscar", 1) | {"training_sentences": 29_000, "test": 60.0}
    result("oscar", **full).save(folder / "oscar")
    write_tables(tmp_path, tmp_path / "out")
    lines = (tmp_path / "out" / "table.md").read_text().splitlines()
    means = [line for line in lines if " ± " in line]
    assert means == [
        "| MERT dev default, without `decoder.pop_limit=30` | 2, 3 | 41.50 ± 0.00 | 30.00 ± 0.00 "
        "| not compared | 42.50 ± 0.71 | not compared |",
        "| PRO dev default | 1, 2, 3 | 41.50 ± 0.00 | 30.00 ± 0.00 | baseline | 42.00 ± 1.00 "
        "| baseline |",
        "| OSCAR train (5,000 sentences), dev +group lm=folds | 1, 2, 3 | 41.50 ± 0.00 "
        "| 30.00 ± 0.00 | 1.000 (1.000) | 42.00 ± 1.00 | 1.000 (1.000) |",
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
    write_tables(tmp_path, tmp_path / "out")
    text = (tmp_path / "out" / "table.md").read_text()
    assert (
        "Seeds that were not run: `random_pairs`, 29,000 training sentences (1); `random_pairs`, "
        "5,000 training sentences (1, 3)."
    ) in text
    # What only the example has is no experiment.
    (tmp_path / "multi30k").rename(tmp_path / "away")
    (tmp_path / "out" / "table.csv").unlink()
    write_tables(tmp_path, tmp_path / "out")
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
        at = place(folder, key, seed)
        old = {"p_test": 0.5, "p_devtest": 0.5, "significance": "randomization"}
        result(key, **overrides_of(key, seed, **more) | (old if seed == 1 else {})).save(at)
        for file in (tuned.DEVTEST, tuned.TEST):
            (at / file).write_text("0.25\n" if key == "pro_dev" else "0.75\n")
    compare_rows(FakeCorpus(), folder)  # type: ignore[arg-type]
    found = {key: Result.load(place(folder, *key)) for key in rows}
    said = {key: (one.p_devtest, one.p_test, one.significance) for key, one in found.items() if one}
    assert said[("mert_dev", 1)] == (0.5, 0.5, "randomization")
    nothing = (None, None, "not compared")
    assert said[("pro_dev_id", 1)] == said[("mert_dev", 2)] == nothing
    # With a baseline, there is something to compare.
    at = place(folder, "pro_dev", 2)
    result("pro_dev", **overrides_of("pro_dev", 2)).save(at)
    for file in (tuned.DEVTEST, tuned.TEST):
        (at / file).write_text("0.5\n")
    compare_rows(FakeCorpus(), folder)  # type: ignore[arg-type]
    again = Result.load(place(folder, "mert_dev", 2))
    assert again is not None and again.p_test == 0.25
    # It stays when that is gone.
    (at / tables.RESULT).unlink()
    compare_rows(FakeCorpus(), folder)  # type: ignore[arg-type]
    assert Result.load(place(folder, "mert_dev", 2)) == again


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
    found = results_of(tmp_path)
    assert [(*key, path.name) for key, (_, path) in found.items()] == [
        ("oscar", 2000, 1, "oscar-2000"),
        ("oscar", 2000, 2, "oscar-seed2"),
        ("oscar_single", 2000, 1, "oscar_single-2000"),
    ]


def test_a_picture_of_the_chance_in_groups(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    of_groups = {"overrides": ["data=multi30k", "data.test=null", "tuner=grouping"]}
    diagnosis = {"diagnosis/overlap_features": [0.1], "diagnosis/fired_last": [None, 0.9]}
    row = tmp_path / "multi30k" / "oscar"
    result("oscar", **of_groups, diagnosis=diagnosis).save(row)
    picture = tmp_path / "out" / "chance-in-groups.png"
    write_tables(tmp_path, picture.parent)
    assert picture.read_bytes().startswith(b"\x89PNG")
    # On another machine, what the table says is drawn, too.
    again = Result.load(row)
    assert again is not None and again.diagnosis == diagnosis
    (row / tables.RESULT).unlink()
    beside = tmp_path / "multi30k" / "random_pairs"
    result("random_pairs", **of_groups, diagnosis=diagnosis).save(beside)
    drawn: list[dict[str, list[Diagnosis]]] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(liu2013_results, "plot_diagnosis", lambda _, found: drawn.append(found))
        write_tables(tmp_path, picture.parent)
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
    write_tables(tmp_path, picture.parent)
    assert picture.read_bytes() == b"as it was"
    said = f"{picture} stays as it was: table.csv does not have what multi30k/oscar say there\n"
    assert capsys.readouterr().out == said
    picture.unlink()
    write_tables(tmp_path, picture.parent)
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


def test_rows_without_translations_say_so(tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "multi30k"
    store(tmp_path / "runs")
    translate_rows(folder)
    (folder / "oscar" / tuned.TEST).unlink()
    assert compared(folder) == {
        "mert_dev": (0.25, 0.125, "randomization"),
        "oscar": (None, None, "not computed again"),
    }
    write_tables(tmp_path / "runs", tmp_path / "out")
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
    write_tables(tmp_path / "runs", tmp_path / "out")
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
    assert Path(__file__).resolve().parents[2] == runs.REPOSITORY

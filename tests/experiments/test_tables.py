"""Tables of reproductions: written from results, kept, compared, drawn."""

import dataclasses
import shutil
from itertools import combinations
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import better
import green2013
import green2013_results
import green2013_rows
import liu2013_results
import nested
import numpy as np
import pytest
import simianer2012_results
import simianer2012_rows
import tables
import tuned
from alike import NOT_COUNTED, settings, shared
from hypothesis import given
from hypothesis import strategies as st
from liu2013_results import Result, compare_rows
from liu2013_rows import BASELINE, ROWS, place
from published import read_results
from stand_ins import FakeCorpus, result
from tables import Section
from tuned import configuration

from torchtune_smt.core.vocabulary import Vocabulary
from torchtune_smt.core.weights import Weights
from torchtune_smt.kbest.sentences import Sentences
from torchtune_smt.runs.outputs import WITHOUT_EFFECT
from torchtune_smt.tuners.grouping.groups import FeatureGroups, save_groups

RESULTS = Path(__file__).resolve().parents[2] / "docs" / "results"
# Others are written by one command, and have no table of rows.
PUBLISHED = [
    path
    for path in sorted(RESULTS.glob("*/**/*.csv"))
    if path.parent.name != "lists"
    and path.with_suffix(".md").is_file()
    and (path.parent.name != "green2013" or path.stem == "own")
]
VOID: dict[str, Any] = {"p_test": None, "p_devtest": None, "significance": "not compared"}


def write_again(of: str, folder: Path, output: Path) -> None:
    """Write the tables of a paper, of the rows that are done in a folder and the published ones."""
    if of == "green2013":
        given = green2013.parse(["--folder", str(folder)])
        green2013_results.write_tables(green2013.as_options(given), output)
    elif of == "better":
        better.write_tables(better.parse(["--folder", str(folder)]), output)
    else:
        writer = {"liu2013": liu2013_results, "simianer2012": simianer2012_results}[of]
        writer.write_tables(folder, output)


@pytest.mark.parametrize("path", PUBLISHED, ids=lambda path: str(path.relative_to(RESULTS)))
def test_published_tables_are_what_is_written_from_their_data(path, tmp_path):
    """Rows, means over seeds, corrected p-values, chosen options, what is missing: every letter."""
    names = [path.name, f"{path.stem}.md"]
    shutil.copy(path, tmp_path)
    write_again(path.relative_to(RESULTS).parts[0], tmp_path / "nothing", tmp_path)
    for name in names:
        assert (tmp_path / name).read_text("utf-8") == (path.parent / name).read_text("utf-8")
    write_again("liu2013", tmp_path / "nothing", tmp_path / "empty")
    assert not (tmp_path / "empty").exists()


@given(st.lists(st.floats(0, 1), max_size=8))
def test_holms_correction_is_the_closed_test(values):
    """Each hypothesis falls where all sets of hypotheses with it fall by Bonferroni's test."""
    sets = [s for n in range(1, len(values) + 1) for s in combinations(range(len(values)), n)]
    closed = [
        min(1.0, max(len(s) * min(values[j] for j in s) for s in sets if i in s))
        for i in range(len(values))
    ]
    assert tables.holm(values) == pytest.approx(closed)


def test_rounds_that_bind():
    batch, online = (configuration([option]) for option in ("tuner=pro", "tuner=online"))
    assert (batch.tuner.iterations, online.tuner.epochs) == (tables.ITERATIONS, tables.EPOCHS)
    for overrides, most in (("tuner=pro", 15), ("x=y", 8), ("tuner=pro tuner.iterations=4", 4)):
        assert tables.rounds_cell(most, most, overrides.split()) == f"{most} of {most}, bind"
        assert tables.rounds_cell(most - 1, most, overrides.split()) == f"{most - 1} of {most}"
    overrides = ["tuner=grouping", "tuner.iterations=5", "tuner.dev.iterations=60"]
    assert tables.rounds_cell(2, 5, overrides) == "2 of 5 × 60"


def test_what_options_count():
    assert set(WITHOUT_EFFECT) < NOT_COUNTED
    given = ["data=fisher", "threads=1", "a.b=3e-8", "engine.workers=2", "c=true", "c=false"]
    other = ["c=false", "+a.b=3e-08", "data=fisher", "decoder.keep_mb=3", "seed=2", "threads=2"]
    same = {("data", "fisher"), ("a.b", "3e-08"), ("c", "false")}
    assert settings(given) == settings(other) == same
    assert settings([*given, "decoder.k=10"]) != settings(given)
    assert shared(["a=1", "data.test=null", "tuner=pro"]) == {("a", "1")} == shared(["a=1"])


# Published rows


def plain(row: str, seed: int = 1, **given: object) -> dict[str, Any]:
    """Return what any result has."""
    fields = {f.name for f in dataclasses.fields(tables.Result)}
    values = dataclasses.asdict(result("pro_dev", corpus="fisher", p_test=0.01, p_devtest=0.5))
    values["significance"] = "randomization"
    return {k: v for k, v in values.items() if k in fields} | {"row": row, "seed": seed} | given


def liu_place(folder: Path, one: Any) -> Path:
    return place(folder / one.corpus, one.row, one.seed)


def green_place(folder: Path, one: Any) -> Path:
    options = green2013.as_options(green2013.parse(["--folder", str(folder)]))
    return green2013_rows.place(options, one.corpus, one.row, one.seed)


G = f"dev/{green2013_rows.BASELINE}"
# Rows that are published, those that are done again, and what the tables have then.
AGAIN: list[tuple[Any, Any, str, list[Any], list[Any], list[Any]]] = [
    # The baseline has changed: what was compared with it is not any more.
    (
        liu2013_results.Result,
        liu_place,
        "table.csv",
        [(BASELINE, 1), ("oscar", 1), ("oscar", 2), ("random_pairs", 1)],
        [(BASELINE, 1, {"test": 35.0}), ("oscar", 3)],
        [
            (BASELINE, 1, {"test": 35.0}),
            ("oscar", 1, VOID),
            ("oscar", 2),
            ("oscar", 3),
            ("random_pairs", 1, VOID),
        ],
    ),
    (
        green2013_results.Result,
        green_place,
        "own.csv",
        [(G, 1), ("dev/adagrad_pt", 1), ("dev/adagrad_pt", 2)],
        [(G, 1, {"test": 35.0})],
        [(G, 1, {"test": 35.0}), ("dev/adagrad_pt", 1, VOID), ("dev/adagrad_pt", 2)],
    ),
]


@pytest.mark.parametrize(("kind", "at", "name", "old", "new", "expected"), AGAIN)
def test_rows_that_are_not_done_again_stay(kind, at, name, old, new, expected, tmp_path):
    def results(rows):
        return [kind(**plain(row, seed, **(more[0] if more else {}))) for row, seed, *more in rows]

    output = tmp_path / "published"
    output.mkdir()
    tables.write_csv(output / name, [Section("fisher", "", results(old))])
    for one in results(new):
        folder = at(tmp_path / "here", one)
        folder.mkdir(parents=True)
        one.save(folder)
    of = "green2013" if name == "own.csv" else "liu2013"
    write_again(of, tmp_path / "here", output)
    assert read_results(output / name, kind) == results(expected)


def test_the_table_of_simianer_keeps_published_rows(tmp_path):
    kind = simianer2012_results.Result

    def row(name, **more):
        return kind(**plain(name, method="1", **more))

    output, folder = tmp_path / "published", tmp_path / "here"
    output.mkdir()
    both = {"1_dev_sparse": 0.01, "mira_dev_sparse": 0.02}
    old = [
        row("1_dev_sparse", differs={"4_train_sparse": 0.01}),
        row("4_train_sparse", differs=both, differs_out=dict(both)),
        row("mira_dev_sparse", differs={"4_train_sparse": 0.02}),
    ]
    tables.write_csv(output / "table.csv", [Section("fisher", "", old)])

    def do_again(one):
        at = simianer2012_rows.place(folder, "fisher", one.row, 1)
        at.mkdir(parents=True)
        one.save(at)
        simianer2012_results.write_tables(folder, output)
        return read_results(output / "table.csv", kind)

    again = row("1_dev_sparse", test=35.0, differs={})
    # The p-value of the difference from what 1_dev_sparse was before is gone.
    left = {"mira_dev_sparse": 0.02}
    kept = dataclasses.replace(old[1], differs=left, differs_out=left)
    assert do_again(again) == [again, kept, old[2]]
    # A row that comes out as it was keeps its comparisons, and has more.
    new = {"4_then_dev_sparse": 0.03}
    found = do_again(dataclasses.replace(old[2], differs=new, differs_out=new))
    assert found[2].differs == {"4_train_sparse": 0.02, **new}


# Comparisons


def with_options(row: str, seed: int, **changes: object) -> dict[str, object]:
    """Return what a result of `row` has, as a command with some options would do it."""
    own = [f"{k}={v}" for k, v in ({"decoder.pop_limit": 30} | changes).items()]
    of_all = ["data=multi30k", "model=liu2013", *own, "data.test=null"]
    return {"seed": seed, "overrides": [*of_all, f"seed={seed}", *ROWS[row].overrides]}


def test_rows_are_compared_with_the_baseline_that_has_their_options(tmp_path):
    rows = {
        ("pro_dev", 1): {},
        # Memory does not count.
        ("mert_dev", 1): {"decoder.keep_mb": 5},
        ("pro_dev_id", 1): {"decoder.pop_limit": 200},
        ("mert_dev", 2): {},
    }

    def translated(at, bleu):
        at.mkdir(parents=True, exist_ok=True)
        for file in (tuned.DEVTEST, tuned.TEST):
            (at / file).write_text(f"{bleu}\n")

    def compared():
        compare_rows(FakeCorpus(), tmp_path)
        found = {key: Result.load(place(tmp_path, *key)) for key in rows}
        return {key: (one.p_test, one.significance) for key, one in found.items() if one}

    for (key, seed), more in rows.items():
        at = place(tmp_path, key, seed)
        result(key, **with_options(key, seed, **more)).save(at)
        translated(at, 0.25 if key == "pro_dev" else 0.75)
    nothing = (None, "not compared")
    expected = [(0.5, "randomization"), nothing, nothing]
    assert list(compared().values())[1:] == expected
    # Another baseline needs the translations.
    mert = place(tmp_path, "mert_dev", 1)
    again = with_options("pro_dev", 1) | {"test": 2.0}
    result("pro_dev", **again).save(place(tmp_path, "pro_dev", 1))
    assert compared()["mert_dev", 1] == (0.5, "randomization")
    (mert / tuned.TEST).unlink()
    result("pro_dev", **again | {"test": 3.0}).save(place(tmp_path, "pro_dev", 1))
    assert compared()["mert_dev", 1] == (None, "not computed again")


def test_groups_without_a_weight_are_not_active(tmp_path):
    """Their features are in the file of groups, and not in that of weights."""
    weights = Weights(["dense"])
    weights.set(["dense", "a"], [0.5, 0.25])
    names, values = Vocabulary(["dense", "a", "b"]), np.array([0.5, 0.25, 0.0])
    save_groups(tmp_path / tuned.GROUPS, FeatureGroups.of(np.array([-1, 0, 1]), 1), values, names)

    class Nothing(tuned.Corpus):
        def __init__(self):
            self._sets = {"test": Sentences.of([], [])}

        def system(self, *_):
            return SimpleNamespace(features=weights.features), weights

    found = Nothing().test([], tmp_path, tmp_path / tuned.TEST)
    assert found == tuned.Features(active=2, reused=0, atomic=2)


def test_nested_cross_validation_is_told_as_it_came_out():
    """Groups are in one fold each, and the page has the table of what was measured."""
    folder = RESULTS / "lists"
    assert nested.table(str(folder / "nested.csv")) in (folder / "README.md").read_text("utf-8")
    group = np.arange(40) // 2
    parts = nested.folds(group, 3, np.random.default_rng(0))
    assert sorted(np.concatenate(parts).tolist()) == list(range(40))
    assert sum(len(set(group[part].tolist())) for part in parts) == 20

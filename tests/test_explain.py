"""What makes two systems prefer different translations of a sentence."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml
from commands import Run, example_source, run_command
from hypothesis import given
from hypothesis import strategies as st
from test_overlap import analyse, rows

from torchtune_smt.core.resources import example_folder
from torchtune_smt.core.textio import read_lines
from torchtune_smt.core.weights_io import read_weights
from torchtune_smt.evaluation.features import contributions, parts_of_scores

VALUES = st.dictionaries(st.sampled_from("abcd"), st.sampled_from([-2.0, -0.5, 1.0, 3.0]))


@given(VALUES, VALUES, VALUES, VALUES)
def test_contributions(
    ours: dict[str, float],
    theirs: dict[str, float],
    first: dict[str, float],
    second: dict[str, float],
) -> None:
    found = contributions((ours, theirs), (first, second))

    def score(row: Mapping[str, float], weights: Mapping[str, float]) -> float:
        return sum(value * weights.get(name, 0.0) for name, value in row.items())

    for n, weights in enumerate((first, second)):
        lead = sum(one[2 + n] for one in found)
        assert lead == pytest.approx(score(ours, weights) - score(theirs, weights))
    for one in found:
        difference = ours.get(one.name, 0.0) - theirs.get(one.name, 0.0)
        assert one.difference == difference != 0
        assert one.first == pytest.approx(difference * first.get(one.name, 0.0))
        assert one.first or one.second
    # Larger weights throughout are the same model.
    larger = {name: 8 * weight for name, weight in second.items()}
    again = contributions((ours, theirs), (first, larger))
    assert [one.name for one in again] == [one.name for one in found]


def test_the_feature_that_differs_is_first() -> None:
    rows = {"LM": -2.0, "r:a~b": 1.0}, {"LM": -1.0, "r:a~c": 1.0}
    weights = {"LM": 1.0, "r:a~b": 1.5}, {"LM": 1.0, "r:a~c": 0.25}
    found = contributions(rows, weights)
    assert [tuple(one) for one in found] == [
        ("r:a~b", 1, 1.5, 0),
        ("LM", -1, -1, -1),
        ("r:a~c", -1, 0, -0.25),
    ]


@given(VALUES, VALUES, VALUES, VALUES)
def test_parts_of_scores(
    ours: dict[str, float],
    theirs: dict[str, float],
    first: dict[str, float],
    second: dict[str, float],
) -> None:
    """Each system's score is that of its own translation."""
    found = parts_of_scores((ours, theirs), (first, second))
    scores = sum(one.first for one in found), sum(one.second for one in found)
    expected = [
        sum(value * weights.get(name, 0.0) for name, value in row.items())
        for row, weights in ((ours, first), (theirs, second))
    ]
    assert scores == pytest.approx(expected)
    for one in found:
        assert (one.first_value, one.second_value) == (
            ours.get(one.name, 0.0),
            theirs.get(one.name, 0.0),
        )
        assert one.first == pytest.approx(one.first_value * first.get(one.name, 0.0))
        assert one.second == pytest.approx(one.second_value * second.get(one.name, 0.0))
        assert one.first or one.second
    columns = [one.first for one in found], [one.second for one in found]
    totals = [sum(map(abs, column)) or 1.0 for column in columns]
    differ = [abs(one.first / totals[0] - one.second / totals[1]) for one in found]
    assert differ == sorted(differ, reverse=True)


@pytest.fixture(scope="module")
def dense(run: Run) -> Path:
    """A run like the first, as if it had been tuned with dense features alone."""
    folder = run.place / "as_dense"
    shutil.copytree(run.folder, folder, ignore=shutil.ignore_patterns("tensorboard"))
    record = folder / ".hydra" / "overrides.yaml"
    record.write_text(yaml.safe_dump([*yaml.safe_load(record.read_text()), "features=dense"]))
    (folder / "weights.txt.gz").unlink()
    names, values = read_weights(run.weights)
    weights = dict(zip(names.names(range(len(names))), values.tolist(), strict=True))
    weights["LanguageModel"] *= 3
    lines = [f"{name} {weight!r}\n" for name, weight in weights.items() if ":" not in name]
    # Without what the weights belong to: these are of other features.
    (folder / "weights.txt").write_text("".join(lines))
    return folder


def translations(run: Run, weights: Path, *options: str) -> list[tuple[str, dict[str, float]]]:
    """The translations of test that `translate` writes, and their features."""
    given = [f"weights={weights}", f"input={example_folder() / 'test.de'}", "n_best=1", *options]
    found = []
    for line in run_command("translate", *given, folder=run.place).check().out.splitlines():
        _, words, features, _ = line.split(" ||| ")
        pairs = [feature.rpartition("=") for feature in features.split()]
        found.append((words, {name: float(value) for name, _, value in pairs}))
    return found


Translations = list[tuple[str, dict[str, float]]]


@pytest.fixture(scope="module")
def every(run: Run, dense: Path) -> tuple[Translations, Translations]:
    """What both runs make of test, with the features that the first one has."""
    other = translations(run, dense / "weights.txt", "features=sparse")
    return translations(run, run.weights), other


@pytest.fixture(scope="module")
def weights(run: Run, dense: Path) -> tuple[dict[str, float], dict[str, float]]:
    """Those of both runs."""
    both = []
    for path in (run.weights, dense / "weights.txt"):
        names, values = read_weights(path)
        both.append(dict(zip(names.names(range(len(names))), values.tolist(), strict=True)))
    return both[0], both[1]


def test_two_systems(
    run: Run,
    dense: Path,
    every: tuple[Translations, Translations],
    weights: tuple[dict[str, float], dict[str, float]],
) -> None:
    """Features are those of derivations that the same weights choose with all templates."""
    sources = example_source("test")
    other = dense / "weights.txt"
    number = next(n for n, (a, b) in enumerate(zip(*every, strict=True), 1) if a[0] != b[0])
    (first, ours), (second, theirs) = every[0][number - 1], every[1][number - 1]
    expected = contributions((ours, theirs), weights)
    systems = f"systems={{all:{run.folder},dense:{other}}}"
    given = ["explain", systems, f"sentence={number}"]
    found = rows(analyse(run.place, *given, "table=csv", "rows=null", "plot=explain.svg"))
    assert [row["feature"] for row in found] == [one.name for one in expected]
    for row, one in zip(found, expected, strict=True):
        numbers = [float(value) for value in list(row.values())[1:]]
        assert numbers == pytest.approx(list(one[1:]), abs=1e-6)
    assert (run.place / "explain.svg").read_bytes().startswith(b"<?xml")
    text = analyse(run.place, *given, "table=text", "rows=1").check().out
    assert f"source: {sources[number - 1]}\n" in text
    assert f"\nall: {first}\n  1" in text and f"\ndense: {second}\n  1" in text
    lead = sum(one.first for one in expected)
    assert f"\nin all, all scores its own translation {lead:+.4g} above that of dense\n" in text


def test_a_report_says_the_same(
    run: Run,
    dense: Path,
    every: tuple[Translations, Translations],
    weights: tuple[dict[str, float], dict[str, float]],
) -> None:
    """A model looks at all features of the other one's translation, too."""
    systems = f"systems={{all:{run.folder},dense:{dense / 'weights.txt'}}}"
    given = [systems, "samples=5", "metrics=[bleu]", "html=explained.html"]
    run_command("compare", *given, folder=run.place).check()
    page = (run.place / "explained.html").read_text()
    found = 0
    for example in page.split('<div class="example">')[1:]:
        (number,) = re.findall(r"sentence (\d+) ", example)
        (_, ours), (_, theirs) = (side[int(number) - 1] for side in every)
        for n, name in enumerate(("all", "dense")):
            leads = re.findall(rf"why {name} prefers its own: ([-+][\d.]+)", example)
            lead = sum(one[2 + n] for one in contributions((ours, theirs), weights))
            assert leads == [f"{-lead if n else lead:+.3f}"]
            found += 1
    assert found >= 4


def test_bad_input(run: Run, dense: Path) -> None:
    systems = f"systems={{all:{run.folder},dense:{dense / 'weights.txt'}}}"
    (run.place / "moved").mkdir()
    text = read_lines(run.weights)
    # The grammar of another model, by its digest.
    other = [f"{line[:-18]}[{'0' * 16}]" if line.startswith("# grammar") else line for line in text]
    (run.place / "moved" / "weights.txt").write_text("".join(f"{line}\n" for line in other))
    (run.place / "words").write_text("the dog\n")
    for arguments, message in (
        ([systems], "sentence is missing; give its number with sentence=NUMBER, from 1"),
        ([systems, "sentence=0"], "sentence must be a whole number, 1 or more, or null, not 0"),
        ([systems, "sentence=1000"], "sentence=1000: test has 100 sentences; give one of 1 to 100"),
        ([run.folder, "words", "sentence=1"], "words: lies in no run's folder, and decodes"),
        (
            [run.folder, "moved/weights.txt", "sentence=1"],
            "moved/weights.txt: lies in no run's folder, which would say how to open its model",
        ),
        ([run.folder, "sentence=1"], "explain compares two systems, and there are 1"),
    ):
        outcome = analyse(run.place, "explain", *arguments)
        assert (outcome.code, outcome.err.count("\n")) == (1, 1)
        assert outcome.err.startswith(f"error: {message}"), outcome.err

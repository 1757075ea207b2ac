"""Features that sets have in common: beside counting by hand, and as a command."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path

import numpy as np
import pytest
from commands import Outcome, Run, run_command
from hypothesis import given
from hypothesis import strategies as st

from torchtune_smt.core.textio import read_lines
from torchtune_smt.core.weights_io import read_weights
from torchtune_smt.evaluation.features import FeatureSet, dense_by_names, dense_features, overlap
from torchtune_smt.evaluation.tables import Table

NAMES = ["LM", "Glue", "rule_id:a~b", "rule_id:c~d", "rule_id:e~f", "shape:T", "shape:T_T", "x:y"]
WEIGHTS = st.dictionaries(st.sampled_from(NAMES), st.sampled_from([-2.0, -1.0, 0.5, 3.0]))


def analyse(folder: Path, *arguments: str | Path) -> Outcome:
    return run_command("analyse", *arguments, folder=folder)


def rows(outcome: Outcome) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(outcome.check().out)))


@given(WEIGHTS, WEIGHTS)
def test_counts(first: dict[str, float], second: dict[str, float]) -> None:
    dense = {"LM", "Glue"}
    sets = [FeatureSet(n, w, dense, True) for n, w in (("a", first), ("b", second))]
    found = {one.template: one for one in overlap(*sets)}
    templates = {"dense": NAMES[:2], "rule_id": NAMES[2:5], "shape": NAMES[5:7], "x": NAMES[7:]}
    for template, members in {**templates, "all": NAMES}.items():
        a, b = ({n for n in members if n in weights} for weights in (first, second))
        if not a | b and template != "all":
            assert template not in found
            continue
        one = found.pop(template)
        assert (one.first, one.second, one.both) == (len(a), len(b), len(a & b))
        both = sorted(a & b)
        assert one.same_sign == sum(first[n] * second[n] > 0 for n in both)
        x, y = ([weights[n] for n in both] for weights in (first, second))
        if len(both) > 2 and len(set(x)) > 1 and len(set(y)) > 1:
            dx, dy = np.array(x) - np.mean(x), np.array(y) - np.mean(y)
            expected = (dx * dy).sum() / np.sqrt((dx**2).sum() * (dy**2).sum())
            assert one.correlation == pytest.approx(expected)
        else:
            assert one.correlation is None
    assert not found


@pytest.mark.parametrize("count", range(3, 12))
def test_weights_of_a_group_have_no_correlation(count: int) -> None:
    equal = {f"r:{i}": 0.1 for i in range(count)}
    others = {name: float(i) for i, name in enumerate(equal)}
    for first, second in ((equal, others), (others, equal), (equal, equal)):
        sets = [FeatureSet("a", first, (), True), FeatureSet("b", second, (), True)]
        assert all(one.correlation is None for one in overlap(*sets))


def test_sets_that_are_no_weights() -> None:
    sets = [FeatureSet("a", {"r:a": 2.0}, ()), FeatureSet("b", {"r:a": 1.0}, (), True)]
    assert [tuple(one) for one in overlap(*sets)] == [
        ("r", 1, 1, 1, None, None),
        ("all", 1, 1, 1, None, None),
    ]


def test_dense_features() -> None:
    names = ["LM0_0", "TM0_3", "Glue", "LanguageModel_OOV", "WT_a~b", "WT_10~10", "rule_id:a~b_1"]
    assert dense_features(names[:4] + names[6:], moses=False) == set(names[:4])
    assert dense_features(names, moses=True) == {"LM0_0", "TM0_3", "Glue"}


def test_dense_features_of_files_that_do_not_say_whose_they_are() -> None:
    ours = ["LanguageModel", "LanguageModel_OOV", "PhraseModel_0", "rule_id:a_b~c", "shape:T_T"]
    assert dense_by_names(ours) == set(ours[:3])
    moses = ["LM0", "Distortion0", "TM0_1", "WT_haus~house", "WT_10", "WT_:~that", "PL_s2", "SWD_a"]
    assert dense_by_names(moses) == set(moses[:3])
    # Lists may have features of both.
    assert dense_by_names(ours + moses) == {*ours[:3], *moses[:3]}
    assert dense_by_names([]) == frozenset()


def counts(folder: Path, *systems: str | Path) -> dict[str, list[int]]:
    """|A|, |B| and |A ∩ B| of each template."""
    return {
        row["template"]: [int(row[name]) for name in ("|A|", "|B|", "|A ∩ B|")]
        for row in rows(analyse(folder, "overlap", *systems, "table=csv"))
    }


def test_weights_of_moses(tmp_path: Path) -> None:
    for name, more in (("a", "PP_das,haus~the,house"), ("b", "WT_kind~child")):
        names = ["LM", "Distortion0", "WT_haus~house", "WT_das~the", "PP_ja~yes", more]
        (tmp_path / name).write_text("".join(f"{feature} 0.5\n" for feature in names))
    expected = {"dense": [2, 2, 2], "WT": [2, 3, 2], "PP": [2, 1, 1], "all": [6, 6, 5]}
    assert counts(tmp_path, "a", "b") == expected


def test_runs_on_lists_say_which_features_are_dense(tmp_path: Path) -> None:
    dense = ["LanguageModel", "LanguageModel_OOV", "Glue", "-", "50%"]
    lines = []
    for i in range(2):
        for h, words in enumerate(("a b", "b a", "b b")):
            values = " ".join(f"{name}={(i + h * n) % 3 + 1}" for n, name in enumerate(dense))
            lines.append(f"{i} ||| {words} ||| {values} WT_{words[0]}~x={h + 1} ||| -{h}\n")
    (tmp_path / "lists").write_text("".join(lines))
    for name in ("dev.de", "dev.en"):
        (tmp_path / name).write_text("a b\na b\n")
    data = ["data=files", "data.name=l", "data.source_language=de", "data.target_language=en"]
    data += ["data.train=null", "data.dev=[dev.de,dev.en]"]
    options = ["decoder=kbest_files", "decoder.dev=lists", f"decoder.dense=[{','.join(dense)}]"]
    (tmp_path / "start").write_text("".join(f"{name} 0.5\n" for name in (*dense, "WT_a~x")))
    options += ["init=file", "init.file=start", "tuner=mira", "tuner.iterations=1"]
    run_command("train", *data, *options, "hydra.run.dir=run", folder=tmp_path).check()
    lines = read_lines(tmp_path / "run" / "weights.txt.gz")
    (tmp_path / "moved").write_text("".join(f"{line}\n" for line in lines))
    names = [line.split()[0] for line in lines if line[0] != "#"]
    assert names[:5] == dense
    n_sparse = len(names) - 5
    expected = {"dense": [5, 5, 5], "WT": [n_sparse] * 3, "all": [len(names)] * 3}
    assert counts(tmp_path, "run", "moved") == expected
    # Files that were written before they said so are read as lists of Moses's.
    lines.remove("# dense features: LanguageModel LanguageModel_OOV Glue %2D 50%25")
    for name in ("old", "older"):
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines))
    expected |= {"dense": [4, 4, 4], "LanguageModel": [1, 1, 1]}
    assert counts(tmp_path, "old", "older") == expected


def test_tables() -> None:
    table = Table(["f", "n", "w"], [["[1]_a|b", 1234, 0.123456], ["", None, -12345.6]], ["said"])
    assert table.text() == "f            n          w\n[1]_a|b  1,234     0.1235\n" + (
        "                -12,345.6\n\nsaid\n"
    )
    assert table.markdown() == (
        "| f | n | w |\n|---|---:|---:|\n| [1]_a\\|b | 1,234 | 0.1235 |\n|  |  | -12,345.6 |\n\n"
        "- said\n"
    )
    assert r"{}[1]\_a\textbar{}b & 1,234 & 0.1235 \\" in table.latex()
    assert table.latex().startswith("% said\n\\begin{tabular}{lrr}\n")
    assert table.csv() == "f,n,w\n[1]_a|b,1234,0.123456\n,,-12345.6\n"


def test_weights_of_two_runs(run: Run, tmp_path: Path) -> None:
    """A file whose overlap with the run is planted."""
    names, values = read_weights(run.weights)
    weights = dict(zip(names.names(range(len(names))), values.tolist(), strict=True))
    rules = sorted(name for name in weights if name.startswith("rule_id:"))
    changed = {name: -weights[name] for name in rules[:7]} | dict.fromkeys(rules[7:9], 1.0)
    changed |= {"rule_id:never~seen": 1.0, "rule_id:zero~weight": 0.0, "LanguageModel": 0.5}
    (tmp_path / "own").write_text("".join(f"{name} {w!r}\n" for name, w in changed.items()))
    picture = tmp_path / "overlap.svg"
    outcome = analyse(tmp_path, "overlap", run.folder, "own", "table=csv", f"plot={picture}")
    found = {row["template"]: row for row in rows(outcome)}
    rule = found["rule_id"]
    assert [int(rule[name]) for name in ("|A|", "|B|", "|A ∩ B|")] == [len(rules), 10, 9]
    assert int(rule["same sign"]) == sum(weights[name] > 0 for name in rules[7:9])
    assert float(rule["% of B"]) == pytest.approx(90)
    assert (found["dense"]["|B|"], found["dense"]["|A ∩ B|"]) == ("1", "1")
    assert int(found["all"]["|A|"]) == len(weights)
    assert picture.read_bytes().startswith(b"<?xml")
    assert outcome.err == f"picture: {picture}\n"
    # Two long names are letters, which the table and the picture explain; CSV has no room for that.
    assert found["all"]["A"] == str(run.folder)
    outcome = analyse(tmp_path, "overlap", run.folder, "own", f"plot={picture}")
    assert f"- A: {run.folder}\n" in outcome.out
    texts = re.findall(r"<!-- (.*?) -->", picture.read_text())
    assert f"A: {run.folder}" in texts


def test_decoded_sets_are_those_of_n_best_lists(run: Run, tmp_path: Path) -> None:
    """What fires where a set is decoded is what `translate` writes of it."""
    lists = {}
    for split in ("dev", "test"):
        path = tmp_path / f"{split}.nbest"
        source = Path(__file__).parent.parent / "torchtune_smt" / "example" / f"{split}.de"
        given = [f"weights={run.weights}", f"input={source}", f"output={path}", "n_best=3"]
        run_command("translate", *given, folder=run.place).check()
        lists[split] = path
    fired = {}
    for split, path in lists.items():
        fired[split] = set()
        counts: dict[str, int] = {}
        for line in path.read_text().splitlines():
            number, _, features, _ = line.split(" ||| ")
            counts[number] = counts.get(number, 0) + 1
            if counts[number] <= 2:
                fired[split] |= {feature.rpartition("=")[0] for feature in features.split()}
    options = ["n_best=2", "table=csv"]
    decoded = rows(analyse(run.place, "overlap", run.folder, "of=[dev,test]", *options))
    stored = rows(analyse(run.place, "overlap", *lists.values(), *options))
    for row in (decoded[-1], stored[-1]):
        sizes = [int(row[name]) for name in ("|A|", "|B|", "|A ∩ B|")]
        assert sizes == [len(fired["dev"]), len(fired["test"]), len(fired["dev"] & fired["test"])]
    assert [row["A"] for row in decoded] == ["dev"] * len(decoded)
    assert [json.dumps(list(row.values())[2:]) for row in decoded] == [
        json.dumps(list(row.values())[2:]) for row in stored
    ]
    outcome = analyse(run.place, "overlap", *lists.values(), "of=[test]")
    assert outcome.code == 1
    assert outcome.err.startswith("error: of=[test] would change nothing: n-best lists have")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "name an analysis; choose of overlap, adaptation, "),
        (["overlp", "own"], "there is no analysis 'overlp'; choose of overlap"),
        (["overlap", "own"], "an overlap is that of two sets of features; name another system"),
        (["overlap", "own", "nofile"], "nofile: no such file; check the path"),
        (["overlap", "own", "text"], "text:1: has no value; write `name value`"),
        (["overlap", "own", "twin", "of=[dve]"], "of must be a list of weights, train, dev and"),
        (["overlap", "own", "twin", "of=[dev]"], "own: lies in no run's folder, and cannot decode"),
        (["overlap", "own", "twin", "data=example"], "data is given, and nothing is decoded"),
        (["overlap", "own", "twin", "n_best=3"], "n_best=3 would change nothing: weights have"),
        (["overlap", "own", "twin", "plot=a.gif"], "plot must end with .png, .svg or .pdf, not"),
        (["overlap", "systems={a:[own,twin]}"], "a has 2 runs, and overlap takes one of each"),
    ],
)
def test_bad_input(tmp_path: Path, arguments: list[str], message: str) -> None:
    (tmp_path / "own").write_text("a:b 1.0\n")
    (tmp_path / "twin").write_text("a:b 1.0\n")
    (tmp_path / "text").write_text("word\n")
    outcome = analyse(tmp_path, *arguments)
    assert outcome.code == 1
    assert outcome.err.startswith(f"error: {message}")
    assert outcome.err.count("\n") == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["own", "text", "twin"]


def test_an_analysis_must_be_named(tmp_path: Path) -> None:
    for arguments in ([], ["table=csv"]):
        outcome = run_command("analyse", *arguments, folder=tmp_path)
        assert outcome.code == 1
        assert outcome.err == (
            "error: name an analysis; choose of overlap, adaptation, spellings, reordering, "
            "progress, explain\n"
        )

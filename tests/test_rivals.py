"""Rival features of two systems: planted, and beside what is obvious and slow."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from test_overlap import analyse, rows

from torchtune_smt.evaluation.features import disagreements, left_part

NAMES = ["r:a~x", "r:a~y", "r:a~z", "r:b~x", "r:b~", "s:a~x", "t:~x", "t:~y", "n:a_b", "LM"]
WEIGHTS = st.dictionaries(st.sampled_from(NAMES), st.sampled_from([-1.0, -0.5, 0.25, 1.0]))


def test_left_parts() -> None:
    left = {name: left_part(name) for name in NAMES}
    assert left["r:a~x"] == left["r:a~y"] == "r:a"
    assert (left["r:b~"], left["s:a~x"]) == ("r:b", "s:a")
    # Inserted words are no rivals, and neither is what has no left part.
    assert [left[name] for name in NAMES[6:]] == [None] * 4
    assert left_part("WT_haus~house") == "WT_haus"
    assert left_part("WT_~house") is None


@given(WEIGHTS, WEIGHTS)
@example({"r:a~x": 1, "r:a~z": 1}, {"r:a~y": 1, "r:a~z": 1})
@example({"r:a~x": 1, "r:a~y": 1, "r:a~z": 0.25}, {"r:a~x": -1, "r:a~y": -0.5, "r:a~z": -0.5})
def test_disagreements(first: dict[str, float], second: dict[str, float]) -> None:
    known = first.keys() | second.keys()
    expected = {}
    for left in {left_part(name) for name in known} - {None}:
        rivals = [name for name in sorted(known) if left_part(name) == left]
        liked: list[list[str]] = [
            [x for x in rivals if all(side.get(x, 0) >= side.get(y, 0) for y in rivals)]
            for side in (first, second)
        ]
        if not set(liked[0]) & set(liked[1]):
            expected[left] = liked[0][0], liked[1][0]
    found = disagreements(first, second)
    assert {one.left: (one.first, one.second) for one in found} == expected
    for _, x, y, lead in found:
        leads = first.get(x, 0) - first.get(y, 0), second.get(y, 0) - second.get(x, 0)
        assert lead == min(leads) > 0
    assert [one.lead for one in found] == sorted((one.lead for one in found), reverse=True)


@pytest.fixture
def corpora(tmp_path: Path) -> Path:
    """Weights of a corpus with American and of one with British spelling."""
    american = {"programm~program": 0.5, "programm~programme": -0.25, "das~that": 0.1, "x~y": 1}
    british = {"programm~program": -0.5, "programm~programme": 0.75, "das~that": 0.3, "x~": 0.1}
    for name, weights in (("us", american), ("uk", british)):
        lines = [f"rule_id:{feature} {weight}\n" for feature, weight in weights.items()]
        (tmp_path / name).write_text("".join([*lines, "LanguageModel 1\n"]))
    (tmp_path / "other").write_text("alignment:a~b 1\n")
    return tmp_path


def test_planted_rivals(corpora: Path) -> None:
    outcome = analyse(corpora, "adaptation", "us", "uk", "table=csv", "plot=weights.svg")
    assert [list(row.values()) for row in rows(outcome)] == [
        ["rule_id:programm", "program", "us", "0.5", "-0.5", "0.75"],
        ["rule_id:programm", "programme", "uk", "-0.25", "0.75", "0.75"],
        ["rule_id:x", "y", "us", "1.0", "", "0.1"],
        ["rule_id:x", "(nothing)", "uk", "", "0.1", "0.1"],
    ]
    text = analyse(corpora, "adaptation", "us", "uk", "match=programm").check().out
    assert "- rivals of which us and uk prefer different ones: 1\n" in text
    assert (corpora / "weights.svg").read_bytes().startswith(b"<?xml")


def test_single_features(corpora: Path) -> None:
    options = ["rivals=false", "rows=2", "table=csv"]
    found = rows(analyse(corpora, "adaptation", "us", "uk", *options))
    assert [list(row.values()) for row in found] == [
        ["rule_id:programm~program", "0.5", "-0.5", "-1.0"],
        ["rule_id:programm~programme", "-0.25", "0.75", "1.0"],
    ]


def test_bad_input(corpora: Path) -> None:
    for arguments, message in (
        (["us", "other"], "other: has no feature in common with us; compare weights of one kind"),
        (["us", "uk", "other"], "adaptation compares two systems, and there are 3"),
        (["us", "uk", "rivals=maybe"], "rivals must be true or false, not 'maybe'"),
        (["us", "uk", "match=zzz"], "match=zzz is in the name of no feature that has a weight"),
        (["us", "uk", "rows=0"], "rows must be a whole number, 1 or more, or null, not 0"),
    ):
        outcome = analyse(corpora, "adaptation", *arguments)
        assert (outcome.code, outcome.err.count("\n")) == (1, 1)
        assert outcome.err.startswith(f"error: {message}")

"""The benchmarks' clocks, and the page that is written from their figures."""

import json
import re
from pathlib import Path

import lists_peers
import numpy as np
import page
import pytest
import timing

from torchtune_smt.tuners.lines import candidates_of

SCRIPTS = sorted((Path(page.ROOT) / "scripts" / "experiments" / "bench").glob("*.py"))
CLOCK = re.compile(r"\b(perf_counter|process_time|thread_time|monotonic)(_ns)?\b|RUSAGE_CHILDREN")


@pytest.fixture(scope="module")
def data():
    return json.loads(page.DATA.read_text("utf-8"))


def test_page_is_what_is_written_from_the_data(data):
    assert page.PAGE.read_text("utf-8") == page.page(data)
    assert page.DATA.read_text("utf-8") == page.written(data)


def test_figures_have_a_command_and_a_commit(data):
    names = [row["name"] for part in data["parts"] for row in part.get("rows", []) if "name" in row]
    assert len(names) == len(set(names))
    for part in data["parts"]:
        for row in part.get("rows", []):
            assert row.get("command", part.get("command")), row
            assert len(row["cells"]) == len(part["columns"])
        if "heading" not in part:
            assert page.origins(part) - {""} <= data["measured"].keys()
    assert all(
        re.fullmatch(r"20\d\d-\d\d-\d\d", said["date"]) for said in data["measured"].values()
    )


@pytest.mark.parametrize("command", ["true", "echo figure other: 1", None])
def test_a_figure_that_nothing_prints_is_told(command):
    row = {"name": "one", "command": command, "cells": ["", "", "2"], "of": ""}
    data = {"parts": [{"rows": [row] if command else []}], "measured": {}}
    with pytest.raises(SystemExit, match="one"):
        page.run(data, ["one"])
    assert row["cells"][2] == "2" and not data["measured"]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_one_module_has_the_clocks_and_help_is_all_it_says(script):
    text = script.read_text("utf-8")
    assert script.stem == "timing" or not CLOCK.search(text)
    if "__main__" in text:
        # Nothing is done before the command line is read.
        main = text.partition("\ndef main(")[2] or text
        assert re.match(r"[^\n]*\n( +\"\"\".*?\"\"\"\n)? +(parser = )?argparse\.", main, re.DOTALL)


def test_what_is_compared_runs_in_turn():
    calls = []
    found = timing.in_turn({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, 3)
    assert calls == ["a", "b"] * 4
    assert all(spread.low <= spread.median <= spread.high for spread in found.values())
    assert timing.Spread.of([3, 1, 2]) == (2, 1, 3)
    assert timing.middle([{"user": 3}, {"user": 1}, {"user": 2}])["user"] == 2


def test_lines_are_compared_with_grid_and_optuna(capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["lists_peers.py", "--small"])
    lists_peers.main()
    said = capsys.readouterr().out
    rates = {kind: float(rate) for kind, rate in re.findall(r"(\w+) ([0-9.]+)% in", said)}
    assert rates["lines"] <= min(rates.values()) and "grid" in rates
    some = candidates_of(lists_peers.made(0))[1]
    points = np.random.default_rng(0).normal(size=(5, 3))
    own = [some.statistics[some.chosen(point), 0].sum() for point in points]
    assert lists_peers.errors_of(some, points).tolist() == own

"""Curves of runs: what is read, the band over seeds, the legend."""

from __future__ import annotations

import csv
import io
import json
from functools import partial

import pytest
from commands import run_command
from small_lists import put

from torchtune_smt.core.pictures import picture
from torchtune_smt.evaluation.pictures import draw_progress
from torchtune_smt.evaluation.tables import Table
from torchtune_smt.parallel.engine import Job, utilisation_numbers
from torchtune_smt.runs.curves import (
    Series,
    band,
    draw,
    draw_timeline,
    legend,
    read_metrics,
    smoothed,
    utilisation,
)


def write_run(folder, seed, loss, test):
    """Write what `plot` reads of a run."""
    lines = [
        {"step": step, "bleu/dev": 40.0 + step * seed, "train/loss": 1 / (step + 1)}
        for step in (0, 10, 20)
    ]
    lines.append({"step": 20, "bleu/test_tuned": test, "active/dense": 3.0})
    overrides = f"- seed={seed}\n- loss={loss}\n"
    put(folder, {".hydra/overrides.yaml": overrides, "metrics.jsonl": map(json.dumps, lines)})


def drawn(draw, *arguments, form="svg"):
    """Return a picture: text is drawn as shapes, with the text beside it in comments."""
    file = io.BytesIO()
    draw(*arguments, partial(picture, file, form))
    return file.getvalue().decode("utf-8", "replace")


@pytest.fixture(scope="module")
def sweep(tmp_path_factory):
    folder = tmp_path_factory.mktemp("curves")
    for n, (loss, seed) in enumerate((lo, s) for lo in ("hinge", "ramp") for s in (1, 2)):
        write_run(folder / str(n), seed, loss, 50.0 + n)
    return folder


def plot(folder, *arguments):
    return run_command("plot", *arguments, folder=folder)


def test_records_by_name(sweep):
    found = read_metrics(sweep / "1")
    assert found["bleu/dev"] == Series([0, 10, 20], [40.0, 60.0, 80.0])
    assert found["bleu/test_tuned"] == Series([20], [51.0])
    assert legend("a", [found]) == "a (test 51.00)"
    assert legend("a", [found, read_metrics(sweep / "0")]) == "a (test 50.50 ± 0.71)"
    assert legend("a", [{}]) == "a"
    for runs in ([], [{}], [found]):
        assert drawn(draw, {"a": runs}, form="png")[1:4] == "PNG"


def test_the_band_has_the_steps_that_all_runs_have():
    runs = [Series([0, 1, 2, 3], [1, 2, 3, 4]), Series([0, 2, 2], [3, 9, 5])]
    steps, mean, low, high = band(runs)
    assert steps == [0, 2]
    assert (mean.tolist(), low.tolist(), high.tolist()) == ([2, 4], [1, 3], [3, 5])
    assert smoothed([1, 3, 5, 7], 2) == [1, 2, 4, 6]
    assert smoothed([1, 3], 1) == [1, 3]


def test_a_sweep_in_one_picture(sweep, tmp_path):
    output = tmp_path / "run.svg"
    assert plot(tmp_path, sweep, "--output", output).check().out == f"{output}\n"
    svg = output.read_text()
    assert "<!-- loss=hinge (test 50.50 ± 0.71) -->" in svg
    assert "<!-- loss=ramp (test 52.50 ± 0.71) -->" in svg
    plot(tmp_path, sweep, "--output", output).check()
    assert output.read_text() == svg
    plot(tmp_path, sweep, "--each", "--output", output, "--labels", *"abcd").check()
    assert "<!-- d (test 53.00) -->" in output.read_text()


def test_bad_arguments(sweep, tmp_path):
    assert "each of the 2 curves" in plot(tmp_path, sweep, "--labels", "a").err
    assert "must end with .png" in plot(tmp_path, sweep, "--output", "a.gif").err
    for path, message in ((tmp_path, "holds no run with metrics.jsonl"), (sweep / "0", "twice")):
        assert message in plot(tmp_path, sweep, path).err
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n{"step": 2, "a": "b"}\n')
    assert "metrics.jsonl:2: is no line" in plot(tmp_path, tmp_path).err
    for nothing in ("", '{"step": 1, "seconds/decoding": 2.0}\n'):
        (tmp_path / "metrics.jsonl").write_text(nothing)
        said = "has nothing to draw: nothing was measured yet"
        assert said in plot(tmp_path, tmp_path, sweep / "0", "--each").err
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.jsonl"]


ODD = ("_a", r"a$\frac$", "b$x_$y")


@pytest.mark.parametrize("others", [["metric/dev"], []])
def test_the_metric_that_was_tuned_stands_in_the_place_of_bleu(others):
    series = Series([1, 2], [1.0, 2.0])
    runs = [dict.fromkeys(["bleu/dev", *names], series) for names in (["metric/dev"], others)]
    svg = drawn(draw, {"A": runs})
    assert ("metric that was tuned" in svg) == bool(others)
    assert ("dev BLEU" in svg) != bool(others)


def test_any_name_stands_as_it_is():
    series = Series([0, 10], [1.0, 20_000.0])
    runs = {name: [{"bleu/dev": series, f"active/{name}t": series}] for name in ODD}
    svg = drawn(draw, runs)
    for name in ODD:
        assert f"<!-- {name} -->" in svg and f"<!-- {name}t -->" in svg
        assert drawn(draw_progress, {name: runs[name] * 2}).count(f"<!-- {name} -->") == 1
    # Where numbers are logarithmic, matplotlib would write formulas.
    assert "<!-- 10,000 -->" in svg and "mathdefault" not in svg


@pytest.mark.parametrize("text", ["=1+1", "+f(1)", "@sum", "-x:y", "\t=1", "-1-1", "-"])
def test_no_cell_of_csv_is_a_formula(text):
    table = Table(["=head", "n"], [[text, -1.5], ["-2.5", None], ["a=b", "+3"]])
    head, row, *others = csv.reader(io.StringIO(table.csv()))
    assert head == ["'=head", "n"] and row == [f"'{text}", "-1.5"]
    assert others == [["-2.5", ""], ["a=b", "+3"]]


def test_a_timeline(sweep, tmp_path):
    jobs = [Job(1, 100.0, 4.0, 1.0), Job(2, 101.0, 5.0, 0.5), Job(1, 104.5, 5.5, 2.0)]
    entries = [{"step": 10 * i, **job.numbers()} for i, job in enumerate(jobs)]
    lines = [{"step": 0, "bleu/dev": 30.0}, *entries]
    put(tmp_path, {"metrics.jsonl": map(json.dumps, lines)})
    # Two workers for ten seconds.
    assert utilisation(read_metrics(tmp_path)) == 14.5 / 20
    assert utilisation_numbers(jobs) == {"parallel/utilisation": 14.5 / 20}
    assert utilisation_numbers([]) == {}
    assert plot(tmp_path, tmp_path, "--timeline", "--output", "a.png").check().out == "a.png\n"
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    (tmp_path / "a.png").unlink()
    svg = drawn(draw_timeline, read_metrics(tmp_path))
    assert "decoding" in svg and "learning" in svg
    outcome = plot(tmp_path, sweep / "0", "--timeline")
    assert "0: has no workers, of which there could be a timeline" in outcome.err
    assert "--timeline is of one run" in plot(tmp_path, tmp_path, sweep / "0", "--timeline").err
    outcome = plot(tmp_path, tmp_path, "--timeline", "--each", "--output", "a.png")
    assert outcome.code == 2 and "--each is of curves" in outcome.err

"""How long rounds took, and the table of runs side by side: on planted records."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from commands import Run
from test_overlap import analyse, rows

from torchtune_smt.runs.curves import read_metrics
from torchtune_smt.runs.times import round_seconds


def write_run(folder: Path, lines: Sequence[dict[str, float]], seed: int = 0) -> Path:
    (folder / ".hydra").mkdir(parents=True)
    (folder / ".hydra" / "overrides.yaml").write_text(f"- seed={seed}\n- loss=hinge\n")
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def seconds(folder: Path) -> list[float]:
    return round_seconds(read_metrics(folder)).tolist()


def test_mini_batches(tmp_path: Path) -> None:
    """20 sentences at 10 a second, 10 at 2 a second; then 20 at 40, 10 at 10; then one more."""
    rates = [(20, 10.0), (30, 2.0), (50, 40.0), (60, 10.0), (80, 1.0)]
    steps = [{"step": step, "speed/sentences_per_second": rate} for step, rate in rates]
    dev = [{"step": step, "bleu/dev": 40.0 + step} for step in (0, 30, 60)]
    lines = [dev[0], *steps[:2], dev[1], *steps[2:4], dev[2], steps[4]]
    # The last round is not done.
    assert seconds(write_run(tmp_path / "a", lines)) == pytest.approx([7, 1.5])


def test_shards(tmp_path: Path) -> None:
    """Two workers that overlap."""

    def shard(step: int, begin: float, long: float) -> dict[str, float]:
        named = {"parallel/worker": 1.0, "parallel/begin": begin, "parallel/seconds": long}
        return {"step": step, **named, "speed/sentences_per_second": 1.0}

    lines = [{"step": 0, "bleu/dev": 1.0}, shard(10, 100, 5), shard(20, 101, 8)]
    lines += [{"step": 20, "bleu/dev": 2.0}, shard(30, 200, 1), shard(40, 203, 2)]
    lines += [{"step": 40, "bleu/dev": 3.0}]
    assert seconds(write_run(tmp_path / "a", lines)) == [9, 5]


def test_iterations(tmp_path: Path) -> None:
    lines = [{"step": 0, "bleu/dev": 1.0}, {"step": 9, "bleu/dev": 2.0, "speed/seconds": 4.5}]
    assert seconds(write_run(tmp_path / "a", lines)) == [4.5]
    assert seconds(write_run(tmp_path / "b", lines[:1])) == []


def test_table(tmp_path: Path) -> None:
    """Two seeds of one system, and a run that is not as far."""
    for seed, dev in ((1, [40, 52, 50]), (2, [42, 43, 48])):
        lines: list[dict[str, float]] = [
            {"step": 10 * n, "bleu/dev": score, "active/dense": 3, "active/rule_id": 10 * seed * n}
            for n, score in enumerate(dev)
        ]
        for n in (2, 1):
            lines.insert(n, {"step": 10 * n, "speed/sentences_per_second": 10 / seed / n})
        lines.append({"step": 20, "bleu/test_tuned": 30 + seed})
        write_run(tmp_path / "sweep" / str(seed), lines, seed)
    write_run(tmp_path / "new", [{"step": 0, "bleu/dev": 41.0}])
    given = ["progress", "systems={old:[sweep],new:[new]}", "table=csv", "plot=progress.svg"]
    old, new = rows(analyse(tmp_path, *given))
    values = {name: float(value) for name, value in old.items() if name != "system"}
    assert values == {
        "runs": 2,
        "rounds": 2,
        "dev before": 41,
        "best dev": 50,
        "of round": 1.5,
        "last dev": 49,
        "test": 31.5,
        # 1 and 2 seconds of the one, 2 and 4 of the other.
        "s a round": 2.25,
        "s in all": 4.5,
        "active": 33,
    }
    assert list(new.values()) == ["new", "1", "0.0", "41.0", "41.0", "0.0", "41.0", "", "", "", ""]
    assert (tmp_path / "progress.svg").read_bytes().startswith(b"<?xml")
    (tmp_path / "text").write_text("no metrics\n")
    outcome = analyse(tmp_path, "progress", "text")
    assert outcome.code == 1
    assert outcome.err.startswith("error: text:1: is no line of a metrics file; give the folder")


def test_a_run(run: Run) -> None:
    (found,) = rows(analyse(run.place, "progress", run.folder, "table=csv"))
    rates = [line.get("speed/sentences_per_second") for line in run.metrics()]
    sizes = [20, 10] * 2
    expected = sum(n / rate for n, rate in zip(sizes, filter(None, rates), strict=True))
    assert float(found["s in all"]) == pytest.approx(expected)
    assert float(found["rounds"]) == 2

"""How long rows of Liu et al. (2013) may take, and which are done."""

from __future__ import annotations

from pathlib import Path

import pytest
from forecast import Measured, hours, print_hours, read_measured
from liu2013_forecast import MEASURED, forecasts, is_done
from liu2013_rows import ROWS, place, row_overrides
from stand_ins import POINTS, options, result


def test_a_forecast_of_what_is_not_done(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    measured = {("fisher", "oscar"): Measured(3.0, 2000), ("fisher", "pro_dev"): Measured(2.0, 0)}
    assert hours(measured, "fisher", "oscar", 6000, 10) == pytest.approx(1.5)
    assert hours(measured, "fisher", "oscar", 200, 10) == pytest.approx(0.5)
    assert hours(measured, "fisher", "pro_dev", 6000, 15) == pytest.approx(0.5)
    assert hours(measured, "multi30k", "oscar", 2000, 10) is None
    (tmp_path / "multi30k" / "pro_dev").mkdir(parents=True)
    chosen = options(tmp_path, "--sweep", "--sweep-iterations", "2", "--train-sentences", "0")
    overrides = list(row_overrides("multi30k", ROWS["pro_dev"], 1, chosen))
    result("pro_dev", overrides=overrides).save(tmp_path / "multi30k" / "pro_dev")
    rows = forecasts(["pro_dev", "oscar", "oscar_minimum"], ["multi30k"], chosen)
    print_hours(rows, Path("table.csv"))
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "multi30k/pro_dev: done"
    # As OSCAR's: 15 iterations, and two for each of three values. Only what it does with training
    # data grows with it; PRO on dev has 60 iterations, where it had ten.
    assert lines[1].partition(": ")[2] == lines[2].partition(": ")[2]
    measured = read_measured(MEASURED)
    minutes, dev = (measured["multi30k", row].cpu_minutes for row in ("oscar", "pro_dev"))
    expected = ((minutes - 10 * dev) * 29_000 / 2000 + 60 * dev) * 21 / 60
    assert f"{expected:.2f} CPU hours" in lines[1]
    # Two options of L1, and two seeds.
    given = ["--sweep", "--sweep-iterations", "2", "--train-sentences", "2000", "--seeds", "1", "2"]
    found = list(forecasts(["l1_train_id"], ["multi30k"], options(tmp_path, *given)))
    assert [said for said, _, _ in found] == [
        "multi30k/l1_train_id",
        "multi30k/l1_train_id, seed 2",
    ]
    assert found[0][2] == pytest.approx(measured["multi30k", "l1_train_id"].cpu_minutes * 27 / 60)
    assert found[1][2] == pytest.approx(measured["multi30k", "l1_train_id"].cpu_minutes * 15 / 60)
    assert "CPU hours at most" in lines[3]


def test_done_is_what_would_be_run_now(tmp_path: Path) -> None:
    def done(*arguments: str) -> set[tuple[str, int]]:
        given = options(tmp_path, "--seeds", "1", "2", "--train-sentences", "0", *arguments)
        rows = [(key, seed) for key in ("pro_dev", "oscar", "oscar_single") for seed in (1, 2)]
        return {one for one in rows if is_done(one[0], "fisher", one[1], given)}

    def save(key: str, seed: int, chosen: str, **more: object) -> None:
        given = options(tmp_path, "--train-sentences", "0")
        overrides = row_overrides("fisher", ROWS[key], seed, given)
        values = {"overrides": [*overrides, *chosen.split()], "chosen": chosen, "seed": seed}
        result(key, **values | more).save(place(tmp_path / "fisher", key, seed))

    default, best = "regularizer.lambda2=3e-8", "regularizer.lambda2=3e-09"
    save("pro_dev", 1, "")
    save("oscar", 1, default)
    save("oscar_single", 1, default)
    save("oscar_single", 2, best)
    first = {("pro_dev", 1), ("oscar", 1), ("oscar_single", 1)}
    assert done() == first
    assert done("--set", "decoder.pop_limit=30") == done("--iterations", "7") == set()
    assert done("--train-sentences", "5000") == {("pro_dev", 1)}
    # With --sweep it has to have been chosen from these values.
    sweep = ["--sweep", "--lambda2s", "3e-9", "3e-8"]
    assert done(*sweep) == first - {("oscar", 1)}
    save("oscar", 1, best, points=POINTS)
    assert done(*sweep) == {("pro_dev", 1), ("oscar", 1), ("oscar_single", 2)}
    assert ("oscar", 1) not in done("--sweep")

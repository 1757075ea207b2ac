"""Options of rows of Liu et al. (2013): chosen on devtest, or taken over from others."""

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import ClassVar

import liu2013_choices
import numpy as np
import pytest
import runs
from liu2013_choices import choose
from liu2013_rows import ROWS, row_overrides
from runs import Run, sweep
from stand_ins import FakeTrain, options

from torchtune_smt.core.errors import InputError


class FakeDevtest:
    """Stands for the corpus: BLEU on devtest falls with the distance from what is best."""

    best: ClassVar = {"regularizer.strength": 1e-4, "optimizer.lr": 0.003}

    def score(self, name: str, overrides: Sequence[str], folder: Path) -> float:
        given = dict(option.split("=") for option in overrides)
        found = ((option, float(given.get(option, 0.01))) for option in self.best)
        return 50.0 - sum(abs(np.log(value / self.best[option])) for option, value in found)


def test_options_are_chosen_one_after_the_other(tmp_path, monkeypatch):
    train = FakeTrain()
    monkeypatch.setattr(liu2013_choices, "sweep", partial(sweep, start=train))
    chosen = options(tmp_path, "--sweep", "--sweep-iterations", "2", "--seeds", "1", "2")
    row = ROWS["l1_dev_id"]
    run = Run(tmp_path / "l1_dev_id", row_overrides("example", row, 1, chosen))
    found = choose(row, FakeDevtest(), run, chosen)
    assert found is not None
    points, said, last, _ = found
    assert said == "regularizer.strength=0.0001 optimizer.lr=0.003"
    assert len(points) == 6
    assert last == Run(run.folder, (*run.overrides, *said.split()))
    # One of the last ones may be made longer.
    kept = ["tuner.keep_lists=true" in command for command in train.commands]
    assert kept == [False, True]
    # All values of the second option were tried with the best of the first.
    folder = run.folder / runs.SWEEP / "optimizer.lr"
    record = json.loads((folder / "0.01" / runs.RECORD).read_text())
    assert record["overrides"][-2:] == ["regularizer.strength=0.0001", "optimizer.lr=0.01"]


def test_nothing_is_chosen_where_no_value_tunes(tmp_path, monkeypatch):
    """All values are equal then, and the first one would be taken."""
    chosen, row = options(tmp_path, "--sweep", "--sweep-iterations", "2"), ROWS["l1_dev_id"]
    run = Run(tmp_path / "l1_dev_id", row_overrides("example", row, 1, chosen))
    train = FakeTrain(untuned=["0.001", "0.003", "0.01"])
    monkeypatch.setattr(liu2013_choices, "sweep", partial(sweep, start=train))
    said = "no value of optimizer.lr can be chosen from runs of 2 iterations: .* more --sweep"
    with pytest.raises(InputError, match=said):
        choose(row, FakeDevtest(), run, chosen)

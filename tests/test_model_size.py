"""Large models are announced before they are opened."""

from pathlib import Path

import pytest
from commands import Run, run_command

from torchtune_smt.models import base


def test_the_size_is_that_of_all_files(tmp_path: Path) -> None:
    (tmp_path / "model" / "folds").mkdir(parents=True)
    (tmp_path / "model" / "grammar").write_bytes(b"x" * 1000)
    (tmp_path / "model" / "folds" / "1").write_bytes(b"x" * 500)
    (tmp_path / "lm").write_bytes(b"x" * 30)
    (tmp_path / "alignment").write_bytes(b"x" * 7)
    options = {"_target_": "a.B", "folder": str(tmp_path / "model"), "lm": str(tmp_path / "lm")}
    options |= {"alignment_file": str(tmp_path / "alignment"), "order": 5, "format": None}
    assert base.model_size(options) == 1530
    assert base.announcement(options) is None
    assert base.model_size({"folder": "nowhere"}) == 0


def test_it_is_said_before(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "in").write_text("ja\n")
    arguments = [f"weights={run.weights}", f"input={tmp_path / 'in'}"]
    monkeypatch.setattr(base, "LARGE", 1)
    outcome = run_command("translate", *arguments, folder=run.place).check()
    assert outcome.err.startswith("opening a model of 0.0 GB\n")

"""A finished run that is made longer is one that was so from the start; and what is logged."""

import errno
import io
import os
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest
from commands import MODEL, Run, run_command, train
from tqdm import tqdm

from torchtune_smt.core.textio import read_lines
from torchtune_smt.runs.transcript import transcript

BATCH = ["tuner=mert", "features=dense", "threads=1", "tuner.patience=null"]
SHORT = ["data.test=null", "decoder.k=5", "decoder.pop_limit=5", "tuner.sentences=20"]


def kept(folder: Path) -> dict[str, bytes]:
    """What commands read of a run that has ended."""
    names = ["weights.txt.gz", "dev.translations.txt", "test.translations.txt", "config.yaml"]
    return {name: (folder / name).read_bytes() for name in [*names, ".hydra/overrides.yaml"]}


def test_more_epochs(run: Run, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shorter = train(place, "longer", "threads=2", "tuner.epochs=1")
    assert shorter.bytes() != run.bytes()
    refused = run_command("train", "resume=longer", folder=place)
    assert refused.code == 1
    assert (
        "this run is finished; to make it longer give more rounds (tuner.epochs=N)" in refused.err
    )
    refused = run_command("train", "resume=longer", "tuner.epochs=1", folder=place)
    assert "this run is finished, after 1 of them" in refused.err
    assert shorter.weights.exists()
    before, replace = kept(shorter.folder), Path.replace

    def full(self: Path, target: Path) -> Path:
        if target.name == no_room_for:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", full)
    for no_room_for, more in {
        "longer.yaml": ["tuner.epochs=2"],
        "checkpoint.pt": ["tuner.epochs=2"],
        "config.yaml": [],
    }.items():
        stopped = run_command("train", "resume=longer", *more, folder=place)
        assert stopped.code == 1 and "make room on the disk" in stopped.err
        assert ("go on with resume=longer" in stopped.err) == (no_room_for != "longer.yaml")
        assert kept(shorter.folder) == before
    assert "resuming in epoch 2" in stopped.out
    monkeypatch.undo()
    assert "longer: is being made longer" in run_command("compare", "longer", folder=place).err
    outcome = run_command("train", "resume=longer", folder=place).check()
    assert "resuming in epoch 3" in outcome.out
    assert shorter.bytes() == run.bytes()
    assert b"tuner.epochs=2" in kept(shorter.folder)[".hydra/overrides.yaml"]
    refused = run_command("train", "resume=longer", folder=place)
    assert "this run is finished" in refused.err
    assert [line["step"] for line in shorter.metrics()] == [line["step"] for line in run.metrics()]


def test_more_iterations(run: Run, place: Path) -> None:
    arguments = [*MODEL, *SHORT, *BATCH, "tuner.keep_lists=true"]

    def tuned(name: str, iterations: int) -> Path:
        more = [f"tuner.iterations={iterations}", f"hydra.run.dir={name}"]
        run_command("train", *arguments, *more, folder=place).check()
        return place / name

    whole, longer = tuned("mert whole", 2), tuned("mert longer", 1)
    run_command("train", "resume='mert longer'", "tuner.iterations=2", folder=place).check()
    for name in ("weights.txt.gz", "dev.translations.txt"):
        assert (longer / name).read_bytes() == (whole / name).read_bytes()
    text = (whole / "train.log").read_text()
    assert "k-best lists of all iterations in " in text
    assert "mert whole/lists (they stay there)" in text
    assert "; holding the lists of 2 iterations (0." in text
    more = ["tuner.iterations=3", "tuner.keep_lists=false"]
    outcome = run_command("train", "resume='mert longer'", *more, folder=place)
    assert "what more rounds would start from is not there (tuner.keep_lists=true" in outcome.err


def test_the_log_of_a_run(run: Run) -> None:
    text = (run.folder / "train.log").read_text()
    printed = run.outcome.out.splitlines()
    assert {line for line in printed if line.startswith(("epoch", "before", "dev", "active"))} <= {
        *text.splitlines()
    }
    assert "\r" not in text + run.outcome.out + run.outcome.err
    assert "  train.log             what was printed" in run.outcome.out


def test_bars_are_not_taken_down(tmp_path: Path) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    out, err = Terminal(), Terminal()
    with redirect_stdout(out), redirect_stderr(err):
        with transcript() as taken:
            print("first")
            taken.open(tmp_path / "log", append=False)
            bar = tqdm(total=3, file=sys.stderr, disable=None, mininterval=0)
            bar.update(1)
            tqdm.write("between", file=sys.stdout)
            bar.update(2)
            bar.close()
            print("warned", file=sys.stderr)
        print("after")
    assert "3/3" in err.getvalue()
    assert read_lines(tmp_path / "log") == ["first", "between", "warned"]
    with (
        redirect_stdout(out),
        pytest.raises(ValueError, match="bad"),
        transcript() as taken,
    ):
        taken.open(tmp_path / "log", append=True)
        raise ValueError("bad")
    assert read_lines(tmp_path / "log")[-1] == "ValueError: bad"

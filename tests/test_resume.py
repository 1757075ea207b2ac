"""A killed and resumed run ends with the weights of an undisturbed one, to the last bit."""

import json
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from commands import MODEL, run_command

from torchtune_smt.core.archive import Archive
from torchtune_smt.core.errors import InputError
from torchtune_smt.core.state import packed, unpacked
from torchtune_smt.core.weights import Weights
from torchtune_smt.optim import AdaGrad
from torchtune_smt.regularizers import L1
from torchtune_smt.runs import checkpoint
from torchtune_smt.runs.checkpoint import Checkpoints, load_checkpoint, save_checkpoint
from torchtune_smt.runs.rounds import Best, Progress, Rounds
from torchtune_smt.tuners.base import Report, Tuner

# tests/fuzz/kills.py does more, in forks.
KILLS = 3


class Still(Tuner):
    """Weights with an optimizer, and nothing to be done."""

    def __init__(self, weights: Weights, optimizer: AdaGrad) -> None:
        super().__init__()
        self.weights = weights
        self.optimizer = optimizer

    def round(self, number: int, done: int = 0) -> Iterator[Report]:
        return iter(())

    def state_dict(self) -> dict[str, Any]:
        return self.optimizer.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.optimizer.load_state_dict(state_dict)


def run_of(weights: Weights, optimizer: AdaGrad, progress: Progress | None = None) -> Rounds:
    run = Rounds(Still(weights, optimizer), lambda: 0.0)
    run.progress = progress or Progress()
    return run


def save(path: Path, run: Rounds, fingerprint: dict[str, str] | None = None) -> None:
    save_checkpoint(path, run.tuner.weights, run, fingerprint or {})


def load(path: Path, run: Rounds, fingerprint: dict[str, str] | None = None) -> Progress:
    load_checkpoint(path, run.tuner.weights, run, fingerprint or {})
    return run.progress


def command(repository: Path, *overrides: str) -> list[str]:
    return [sys.executable, str(repository / "train.py"), *overrides]


def lines(folder: Path) -> int:
    path = folder / "metrics.jsonl"
    return len(path.read_text("utf-8").splitlines()) if path.exists() else 0


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    cwd = tmp_path_factory.mktemp("resume")
    run_command("train", *SETTINGS, "hydra.run.dir=whole", folder=cwd).check()
    return cwd


SETTINGS = [
    *MODEL,
    "tuner.epochs=4",
    "tuner.batch_size=5",
    "tuner.checkpoint_minutes=0",
    "decoder.pop_limit=20",
    "data.test=null",
    "seed=3",
]


@pytest.mark.slow
def test_kills_at_random_moments(repository: Path, undisturbed: Path) -> None:
    cwd, folder = undisturbed, undisturbed / "killed"
    draw = random.Random(7)
    overrides = [*SETTINGS, "hydra.run.dir=killed"]
    kills = 0
    while kills < KILLS:
        # 80 mini-batches in all: a kill every few of them, at any moment of one.
        wanted = lines(folder) + draw.randint(1, 6)
        process = subprocess.Popen(
            command(repository, *overrides),
            cwd=cwd,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        while process.poll() is None and (
            lines(folder) < wanted or not (folder / "checkpoint.pt").exists()
        ):
            time.sleep(0.01)
        time.sleep(draw.random() * 0.05)
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert not (folder / "weights.txt.gz").exists(), "finished before it could be killed"
        kills += 1
        overrides = ["resume=killed"]
    last = run_command("train", *overrides, folder=cwd).check()
    assert "resuming in epoch" in last.out
    for name in ("weights.txt.gz", "dev.translations.txt"):
        assert (folder / name).read_bytes() == (cwd / "whole" / name).read_bytes()
    steps = [
        [json.loads(line)["step"] for line in (f / "metrics.jsonl").read_text().splitlines()]
        for f in (folder, cwd / "whole")
    ]
    assert steps[0] == steps[1]


def test_a_finished_run_is_not_resumed(undisturbed: Path) -> None:
    done = run_command("train", "resume=whole", folder=undisturbed)
    assert done.code == 1 and "is finished" in done.err
    assert (undisturbed / "whole" / "weights.txt.gz").exists()


def test_a_folder_without_a_run(tmp_path: Path) -> None:
    done = run_command("train", "resume=nowhere", folder=tmp_path)
    assert done.code == 1 and "nowhere: holds no run" in done.err


@pytest.fixture
def state() -> tuple[Weights, AdaGrad]:
    weights = Weights(["a", "b"])
    weights.set(["x", "y", "z"], [1.0, -2.0, 3.0])
    optimizer = AdaGrad([weights.parameter], lr=0.1, regularizer=L1(0.1), unregularized=2)
    for _ in range(2):
        weights.parameter.grad = torch.sparse_coo_tensor(
            torch.tensor([[0, 3]]), torch.tensor([1.0, -2.0], dtype=torch.float64), (5,)
        ).coalesce()
        optimizer.step()
    return weights, optimizer


def fresh() -> tuple[Weights, AdaGrad]:
    weights = Weights(["a", "b"])
    return weights, AdaGrad([weights.parameter], lr=0.1, regularizer=L1(0.1), unregularized=2)


def test_round_trip(tmp_path: Path, state: tuple[Weights, AdaGrad]) -> None:
    weights, optimizer = state
    weights.features.intern(["met but not read yet"])
    ones = torch.ones(5, dtype=torch.float64)
    progress = Progress(3, 2, 70, Best(2, 41.5, ones[:4]), ones, 1, 9)
    save(tmp_path / "c.pt", run_of(weights, optimizer, progress), {"seed": "1"})
    again, other = fresh()
    restored = load(tmp_path / "c.pt", run_of(again, other), {"seed": "1"})
    assert (restored.round, restored.done, restored.sentences) == (3, 2, 70)
    assert (restored.stale, restored.records) == (1, 9)
    assert restored.best is not None and restored.best.score == 41.5
    assert again.features.names(range(6)) == weights.features.names(range(6))
    assert torch.equal(again.parameter[:5], weights.parameter)
    optimizer.flush()
    other.flush()
    assert torch.equal(again.parameter[:5], weights.parameter)


def test_another_run_is_refused(tmp_path: Path, state: tuple[Weights, AdaGrad]) -> None:
    save(tmp_path / "c.pt", run_of(*state), {"seed": "1", "loss": "a"})
    with pytest.raises(InputError, match="loss = a, and now it is b"):
        load(tmp_path / "c.pt", run_of(*fresh()), {"seed": "1", "loss": "b"})


def test_another_model_is_refused(tmp_path: Path, state: tuple[Weights, AdaGrad]) -> None:
    save(tmp_path / "c.pt", run_of(*state))
    weights = Weights(["a", "other"])
    with pytest.raises(InputError, match="other dense features"):
        load(tmp_path / "c.pt", run_of(weights, AdaGrad([weights.parameter])))


def test_weights_that_began_with_other_sparse_features(tmp_path: Path) -> None:
    """Places are numbers: as ``init.file`` has it now, they would be those of other features."""

    def begun(*names: str) -> Weights:
        weights = Weights(["dense"])
        weights.set(list(names), [0.5] * len(names))
        return weights

    weights = begun("x", "y")
    weights.set(["x", "y", "z"], [1.0, 2.0, 3.0])
    save(tmp_path / "c.pt", run_of(weights, AdaGrad([weights.parameter])))
    for names in ([], ["x"], ["x", "y"], ["x", "y", "z"]):
        again = begun(*names)
        load(tmp_path / "c.pt", run_of(again, AdaGrad([again.parameter])))
        assert again.features.names(range(4)) == ["dense", "x", "y", "z"]
        assert again.parameter.tolist() == [0.0, 1.0, 2.0, 3.0]
    for names in (["y", "x"], ["z"], ["x", "y", "z", "a"], ["a"], ["x", "y", "a"]):
        again = begun(*names)
        with pytest.raises(InputError, match="began with other sparse features: init.file has ch"):
            load(tmp_path / "c.pt", run_of(again, AdaGrad([again.parameter])))
        assert again.features.names(range(len(again.features))) == ["dense", *names]


def test_an_older_checkpoint_and_a_pickled_object_are_not_loaded(tmp_path: Path) -> None:
    torch.save({"version": 2, "fingerprint": {}, "evil": shutil.rmtree}, tmp_path / "c.pt")
    with pytest.raises(
        InputError, match="no checkpoint of this version of the package; start the run anew"
    ):
        load(tmp_path / "c.pt", run_of(*fresh()))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("round", 0),
        ("done", -1),
        ("records", 1.5),
        ("last", "x"),
        ("new", 1),
        ("best", (1, 2.0)),
        ("best", (7, 41.0, torch.ones(3, dtype=torch.float64))),
        ("best", (1, 41.0, torch.ones(30, dtype=torch.float64))),
        ("total", torch.ones(5)),
        ("weights", torch.ones(30, dtype=torch.float64)),
        ("weights", torch.full((5,), float("nan"), dtype=torch.float64)),
        ("n_dense", 100),
        ("names", None),
        ("count", 4),
        ("size", -1),
        ("size", 3),
        ("checksum", "0"),
        ("tuner", []),
        ("state", []),
        ("fingerprint", None),
        ("files", None),
        ("files", {"data.dev": {"dev.de": 1}}),
    ],
)
def test_what_cannot_be_is_refused_though_its_checksum_is_right(
    tmp_path: Path, state: tuple[Weights, AdaGrad], name: str, value: object
) -> None:
    path = tmp_path / "c.pt"
    save(path, run_of(*state, Progress(3, 2, 70)))
    stored = checkpoint.ARCHIVE.read(path)
    outer = stored.content
    content = unpacked(outer["run"], stored.arrays, 5)
    run = content["state"]
    outer["names"] = dict(zip(("count", "size", "checksum"), outer["names"], strict=True))
    places = (outer, outer["names"], content, run, run["progress"])
    next((some for some in places if name in some), run["progress"])[name] = value
    if outer["names"]:
        outer["names"] = list(outer["names"].values())
    tree, arrays = packed(content, 5)
    checkpoint.ARCHIVE.write(path, outer | {"run": tree}, arrays)
    weights, optimizer = fresh()
    with pytest.raises(InputError, match="damaged"):
        load(path, run_of(weights, optimizer))
    assert not weights.parameter.any() and not optimizer.state


def test_a_kill_between_the_names_and_the_checkpoint(
    tmp_path: Path, state: tuple[Weights, AdaGrad], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, (weights, optimizer) = tmp_path / "c.pt", state
    names = checkpoint.NameFile(path)
    save_checkpoint(path, weights, run_of(weights, optimizer), {}, names)
    saved, size = weights.parameter.clone(), (tmp_path / "c.names").stat().st_size
    weights.set(["met", "later"], [4.0, 5.0])
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(Archive, "write", Mock(side_effect=KeyboardInterrupt))
        save_checkpoint(path, weights, run_of(weights, optimizer), {}, names)
    assert (tmp_path / "c.names").stat().st_size > size
    again, other = fresh()
    names = load_checkpoint(path, again, run_of(again, other), {})
    assert again.features.names(range(len(again))) == weights.features.names(range(5))
    assert torch.equal(again.parameter, saved)
    again.set(["other"], [6.0])
    save_checkpoint(path, again, run_of(again, other), {}, names)
    last, optimizer = fresh()
    load(path, run_of(last, optimizer))
    assert last.features.names(range(6)) == [*weights.features.names(range(5)), "other"]
    assert torch.equal(last.parameter, again.parameter)


def test_only_new_names_are_written(tmp_path: Path, state: tuple[Weights, AdaGrad]) -> None:
    """And a checkpoint is as large as what is not 0."""
    weights, optimizer = state
    run = run_of(weights, optimizer)
    saves = Checkpoints(tmp_path / "c.pt", {}, minutes=0)
    saves.on_start(run)
    weights.set([f"feature {i}" for i in range(100_000)], [0.0] * 100_000)
    saves.on_report(Report("step"), run)
    names = (tmp_path / "c.names").read_bytes()
    (tmp_path / "c.names").write_bytes(bytes(len(names)))
    weights.set(["last"], [7.0])
    saves.on_report(Report("step"), run)
    later = (tmp_path / "c.names").read_bytes()
    assert later.startswith(bytes(len(names))) and len(later) < len(names) + 1000
    (tmp_path / "c.names").write_bytes(names + later[len(names) :])
    assert (tmp_path / "c.pt").stat().st_size < 10_000
    again, other = fresh()
    load(tmp_path / "c.pt", run_of(again, other))
    assert torch.equal(again.parameter, weights.parameter)


def test_no_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no checkpoint"):
        load(tmp_path / "c.pt", run_of(*fresh()))

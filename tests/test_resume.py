"""A killed and resumed run ends with the weights of an undisturbed one, to the last bit.

tests/fuzz/kills.py kills more, in forks, at any moment.
"""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from commands import MODEL, Run, run_command, train_until_saved, write_few

from torchtune_smt.core.archive import Archive
from torchtune_smt.core.errors import InputError
from torchtune_smt.core.state import packed, unpacked
from torchtune_smt.core.textio import read_lines
from torchtune_smt.core.weights import Weights
from torchtune_smt.optim import AdaGrad
from torchtune_smt.regularizers import L1
from torchtune_smt.runs import checkpoint
from torchtune_smt.runs.checkpoint import Checkpoints, load_checkpoint, save_checkpoint
from torchtune_smt.runs.rounds import Best, Progress, Rounds
from torchtune_smt.tuners.base import Report, Tuner

SHORT = [
    *["decoder.k=20", "decoder.pop_limit=10", "data.test=null", "threads=1", "seed=3"],
]


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


_OFTEN = "tuner.checkpoint_minutes=0"
_ONLINE = [_OFTEN, "tuner.epochs=2", "tuner.sentences=30", "tuner.batch_size=5"]
_BATCH = ["tuner.iterations=3", "tuner.patience=null", "data.dev=[dev.de,dev.en]"]
_OSCAR = ["optimizer=fobos_oscar", "regularizer=oscar", "regularizer.lambda2=1e-6"]
_GROUPS = [
    *["tuner=grouping", "features=rule_id", "tuner.sentences=30", "tuner.iterations=2"],
    *["tuner.dev.iterations=2", "data.dev=[dev.de,dev.en]", _OFTEN],
]
# Saves after which a run is killed, and taken up again.
KILLED: dict[str, tuple[list[str], list[int]]] = {
    "online": (_ONLINE, [1, 4]),
    "of_torch": (
        [*_ONLINE, "optimizer._target_=torch.optim.SparseAdam", "tuner.result=average"],
        [3, 5],
    ),
    # Features of charts are counted again, and get the ids that they had.
    "oscar": ([*_ONLINE, *_OSCAR, "tuner.tune_on=train", "tuner.epochs=1"], [2]),
    "pro": ([*_BATCH, "tuner=pro", "tuner.interpolation=0.5"], [1, 1]),
    "mira": ([*_BATCH, "tuner=mira"], [2]),
    "mert": ([*_BATCH, "tuner=mert", "features=dense", "tuner.solver.restarts=2"], [1]),
    "stochastic": ([*_BATCH, "tuner=stochastic", "tuner.solver.passes=2"], [1]),
    # After groups were learnt, after the first iteration, after a fit in the second.
    "grouping": ([*_GROUPS, "tuner.passes=5", "regularizer.dimension=charts"], [1, 1, 3]),
    "batch": (
        [
            *[*_GROUPS, "tuner.learning=batch", "regularizer.fraction=0.1"],
            *["tuner.scaling=rms", "tuner.merge_identical=true"],
        ],
        [2],
    ),
    "mix": ([*_GROUPS, "tuner.passes=5", "tuner.learning=mix", "tuner.shards=3"], [2]),
    "clusters": (
        [*_GROUPS, "tuner.passes=5", "tuner.learning=clusters", "tuner.clusters.count=5"],
        [2],
    ),
}


@pytest.mark.parametrize("name", KILLED)
def test_what_is_killed_and_resumed(name: str, place: Path) -> None:
    """It ends with the files of an undisturbed run, and has measured the same."""
    write_few(place)
    options, places = KILLED[name]
    options = [*MODEL, *options, *SHORT]
    whole, killed = place / f"{name}_whole", place / f"{name}_killed"
    run_command("train", *options, f"hydra.run.dir={whole}", folder=place).check()
    arguments = [*options, f"hydra.run.dir={killed}"]
    for saves in places:
        train_until_saved(place, *arguments, saves=saves)
        assert not (killed / "weights.txt.gz").exists()
        # Classes that are not the package's are named again.
        arguments = [f"resume={killed}", *(o for o in options if "._target_=" in o)]
    assert "resuming in " in run_command("train", *arguments, folder=place).check().out
    for path in (whole / file for file in ("weights.txt.gz", "groups.tsv.gz")):
        assert path.exists() or (path.name[0] == "g" and "tuner=grouping" not in options)
        assert not path.exists() or path.read_bytes() == (killed / path.name).read_bytes()
    translations = (folder / "dev.translations.txt" for folder in (whole, killed))
    assert len({path.read_bytes() for path in translations}) == 1
    first, second = (measured(folder) for folder in (whole, killed))
    assert first == second


def measured(folder: Path) -> list[dict[str, float]]:
    """Return what a run has logged, without what a clock has measured."""
    timed = ("seconds", "fit/seconds", "speed")
    lines = map(json.loads, read_lines(folder / "metrics.jsonl"))
    return [{k: v for k, v in line.items() if not k.startswith(timed)} for line in lines]


def test_a_finished_run_is_not_resumed(run: Run) -> None:
    done = run_command("train", f"resume={run.name}", folder=run.place)
    assert done.code == 1 and "is finished" in done.err
    assert run.weights.exists()


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

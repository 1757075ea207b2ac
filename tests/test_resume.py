"""A killed and resumed run ends with the weights of an undisturbed one, to the last bit.

tests/fuzz/kills.py kills more, in forks, at any moment.
"""

import errno
import json
import os
import shutil
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from unittest import mock
from unittest.mock import Mock

import numpy as np
import pytest
import test_batch
import test_grouping
import test_online
import test_parallel
import test_rounds
import torch
from commands import MODEL, SMALL, run_command, train, train_until_saved, write_few

from torchtune_smt.core.archive import Archive
from torchtune_smt.core.errors import InputError
from torchtune_smt.core.textio import read_lines
from torchtune_smt.core.weights import Weights
from torchtune_smt.decoders import grammar_decoder
from torchtune_smt.kbest.store import ListStore
from torchtune_smt.optim import AdaGrad
from torchtune_smt.parallel.mixing import IterSel, Mix
from torchtune_smt.regularizers import L1
from torchtune_smt.runs import checkpoint
from torchtune_smt.runs.checkpoint import Checkpoints, load_checkpoint, save_checkpoint
from torchtune_smt.runs.rounds import Rounds
from torchtune_smt.tuners.base import Report, Tuner
from torchtune_smt.tuners.batch import BatchTuner
from torchtune_smt.tuners.grouping.prepared import PreparedLearning

SHORT = [
    *["decoder.k=20", "decoder.pop_limit=10", "data.test=null", "threads=1", "seed=3"],
]


# What a clock has measured.
TIMED = ("seconds", "fit/seconds", "speed", "parallel")


class KilledAt(Checkpoints):
    """Saves whenever something was done, and is killed at some moment; notes what was reported."""

    def __init__(self, folder, moment=-1):
        super().__init__(folder / "checkpoint", {}, minutes=0)
        self.left, self.reports = moment, []

    def on_report(self, report, run):
        numbers = {k: v for k, v in report.numbers.items() if not k.startswith(TIMED)}
        self.reports.append((report.kind, report.round, report.kept, numbers))
        super().on_report(report, run)
        self.on_work()

    def on_work(self, *_):
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt


def online(folder, resumed, start=None):
    tuner, _ = test_online.make_tuner(test_online.random_lists(0), start=start)
    return Rounds(
        tuner, lambda: float(tuner.weights.parameter.detach().sum()), rounds=2, result="average"
    )


def batch(folder, resumed, same_set=True):
    pool, weights = test_batch.Pool(), test_batch.fresh()
    collector = test_batch.collector_of(pool, weights, None if resumed else folder)
    if resumed:
        collector.lists = ListStore.open(folder, n_dense=2)
    tuner = BatchTuner(collector, test_batch.Shift())
    score = tuner.score if same_set else lambda: test_batch.bleu_of(pool, weights)
    return Rounds(tuner, score, rounds=4)


def grouping(folder, resumed, seed=6, **options):
    options = {"rounds": 2, "folder": folder, "resumed": resumed} | options
    return test_grouping.Data(seed).rounds(**options)


def shards(strategy, folder, resumed):
    tuner = test_parallel.tuner_of(strategy, test_parallel.SETTINGS["adagrad"])
    return test_parallel.rounds_of(tuner)


PREPARED = PreparedLearning(test_grouping.OSCAR, test_grouping.LEARNING, "rms", True)
TUNERS = {
    "steps": lambda folder, resumed: test_rounds.run_of([0.0, 3.0, 2.0, 1.0], result="average"),
    "online": online,
    "online, pulled to the start": partial(online, start=test_online.START | {"s:0": 0.3}),
    "batch": batch,
    "batch scored elsewhere": partial(batch, same_set=False),
    "grouping": partial(grouping, zero_group="keep"),
    "grouping with factors": partial(grouping, seed=3, rounds=1, learning=PREPARED),
    "mix": partial(shards, Mix(4)),
    "itersel": partial(shards, IterSel(features=9, shards=4)),
}


def outcome(run):
    weights, progress = run.tuner.weights, run.progress
    assert progress.best is not None
    names = weights.features.names(range(len(weights.features)))
    best = progress.best.round, progress.best.score
    return [names, weights.parameter.tolist(), best, progress.sentences, progress.last]


@pytest.mark.parametrize("name", TUNERS)
def test_killed_at_any_moment(name, tmp_path):
    """In each pass over the sentences, and right after each checkpoint."""
    # They wait for each other longer than such small tensors take.
    torch.set_num_threads(1)
    make, whole = TUNERS[name], KilledAt(tmp_path / "whole")
    run = make(tmp_path / "whole", False)
    (tmp_path / "whole").mkdir(exist_ok=True)
    run.callbacks = [whole]
    run.run()
    expected, moments = outcome(run), -1 - whole.left
    assert moments > 7 and len(expected[0]) == len(expected[1])
    for moment in range(1, moments + 1):
        folder = tmp_path / str(moment)
        stopped = make(folder, False)
        folder.mkdir(exist_ok=True)
        stopped.callbacks = [first := KilledAt(folder, moment)]
        with pytest.raises(KeyboardInterrupt):
            stopped.run()
        # A run that was stopped before its first checkpoint begins anew.
        there = (folder / "checkpoint").exists()
        again = make(folder, there)
        again.callbacks = [second := KilledAt(folder)]
        if there:
            load_checkpoint(folder / "checkpoint", again.tuner.weights, again, {})
        again.run()
        assert outcome(again) == expected
        assert first.reports * there + second.reports == whole.reports


class Still(Tuner):
    """Weights with an optimizer, and nothing to be done."""

    def __init__(self, weights, optimizer):
        super().__init__()
        self.weights = weights
        self.optimizer = optimizer

    def round(self, number, done=0):
        return iter(())

    def state_dict(self):
        return self.optimizer.state_dict()

    def load_state_dict(self, state_dict):
        self.optimizer.load_state_dict(state_dict)


def run_of(weights, optimizer):
    return Rounds(Still(weights, optimizer), lambda: 0.0)


def save(path, run, fingerprint=None):
    save_checkpoint(path, run.tuner.weights, run, fingerprint or {})


def load(path, run, fingerprint=None):
    load_checkpoint(path, run.tuner.weights, run, fingerprint or {})


_OFTEN = "tuner.checkpoint_minutes=0"
_ONLINE = [_OFTEN, "tuner.epochs=2", "tuner.sentences=30", "tuner.batch_size=5"]
_BATCH = ["tuner.iterations=3", "tuner.patience=null", "data.dev=[dev.de,dev.en]"]
_OSCAR = ["optimizer=fobos_oscar", "regularizer=oscar", "regularizer.lambda2=1e-6"]
_GROUPS = [
    *["tuner=grouping", "features=rule_id", "tuner.sentences=30", "tuner.iterations=2"],
    *["tuner.dev.iterations=2", "data.dev=[dev.de,dev.en]", _OFTEN],
]
# Saves after which a run is killed, and taken up again.
KILLED = {
    "of_torch": (
        [*_ONLINE, "optimizer._target_=torch.optim.SparseAdam", "tuner.result=average"],
        [3, 5],
    ),
    # Features of charts are counted again, and get the ids that they had.
    "oscar": ([*_ONLINE, *_OSCAR, "tuner.tune_on=train", "tuner.epochs=1"], [2]),
    # Between its last epoch and its weights.
    "end": (["tuner.epochs=1", "tuner.sentences=30"], [1]),
    "pro": ([*_BATCH, "tuner=pro", "tuner.interpolation=0.5"], [1, 1]),
    "mert": ([*_BATCH, "tuner=mert", "features=dense", "tuner.solver.restarts=2"], [1]),
    # After groups were learnt, and after a fit in the second iteration.
    "grouping": ([*_GROUPS, "tuner.passes=5", "regularizer.dimension=charts"], [1, 4]),
    "batch": (
        [
            *[*_GROUPS, "tuner.learning=batch", "regularizer.fraction=0.1"],
            *["tuner.scaling=rms", "tuner.merge_identical=true"],
        ],
        [2],
    ),
    "clusters": (
        [*_GROUPS, "tuner.passes=5", "tuner.learning=clusters", "tuner.clusters.count=5"],
        [2],
    ),
}


@pytest.mark.parametrize("name", KILLED)
def test_what_is_killed_and_resumed(name, place):
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


def measured(folder):
    """Return what a run has logged, but for what is `TIMED`."""
    lines = map(json.loads, read_lines(folder / "metrics.jsonl"))
    return [{k: v for k, v in line.items() if not k.startswith(TIMED)} for line in lines]


@pytest.fixture
def state():
    weights = Weights(["a", "b"])
    weights.set(["x", "y", "z"], [1.0, -2.0, 3.0])
    optimizer = AdaGrad([weights.parameter], lr=0.1, regularizer=L1(0.1), unregularized=2)
    for _ in range(2):
        weights.parameter.grad = torch.sparse_coo_tensor(
            torch.tensor([[0, 3]]), torch.tensor([1.0, -2.0], dtype=torch.float64), (5,)
        ).coalesce()
        optimizer.step()
    return weights, optimizer


def fresh():
    weights = Weights(["a", "b"])
    return weights, AdaGrad([weights.parameter], lr=0.1, regularizer=L1(0.1), unregularized=2)


def test_what_is_no_checkpoint_of_this_run(tmp_path, state):
    path = tmp_path / "c.pt"
    with pytest.raises(InputError, match="there is no checkpoint"):
        load(path, run_of(*fresh()))
    # An older one, and a pickled object.
    torch.save({"version": 2, "fingerprint": {}, "evil": shutil.rmtree}, path)
    with pytest.raises(InputError, match="no checkpoint of this version"):
        load(path, run_of(*fresh()))
    save(path, run_of(*state), {"seed": "1", "loss": "a"})
    with pytest.raises(InputError, match="loss = a, and now it is b"):
        load(path, run_of(*fresh()), {"seed": "1", "loss": "b"})
    save(path, run_of(*state))
    weights = Weights(["a", "other"])
    with pytest.raises(InputError, match="other dense features"):
        load(path, run_of(weights, AdaGrad([weights.parameter])))


def test_weights_that_began_with_other_sparse_features(tmp_path):
    """Places are numbers: as ``init.file`` has it now, they would be those of other features."""

    def begun(*names):
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


def test_a_kill_between_the_names_and_the_checkpoint(tmp_path, state, monkeypatch):
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


def test_only_new_names_are_written(tmp_path, state):
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


# A finished run that is made longer is one that was so from the start.

ON_LISTS = ["tuner=mert", "features=dense", "threads=1", "tuner.patience=null"]
FEW = ["data.test=null", "decoder.k=5", "decoder.pop_limit=5", "tuner.sentences=20"]


def kept(folder):
    """What commands read of a run that has ended."""
    names = ["weights.txt.gz", "dev.translations.txt", "test.translations.txt", "config.yaml"]
    return {name: (folder / name).read_bytes() for name in [*names, ".hydra/overrides.yaml"]}


def test_more_epochs(run, place, monkeypatch):
    shorter = train(place, "longer", "threads=2", "tuner.epochs=1")
    assert shorter.bytes() != run.bytes()
    run_command("train", "resume=longer", folder=place).refused(
        "this run is finished; to make it longer give more rounds (tuner.epochs=N)"
    )
    refused = run_command("train", "resume=longer", "tuner.epochs=1", folder=place)
    assert "this run is finished; to make it longer" in refused.err
    assert shorter.weights.exists()
    before, replace = kept(shorter.folder), Path.replace

    def full(self, target):
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


def test_more_iterations(run, place):
    arguments = [*MODEL, *FEW, *ON_LISTS, "tuner.keep_lists=true"]

    def tuned(name, iterations):
        more = [f"tuner.iterations={iterations}", f"hydra.run.dir={name}"]
        run_command("train", *arguments, *more, folder=place).check()
        return place / name

    whole, longer = tuned("mert whole", 2), tuned("mert longer", 1)
    run_command("train", "resume='mert longer'", "tuner.iterations=2", folder=place).check()
    for name in ("weights.txt.gz", "dev.translations.txt"):
        assert (longer / name).read_bytes() == (whole / name).read_bytes()
    assert "mert whole/lists (they stay there)" in (whole / "train.log").read_text()
    more = ["tuner.iterations=3", "tuner.keep_lists=false"]
    outcome = run_command("train", "resume='mert longer'", *more, folder=place)
    assert "what more rounds would start from is not there (tuner.keep_lists=true" in outcome.err


# A deadline for each sentence: it may end a run, and never changes a result.

IN_BATCHES = ["data.test=null", "threads=1", "tuner.batch_size=10", "tuner.checkpoint_minutes=0"]


def train_until_late(place, saves, *arguments):
    """Run train, whose searches take too long once it has saved its state so many times."""
    saved = 0
    save = checkpoint.save_checkpoint

    def counted(*values):
        nonlocal saved
        save(*values)
        saved += 1

    @contextmanager
    def late(seconds):
        assert seconds == 5
        yield np.full(1, saved >= saves, np.uint8)

    with (
        mock.patch.object(checkpoint, "save_checkpoint", counted),
        mock.patch.object(grammar_decoder, "deadline", late),
    ):
        return run_command("train", *arguments, folder=place)


def test_late_and_resumed_with_more_time(place):
    """What was done before stays; with the same seconds the same sentence ends the run again."""
    options = [*MODEL, *SMALL, *IN_BATCHES, "decoder.seconds=5", "hydra.run.dir=late"]
    first = train_until_late(place, 2, *options)
    assert first.code == 1
    assert "its search took more than 5 s (decoder.seconds); give more" in first.err
    saved = (place / "late" / "checkpoint.pt").read_bytes()
    again = train_until_late(place, 0, "resume=late", "threads=1")
    assert (again.code, again.err) == (1, first.err)
    assert "resuming in epoch 1, after 20 sentences" in again.out
    assert (place / "late" / "checkpoint.pt").read_bytes() == saved
    assert not (place / "late" / "weights.txt.gz").exists()
    run_command("train", "resume=late", "decoder.seconds=1000", folder=place).check()
    whole = train(place, "no_deadline", *IN_BATCHES).folder
    for name in ("weights.txt.gz", "dev.translations.txt"):
        assert (place / "late" / name).read_bytes() == (whole / name).read_bytes()

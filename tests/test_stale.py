"""Stale gradients: with none that is stale as the serial tuner, else as by the book."""

import math
import random
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import SimpleNamespace
from unittest.mock import MagicMock, Mock

import numpy as np
import pytest
from test_online import DENSE, ListDecoder, random_lists, sentences_of, values_of
from test_parallel import SETTINGS, make, start

from torchtune_smt.core.errors import InputError
from torchtune_smt.core.vocabulary import Vocabulary
from torchtune_smt.core.weights import Weights
from torchtune_smt.losses import Logistic
from torchtune_smt.metrics.base import with_gains
from torchtune_smt.optim import AdaGrad, FobosOscar
from torchtune_smt.parallel.base import Work
from torchtune_smt.parallel.engine import InProcess
from torchtune_smt.parallel.stale import BatchWeights, Stale
from torchtune_smt.regularizers import L1, Oscar
from torchtune_smt.runs.checkpoint import (
    ARCHIVE,
    STEPS,
    Checkpoints,
    StepFile,
    load_checkpoint,
    save_checkpoint,
)
from torchtune_smt.runs.rounds import Callback, Rounds
from torchtune_smt.tuners.gradient import Gradient, gradient
from torchtune_smt.tuners.learner import Learner
from torchtune_smt.tuners.online import OnlineTuner

LISTS = random_lists(8, sentences=25)
SENTENCES = sentences_of(LISTS)
EPOCHS = 2
CHOSEN = {
    "adagrad": SETTINGS["adagrad"],
    "torch": SETTINGS["torch"],
    "lazy_oscar": (
        Logistic("sum"),
        partial(FobosOscar, lr=0.2, regularizer=Oscar(1e-3, 1e-4, 40), unregularized=2),
    ),
}


class SlowDecoder(ListDecoder):
    """Takes a while, so that gradients arrive in another order."""

    def decode(self, sources, snapshot, *, k=None):
        lists = super().decode(sources, snapshot, k=k)
        time.sleep(random.random() * 0.01)
        return lists


def online(settings, decoder):
    return make(settings, start(), SENTENCES, decoder)


def stale(strategy, settings=CHOSEN["adagrad"], decoder=None):
    given = start(), SENTENCES, decoder or ListDecoder(LISTS), InProcess(), 0, [], 0
    return strategy.tuner(Work(partial(make, settings), *given))


def rounds_of(tuner):
    return Rounds(tuner, lambda: 0.0, rounds=EPOCHS, result="last")


def resumed(path, strategy):
    run = rounds_of(stale(strategy))
    load_checkpoint(path, run.tuner.weights, run, {})
    return run


@pytest.mark.parametrize("name", CHOSEN)
@pytest.mark.parametrize("strategy", [Stale(3, max_staleness=0), Stale(simulate=0)])
def test_nothing_stale_is_serial(name, strategy):
    serial = online(CHOSEN[name], ListDecoder(LISTS))
    tuner = stale(strategy, CHOSEN[name])
    for epoch in range(1, EPOCHS + 1):
        for expected, report in zip(serial.round(epoch), tuner.round(epoch), strict=True):
            for tag in ("train/loss", "train/gain", "train/pairs", "train/lr"):
                assert report.numbers[tag] == expected.numbers[tag]
            assert report.numbers["train/staleness"] == 0
    names = [w.features.names(range(len(w))) for w in (tuner.weights, serial.weights)]
    assert names[0] == names[1]
    assert values_of(tuner.weights) == values_of(serial.weights)


@pytest.mark.parametrize("name", CHOSEN)
@pytest.mark.parametrize("age", [1, 4, 100])
def test_weights_of_some_steps_ago(name, age):
    """The reference brings all weights up to date at each step, and keeps copies of all."""
    settings = CHOSEN[name]
    decoder = ListDecoder(LISTS)
    plain = online(settings, decoder)
    for epoch in range(1, EPOCHS + 1):
        waiting = []
        for chosen in plain.batches(epoch):
            plain.optimizer.flush()
            frozen = plain.weights.frozen()
            lists = with_gains(plain.metric, decoder.decode(plain.sources(chosen), frozen))
            lists = plain.learner.take(lists)
            waiting.append(gradient(lists, frozen, plain.loss, plain.sampler, (plain.seed, epoch)))
            if len(waiting) > age:
                plain.learner.apply(waiting.pop(0))
        for one in waiting:
            plain.learner.apply(one)
    plain.optimizer.flush()
    tuner = stale(Stale(simulate=age), settings)
    ages = [r.numbers["train/staleness"] for n in range(1, EPOCHS + 1) for r in tuner.round(n)]
    batches = len(plain.batches(1))
    assert ages == [min(b, age) for b in range(batches)] * EPOCHS or age >= batches - 1
    assert max(ages) == min(age, batches - 1)
    assert values_of(tuner.weights) == pytest.approx(values_of(plain.weights), abs=1e-11)


@pytest.mark.parametrize("bound", [None, 1, 2, 5])
def test_each_mini_batch_once_and_none_too_old(bound):
    tuner = stale(Stale(4, max_staleness=bound), decoder=SlowDecoder(LISTS))
    batches = tuner.online.batches(1)
    for epoch in range(1, EPOCHS + 1):
        reports = list(tuner.round(epoch))
        assert len(reports) == len(batches)
        assert sum(report.sentences for report in reports) == len(LISTS)
        ages = [report.numbers["train/staleness"] for report in reports]
        assert bound is None or max(ages) <= bound
        assert max(ages) > 0
        for numbers in (report.numbers for report in reports):
            assert 1 <= numbers["parallel/worker"] <= 4
            assert 0 < numbers["parallel/seconds_learning"] < numbers["parallel/seconds"]
        summary = tuner.summary(True)
        assert 0 < summary.numbers["parallel/utilisation"] <= 1
        counts = {tag: n for tag, n in summary.numbers.items() if tag[:10] == "staleness/" and n}
        assert counts == Counter(f"staleness/{int(age)}" for age in ages)
        assert "steps by staleness 0: " in summary.text
    read = tuner.online.decoder.batches
    assert sorted(i for batch in read for i in batch) == sorted([*range(len(LISTS))] * EPOCHS)


def test_what_is_read_stays_as_it_was():
    """Against a copy of all weights, brought up to date at the moment of the first reading."""
    weights = start()
    learner = Learner(weights, AdaGrad([weights.parameter], 0.5, L1(0.1), unregularized=2))
    lock = MagicMock()
    features = Vocabulary(["s:2", "new", *DENSE, "s:1", "s:0"])

    def step(names):
        rng = np.random.default_rng(len(names))
        ids = weights.features.intern(names)
        order = np.argsort(ids)
        found = Gradient(ids[order].astype(np.int64), rng.normal(size=len(names)), None, 0, 0.0, 1)
        learner.apply(found)

    step(["s:0", "s:1", "s:2", "model"])
    step(["s:1"])
    snapshot = BatchWeights(learner, lock)
    assert not snapshot.was_read
    assert snapshot.version == 2
    first = snapshot.read(features, np.array([0, 1, 0, 5]))
    # While ids are looked up, and while weights are read.
    assert lock.__enter__.call_count == 2
    frozen = Weights(DENSE)
    frozen.set(*zip(*values_of(flushed(learner)).items(), strict=True))
    np.testing.assert_array_equal(first, frozen.read(features, np.array([0, 1, 0, 5])))
    assert first[0] != 0
    step(["new", "s:0", "s:2", "s:1"])
    assert snapshot.version == 2
    # The new feature was unknown; s:1 was not asked for, and is as it is now.
    np.testing.assert_array_equal(snapshot.read(features, np.array([0, 1, 0, 5])), first)
    own = weights.features.lookup(["s:2", "new", "s:2", "s:0"])
    np.testing.assert_array_equal(snapshot.read(weights.features, own), first)
    now = weights.read(features, np.array([4]))
    np.testing.assert_array_equal(snapshot.read(features, np.array([4])), now)


def flushed(learner):
    """A copy of the weights, all of them brought up to date; the learner's stay as they are."""
    weights = Weights(DENSE)
    names = learner.weights.features.names(range(len(learner.weights)))
    weights.set(names, learner.weights.parameter.detach().numpy())
    other = AdaGrad([weights.parameter], 0.5, L1(0.1), unregularized=2)
    other.load_state_dict(learner.optimizer.state_dict())
    other.flush()
    return weights


@pytest.mark.parametrize("strategy", [Stale(simulate=3), Stale(2, max_staleness=0)])
def test_a_run_that_is_taken_up_after_any_step(strategy, tmp_path):
    whole = rounds_of(stale(strategy))
    whole.run()
    run = rounds_of(stale(strategy))
    reports = 0
    while True:
        steps = run.steps()
        if next(steps, None) is None:
            break
        reports += 1
        save_checkpoint(tmp_path / "c", run.tuner.weights, run, {})
        steps.close()
        run = resumed(tmp_path / "c", strategy)
    assert reports == EPOCHS * (len(whole.tuner.online.batches(1)) + 1)
    assert values_of(run.tuner.weights) == pytest.approx(values_of(whole.tuner.weights), abs=1e-12)


class Until(Callback):
    """Kills a run after so many reports, when what it keeps is kept."""

    def __init__(self, reports):
        self.left = reports

    def on_report(self, report, run):
        self.left -= 1
        if not self.left:
            raise KeyboardInterrupt


def killed(path, strategy, reports):
    tuner = stale(strategy, decoder=SlowDecoder(LISTS))
    run = rounds_of(tuner)
    run.callbacks = [Checkpoints(path, {}, math.inf), Until(reports)]
    with pytest.raises(KeyboardInterrupt):
        run.run()
    return run


@pytest.mark.parametrize("strategy", [Stale(3), Stale(2, max_staleness=3)])
@pytest.mark.parametrize("reports", [1, 2, 4, 14, 15])
def test_no_step_is_lost(strategy, reports, tmp_path):
    """With one checkpoint, at the first step or at the end of the epoch; names come with steps."""
    before = killed(tmp_path / "c.pt", strategy, reports)
    path = tmp_path / "c.steps"
    # The first step and the end of an epoch are checkpoints.
    kept = {1: 0, 2: 1, 4: 3, 14: 0, 15: 1}[reports]
    checksum = ARCHIVE.read(tmp_path / "c.pt").checksum
    assert len(STEPS.parts(path, checksum) if path.exists() else []) == kept
    run = resumed(tmp_path / "c.pt", strategy)
    tuner = run.tuner
    assert len(tuner.online.batches(1)) == 13
    assert (run.progress.round, run.progress.done) == (1 + reports // 14, reports % 14)
    assert run.progress.sentences == before.progress.sentences
    old, new = before.tuner.state_dict(), tuner.state_dict()
    assert (old["done"], old["staleness"]) == (new["done"], new["staleness"])
    for one in (tuner, before.tuner):
        one.online.optimizer.flush()
    assert values_of(tuner.weights) == pytest.approx(values_of(before.tuner.weights), abs=1e-12)
    assert len(new["done"]) == reports % 14
    assert run.run().round == EPOCHS + 1


@pytest.mark.parametrize("strategy", [Stale(simulate=2), Stale(2, max_staleness=0)])
def test_runs_that_are_exact_keep_no_steps(strategy, tmp_path):
    killed(tmp_path / "c.pt", strategy, 3)
    assert not list(tmp_path.iterdir())


def test_steps_of_an_earlier_checkpoint_are_not_taken(tmp_path):
    """As of a process that was killed when it had a new checkpoint, and the old steps still."""
    run = killed(tmp_path / "c.pt", Stale(2), 4)
    steps = StepFile(tmp_path / "c.pt")
    assert steps.path.stat().st_size
    save_checkpoint(tmp_path / "c.pt", run.tuner.weights, run, {})
    run = resumed(tmp_path / "c.pt", Stale(2))
    assert run.progress.done == len(run.tuner.state_dict()["done"]) == 4


def test_a_saved_gradient_of_features_that_there_are_not():
    tuner = stale(Stale(simulate=2))
    next(iter(tuner.round(1)))
    with pytest.raises(ValueError, match="damaged"):
        stale(Stale(simulate=2)).load_state_dict(tuner.state_dict())


def test_threads_may_share_a_vocabulary():
    words = Vocabulary()
    names = [f"word{i}" for i in range(5000)]

    def intern(seed):
        mine = random.Random(seed).sample(names, len(names))
        found = [words.intern(mine[i : i + 50]) for i in range(0, len(mine), 50)]
        return words.names(np.concatenate(found)) == mine

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(intern, range(8)))
    assert sorted(words.names(range(len(words)))) == sorted(names)


def test_errors_of_threads_come_here():
    decoder = ListDecoder(LISTS)
    decoder.decode = Mock(side_effect=InputError("sentence 7 is bad"))
    tuner = stale(Stale(2), decoder=decoder)
    with pytest.raises(InputError, match="sentence 7 is bad"):
        list(tuner.round(1))


def test_ctrl_c_while_the_lock_is_taken_again(monkeypatch):
    """It stays what it is, and no thread is left."""
    threads = threading.active_count()

    class Interrupted:
        def __init__(self):
            self.lock, self.left = threading.RLock(), 2
            self.release = self.lock.release

        def __enter__(self):
            self.lock.acquire()

        def __exit__(self, *error):
            self.lock.release()

        def acquire(self):
            self.left -= 1
            if not self.left:
                raise KeyboardInterrupt
            self.lock.acquire()

    tuner = stale(Stale(2))
    fake = SimpleNamespace(RLock=Interrupted)
    monkeypatch.setattr("torchtune_smt.parallel.stale.threading", fake)
    with pytest.raises(KeyboardInterrupt):
        list(tuner.round(1))
    assert threading.active_count() == threads


def test_what_takes_other_steps_is_refused():
    with pytest.raises(InputError, match="loss.reduction=each takes a step after each pair"):
        stale(Stale(2), SETTINGS["perceptron"])

    class Own(OnlineTuner):
        def step(self, lists, epoch):
            return 0.0, 0

    def build(weights, sentences, decoder):
        tuner = make(CHOSEN["adagrad"], weights, sentences, decoder)
        tuner.__class__ = Own
        return tuner

    decoder = ListDecoder(LISTS)
    work = Work(build, start(), SENTENCES, decoder, InProcess(), 0, [], 0)
    with pytest.raises(InputError, match="Own takes steps of its own"):
        Stale(2).tuner(work)

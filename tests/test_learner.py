"""Gradients apart from steps: recorded steps replayed, threads and processes, what is refused."""

from __future__ import annotations

import multiprocessing
import pickle
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from minimizer_reference import rows_of

from torchtune_smt.core.errors import DivergenceError, InputError
from torchtune_smt.core.rows import Rows
from torchtune_smt.core.snapshot import FrozenWeights
from torchtune_smt.core.vocabulary import Vocabulary
from torchtune_smt.core.weights import Weights
from torchtune_smt.core.weights_io import read_weights, save_weights
from torchtune_smt.kbest.lists import KBestLists
from torchtune_smt.losses import ExpectedGain, Hinge, HopeFear, Logistic, Perceptron, Ramp, Softmax
from torchtune_smt.optim import FOBOS, SGD, AdaGrad, CumulativeL1
from torchtune_smt.regularizers import L1, L2, ElasticNet, Oscar
from torchtune_smt.samplers import AllPairs, ProSampler, pair_rows
from torchtune_smt.tuners.gradient import Gradient, gradient
from torchtune_smt.tuners.learner import Learner
from torchtune_smt.tuners.start import fitting_scale

DENSE, BATCHES, LISTS = ["d0", "d1"], 5, 2
START = [0.3, -0.2]
SAMPLER = ProSampler(candidates=30, threshold=0.05, pairs=5)
LOSSES = {
    "logistic_sum": Logistic("sum"),
    "hinge_each": Hinge("each"),
    "hinge_mean": Hinge("mean"),
    "perceptron_each": Perceptron("each"),
    "softmax_sum": Softmax("sum"),
    "expected_gain_mean": ExpectedGain(reduction="mean"),
    "ramp_sum": Ramp(reduction="sum"),
    "hope_fear_each": HopeFear(reduction="each"),
}
N = len(DENSE)
OPTIMIZERS = {
    "adagrad_l1": partial(AdaGrad, lr=0.1, regularizer=L1(0.02), unregularized=N),
    "adagrad_elastic": partial(AdaGrad, lr=0.1, regularizer=ElasticNet(0.02, 0.1), unregularized=N),
    "fobos_l1": partial(FOBOS, lr=0.1, regularizer=L1(0.01), unregularized=N),
    "fobos_l2": partial(FOBOS, lr=0.1, regularizer=L2(0.1), unregularized=N),
    "fobos_elastic": partial(FOBOS, lr=0.1, regularizer=ElasticNet(0.01, 0.1), unregularized=N),
    "fobos_oscar": partial(FOBOS, lr=0.1, regularizer=Oscar(1e-3, 1e-4), unregularized=N),
    "cumulative_l1": partial(CumulativeL1, lr=0.1, regularizer=L1(0.01), unregularized=N),
    "sgd": partial(SGD, lr=0.1),
}
STEPS = np.load(Path(__file__).parent / "data" / "replay" / "steps.npz")
CASES = [name.removesuffix(" weights") for name in STEPS.files if name.endswith(" weights")]


class Recorded:
    """Lists of ten sentences, and the weights and losses after each of five steps on two of them.

    An implementation that computed gradients and steps in one has recorded them, with decoding
    before each step that meets new features.
    """

    def __init__(self) -> None:
        self.data = STEPS
        self.known: list[int] = self.data["known"].tolist()
        self.names = [*DENSE, *(f"s{i}" for i in range(N, self.known[-1]))]

    def lists(self, features: Vocabulary, words: Vocabulary | None = None) -> KBestLists:
        """All lists; their features are in the ids of a vocabulary that has the names."""
        sizes = self.data["sizes"]
        total = int(sizes.sum())
        ids = features.intern(self.names)[self.data["feature"]]
        return KBestLists(
            index=np.arange(sizes.size),
            begin=np.append(0, np.cumsum(sizes)),
            rows=Rows(np.arange(0, 5 * total + 1, 5), ids, self.data["value"]).sorted(),
            features=features,
            gain=self.data["gain"],
            token_begin=np.arange(0, 3 * total + 1, 3),
            tokens=self.data["tokens"],
        )

    def batch(self, b: int, features: Vocabulary) -> KBestLists:
        """The lists of a step, with a vocabulary that knows no more than a decoder does then."""
        alone = Vocabulary(self.names)
        features.intern(self.names[: self.known[b]])
        lists = self.lists(alone).some(np.arange(b * LISTS, (b + 1) * LISTS))
        ids = features.lookup(self.names)[lists.rows.feature]
        rows = Rows(lists.rows.begin, ids, lists.rows.value).sorted()
        return KBestLists(**{**vars(lists), "features": features, "rows": rows})


@pytest.fixture(scope="module")
def recorded() -> Recorded:
    return Recorded()


def learner_of(optimizer: str, names: list[str] = DENSE, start: list[float] = START) -> Learner:
    weights = Weights(DENSE)
    weights.set(names, start)
    return Learner(weights, OPTIMIZERS[optimizer]([weights.parameter]))


def by_name(weights: Weights, names: list[str]) -> np.ndarray:
    return weights.read(Vocabulary(names), np.arange(len(names)))


def decode(learner: Learner, lists: KBestLists) -> None:
    """Read weights as a decoder does."""
    learner.snapshot().read(lists.features, np.arange(N))
    learner.snapshot().read(lists.features, np.unique(lists.rows.feature))


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("order", ["as recorded", "shuffled"])
def test_recorded_steps(recorded: Recorded, case: str, order: str) -> None:
    """In whatever ids the decoder has features, and all in one call or as gradient and step."""
    loss, optimizer = LOSSES[case.split()[0]], case.split()[1]
    learner = learner_of(optimizer)
    features = Vocabulary(DENSE)
    if order == "shuffled":
        first = recorded.names[: recorded.known[0]]
        features = Vocabulary(np.random.default_rng(3).permutation(first).tolist())
    for b in range(BATCHES):
        lists = recorded.batch(b, features)
        decode(learner, lists)
        if loss.reduction == "each" or b % 2:
            mean, count = learner.step(lists, loss, SAMPLER, (1, 1))
        else:
            found = gradient(learner.take(lists), learner.snapshot(), loss, SAMPLER, (1, 1))
            learner.apply(found)
            mean, count = found.loss, found.count
        assert mean == pytest.approx(recorded.data[f"{case} loss"][b], abs=1e-12)
        assert count == recorded.data[f"{case} count"][b]
    learner.optimizer.flush()
    expected = recorded.data[f"{case} weights"][-1]
    # Those that were recorded are of another processor, whose sums differ in the last bit.
    tolerance = 1e-14 if order == "as recorded" else 1e-9
    np.testing.assert_allclose(by_name(learner.weights, recorded.names), expected, 0, tolerance)


def same(first: Gradient, second: Gradient) -> None:
    """Compare two gradients to the last bit, by the names of their features."""
    said = [
        (g.features.names(g.feature), g.value.tobytes(), g.loss, g.count, g.version)
        for g in (first, second)
    ]
    assert said[0] == said[1]


def work(lists: KBestLists, snapshot: FrozenWeights, number: int) -> Gradient:
    """What a worker does with two lists; also in another process."""
    loss = list(LOSSES.values())[number % len(LOSSES)]
    some = lists.some(np.array([number % 10, (number + 3) % 10]))
    return gradient(some, snapshot, loss, SAMPLER, (5, number))


def test_gradients_of_threads_and_processes_are_the_same(recorded: Recorded) -> None:
    learner = learner_of("adagrad_l1")
    lists = learner.take(recorded.lists(Vocabulary(DENSE)))
    learner.step(lists, Logistic(), SAMPLER)
    frozen = learner.weights.frozen()
    assert frozen.version == learner.weights.version == 1
    here = [work(lists, frozen, n) for n in range(24)]
    with ThreadPoolExecutor(4) as threads:
        there = list(threads.map(partial(work, lists, learner.weights.frozen()), range(24)))
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        elsewhere = pool.map(partial(work, lists, frozen), range(24))
    for one, two, three in zip(here, there, elsewhere, strict=True):
        same(one, two)
        same(one, three)
    # They are applied as those computed here are.
    weights = []
    for found in (here, elsewhere):
        learner = learner_of("adagrad_l1")
        learner.take(lists)
        for one in found:
            learner.apply(one)
        learner.optimizer.flush()
        weights.append(by_name(learner.weights, recorded.names).tobytes())
    assert weights[0] == weights[1]


def test_a_gradient_takes_the_names_of_its_features_along_and_no_others(recorded: Recorded) -> None:
    features = Vocabulary([*DENSE, *(f"much{i}" for i in range(10_000))])
    lists = recorded.lists(features).some(np.array([0]))
    packed = pickle.dumps(gradient(lists, FrozenWeights.of({"d0": 0.3}), Softmax()))
    assert len(packed) < 4000


def test_computing_a_gradient_changes_nothing(recorded: Recorded) -> None:
    weights = Weights(DENSE)
    weights.set(DENSE, START)
    lists = recorded.lists(Vocabulary(DENSE))
    for loss in LOSSES.values():
        gradient(lists, weights, loss, SAMPLER)
    assert weights.features.names(range(len(weights.features))) == DENSE
    assert weights.parameter.tolist() == START
    assert weights.parameter.grad is None and weights.version == 0


def test_reading_and_saving_bring_weights_up_to_date(tmp_path: Path) -> None:
    weights = Weights()
    weights.set(["a", "b"], [1.0, 1.0])
    optimizer = AdaGrad([weights.parameter], 0.1, L1(1.0), initial_accumulator=1.0)
    learner = Learner(weights, optimizer)
    learner.apply(Gradient(np.array([0]), np.zeros(1), None, 0, 0.0, 1))
    assert weights.parameter.tolist() == [0.9, 1.0]
    # Reading, just what is read.
    assert learner.snapshot().read(Vocabulary(["x"]), np.array([0])).tolist() == [0.0]
    assert weights.parameter.tolist() == [0.9, 1.0]
    save_weights(tmp_path / "w", learner.snapshot())
    assert (tmp_path / "w").read_text() == "a 0.9\nb 0.9\n"
    assert FrozenWeights(*read_weights(tmp_path / "w")).values.tolist() == [0.9, 0.9]


@pytest.mark.parametrize(("optimizer", "bad"), [("adagrad_l1", np.nan), ("torch", np.inf)])
def test_gradients_that_are_not_finite_are_refused(optimizer: str, bad: float) -> None:
    weights = Weights(DENSE)
    weights.set(DENSE, START)
    make = OPTIMIZERS.get(optimizer, partial(torch.optim.SGD, lr=0.1))
    learner = Learner(weights, make([weights.parameter]))
    broken = Gradient(np.array([0, 1]), np.array([1.0, bad]), None, 0, 0.0, 3)
    with pytest.raises(DivergenceError, match="gradient of feature id 1"):
        learner.apply(broken)
    assert weights.parameter.tolist() == START and weights.version == 0
    learner.apply(Gradient(np.array([0]), np.array([1.0]), None, 0, 0.0, 1))
    assert weights.version == 1


def test_old_gradients_are_refused_where_asked(recorded: Recorded) -> None:
    learner = learner_of("sgd")
    lists = learner.take(recorded.lists(Vocabulary(DENSE)))
    old = gradient(lists, learner.snapshot(), Softmax())
    for age in range(1, 4):
        learner.step(lists, Softmax())
        assert learner.weights.version == age
    with pytest.raises(ValueError, match="the gradient is 3 steps old, and may be 2"):
        learner.apply(old, max_age=2)
    learner.apply(old, max_age=3)
    learner.apply(old)
    assert learner.weights.version == 5


def test_no_pairs_no_step(recorded: Recorded) -> None:
    learner = learner_of("sgd")
    lists = recorded.lists(Vocabulary(DENSE))
    equal = KBestLists(**{**vars(lists), "gain": np.zeros(lists.n_hypotheses)})
    short = lists.some(np.array([7]))
    for loss in (Hinge("sum"), Hinge("each")):
        assert learner.step(equal, loss, SAMPLER) == (0.0, 0)
    for loss in (Softmax(), HopeFear(), Hinge("each")):
        assert learner.step(short, loss, SAMPLER) == (0.0, 0)
    assert learner.weights.version == 0


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        (np.array([[0, 1], [-1, 1]]), "returned hypothesis -1 for sentence 0"),
        (np.array([[0.0, 1.0]]), r"returned ndarray of float64 and shape \(1, 2\) for sentence"),
        (None, "returned NoneType for sentence 0"),
        # The first of the next list would be number 6 of this one.
        (np.array([[0, 6]]), "they are numbered from 0"),
    ],
)
def test_a_sampler_returns_pairs_of_the_list(recorded: Recorded, pairs: Any, message: str) -> None:
    lists = recorded.lists(Vocabulary(DENSE)).some(np.array([0, 1]))
    sampler = Mock(sample=lambda kbest, seed: pairs)
    with pytest.raises(InputError, match=message):
        gradient(lists, Weights(DENSE), Hinge("sum"), sampler)


@pytest.mark.parametrize(
    ("loss", "sampler"), [(Logistic(), AllPairs()), (Softmax(), None)], ids=str
)
def test_the_scale_that_fits_does_not_depend_on_the_scale_of_the_start(loss, sampler) -> None:
    """Of lists whose gains are drawn from softmax at the weights times 3, it is about that."""
    rng = np.random.default_rng(5)
    values, truth = rng.normal(size=(1600, 3)), np.array([0.5, -1.0, 0.25])
    scores = (3 * values @ truth).reshape(400, 4)
    chosen = (scores + rng.gumbel(size=scores.shape)).argmax(1)
    lists = KBestLists(
        index=np.arange(400),
        begin=np.arange(0, 1601, 4),
        rows=rows_of(values),
        features=Vocabulary("abc"),
        gain=(np.arange(4) == chosen[:, None]).ravel().astype(float),
    )
    found = []
    for factor in (1.0, 0.01, 60.0):
        weights = Weights("abc")
        weights.set("abc", truth * factor)
        found.append(fitting_scale(lists, weights, loss, sampler, (1,)) * factor)
    assert found == pytest.approx([found[0]] * 3, rel=5e-3)
    if sampler is None:
        assert found[0] == pytest.approx(3, rel=0.15)
    else:
        margins = pair_rows(lists, sampler, ()).dot(truth)
        grid = np.linspace(0.5, 2, 1501) * found[0]
        means = [np.logaddexp(0, -c * margins).mean() for c in grid]
        assert found[0] == pytest.approx(grid[int(np.argmin(means))], rel=5e-3)
    # A perceptron's loss is least at 0.
    assert fitting_scale(lists, weights, Perceptron(), AllPairs(), (1,)) is None

"""Gradients apart from steps: in any ids, by threads and processes; what is refused."""

import multiprocessing
import pickle
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from minimizer_reference import rows_of

from torchtune_smt.core.errors import DivergenceError, InputError
from torchtune_smt.core.snapshot import FrozenWeights
from torchtune_smt.core.vocabulary import Vocabulary
from torchtune_smt.core.weights import Weights
from torchtune_smt.core.weights_io import read_weights, save_weights
from torchtune_smt.kbest.lists import KBestLists
from torchtune_smt.losses import ExpectedGain, Hinge, HopeFear, Logistic, Perceptron, Ramp, Softmax
from torchtune_smt.optim import FOBOS, SGD, AdaGrad, CumulativeL1
from torchtune_smt.regularizers import L1, ElasticNet, Oscar
from torchtune_smt.samplers import AllPairs, ProSampler, pair_rows
from torchtune_smt.tuners.gradient import Gradient, gradient
from torchtune_smt.tuners.learner import Learner
from torchtune_smt.tuners.start import fitting_scale

DENSE, START = ["d0", "d1"], [0.3, -0.2]
N = len(DENSE)
NAMES = [*DENSE, *(f"s{i}" for i in range(40))]
SAMPLER = ProSampler(candidates=30, threshold=0.05, pairs=5)
LOSSES = [
    *(Logistic("sum"), Hinge("each"), Hinge("mean"), Perceptron("each"), Softmax("sum")),
    *(ExpectedGain(reduction="mean"), Ramp(reduction="sum"), HopeFear(reduction="each")),
]
OPTIMIZERS = {
    "adagrad_l1": partial(AdaGrad, lr=0.1, regularizer=L1(0.02), unregularized=N),
    "fobos_elastic": partial(FOBOS, lr=0.1, regularizer=ElasticNet(0.01, 0.1), unregularized=N),
    "fobos_oscar": partial(FOBOS, lr=0.1, regularizer=Oscar(1e-3, 1e-4), unregularized=N),
    "cumulative_l1": partial(CumulativeL1, lr=0.1, regularizer=L1(0.01), unregularized=N),
    "sgd": partial(SGD, lr=0.1),
}


def made(features):
    """Return lists of ten sentences, one of them short, by ids of a vocabulary that takes names."""
    rng, sizes = np.random.default_rng(7), np.array([6] * 7 + [1, 6, 6])
    total = int(sizes.sum())
    values = rng.normal(size=(total, len(NAMES)))
    values[:, N:] *= rng.random((total, len(NAMES) - N)) < 0.1
    return KBestLists(
        index=np.arange(sizes.size),
        begin=np.append(0, np.cumsum(sizes)),
        rows=rows_of(values).renamed(features.intern(NAMES)),
        features=features,
        gain=rng.random(total),
    )


def learner_of(optimizer, names=DENSE, start=START):
    weights = Weights(DENSE)
    weights.set(names, start)
    return Learner(weights, OPTIMIZERS[optimizer]([weights.parameter]))


def by_name(weights, names):
    return weights.read(Vocabulary(names), np.arange(len(names)))


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("loss", LOSSES, ids=str)
def test_steps_in_any_ids(loss, optimizer):
    """Features come as lists are taken, and steps in one call, or as gradient and step."""
    found = []
    for names in (NAMES, np.random.default_rng(3).permutation(NAMES).tolist()):
        learner, lists, means = learner_of(optimizer), made(Vocabulary(names)), []
        for b in range(5):
            some = lists.some(np.array([2 * b, 2 * b + 1]))
            learner.snapshot().read(lists.features, np.unique(some.rows.feature))
            if loss.reduction == "each" or (b % 2 and names is NAMES):
                means.append(learner.step(some, loss, SAMPLER, (1, 1)))
            else:
                one = gradient(learner.take(some), learner.snapshot(), loss, SAMPLER, (1, 1))
                learner.apply(one)
                means.append((one.loss, one.count))
        learner.optimizer.flush()
        found.append((np.array(means), by_name(learner.weights, NAMES)))
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-9)


def same(first, second):
    said = [
        (g.features.names(g.feature), g.value.tobytes(), g.loss, g.count, g.version)
        for g in (first, second)
    ]
    assert said[0] == said[1]


def work(lists, snapshot, number):
    """What a worker does with two lists; also in another process."""
    loss = LOSSES[number % len(LOSSES)]
    some = lists.some(np.array([number % 10, (number + 3) % 10]))
    return gradient(some, snapshot, loss, SAMPLER, (5, number))


def test_gradients_of_threads_and_processes_are_the_same():
    learner = learner_of("adagrad_l1")
    lists = learner.take(made(Vocabulary(DENSE)))
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
        weights.append(by_name(learner.weights, NAMES).tobytes())
    assert weights[0] == weights[1]


def test_a_gradient_takes_the_names_of_its_features_along_and_no_others():
    features = Vocabulary([*DENSE, *(f"much{i}" for i in range(10_000))])
    lists = made(features).some(np.array([0]))
    packed = pickle.dumps(gradient(lists, FrozenWeights.of({"d0": 0.3}), Softmax()))
    assert len(packed) < 4000


def test_a_gradient_of_pairs_needs_a_sampler():
    with pytest.raises(ValueError, match="needs a sampler"):
        gradient(made(Vocabulary(DENSE)), Weights(DENSE), Hinge())


def test_reading_and_saving_bring_weights_up_to_date(tmp_path):
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
def test_gradients_that_are_not_finite_are_refused(optimizer, bad):
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


def test_old_gradients_are_refused_where_asked():
    learner = learner_of("sgd")
    lists = learner.take(made(Vocabulary(DENSE)))
    old = gradient(lists, learner.snapshot(), Softmax())
    for age in range(1, 4):
        learner.step(lists, Softmax())
        assert learner.weights.version == age
    with pytest.raises(ValueError, match="the gradient is 3 steps old, and may be 2"):
        learner.apply(old, max_age=2)
    learner.apply(old, max_age=3)
    learner.apply(old)
    assert learner.weights.version == 5


def test_no_pairs_no_step():
    learner = learner_of("sgd")
    lists = made(Vocabulary(DENSE))
    equal = KBestLists(**{**vars(lists), "gain": np.zeros(lists.n_hypotheses)})
    short = lists.some(np.array([7]))
    for loss in (Hinge("sum"), Hinge("each")):
        assert learner.step(equal, loss, SAMPLER) == (0.0, 0)
    for loss in (Softmax(), HopeFear(), Hinge("each")):
        assert learner.step(short, loss, SAMPLER) == (0.0, 0)
    assert learner.weights.version == 0


def test_a_sampler_returns_pairs_of_the_list():
    lists = made(Vocabulary(DENSE)).some(np.array([0, 1]))
    for pairs, message in (
        (np.array([[0, 1], [-1, 1]]), "returned hypothesis -1 for sentence 0"),
        (None, "returned NoneType for sentence 0"),
        # The first of the next list would be number 6 of this one.
        (np.array([[0, 6]]), "they are numbered from 0"),
    ):
        with pytest.raises(InputError, match=message):
            gradient(lists, Weights(DENSE), Hinge("sum"), Mock(sample=Mock(return_value=pairs)))


@pytest.mark.parametrize(
    ("loss", "sampler"), [(Logistic(), AllPairs()), (Softmax(), None)], ids=str
)
def test_the_scale_that_fits_does_not_depend_on_the_scale_of_the_start(loss, sampler):
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

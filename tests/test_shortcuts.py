"""A subclass that overrides a method gets its own behaviour; one that does not, the fast path."""

import copy
from dataclasses import dataclass
from functools import partial

import numpy as np
import pytest
import torch
from test_batch import pairs_of

from torchtune_smt.core.accepts import behaves_as, declared
from torchtune_smt.core.errors import InputError
from torchtune_smt.core.vocabulary import Vocabulary
from torchtune_smt.kbest.lists import KBestLists
from torchtune_smt.kbest.store import ListStore
from torchtune_smt.losses import Hinge, Logistic, Perceptron, Softmax, check_loss
from torchtune_smt.losses.base import is_listwise
from torchtune_smt.metrics import NakovBleu
from torchtune_smt.metrics.base import bind_metric, with_gains
from torchtune_smt.metrics.bleu import BleuReferences
from torchtune_smt.optim import FOBOS, SGD, AdaGrad, CumulativeL1, FobosOscar, SparseOptimizer
from torchtune_smt.regularizers import L1, L2, ElasticNet, NoRegularizer, Oscar
from torchtune_smt.regularizers.base import elastic_strengths, is_lazy, is_separable
from torchtune_smt.samplers import AllPairs
from torchtune_smt.tuners.grouping.base import Problem
from torchtune_smt.tuners.grouping.groups import FeatureGroups
from torchtune_smt.tuners.grouping.steps import GroupLearning
from torchtune_smt.tuners.grouping.tuner import GroupedSolver
from torchtune_smt.tuners.pro import Pro
from torchtune_smt.tuners.solver import Solution, solve_lists
from torchtune_smt.tuners.stochastic import Stochastic


class Base:
    promise = 7

    def act(self):
        return "base"


class Mixin:
    def act(self):
        return "mixin"


def own(*parents, **members):
    return type("Own", parents, members)


OVERRIDES = own(Base, act=Mixin.act)
BOTH = own(Base, act=Mixin.act, promise=7)
ON_INSTANCE = Base()
ON_INSTANCE.act = lambda: "instance"


@pytest.mark.parametrize(
    ("part", "counts", "same"),
    [
        (Base(), True, True),
        (own(Base)(), True, True),
        (OVERRIDES(), False, False),
        (BOTH(), True, False),
        (own(OVERRIDES)(), False, False),
        (own(OVERRIDES, promise=7)(), True, False),
        (own(Mixin, Base)(), False, False),
        (own(Base, act=Base.act)(), True, True),
        (ON_INSTANCE, False, False),
    ],
)
def test_what_a_class_says_counts_for_its_own_method(part, counts, same):
    assert declared(part, "promise", "act") == (7 if counts else None)
    assert behaves_as(part, Base, "act") is same


# Losses: the loops that take a step after each pair are compiled for the losses of the package.


@dataclass(frozen=True)
class Squared:
    """A loss that inherits nothing."""

    reduction: str = "each"

    def __call__(self, margins):
        return (1 - margins).clamp_min(0) ** 2


SQUARED = [own(kind, __call__=Squared.__call__) for kind in (Hinge, Logistic, Perceptron)]
OPTIMIZERS = {
    "adagrad": partial(AdaGrad, lr=0.1, regularizer=L1(0.05), unregularized=2),
    "fobos": partial(FOBOS, lr=0.3, regularizer=ElasticNet(0.03, 0.1), unregularized=2),
    "sgd": partial(SGD, lr=0.05),
    "cumulative_l1": partial(CumulativeL1, lr=0.1, regularizer=L1(0.02), unregularized=2),
    "fobos_oscar": partial(FobosOscar, lr=0.3, regularizer=Oscar(0.01, 0.01), unregularized=2),
}


def fitted(loss, optimizer):
    _, pairs = pairs_of(4)
    solver = Stochastic(AllPairs(), loss, optimizer, passes=2)
    return solver.solve_pairs(pairs, np.linspace(-0.3, 0.3, 7), (5,))


@pytest.fixture
def compiled_steps(monkeypatch):
    """Return a list that gets the number of steps of each call of the compiled loops."""
    steps = []
    step_rows = SparseOptimizer.step_rows

    def spy(self, *arguments, **options):
        margins = step_rows(self, *arguments, **options)
        steps.append(margins.size)
        return margins

    monkeypatch.setattr(SparseOptimizer, "step_rows", spy)
    return steps


@pytest.mark.parametrize("optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS)
@pytest.mark.parametrize("kind", SQUARED, ids=lambda kind: kind.__base__.__name__)
def test_the_loss_of_a_subclass_is_minimised(kind, optimizer, compiled_steps):
    own, expected = fitted(kind("each"), optimizer), fitted(Squared(), optimizer)
    np.testing.assert_array_equal(own.weights, expected.weights)
    assert own.report == expected.report
    assert not compiled_steps
    parent = fitted(kind.__mro__[1]("each"), optimizer)
    assert np.abs(parent.weights - own.weights).max() > 1e-3


@pytest.mark.parametrize("optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_what_overrides_nothing_keeps_the_compiled_steps(optimizer, compiled_steps):
    kind, options = optimizer.func, dict(optimizer.keywords)
    expected = fitted(Hinge(), optimizer)
    if "regularizer" in options:
        same = copy.copy(options["regularizer"])
        object.__setattr__(same, "__class__", own(type(same)))
        options["regularizer"] = same
    # torch puts a wrapper of `step` into each class of which an optimizer is made, or its parent.
    for part in (own(own(kind)), kind):
        found = fitted(own(Hinge)(), partial(part, **options))
        np.testing.assert_array_equal(found.weights, expected.weights)
    assert sum(compiled_steps) == 180


def test_listwise_says_how_a_loss_is_called_and_is_inherited():
    of_margins, of_lists = lambda self, margins: margins, lambda self, scores, gains: scores[0]
    twice = own(Softmax, __call__=of_lists)()
    assert is_listwise(twice)
    for loss in (twice, Softmax(), Hinge(), SQUARED[0](), Squared()):
        check_loss(loss)
    for bad in (own(Softmax, __call__=of_margins)(), own(Hinge, __call__=of_lists)(), len):
        with pytest.raises(TypeError, match="Own|reduction"):
            check_loss(bad)


def clipped(self, weights, step):
    """Move weights into -0.05..0.05: the prox of no norm."""
    return weights.clamp(-0.05, 0.05)


@dataclass(frozen=True)
class Box:
    """A regulariser that inherits nothing."""

    separable = lazy = True

    def value(self, weights):
        return weights.new_zeros(())

    prox = clipped


def with_own_prox(kind, **members):
    return type(f"Clipped{kind.__name__}", (kind,), {"prox": clipped, **members})()


PLAIN = [L1, L2, ElasticNet, NoRegularizer]


@pytest.mark.parametrize("kind", PLAIN)
def test_facts_are_of_the_class_that_defines_value_and_prox(kind):
    same = own(kind)()
    assert elastic_strengths(same) == elastic_strengths(kind()) == kind().elastic
    assert is_separable(same)
    assert is_lazy(same) == kind.lazy
    for method in ("value", "prox"):
        changed = own(kind, **{method: lambda self, *arguments: arguments[0]})()
        assert elastic_strengths(changed) is None
        assert not is_separable(changed) and not is_lazy(changed)


@pytest.mark.parametrize("loss", [Hinge("each"), Logistic("sum")], ids=repr)
@pytest.mark.parametrize("facts", [{}, {"separable": True}, {"separable": True, "lazy": True}])
@pytest.mark.parametrize("kind", PLAIN)
def test_fobos_takes_the_prox_of_a_subclass(kind, facts, loss):
    fits = [
        fitted(loss, partial(FOBOS, lr=0.3, regularizer=r, unregularized=2)).weights
        for r in (with_own_prox(kind, **facts), Box(), kind())
    ]
    np.testing.assert_allclose(fits[0], fits[1], rtol=0, atol=1e-12)
    assert np.abs(fits[0][2:]).max() <= 0.05 < np.abs(fits[2][2:]).max()


def test_fobos_takes_the_prox_of_a_subclass_of_oscar():
    Halved = own(Oscar, prox=lambda self, weights, step: Oscar.prox(self, weights, step / 2))
    fits = [
        fitted(Hinge(), partial(FOBOS, lr=0.3, regularizer=r, unregularized=2))
        for r in (Halved(0.02, 0.04), Oscar(0.01, 0.02), Oscar(0.02, 0.04))
    ]
    np.testing.assert_allclose(fits[0].weights, fits[1].weights, rtol=0, atol=1e-12)
    assert np.abs(fits[0].weights - fits[2].weights).max() > 1e-3
    with pytest.raises(ValueError, match="FobosOscar keeps OSCAR's groups, and got Own"):
        fitted(Hinge(), partial(FobosOscar, regularizer=Halved()))
    _, pairs = pairs_of(4)
    with pytest.raises(ValueError, match="got Own: use regularizer=oscar"):
        GroupLearning(Halved()).learn(Problem(pairs, np.ones(7), 2))


def test_adagrad_takes_the_prox_of_a_subclass_that_says_what_is_true_of_it():
    weights = [
        fitted(loss, partial(AdaGrad, lr=0.3, regularizer=r, unregularized=2)).weights
        for loss in (Hinge("each"), Logistic("sum"))
        for r in (with_own_prox(L1, separable=True, lazy=True), Box())
    ]
    np.testing.assert_array_equal(weights[0], weights[1])
    np.testing.assert_array_equal(weights[2], weights[3])
    assert np.abs(weights[0][2:]).max() <= 0.05


@pytest.mark.parametrize(
    ("optimizer", "regularizer", "message"),
    [
        (AdaGrad, with_own_prox(L1), "separable and lazy from a"),
        (AdaGrad, with_own_prox(L1, separable=True), "lazy from a parent"),
        (AdaGrad, with_own_prox(L2, separable=True), "ClippedL2 is not lazy"),
        (CumulativeL1, with_own_prox(L1), "got ClippedL1"),
        (SGD, with_own_prox(NoRegularizer), "no effect"),
    ],
)
def test_optimizers_that_cannot_use_an_own_prox_refuse_it(optimizer, regularizer, message):
    with pytest.raises(ValueError, match=message):
        optimizer([torch.nn.Parameter(torch.zeros(1, dtype=torch.float64))], 1, regularizer)


STEPPING = {
    "step": lambda kind: {"step": lambda self, closure=None: _doubled(self, kind)},
    "_update": lambda kind: {
        "_update": lambda self, group, parameter, state, indices, gradient: kind._update(
            self, group, parameter, state, indices, 2 * gradient
        )
    },
}


def _doubled(optimizer, kind):
    """Take the step of a class along twice the gradient."""
    (parameter,) = optimizer.param_groups[0]["params"]
    parameter.grad = parameter.grad * 2
    kind.step(optimizer)


TwoHinges = own(Hinge, __call__=lambda self, margins: 2 * Hinge.__call__(self, margins))


@pytest.mark.parametrize("optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS)
@pytest.mark.parametrize("method", STEPPING)
def test_the_steps_of_an_optimizers_subclass_are_taken(method, optimizer, compiled_steps):
    kind = optimizer.func
    changed = own(kind, **STEPPING[method](kind))
    solution = fitted(Hinge(), partial(changed, **optimizer.keywords))
    assert not compiled_steps
    expected = fitted(TwoHinges(), optimizer)
    np.testing.assert_allclose(solution.weights, expected.weights, rtol=0, atol=1e-12)


def test_a_subclass_that_puts_updates_off_is_asked_for_them():
    class Decays(SGD):
        def _catch_up(self, settings, parameter, state, indices):
            parameter[indices] *= 0.5

    parameter = torch.nn.Parameter(torch.tensor([1.0, 2.0], dtype=torch.float64))
    optimizer = Decays([parameter])
    parameter.grad = torch.zeros(2, dtype=torch.float64).to_sparse()
    optimizer.step()
    optimizer.catch_up(torch.tensor([0]))
    assert parameter.tolist() == [0.5, 2.0]


# Gains that have nothing to do with BLEU.
Constant = own(object, gains=lambda self, kbest: np.full(len(kbest), 0.25))
OwnBind = own(NakovBleu, bind=lambda self, references, words: Constant())
OwnBoth = own(OwnBind, score=lambda self, statistics: np.full(len(statistics), 0.75))
OwnScore = own(NakovBleu, score=lambda self, statistics: NakovBleu.score(self, statistics) / 2)


def judged(metric):
    words, references = Vocabulary("a b c".split()), [[["a", "b"]]]
    lists = KBestLists.of_strings([["a b", "c"]], words=words)
    lists = BleuReferences(references, words).with_statistics(lists)
    return with_gains(bind_metric(metric, references, words), lists).gain.tolist()


def test_the_bind_of_a_metrics_subclass_is_asked():
    assert judged(OwnBind()) == judged(OwnBoth()) == [0.25, 0.25]
    plain = judged(NakovBleu())
    assert plain[0] > plain[1] == 0
    assert judged(own(NakovBleu)()) == plain
    assert judged(OwnScore()) == [plain[0] / 2, 0]
    # Statistics alone are no gains of a metric with a bind of its own.
    with pytest.raises(InputError, match="needs the words of the hypotheses"):
        bind_metric(OwnBind(), [[]], Vocabulary())
    assert bind_metric(OwnScore(), [[]], Vocabulary()) is not None


def told(name):
    """Return a solver's method, which tells how much it was given."""
    return lambda self, given, start, seed: Solution(
        np.full_like(start, 3.0), {name: float(len(given))}
    )


@pytest.mark.parametrize("method", ["solve", "solve_pairs"])
def test_the_solve_of_a_solvers_subclass_is_called(method):
    names = Vocabulary(["f", "g"])
    lists, features = ListStore(n_dense=2), [[{"f": 1.0}, {"g": 1.0}]]
    lists.add(KBestLists.of_strings([["a", "b"]], features, gains=[[0.5, 0]], names=names))
    lists.end_iteration()
    solver = own(Pro, **{method: told(method)})(AllPairs())
    for some in (solver, GroupedSolver(solver, FeatureGroups(np.arange(2), 2))):
        solution = solve_lists(some, lists, np.zeros(2), (1,))
        assert solution.weights.tolist() == [3.0, 3.0]
        assert solution.report == {method: 1.0}

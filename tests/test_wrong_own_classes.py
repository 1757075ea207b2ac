"""Classes of a user's that do not keep to what is documented: one sentence, and no wrong result."""

import importlib
import sys
from dataclasses import dataclass, replace
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from commands import MODEL, Run, run_command
from test_parallel import SETTINGS, rounds_of, tuner_of

from torchtune_smt.core.errors import DivergenceError, InputError
from torchtune_smt.core.scoring import sparse_vector
from torchtune_smt.core.vocabulary import Vocabulary
from torchtune_smt.core.weights import Weights
from torchtune_smt.decoders.base import Decoder, lists_of
from torchtune_smt.kbest.lists import KBestLists, Source
from torchtune_smt.losses import Hinge, Logistic, Softmax
from torchtune_smt.metrics.base import with_gains
from torchtune_smt.metrics.lists import minimum_risk
from torchtune_smt.optim import FOBOS, RDA, SGD, AdaGrad
from torchtune_smt.parallel.mixing import Mixing
from torchtune_smt.regularizers import Oscar
from torchtune_smt.samplers import AllPairs
from torchtune_smt.samplers.base import sampled_pairs
from torchtune_smt.tuners.grouping.groups import FeatureGroups
from torchtune_smt.tuners.grouping.tuner import GroupedSolver
from torchtune_smt.tuners.solver import Solution, tune
from torchtune_smt.tuners.stochastic import Stochastic

LISTS = KBestLists.of_strings(
    [["a b", "a"], ["c", "c d", "d"]],
    [[{"x": 1.0, "y": 2.0}, {"x": 2.0}], [{"y": 1.0}, {"x": -1.0}, {"z": 1.0}]],
    gains=[[0.5, 0.1], [0.2, 0.9, 0.4]],
)


def tuned(loss, optimizer=None):
    given = partial(SGD, lr=0.1) if optimizer is None else optimizer
    return tune(LISTS, Stochastic(AllPairs(), loss, given, passes=3)).values


SOURCES = [Source(3, ["s"]), Source(7, ["t"])]


def of_strings(index, words):
    return KBestLists.of_strings([["a"]] * len(index), index=index, words=words)


CLASSES = """\
import numpy as np
import torch

from torchtune_smt.decoders.base import Decoder
from torchtune_smt.tuners.base import Tuner
from torchtune_smt.tuners.solver import Solution


class Own(Decoder):
    def decode(self, sources, snapshot, *, k=None):
        raise NotImplementedError


class Walk(Tuner):
    unit = "epoch"

    def __init__(self, weights):
        ...


class Numbers:
    def solve(self, lists, start, seed):
        report = {"a": np.int64(3), "b": np.float32(0.5), "c": torch.tensor(2.0), "d": 1}
        return Solution(start, report)
"""


@pytest.mark.parametrize(
    ("options", "said"),
    [
        # What is said of what a class does not take names it, and not that of the file.
        ("decoder._target_=mine.Own threads=1", "decoder._target_=mine.Own takes no threads, and"),
        ("tuner._target_=mine.Walk loss=hinge", "tuner._target_=mine.Walk takes no loss, and"),
    ],
)
def test_what_classes_do_not_take(options, said, tmp_path):
    (tmp_path / "mine.py").write_text(CLASSES)
    importlib.invalidate_caches()
    run_command("train", *options.split(), "hydra.run.dir=bad", folder=tmp_path).refused(
        f"error: {said}"
    )


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("bad_syntax.X", "bad_syntax.py:2: invalid syntax; correct this line"),
        ("bad_value.X", "bad_value.py:3: ValueError: one two"),
        ("of_nobody.X", "there is no such class (No module named 'of_nobody'); is it spelt so"),
        ("torchtune_smt.losses", "this is no class"),
    ],
)
def test_classes_that_cannot_be_had(target, said, tmp_path):
    """The error is one line, with its cause; Hydra logs nothing besides."""
    (tmp_path / "bad_syntax.py").write_text("class X:\n    def f(:\n")
    (tmp_path / "bad_value.py").write_text('class X: ...\n\nraise ValueError("one\\ntwo")\n')
    importlib.invalidate_caches()
    templates = f"features.templates=[{{_target_:{target}}}]"
    for given in (f"decoder._target_={target}", templates)[: 2 - said.startswith("this is")]:
        outcome = run_command("train", given, "hydra.run.dir=bad", folder=tmp_path)
        option, _, _ = given.partition("=")
        option = f"{option}=" if option.startswith("decoder") else option.removesuffix("._target_")
        option += ": " * (not option.endswith("="))
        assert (outcome.code, outcome.out) == (1, "")
        assert outcome.err.startswith(f"error: {option}{target}: {said}")
        assert outcome.err.count("\n") == 1


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda words: None, "must return KBestLists, and returned NoneType"),
        (lambda words: of_strings([7, 3], words), r"asked for 2 \[3, 7\], it returned 2 \[7, 3\]"),
        (lambda words: of_strings([3, 7], None), "features=self.features and words=self.words"),
        (
            lambda words: replace(of_strings([3, 7], words), begin=np.array([0, 2, 2])),
            "a hypothesis for each sentence, one without",
        ),
    ],
)
def test_lists_of_a_decoder(make, message):
    @dataclass
    class Own(Decoder):
        lists: object
        words: Vocabulary

        def decode(self, sources, snapshot, *, k=None):
            return self.lists

    words, weights = Vocabulary(), Weights([]).frozen()
    with pytest.raises(InputError, match=f"decoder Own .*{message}"):
        lists_of(Own(make(words), words), SOURCES, weights)
    two = KBestLists.of_strings([["a", "b"], ["c"]], index=[3, 7], words=words)
    assert lists_of(Own(two, words), SOURCES, weights, 2) is two
    with pytest.raises(InputError, match="decoder Own .* no more than k"):
        lists_of(Own(two, words), SOURCES, weights, 1)


@pytest.mark.parametrize("pair", [[0, 1], [1, 1]])
def test_pairs_of_a_sampler_have_the_better_one_first(pair):
    (kbest,) = KBestLists.of_strings([["a", "b"]], gains=[[0.25, 0.5]])
    for found in (pair, [1, 0]):
        sampler = SimpleNamespace(sample=lambda *_, found=found: np.array([found]))
        if found == pair:
            with pytest.raises(InputError, match="no larger gain than the second: the better one"):
                sampled_pairs(sampler, kbest, (1,))
        else:
            assert sampled_pairs(sampler, kbest, (1,)).tolist() == [found]


@pytest.mark.parametrize("wrong", [[0.5, 0.5], np.zeros((2, 1)), 0.5, None, np.zeros(2, complex)])
def test_gains_of_a_metric(wrong):
    metric = SimpleNamespace(gains=lambda kbest: wrong)
    bound = SimpleNamespace(bind=lambda references, words: metric)
    some = LISTS.some(np.array([1]))
    for work in (
        lambda: with_gains(metric, some),
        lambda: minimum_risk(replace(some, score=np.zeros(3)), bound),
    ):
        with pytest.raises(InputError, match=r"SimpleNamespace must return a number .* \(3,\)"):
            work()
    lost = SimpleNamespace(gains=lambda kbest: [1, np.nan, 2])
    with pytest.raises(InputError, match="sentence .*, that is finite, and returned nan"):
        with_gains(lost, some)
    listed = SimpleNamespace(gains=lambda kbest: [1] * len(kbest))
    assert with_gains(listed, LISTS).gain.tolist() == [1.0] * 5


@dataclass(frozen=True)
class Own:
    """A regulariser whose prox answers what it is told to."""

    answer: object
    separable: bool = True
    lazy: bool = True

    def value(self, weights):
        return weights.abs().sum()

    def prox(self, weights, step):
        return self.answer(weights)


@pytest.mark.parametrize("kind", [FOBOS, AdaGrad, RDA])
def test_the_prox_of_a_regularizer(kind):
    for answer in (lambda w: w[:1], lambda w: None, lambda w: w.numpy()):
        with pytest.raises(InputError, match="the prox of Own must return a tensor of the shape"):
            tuned(Hinge(), partial(kind, lr=0.1, regularizer=Own(answer)))


@pytest.mark.parametrize("kind", [FOBOS, RDA])
def test_the_prox_of_a_regularizer_that_is_not_separable(kind):
    made = partial(kind, lr=0.1)
    dense = Own(lambda w: w.to_dense(), separable=False)
    with pytest.raises(InputError, match="Own is not separable, .* returned one which is dense"):
        tuned(Hinge(), partial(made, regularizer=dense))

    def fewer(w):
        return sparse_vector(w.indices()[0][:1], w.values()[:1], w.numel())

    with pytest.raises(InputError, match="it must return one with the same indices"):
        tuned(Hinge(), partial(made, regularizer=Own(fewer, separable=False)))

    def same(w):
        # Nobody has said that it is coalesced.
        return torch.sparse_coo_tensor(w.indices(), w.values(), w.shape, check_invariants=True)

    found = tuned(Hinge(), partial(made, regularizer=Own(same, separable=False)))
    np.testing.assert_array_equal(found, tuned(Hinge(), partial(made, regularizer=Oscar(0, 0))))


class WithParameter(torch.nn.Module):
    reduction = "sum"

    def __init__(self, trained):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(()), requires_grad=trained)

    def forward(self, margins):
        return (1 - self.scale * margins).clamp_min(0)


def test_parameters_of_a_loss():
    with pytest.raises(TypeError, match="WithParameter has parameters, which nobody would tune"):
        tuned(WithParameter(True))
    np.testing.assert_allclose(tuned(WithParameter(False)), tuned(Hinge("sum")), rtol=1e-12)


def own_loss(function, reduction="sum"):
    return type("OwnLoss", (), {"reduction": reduction, "__call__": lambda _, m: function(m)})()


def nan_above_0(margins):
    return (1 - margins).clamp_min(0) + torch.where(margins > -9, torch.nan, 0.0)


@pytest.mark.parametrize(
    ("function", "kind", "message"),
    [
        (nan_above_0, DivergenceError, "a value of the loss OwnLoss is not finite"),
        (lambda m: m.detach() ** 2, InputError, "returned numbers that autograd knows no gradient"),
        (lambda m: torch.ones_like(m).requires_grad_() * 2, InputError, "does not depend on the"),
    ],
)
def test_values_of_a_loss(function, kind, message):
    with pytest.raises(kind, match=message):
        tuned(own_loss(function))


def test_the_reduction_of_a_loss():
    with pytest.raises(ValueError, match="reduction of the loss OwnLoss must be"):
        Stochastic(AllPairs(), own_loss(torch.exp, "none"), partial(SGD, lr=0.1))


def test_a_loss_that_works_in_the_gains():
    class InPlace(Softmax):
        def __call__(self, scores, gains):
            losses = super().__call__(scores, gains.clone())
            gains.fill_(-1)
            return losses

    before = LISTS.gain.copy()
    np.testing.assert_array_equal(tuned(InPlace("sum")), tuned(Softmax("sum")))
    np.testing.assert_array_equal(LISTS.gain, before)


@pytest.mark.parametrize(
    "mode", [torch.no_grad, torch.inference_mode, lambda: torch.device("meta")]
)
@pytest.mark.parametrize("loss", [Logistic("sum"), Logistic("each"), Softmax("sum")])
@pytest.mark.parametrize(
    "optimizer", [partial(SGD, lr=0.1), partial(RDA, lr=0.1, regularizer=Oscar(1e-3, 1e-3))]
)
def test_modes_of_the_caller_change_nothing(mode, loss, optimizer):
    expected = tuned(loss, optimizer)
    with mode():
        np.testing.assert_array_equal(tuned(loss, optimizer), expected)


@pytest.mark.parametrize(
    ("found", "message"),
    [
        (np.zeros(3), "must return a torchtune_smt.tuners.solver.Solution, and returned ndarray"),
        (Solution(np.zeros(3, complex), {}), "a weight for each feature, .* complex128"),
        (Solution(np.zeros(2), {}), r"of shape \(3,\), .* and shape \(2,\)"),
    ],
)
def test_what_a_solver_returns(found, message):
    own = SimpleNamespace(solve=lambda lists, start, seed: found)
    with pytest.raises(InputError, match=message):
        tune(LISTS, own)
    # Groups are features to it: there are as many of them here.
    with pytest.raises(InputError, match=message):
        tune(LISTS, GroupedSolver(own, FeatureGroups(np.arange(3), 3)))


def test_numbers_of_a_solver(run):
    (run.place / "mine.py").write_text(CLASSES)
    importlib.invalidate_caches()
    sys.modules.pop("mine", None)
    given = [*MODEL, "features=dense", "data.test=null", "tuner.sentences=10", "decoder.k=5"]
    given += ["tuner=batch", "tuner.solver={_target_:mine.Numbers}", "tuner.iterations=1"]
    outcome = run_command("train", *given, "hydra.run.dir=numbers", folder=run.place).check()
    assert "tuning has gained nothing" in outcome.out
    fit = Run(run.place, "numbers", outcome)
    assert [fit.mean(f"fit/{name}") for name in "abcd"] == [3.0, 0.5, 2.0, 1.0]


def test_what_a_parallel_strategy_combines():
    class Short(Mixing):
        def combine(self, columns):
            return np.zeros(1)

    message = r"combine of Short must return a weight for each feature, .* and shape \(1,\)"
    with pytest.raises(InputError, match=message):
        rounds_of(tuner_of(Short(2), SETTINGS["adagrad"])).run()

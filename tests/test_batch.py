"""The loop of batch tuners, and stochastic tuning, against plain loops."""

from functools import partial
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from minimizer_reference import rows_of
from optim_reference import EagerAdaGrad, EagerCumulativeL1, EagerFobos, EagerSGD
from test_losses import PAIRWISE

from torchtune_smt.core.errors import DivergenceError, InputError
from torchtune_smt.core.vocabulary import Vocabulary
from torchtune_smt.core.weights import Weights
from torchtune_smt.decoders.base import Decoder
from torchtune_smt.kbest.lists import KBest, KBestLists
from torchtune_smt.kbest.sentences import Sentences
from torchtune_smt.kbest.store import ListStore
from torchtune_smt.losses import ExpectedGain, Hinge, Perceptron, Softmax
from torchtune_smt.metrics import BleuPlusOne
from torchtune_smt.metrics.bleu import BleuReferences
from torchtune_smt.optim import FOBOS, SGD, AdaGrad, CumulativeL1
from torchtune_smt.regularizers import L1, ElasticNet
from torchtune_smt.runs.rounds import Rounds
from torchtune_smt.samplers import AllPairs, ProSampler
from torchtune_smt.tuners.batch import BatchTuner, Collector
from torchtune_smt.tuners.pro import Pro
from torchtune_smt.tuners.sentences import score_corpus
from torchtune_smt.tuners.solver import Solution, solve_lists
from torchtune_smt.tuners.stochastic import Stochastic

K = 3


class Pool(Decoder):
    """A decoder with fixed hypotheses for each sentence: the best three under the weights."""

    def __init__(self, sentences=4, size=12, seed=0):
        rng = np.random.default_rng(seed)
        self.words = Vocabulary(["a", "b", "c", "d", "e"])
        self.features = Vocabulary(["x", "y", "s2", "s3", "s4"])
        self.dense_names = ["x", "y"]
        self.tokens = rng.integers(0, 5, (sentences, size, 4)).astype(np.int32)
        self.rows = rng.integers(-2, 3, (sentences, size, 5)) + 0.0
        self.rows[:, :, 2:] = np.abs(self.rows[:, :, 2:])
        self.decoded = 0

    def sentences(self):
        words = [[self.words[t] for t in tokens[0]] for tokens in self.tokens]
        return Sentences.of([["f"]] * len(words), [[w] for w in words])

    def decode(self, sources, snapshot, *, k=K):
        w = snapshot.read(self.features, np.arange(5))
        self.decoded += len(sources)
        return KBestLists.of([self._best(source.index, w, k) for source in sources])

    def _best(self, index, w, k):
        scores = self.rows[index] @ w
        order = np.argsort(-scores, kind="stable")[:k]
        rows = self.rows[index][order]
        return KBest(
            index=index,
            rows=rows_of(rows),
            score=scores[order],
            token_begin=4 * np.arange(order.size + 1),
            tokens=self.tokens[index][order].ravel(),
            features=self.features,
            words=self.words,
        )


class Shift:
    def solve(self, lists, start, seed):
        moved = lists.rows.dense(start.size).T @ (lists.gain - lists.gain.mean())
        return Solution(start + moved + seed[1], {"n": lists.n_hypotheses})


def collector_of(pool, weights, folder=None):
    sentences = pool.sentences()
    metric = BleuPlusOne().bind(sentences.references, pool.words)
    return Collector(pool, weights, sentences, metric, ListStore(n_dense=2, folder=folder))


def fresh():
    weights = Weights(["x", "y"])
    weights.set(["x"], [1.0])
    return weights


def bleu_of(pool, weights):
    kbests = pool.decode(pool.sentences().sources, weights)
    lines = [kbest.text(0) for kbest in kbests]
    return score_corpus(lines, pool.sentences()).score


def by_hand(pool, interpolation, tolerance, patience, first):
    """Return scores and weights of each iteration, and the numbers of hypotheses."""
    weights = fresh()
    seen, history = {}, []
    for iteration in range(1, 6):
        before = len(seen)
        sources = pool.sentences().sources
        references = BleuReferences(pool.sentences().references, pool.words)
        for kbest in pool.decode(sources, weights):
            gains = BleuPlusOne().score(references.statistics(kbest))
            for h in range(len(kbest)):
                row = dict(zip(*(x.tolist() for x in kbest.row(h)), strict=True))
                key = (kbest.index, tuple(kbest.hypothesis(h)), tuple(row.items()))
                seen.setdefault(key, (row, gains[h]))
        weights.grow()
        start = weights.read(None, np.arange(5))
        moved = history[-1][3] if history else float("inf")
        if len(seen) == before and moved <= tolerance:
            break
        ordered = [seen[key] for key in sorted(seen, key=lambda key: key[0])]
        matrix = np.array([[row.get(f, 0.0) for f in range(5)] for row, _ in ordered])
        gain = np.array([gain for _, gain in ordered])
        new = start + matrix.T @ (gain - gain.mean()) + iteration
        mixed = interpolation * new + (1 - interpolation) * start
        weights.set(["x", "y", "s2", "s3", "s4"], mixed)
        moved = np.abs(mixed - start).max() / np.abs(mixed).max()
        history.append((bleu_of(pool, weights), mixed, len(seen), moved))
        scores = [first, *(entry[0] for entry in history)]
        if patience and len(scores) - 1 - scores.index(max(scores)) >= patience:
            break
    return history


@settings(max_examples=25)
@given(
    st.integers(0, 100),
    st.sampled_from([1.0, 0.3]),
    st.sampled_from([None, 1, 2]),
    st.sampled_from(["best", "last"]),
    st.sampled_from([0.0, 0.9]),
    st.booleans(),
    st.booleans(),
)
def test_the_loop(seed, interpolation, patience, result, tolerance, same_set, noted):
    pool, weights = Pool(seed=seed), fresh()
    before = bleu_of(pool, weights)
    expected = by_hand(pool, interpolation, tolerance, patience, before)
    options = {"interpolation": interpolation, "tolerance": tolerance, "seed": 9}
    tuner = BatchTuner(collector_of(pool, weights), Shift(), **options)
    score = tuner.score if same_set else lambda: bleu_of(pool, weights)
    run = Rounds(tuner, score, rounds=5, patience=patience, result=result)
    if noted:
        run.progress.note_start(before, weights.parameter)
    pool.decoded, said = 0, []
    run.callbacks = [Mock(on_report=lambda report, run: said.append(report))]
    progress = run.run()
    rounds = [report for report in said if report.kind == "round"]
    reports = [report.numbers for report in rounds]
    found, weighted, counts, moved = (list(column) for column in zip(*expected, strict=True))
    assert [r["bleu/dev"] for r in reports] == pytest.approx(found, abs=1e-10)
    assert [r["lists/hypotheses"] for r in reports] == [r["fit/n"] for r in reports] == counts
    assert [r["fit/moved"] for r in reports] == pytest.approx(moved)
    assert np.cumsum([r["lists/new"] for r in reports]).tolist() == counts
    scores = [before, *found]
    best = scores.index(max(scores))
    assert progress.best.round == best
    kept = [result == "last" or s > max(scores[:i]) for i, s in enumerate(scores) if i]
    assert [report.kept for report in rounds] == kept
    chosen = [np.eye(5)[0], *weighted][best if result == "best" else -1]
    np.testing.assert_allclose(weights.read(None, np.arange(5)), chosen, rtol=1e-12, atol=1e-12)
    assert progress.sentences == 4 * len(expected)
    if same_set:
        # Before the first iteration, and after each: not twice for lists and score, unless the
        # start's had been found before.
        assert pool.decoded == 4 * (len(expected) + 1)


def test_what_a_solver_finds():
    """It may work in the weights that it is given."""

    def solved(by, **options):
        solver = Mock(solve=lambda lists, start, seed: Solution(np.add(start, by, out=start), {}))
        return BatchTuner(collector_of(Pool(), fresh()), solver, **options)

    tuner = solved(1.0, interpolation=0.25)
    before = tuner.weights.parameter.detach().clone()
    for _ in tuner.round(1):
        assert tuner.moved > 0.0
    after = tuner.weights.parameter.detach()
    assert torch.equal(after[: before.numel()], before + 0.25)
    tuner = solved(np.inf)
    with pytest.raises(DivergenceError, match="has found weights that are not finite"):
        Rounds(tuner, tuner.score).run()


def test_pairs_are_all_that_some_solvers_need():
    collector = collector_of(Pool(), fresh())
    collector.collect()
    lists, start = collector.lists, np.zeros(5)
    sampler = ProSampler(candidates=20, pairs=4, threshold=0.01)
    for solver in (Pro(sampler), Stochastic(sampler, Hinge(), partial(SGD, lr=0.1))):
        short = solve_lists(solver, lists, start, (1, 2))
        assert np.array_equal(short.weights, solver.solve(lists.lists(), start, (1, 2)).weights)
    listwise = Stochastic(sampler, Softmax(), partial(SGD, lr=0.1))
    assert solve_lists(listwise, lists, start, (1,)).report["lists"] == 4


# Stochastic tuning.


def pairs_of(seed, n=30, d=7):
    rng = np.random.default_rng(seed)
    matrix = rng.integers(-2, 3, (n, d)) * (rng.random((n, d)) < 0.5) + 0.0
    return matrix, rows_of(matrix)


class Mine(Hinge):
    """Without compiled steps."""

    slope_kind = None


SLOPES = {kind: np.vectorize(slope) for kind, (_, slope) in PAIRWISE.items()}
SLOPES[Mine] = SLOPES[Hinge]
OPTIMIZERS = [
    (partial(CumulativeL1, lr=0.1, regularizer=L1(0.02), unregularized=2), EagerCumulativeL1),
    (partial(FOBOS, lr=0.3, regularizer=ElasticNet(0.03, 0.1), unregularized=2), EagerFobos),
    (partial(AdaGrad, lr=0.1, regularizer=L1(0.05), unregularized=2), EagerAdaGrad),
    (partial(SGD, lr=0.1), EagerSGD),
    (partial(SGD, lr=0.1, average="step"), EagerSGD),
]


@pytest.mark.parametrize("reduction", ["each", "sum", "mean"])
@pytest.mark.parametrize("loss", SLOPES)
@pytest.mark.parametrize(("optimizer", "kind"), OPTIMIZERS)
def test_passes_over_pairs(loss, optimizer, kind, reduction):
    matrix, pairs = pairs_of(4)
    start = np.linspace(-0.3, 0.3, 7)
    options = dict(optimizer.keywords)
    average = "average" in options
    solver = Stochastic(AllPairs(), loss(reduction), optimizer, 3, 8, average=average)
    solution = solver.solve_pairs(pairs, start, (5, 6))
    schedule = "1/t" if optimizer.func is FOBOS else "constant"
    twin = kind(start, options.pop("lr"), **options, schedule=schedule)
    generator, losses = np.random.default_rng((5, 6)), []
    size = 1 if reduction == "each" else 8
    for _ in range(3):
        order = generator.permutation(30)
        losses.clear()
        for begin in range(0, 30, size):
            part = matrix[order[begin : begin + size]]
            margins = part @ twin.w
            losses += loss()(torch.from_numpy(margins)).tolist()
            gradient = SLOPES[loss](margins) @ part
            if reduction == "mean":
                gradient = gradient / len(part)
            touched = np.flatnonzero(part.any(0))
            twin.step([(i, gradient[i]) for i in touched])
    expected = twin.averaged() if average else twin.w
    np.testing.assert_allclose(solution.weights, expected, rtol=1e-9, atol=1e-12)
    assert solution.report == {"loss": pytest.approx(np.mean(losses)), "pairs": 30}


def flat_of(gains, seed=0):
    rng = np.random.default_rng(seed)
    kbests = []
    for index, some in enumerate(gains):
        rows = rows_of(rng.integers(0, 3, (len(some), 4)) + 0.0)
        kbests.append(KBest(index=index, rows=rows, gain=np.array(some, float)))
    return KBestLists.of(kbests)


@pytest.mark.parametrize("loss", [Softmax("sum"), ExpectedGain(reduction="mean"), Softmax("each")])
def test_passes_over_lists(loss):
    lists = flat_of([[0.1, 0.5, 0.3], [0.4], [0.2, 0.2, 0.9], [0.7, 0.1], [0.3, 0.6, 0.5]])
    solution = Stochastic(AllPairs(), loss, partial(SGD, lr=0.1), 2, batch_size=2).solve(
        lists, np.full(4, 0.1), (8,)
    )
    w = torch.full((4,), 0.1, dtype=torch.float64, requires_grad=True)
    generator, size = np.random.default_rng((8,)), 1 if loss.reduction == "each" else 2
    matrix = torch.from_numpy(lists.rows.dense(4))
    for _ in range(2):
        order = generator.permutation([0, 2, 3, 4])
        for begin in range(0, 4, size):
            part = order[begin : begin + size]
            total = 0.0
            for s in part:
                span = slice(*lists.begin[s : s + 2].tolist())
                gains = torch.from_numpy(lists.gain[span])
                total = total + loss((matrix[span] @ w)[None], gains[None]).sum()
            if loss.reduction == "mean":
                total = total / len(part)
            (gradient,) = torch.autograd.grad(total, w)
            with torch.no_grad():
                w -= 0.1 * gradient
    np.testing.assert_allclose(solution.weights, w.detach().numpy(), rtol=1e-9, atol=1e-12)
    assert solution.report["lists"] == 4


@pytest.mark.parametrize("optimizer", [partial(torch.optim.SparseAdam, lr=0.1), FOBOS])
def test_an_average_that_nobody_keeps_is_refused_before_the_first_pass(optimizer):
    solver = Stochastic(AllPairs(), Perceptron(), optimizer, 10**9, average=True)
    with pytest.raises(ValueError, match="average.*is wanted, and the optimizer keeps none"):
        solver.solve_pairs(rows_of(np.ones((1, 1))), np.zeros(1), (0,))


@pytest.mark.parametrize("loss", [Hinge(), Softmax()])
def test_nothing_to_learn_from(loss):
    solver = Stochastic(AllPairs(), loss, partial(SGD, lr=0.1))
    with pytest.raises(InputError, match="no list has"):
        solver.solve(flat_of([[0.1], [0.2]]), np.zeros(4), (1,))

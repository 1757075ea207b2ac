"""Groups of features at the minimum, for the grouping tuner."""

import numpy as np
import pytest
from minimizer_reference import problem, rows_of
from test_grouping import Data, run_of

from torchtune_smt.core.errors import InputError
from torchtune_smt.kbest.lists import KBest
from torchtune_smt.minimizer import (
    Accuracy,
    Minimizer,
    SmoothedHinge,
    SquaredHinge,
    noise_draws,
    noise_scale,
)
from torchtune_smt.regularizers import Oscar
from torchtune_smt.samplers import ProSampler, pair_rows, shuffled_gains
from torchtune_smt.tuners.grouping.base import Problem
from torchtune_smt.tuners.grouping.groups import FeatureGroups
from torchtune_smt.tuners.grouping.minimum import MINIMIZER_LOSSES, BatchLearning, minimizer_loss
from torchtune_smt.tuners.grouping.prepared import PreparedLearning

OSCAR = Oscar(1e-4, 3e-4)
LOOSE = Accuracy(residual=1e-6, gap=1e-6)


def learn(x, n_dense=3, oscar=OSCAR, start=None, shown=None, **options):
    start = np.zeros(x.shape[1]) if start is None else start
    options = {"loss": SquaredHinge(), "accuracy": LOOSE, **options}
    show = (lambda *work: None) if shown is None else lambda *work: shown.append(work)
    return BatchLearning(oscar, **options).learn(Problem(rows_of(x), start, n_dense, (1,), show))


@pytest.mark.parametrize("loss", MINIMIZER_LOSSES.good)
def test_groups_are_those_of_the_minimum(loss):
    """They are numbered as those of a proximal step."""
    x, shown = problem(2), []
    loss = minimizer_loss(loss, 0.05)
    found = learn(x, loss=loss, shown=shown)
    minimizer = Minimizer(rows_of(x), 3, loss)
    minimum = minimizer.minimize(minimizer.penalty(1e-4, 3e-4), accuracy=LOOSE)
    assert np.array_equal(found.blocks, minimum.groups)
    groups = FeatureGroups.of(found.blocks, 3)
    for g in range(3, len(groups)):
        assert np.unique(minimum.weights[groups.group == g]).size == 1
    # Positive ones are even, and blocks descend.
    even = found.blocks[found.blocks >= 0] % 2 == 0
    assert np.array_equal(even, minimum.weights[found.blocks >= 0] > 0)
    assert {what for what, *_ in shown} == {"minimising"} and shown[-1][1] == shown[-1][2]
    assert f"{found.numbers['minimum/steps']} steps of Newton" in found.text


def test_a_fraction_means_the_same_for_any_size_of_the_features():
    x = problem(3)
    larger = x * np.append(np.ones(3), np.full(12, 50.0))
    one, scaled = learn(x, fraction=0.2), learn(larger, fraction=0.2)
    assert np.array_equal(one.blocks, scaled.blocks)
    assert scaled.numbers["minimum/lambda2"] == pytest.approx(50 * one.numbers["minimum/lambda2"])
    absolute = Oscar(one.numbers["minimum/lambda1"], one.numbers["minimum/lambda2"])
    again = learn(x, oscar=absolute)
    assert np.array_equal(again.blocks, one.blocks)
    assert again.numbers["minimum/fraction"] == pytest.approx(0.2)
    assert (learn(x, fraction=1.0).blocks < 0).all()


@pytest.mark.parametrize("loss", ["smoothed_hinge", "logistic"])
def test_a_path_to_the_minimum_leads_there_and_says_what_is_on_the_way(loss):
    x, shown = problem(6), []
    loss = minimizer_loss(loss, 0.05)
    found = learn(x, loss=loss, fraction=0.1, path=4, shown=shown)
    alone = learn(x, loss=loss, fraction=0.1)
    assert np.array_equal(found.blocks, alone.blocks)
    same = ("minimum/lambda1", "minimum/lambda2", "minimum/fraction", "minimum/reached")
    assert [found.numbers[name] for name in same] == [alone.numbers[name] for name in same]
    assert ("minimising", 4, 4, "value") in shown
    expected = []
    for part in (1, 0.1 ** (1 / 3), 0.1 ** (2 / 3), 0.1):
        blocks = learn(x, loss=loss, fraction=part).blocks
        values, counts = np.unique(blocks[blocks >= 0], return_counts=True)
        left = f"{counts.sum()} features in {values.size} groups, the largest has "
        left = left + f"{counts.max()}" if counts.size else "no feature"
        expected.append(f"{part:.3g} of lambda_max leaves {left}")
    assert list(found.remarks[:4]) == expected and len(set(expected)) == 4
    # Where nothing survives there is no path to go, which is said.
    none, said = learn(x, oscar=Oscar(1.0, 1.0), path=4).remarks
    assert said.startswith("a path goes down from lambda_max, and these lambdas")
    assert "no sparse feature survives: from lambda_max on none does, which is" in none
    short = learn(x, loss=loss, fraction=0.1, path=3, accuracy=Accuracy(seconds=1e-9))
    assert all("(the minimum was not reached)" in said for said in short.remarks[:3])


def test_pairs_of_all_kinds():
    x = problem(4)
    with pytest.raises(InputError, match="there are no pairs to learn from: lower sampler.thr"):
        learn(x[:0])
    assert (learn(x[:1], n_dense=0, fraction=0.5).blocks >= 0).any()
    whole, twice = learn(x, fraction=0.2), learn(np.vstack([x, x]), fraction=0.2)
    assert np.array_equal(whole.blocks, twice.blocks)
    assert "a smaller regularizer.fraction" in whole.why_none
    for options in ({"fraction": 0.2}, {}):
        none = learn(np.vstack([x, -x]), **options).why_none
        assert none == "lambda_max is 0, and no smaller lambdas leave any"
    dense = x * (np.arange(15) < 3)
    assert "no sparse feature differs in any pair" in learn(dense, fraction=0.2).remarks[0]
    assert (learn(dense).blocks < 0).all()


@pytest.mark.parametrize("loss", MINIMIZER_LOSSES.good)
def test_where_rounding_is_all_that_is_left_to_sparse_features_no_part_of_it_groups_any(loss):
    """Pairs and their reverses, and sparse features that say what dense ones do."""
    x = np.random.default_rng(0).normal(size=(80, 6))
    same = np.column_stack([x[:, :3], x[:, 0], x[:, 1] - x[:, 2], x[:, 2]])
    for pairs in (np.vstack([x, -x]), same):
        found = learn(pairs, 3, loss=minimizer_loss(loss, 5e-4), fraction=0.1)
        assert (found.blocks < 0).all() and "lambda_max is 0" in found.remarks[0]
        assert "dense features tell all" in found.remarks[0]


def test_a_time_limit_says_which_gap_is_left():
    found = learn(problem(d=100), accuracy=Accuracy(seconds=1e-9))
    assert found.numbers["minimum/reached"] == 0
    assert found.why_none.startswith("the minimum was not reached")
    assert "the time is up" in found.remarks[0] and "of it above the minimum" in found.remarks[0]


def test_where_weights_begin_does_not_matter():
    x = problem(5)
    x[:, 1] = 0.0
    start = np.append([0.2, 7.0, -0.1], np.full(12, 3.0))
    assert np.array_equal(learn(x, start=start).blocks, learn(x).blocks)


# --- the strength at which noise has no weight ---

SAMPLER = ProSampler(candidates=500, pairs=20)
N_DENSE = 2
NORMS = {"oscar": Oscar(0.0, 1.0), "both": Oscar(1.0, 0.01)}


def made(seed, weights, lists, dense=0.0, size=30):
    """Lists of hypotheses with some 8 of the sparse features each, whose frequencies are Zipf's.

    Gains are what the sparse features weigh, a normal error of 0.3, and `dense` times the first
    of two dense features.
    """
    draw = np.random.default_rng(seed)
    often = 1 / np.arange(1, weights.size + 1)
    often = np.minimum(1.0, 8 * often / often.sum())
    found = []
    for index in range(lists):
        x = draw.normal(size=(size, N_DENSE + weights.size))
        x[:, N_DENSE:] = draw.random((size, weights.size)) < often
        gain = x[:, N_DENSE:] @ weights + dense * x[:, 0] + 0.3 * draw.normal(size=size)
        found.append(KBest(rows=rows_of(x), gain=gain, index=index))
    return found


def learnt(lists, oscar, seed=0, prepared=False, **options):
    size = 1 + max(kbest.rows.limits[1] for kbest in lists)

    def noise(number):
        shuffled = (shuffled_gains(kbest, (seed, 7, number), N_DENSE) for kbest in lists)
        return pair_rows(shuffled, SAMPLER, (seed, 8, number))

    learner = BatchLearning(oscar, SmoothedHinge(5e-3), **{"noise": 0.95, **options})
    if prepared:
        learner = PreparedLearning(oscar, learner, "rms", True)
    problem = Problem(pair_rows(lists, SAMPLER, (seed, 1)), np.zeros(size), N_DENSE, (seed,))
    found = learner.calibrated(noise, problem).find(problem)
    return found.blocks[N_DENSE:] >= 0, found


@pytest.mark.parametrize("dense", [0.0, 0.3])
def test_noise_has_no_weight(dense):
    """Whatever a tenth of λ_max makes of it."""
    kept = []
    for seed in range(6):
        lists = made(seed, np.zeros(100), 40, dense)
        kept.append(learnt(lists, NORMS["oscar"], seed)[0].sum())
    assert np.count_nonzero(kept) <= 1
    assert learnt(lists, NORMS["oscar"], noise=None, fraction=0.1)[0].sum() > 5


@pytest.mark.parametrize(("norm", "prepared"), [("both", False), ("oscar", True)])
def test_what_is_true_keeps_its_weight(norm, prepared):
    """30 features of 100, of which the most frequent one fires 30 times as often as the last."""
    true = np.zeros(100)
    true[:30] = 0.3 * np.random.default_rng(1).choice([-1.0, 1.0], 30)
    kept, found = learnt(made(2, true, 300), NORMS[norm], prepared=prepared)
    assert kept[:30].sum() >= 20 and kept[30:].sum() <= 5
    assert "where noise has no weight in 0.95 of draws" in found.text


def test_gains_are_dealt_out_to_strings_with_their_dense_features():
    draw = np.random.default_rng(4)
    x = draw.normal(size=(6, 5))
    string = np.array([0, 1, 0, 2, 3, 1])
    gain = np.array([0.1, 0.2, 0.3, 0.4])[string]
    x[:, 0] = gain
    tokens = {"token_begin": np.arange(7), "tokens": string.astype(np.int32)}
    kbest, seen = KBest(rows=rows_of(x), gain=gain, index=3, **tokens), set()
    for seed in range(20):
        shuffled = shuffled_gains(kbest, (seed,), N_DENSE)
        values = shuffled.rows.dense(5)
        assert np.array_equal(values[:, N_DENSE:], x[:, N_DENSE:])
        assert np.array_equal(values[:, 0], shuffled.gain)
        assert shuffled.gain[0] == shuffled.gain[2] and shuffled.gain[1] == shuffled.gain[5]
        assert set(shuffled.gain) == set(gain)
        shuffled.rows.check()
        seen.add(tuple(shuffled.gain))
    assert len(seen) > 5
    same = shuffled_gains(kbest, (19,), N_DENSE)
    assert np.array_equal(same.gain, shuffled.gain)
    assert np.array_equal(shuffled_gains(kbest, (19,)).rows.dense(5), x)


@pytest.mark.parametrize(("share", "draws"), [(0.95, 19), (0.9, 9), (0.99, 99), (0.5, 1), (0.1, 1)])
def test_the_strength_is_the_largest_of_the_draws(share, draws):
    """So that one more of them lies above it in 1 - share of all cases."""
    assert noise_draws(share) == draws
    x, loss, told = np.random.default_rng(5).normal(size=(draws, 50, 6)), SmoothedHinge(0.1), []
    minimizers = [Minimizer(rows_of(some), N_DENSE, loss) for some in x]
    penalty = minimizers[0].penalty(0.0, 1.0)
    found = noise_scale(
        lambda n: rows_of(x[n]), penalty, N_DENSE, loss, share, on_draw=lambda *n: told.append(n)
    )
    assert found == max(some.largest_scale(penalty) for some in minimizers)
    assert told == [(n + 1, draws) for n in range(draws)]


def test_two_strengths_or_none():
    with pytest.raises(ValueError, match="noise and fraction"):
        BatchLearning(Oscar(), noise=0.95, fraction=0.1)
    with pytest.raises(InputError, match=r"regularizer.dimension=5"):
        learnt(made(0, np.zeros(10), 20), Oscar(0.0, 1.0, 5))


@pytest.mark.parametrize("prepared", [False, True])
def test_the_tuner_draws_noise_once_an_iteration(prepared):
    """With a count of its draws; what it finds is the same each time."""
    learning = BatchLearning(Oscar(0.0, 1.0), noise=0.75)
    if prepared:
        learning = PreparedLearning(learning.regularizer, learning, "rms", True)
    strengths = []
    for _ in range(2):
        rounds = Data(6).rounds(learning=learning, rounds=2)
        _, told = run_of(rounds, -1.0)
        strengths.append([part.numbers["minimum/lambda2"] for part in told.reports["part"]])
        shown = [work for work in told.work if work[0] == "shuffling gains"]
        assert shown == [("shuffling gains", n, 3, "draw") for n in (1, 2, 3)] * 2
    assert strengths[0] == strengths[1] and len(set(strengths[0])) == 2

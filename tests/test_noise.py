"""The strength at which noise has no weight."""

from collections import Counter

import numpy as np
import pytest
from minimizer_reference import rows_of
from test_grouping import Data, run_of

from torchtune_smt.core.arrays import Float64
from torchtune_smt.core.errors import InputError
from torchtune_smt.kbest.lists import KBest
from torchtune_smt.minimizer import Minimizer, SmoothedHinge, noise_draws, noise_scale
from torchtune_smt.regularizers import Oscar
from torchtune_smt.samplers import ProSampler, pair_rows, shuffled_gains
from torchtune_smt.tuners.grouping.base import Problem
from torchtune_smt.tuners.grouping.minimum import BatchLearning
from torchtune_smt.tuners.grouping.prepared import PreparedLearning

SAMPLER = ProSampler(candidates=500, pairs=20)
N_DENSE = 2
NORMS = {"oscar": Oscar(0.0, 1.0), "l1": Oscar(1.0, 0.0), "both": Oscar(1.0, 0.01)}


def made(
    seed: int, weights: Float64, lists: int, dense: float = 0.0, size: int = 30
) -> list[KBest]:
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
    """Return which sparse features are in groups, and the strength of the norm."""
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
    for seed in range(10):
        lists = made(seed, np.zeros(100), 40, dense)
        kept.append(learnt(lists, NORMS["oscar"], seed)[0].sum())
    assert np.count_nonzero(kept) <= 1
    assert learnt(lists, NORMS["oscar"], noise=None, fraction=0.1)[0].sum() > 5


@pytest.mark.parametrize(
    ("norm", "prepared"), [("oscar", False), ("l1", False), ("both", False), ("oscar", True)]
)
def test_what_is_true_keeps_its_weight(norm, prepared):
    """30 features of 100, of which the most frequent one fires 30 times as often as the last."""
    true = np.zeros(100)
    true[:30] = 0.3 * np.random.default_rng(1).choice([-1.0, 1.0], 30)
    kept, found = learnt(made(2, true, 300), NORMS[norm], prepared=prepared)
    assert kept[:30].sum() >= 20 and kept[30:].sum() <= 5
    assert "where noise has no weight in 0.95 of draws" in found.text


def test_with_features_of_one_size_rare_ones_stay_too():
    true = np.zeros(100)
    true[:30] = 0.3
    lists = made(6, true, 100)
    kept, _ = learnt(lists, NORMS["oscar"])
    scaled, _ = learnt(lists, NORMS["oscar"], prepared=True)
    assert scaled[:30].sum() > kept[:30].sum() + 3 and scaled[30:].sum() <= 3


def test_what_dense_features_say_is_no_noise():
    """They tell nearly all pairs, which leaves little to be told by chance."""
    true = np.zeros(100)
    true[:10] = 0.3
    lists = made(3, true, 200, dense=0.5)
    kept, _ = learnt(lists, NORMS["oscar"])
    assert kept[:10].sum() >= 5 and kept[10:].sum() <= 3


def test_gains_are_dealt_out_to_strings_with_their_dense_features():
    draw = np.random.default_rng(4)
    x = draw.normal(size=(6, 5))
    string = np.array([0, 1, 0, 2, 3, 1])
    gain = np.array([0.1, 0.2, 0.3, 0.4])[string]
    x[:, 0] = gain
    kbest = KBest(
        rows=rows_of(x),
        gain=gain,
        token_begin=np.arange(7),
        tokens=string.astype(np.int32),
        index=3,
    )
    seen = set()
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
    lists = made(0, np.zeros(10), 5)
    with pytest.raises(ValueError, match="calibrated"):
        BatchLearning(Oscar(), noise=0.95).find(
            Problem(pair_rows(lists, SAMPLER, (0,)), np.zeros(12), N_DENSE)
        )
    with pytest.raises(InputError, match=r"regularizer.dimension=5"):
        learnt(made(0, np.zeros(10), 20), Oscar(0.0, 1.0, 5))


@pytest.mark.parametrize("prepared", [False, True])
def test_the_tuner_draws_noise_once_an_iteration(prepared):
    """With a count of its draws; what it finds is the same each time."""
    learning, shown = BatchLearning(Oscar(0.0, 1.0), noise=0.75), []
    if prepared:
        learning = PreparedLearning(learning.regularizer, learning, "rms", True)
    found = []
    for _ in range(2):
        rounds = Data(6).rounds(learning=learning, rounds=2)
        rounds.progress.note_start(-1.0, rounds.tuner.weights.parameter)
        told = run_of(rounds)[1]
        found.append([part.numbers for part in told.reports["part"]])
        shown += told.work
    strengths = [[part["minimum/lambda2"] for part in parts] for parts in found]
    assert strengths[0] == strengths[1] and len(set(strengths[0])) == 2
    assert {part["minimum/reached"] for part in found[0]} == {1}
    counts = Counter(work for work in shown if work[0] == "shuffling gains")
    assert counts == {("shuffling gains", n, 3, "draw"): 4 for n in (1, 2, 3)}


def test_no_feature_says_more_than_noise_does():
    rounds = Data(7).rounds(learning=BatchLearning(Oscar(0.0, 1.0), noise=0.95), rounds=1)
    rounds.progress.note_start(-1.0, rounds.tuner.weights.parameter)
    part = run_of(rounds)[1].reports["part"][0]
    assert part.numbers["groups/number"] == 0
    assert "no feature says more than noise does" in part.text

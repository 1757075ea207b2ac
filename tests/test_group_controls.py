"""Groups that nothing was learnt for, and clusters of weights."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from minimizer_reference import rows_of
from test_grouping import Data, run_of

from torchtune_smt.regularizers import Oscar
from torchtune_smt.tuners.grouping.base import Problem
from torchtune_smt.tuners.grouping.controls import (
    ClusteredWeights,
    RandomPairs,
    clusters,
    controlled,
)
from torchtune_smt.tuners.grouping.steps import GroupLearning


def test_single_features_and_shuffled_groups():
    blocks = np.array([3, -1, 4, 4, -1, 7, -1, 4])
    pairs = rows_of(np.eye(8)[[0, 2, 3, 5, 6, 7]])
    single = controlled(blocks, "single", pairs, 2, (1,))
    assert np.array_equal(single >= 0, (blocks >= 0) & (np.arange(8) >= 2))
    assert np.unique(single[single >= 0]).size == 4
    drawn = [controlled(blocks, "shuffled", pairs, 2, (seed,)) for seed in range(30)]
    for shuffled in drawn:
        assert sorted(shuffled[2:]) == sorted(blocks[2:])
        # Feature 4 fires in no pair, and is in no group.
        assert shuffled[4] == -1
    assert {int(np.flatnonzero(shuffled == 7)[0]) for shuffled in drawn} == {2, 3, 5, 6, 7}
    assert np.array_equal(drawn[3], controlled(blocks, "shuffled", pairs, 2, (3,)))
    assert blocks[0] == 3


def test_groups_of_random_pairs():
    """The pairs that are told wrongly, or hardly; better and worse sides; the first pair counts."""
    x = np.array([[1.0, 1, -1, 0, 0, 0], [1, 0, 0, 2, 0, 0], [0, 0, 1, 0, 1, -1]])
    start = np.array([0.0, 0, 0, 1, 0, 0])
    found = RandomPairs(Oscar(0.0, 0.1, 5)).learn(Problem(rows_of(x), start, 1, (1, 1)))
    # 1 / (0.1 * 5) = 2 pairs, and the second one has a margin of 2.
    assert found.numbers["control/pairs"] == 2 and found.text == "2 random pairs"
    assert found.blocks[0] == found.blocks[3] == -1
    assert np.unique(found.blocks[[1, 2, 4, 5]]).size == 4 or found.blocks[2] == found.blocks[4]
    assert found.blocks[1] != found.blocks[2] and found.blocks[4] != found.blocks[5]
    few = RandomPairs(Oscar(0.0, 0.2, 5)).learn(Problem(rows_of(x), start, 1, (1, 1)))
    assert np.count_nonzero(few.blocks >= 0) in (2, 3)


@given(values=st.lists(st.sampled_from([0.1, 0.5, 0.50001, 2.0, 7.0, 7.1]), max_size=12))
def test_clusters_are_intervals(values):
    values = np.array(values)
    found = clusters(values, 3)
    if values.size == 0:
        assert found.size == 0
        return
    assert set(found) == set(range(found.max() + 1)) and found.max() < 3
    order = np.argsort(-values, kind="stable")
    assert (np.diff(found[order]) >= 0).all()
    for value in values:
        assert np.unique(found[values == value]).size == 1
    apart = np.array([1.0, 1.1, 5.0, 5.1, 9.1, 9.0])
    assert clusters(apart, 3).tolist() == [2, 2, 1, 1, 0, 0]
    assert np.unique(clusters(apart, 50)).size == 6


def test_groups_are_clusters_of_weights_that_pairs_support():
    """Four features of each of two strengths and signs, and some that mean nothing."""
    draw = np.random.default_rng(0)
    w = np.repeat([3.0, 1.0, -1.0, -3.0, 0.0], 4)
    x = (draw.random((4000, 20)) < 0.3) * draw.choice([-1.0, 1.0], (4000, 20))
    x *= np.where(x @ w < 0, -1.0, 1.0)[:, None]
    learning = ClusteredWeights(Oscar(), count=2, lr=0.05, strength=0.002, passes=5)
    found = learning.learn(Problem(rows_of(x), np.zeros(20), 0, (1, 1)))
    assert found.blocks[:16].tolist() == [0] * 4 + [2] * 4 + [3] * 4 + [1] * 4


def test_the_tuner_takes_them():
    part = {}
    learning = GroupLearning(Oscar(1e-3, 0.05), passes=3)
    for control in ("none", "single", "shuffled"):
        rounds = Data(4).rounds(learning=learning, rounds=1, control=control)
        _, told = run_of(rounds)
        part[control] = told.reports["part"][0].numbers
    assert part["none"]["groups/features"] == part["single"]["groups/features"]
    assert part["single"]["groups/number"] == part["single"]["groups/features"]
    assert part["none"]["groups/number"] == part["shuffled"]["groups/number"]
    for learning, why in (
        (RandomPairs(Oscar(0.0, 0.1)), "of those with margins below 1"),
        (ClusteredWeights(Oscar(), strength=9.0), "a smaller tuner.clusters.strength leaves more"),
    ):
        found = learning.learn(Problem(rows_of(np.full((2, 2), 5.0)), np.ones(2), 0))
        assert (found.blocks < 0).all() and found.why_none.endswith(why)

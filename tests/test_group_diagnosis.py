"""What is said of groups that were learnt from random steps, and what they are compared with."""

from dataclasses import replace
from itertools import combinations
from unittest.mock import Mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from minimizer_reference import problem, rows_of
from test_grouping import SAMPLER, Data, run_of

from torchtune_smt.core.errors import DivergenceError, InputError
from torchtune_smt.regularizers import Oscar
from torchtune_smt.samplers import AllPairs, pair_rows
from torchtune_smt.tuners.grouping.base import (
    ORDER,
    SAMPLE,
    Problem,
    compared,
    fired_last,
    lifetime,
    overlap,
)
from torchtune_smt.tuners.grouping.controls import (
    ClusteredWeights,
    RandomPairs,
    clusters,
    controlled,
)
from torchtune_smt.tuners.grouping.minimum import BatchLearning
from torchtune_smt.tuners.grouping.prepared import PreparedLearning
from torchtune_smt.tuners.grouping.steps import GroupLearning, MixedLearning

blocks = st.lists(st.integers(-1, 3), min_size=9, max_size=9).map(np.array)


def jaccard(one, other):
    return len(one & other) / len(one | other) if one | other else 1.0


@given(one=blocks, other=blocks)
def test_the_overlap_is_that_of_sets(one, other):
    found = overlap(one, other)
    members = [{j for j in range(9) if b[j] >= 0} for b in (one, other)]
    together = [
        {(i, j) for i, j in combinations(range(9), 2) if b[i] == b[j] >= 0} for b in (one, other)
    ]
    assert found.features == pytest.approx(jaccard(*members))
    assert found.together == pytest.approx(jaccard(*together))
    assert found.pairs == len(together[0] | together[1])


def test_how_long_a_weight_lives():
    assert lifetime(Oscar(0.0, 3e-8), 970_826) == 35
    assert lifetime(Oscar(0.5, 0.0), 10) == 2
    assert lifetime(Oscar(0.0, 0.0), 10) > 10**18


def test_which_features_fire_last():
    pairs = rows_of(np.array([[1.0, 0, 1, 0], [0, 1, 0, 0], [0, 0, 0, 1]]))
    grouped = np.array([-1, 0, 0, 1])
    assert fired_last(pairs, np.array([0, 0]), grouped) == pytest.approx(1 / 3)
    assert fired_last(pairs, np.array([1, 2, 0]), grouped) == 1.0
    assert fired_last(pairs, np.array([], np.int64), grouped) == 0.0
    assert fired_last(pairs, np.array([0]), np.full(4, -1)) == 0.0


def test_groups_that_pairs_support_depend_on_it_where_features_mean_as_much_on_their_own():
    """Two sets of six features, each of which always fires together, or each on its own."""
    for sets, least, most in ((2, 0.9, 1.0), (12, 0.0, 0.2)):
        fires = np.random.default_rng(1).random((2000, sets)) < 0.5
        x = np.repeat(fires, 12 // sets, axis=1) * np.repeat([1.0, -1.0], 6)
        problem = Problem(rows_of(x), np.zeros(12), 0, (1, 1))
        found = GroupLearning(Oscar(0.0, 1e-3), passes=20).learn(problem)
        assert found.numbers["diagnosis/overlap_features"] > 0.9
        assert least <= found.numbers["diagnosis/overlap_together"] <= most
        share = "warning: which features share a group depends on the order"
        assert any(share in remark for remark in found.remarks) == (sets == 12)


HAVE, SHARE, BOTH = "have a group", "share a group", "and so does which of them share one"


@pytest.mark.parametrize(
    ("one", "other", "said", "warning"),
    [
        # The same features, the other ones of which share a group.
        ([0, 0, 1, 1], [0, 1, 0, 1], "and 0% of the pairs", SHARE),
        ([0, 0, -1, -1, -1], [0, 0, 1, 2, 3], "and 100% of", HAVE),
        ([0, 0, -1, -1], [-1, 0, 0, -1], "and 0% of the pairs", BOTH),
        # Groups in one of the orders alone.
        ([-1, -1], [0, 0], "0% of the features", BOTH),
        ([-1, -1], [0, 1], "0% of the features", HAVE),
        # No two features share a group.
        ([0, 1, 2], [0, 1, -1], "67% of the features in groups are the same", None),
        ([0, 0, 1, 2], [5, 5, 2, 2], "and 50% of the pairs of features in one group", None),
    ],
)
def test_what_is_said_of_two_sets_of_groups(one, other, said, warning):
    for blocks in ((one, other), (other, one)):
        (first, *rest), numbers = compared(*map(np.array, blocks), ORDER)
        assert said in first
        shared = any(b >= 0 and side.count(b) > 1 for side in blocks for b in side)
        assert ("of the pairs of features in one group" in first) == shared
        assert [*numbers.values()] == [*overlap(*map(np.array, blocks))[:2]]
        warnings = {None: [], BOTH: [HAVE, BOTH]}.get(warning, [warning])
        assert [w for w in (HAVE, SHARE, BOTH) if any(w in r for r in rest)] == warnings


def test_advice_fits_what_was_varied():
    none, blocks = np.full(4, -1), np.array([0, 0, 1, 1])
    assert compared(none, none, ORDER) == ((), {})
    (first, sharing), _ = compared(blocks, np.array([0, 1, 0, 1]), SAMPLE)
    assert first.startswith("with other pairs of the same lists 100% of")
    assert sharing.endswith("tuner.control=single does without sharing")
    assert "(sampler.pairs), or more sentences" in compared(blocks, none, SAMPLE)[0][1]


@pytest.mark.parametrize("prepared", [False, True])
def test_the_overlap_of_minima_of_two_samples(prepared):
    """Other pairs have features of other sizes, too, and a lambda_max of their own."""
    oscar = Oscar(1e-3, 1.0)
    learner = BatchLearning(oscar, fraction=0.2)
    if prepared:
        learner = PreparedLearning(oscar, learner, "rms", True)
    rounds = Data(6).rounds(learning=learner, rounds=1)
    _, told = run_of(rounds)
    numbers = told.reports["part"][0].numbers
    start = np.zeros(len(rounds.tuner.weights.features))
    start[:2] = 0.3, -0.1
    oscar = replace(oscar, dimension=int(numbers["oscar/dimension"]))
    learner, found = replace(learner, regularizer=oscar), []
    for stream in (1, 6):
        pairs = pair_rows(rounds.tuner.train.lists, SAMPLER, (5, 1, stream))
        found.append(learner.find(Problem(pairs, start, 2)).blocks[2:])
    common = overlap(*found)
    assert numbers["diagnosis/overlap_features"] == common.features
    assert numbers["diagnosis/overlap_together"] == common.together
    assert numbers["groups/features"] == np.count_nonzero(found[0] >= 0)
    # Chance has a part in it.
    assert min(common.features, common.together) < 1


def test_pairs_that_no_seed_changes_are_not_minimised_again():
    rounds = Data(4).rounds(learning=BatchLearning(Oscar(0.0, 1.0), fraction=0.3), rounds=1)
    rounds.tuner.sampler = AllPairs()
    _, told = run_of(rounds)
    (part,) = told.reports["part"]
    assert "with another seed, which draws the same pairs, 100% of the features in" in part.text
    assert part.numbers["diagnosis/overlap_features"] == 1.0
    assert not any(what == "minimising again" for what, *_ in told.work)


@pytest.mark.parametrize(
    ("drawn", "said"),
    [
        ([rows_of(np.ones((0, 4)))], "there are no pairs to learn from"),
        (DivergenceError("a margin"), "a margin"),
        (MemoryError(), "there is no memory for it"),
    ],
)
def test_other_pairs_of_which_nothing_can_be_learnt_are_no_end(drawn, said):
    learner = BatchLearning(Oscar(0.1, 0.1, dimension=2))
    problem = Problem(rows_of(np.eye(4)[:2]), np.zeros(4), 0)
    alone, found = learner.learn(problem), learner.learn(problem, Mock(side_effect=drawn))
    assert np.array_equal(found.blocks, alone.blocks)
    assert f"with other pairs of the same lists nothing can be learnt: {said}" in found.remarks[-1]
    assert found.remarks[:-1] == alone.remarks and found.numbers == alone.numbers


@pytest.mark.parametrize("learner", [GroupLearning, MixedLearning])
def test_groups_of_steps_do_not_need_the_distance_from_the_minimum(learner, monkeypatch):
    """The minimiser may have no room for the pairs."""
    pairs = Problem(rows_of(problem(1)), np.zeros(15), 3, (1,))
    learner = learner(Oscar(1e-4, 1e-4), passes=2)
    expected, without_room = learner.find(pairs), Mock(side_effect=InputError("no room"))
    monkeypatch.setattr("torchtune_smt.tuners.grouping.base.certificate_of", without_room)
    found = learner.find(pairs)
    assert np.array_equal(found.blocks, expected.blocks)
    said = "how far these weights are from the minimum is not known: no room"
    assert said in found.remarks and said not in expected.remarks
    assert "diagnosis/objective" in expected.numbers.keys() - found.numbers.keys()


# Groups to compare with: nothing was learnt for them, or they are clusters of weights.


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

"""Groups learnt from scaled features, and from those that fire together taken as one."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from minimizer_reference import fista, objective, problem, rows_of
from test_grouping import Data, run_of

from torchtune_smt.core.vocabulary import Vocabulary
from torchtune_smt.minimizer import Accuracy, Minimizer, SquaredHinge
from torchtune_smt.regularizers import Oscar
from torchtune_smt.tuners.grouping.base import Problem
from torchtune_smt.tuners.grouping.groups import FeatureGroups, read_groups, save_groups
from torchtune_smt.tuners.grouping.minimum import BatchLearning
from torchtune_smt.tuners.grouping.prepared import PreparedLearning, prepared_pairs
from torchtune_smt.tuners.grouping.steps import GroupLearning

OSCAR = Oscar(1e-4, 3e-4)
EXACT = Accuracy(residual=1e-9, gap=1e-9)
BATCH = BatchLearning(OSCAR, SquaredHinge(), accuracy=EXACT)
ONLINE = GroupLearning(Oscar(1e-3, 5e-3), passes=3)
some = hnp.arrays(
    np.float64, st.tuples(st.integers(1, 6), st.integers(2, 7)), elements=st.integers(-2, 2)
)


def learn(x, learner=BATCH, n_dense=3, **options):
    learning = PreparedLearning(learner.regularizer, learner, **options)
    return learning.learn(Problem(rows_of(x), np.zeros(x.shape[1]), n_dense, (1,)))


@given(some, st.sampled_from(["none", "rms"]), st.booleans(), st.integers(0, 2), st.data())
def test_against_plain_matrices(x, scaling, merge, n_dense, data):
    d = x.shape[1]
    found = prepared_pairs(rows_of(x), n_dense, d, scaling=scaling, merge_identical=merge)
    scaled, one, factor = x.copy(), list(range(d)), np.ones(d)
    for j in range(n_dense, d):
        rms = np.sqrt((x[:, j] ** 2).mean())
        if scaling == "rms" and rms > 0:
            factor[j] = 1 / rms
            scaled[:, j] = x[:, j] * (1 / rms)
    for j in range(n_dense, d) if merge else ():
        if x[:, j].any():
            alike = [i for i in range(n_dense, j) if np.array_equal(scaled[:, i], scaled[:, j])]
            one[j] = min(alike, default=j)
    for j in range(d):
        factor[j] /= one.count(one[j])
        if one[j] != j:
            scaled[:, j] = 0
    assert found.one.tolist() == one
    assert np.allclose(found.factor, factor, rtol=1e-15, atol=0)
    found.pairs.check(d)
    assert np.allclose(found.pairs.dense(d), scaled, rtol=1e-15, atol=0)
    # One weight for those that are one gives the same margins, and so do weights from before.
    v = data.draw(hnp.arrays(np.float64, d, elements=st.integers(-3, 3)))
    assert np.allclose(x @ (found.factor * v[found.one]), scaled @ v, rtol=0, atol=1e-12)
    assert np.allclose(found.pairs.dot(found.weights(v)), x @ v, rtol=0, atol=1e-12)


@pytest.mark.parametrize("times", [0.1, 3.0, 7.0, 1e-30])
def test_multiples_are_one_once_they_are_scaled(times):
    """Whatever rounding does to them; one of the other sign is not, nor one of another shape."""
    for seed in range(40):
        draw = np.random.default_rng(seed)
        column = draw.choice([-2.0, -1.0, 0.0, 1.0, 3.0], int(draw.integers(3, 200)))
        column[:2] = 1.0, 3.0
        other = column.copy()
        other[1] = 2.0
        x = np.stack([np.ones(column.size), column, times * column, -column, other], axis=1)
        one = prepared_pairs(rows_of(x), 1, 5, scaling="rms", merge_identical=True).one
        assert one.tolist() == [0, 1, 1, 3, 4]
        one = prepared_pairs(rows_of(x), 1, 5, scaling="none", merge_identical=True).one
        assert one.tolist() == [0, 1, 2, 3, 4]


@given(some, st.data())
def test_scaling_is_undone_when_groups_are_unpacked(x, data):
    """Rows over groups, and the weights of these, score as single features do."""
    d = x.shape[1]
    blocks = data.draw(hnp.arrays(np.int64, d, elements=st.integers(-1, 3)))
    some = hnp.arrays(np.float64, d, elements=st.floats(0.01, 100))
    factor = data.draw(st.none() | some)
    keep = data.draw(st.none() | hnp.arrays(bool, d))
    groups = FeatureGroups.of(blocks, 2, keep_zeros=keep, factor=factor)
    if factor is not None:
        assert (groups.factor[groups.group >= 2] == factor[groups.group >= 2]).all()
    # A factor times a number near the smallest ones has no 12 digits.
    normal = st.floats(-2, 2).filter(lambda w: w == 0.0 or abs(w) > 1e-290)
    weights = data.draw(hnp.arrays(np.float64, len(groups), elements=normal))
    unpacked = groups.unpack(weights, d + 3)
    rows = groups.project(rows_of(np.hstack([x, np.ones((len(x), 3))])), d + 3)
    assert np.allclose(rows.dot(weights), x @ unpacked[:d], rtol=1e-12, atol=1e-9)
    assert not unpacked[d:].any()
    assert np.allclose(groups.pack(unpacked), weights, rtol=1e-12, atol=0)
    assert np.allclose(groups.mean(unpacked), weights, rtol=1e-12, atol=0)


@pytest.mark.parametrize("learner", [BATCH, ONLINE])
@pytest.mark.parametrize("scaling", ["none", "rms"])
def test_features_that_were_one_are_in_one_group(learner, scaling):
    """Features 3 and 4 of the problem always fire together; 15 is 4 in another unit."""
    x = problem(2)
    x = np.hstack([x, 4.0 * x[:, [4]]])
    learning = PreparedLearning(learner.regularizer, learner, scaling, merge_identical=True)
    given = Problem(rows_of(x), np.zeros(x.shape[1]), 3, (1,))
    found, again = learning.learn(given), learning.again(given)
    together = [3, 4, 15] if scaling == "rms" else [3, 4]
    assert found.numbers["merged/features"] == len(together) and found.numbers["merged/left"] == 1
    merged = f"{len(together)} features that always fire with others were"
    assert sum(merged in remark for remark in found.remarks) == 1
    assert (found.blocks[together] == found.blocks[3]).all() and found.blocks[3] >= 0
    # By other random numbers, too; the minimum, in which nothing is random, is the same.
    assert again[3] == again[4] >= 0
    assert np.array_equal(found.blocks, again) == (learner is BATCH)


def test_twins_of_a_feature_at_the_boundary_are_at_it_too():
    """Of a feature alone and of one with a twin, both just where nothing survives."""
    draw = np.random.default_rng(0)
    x = (draw.random((200, 4)) < 0.5).astype(float)
    x[:, 2] = x[:, 0]
    minimizer = Minimizer(rows_of(x[:, [0, 1, 3]]), 0, SquaredHinge())
    rough = BatchLearning(
        Oscar(minimizer.largest_scale(minimizer.penalty(1.0, 0.0)), 0.0),
        SquaredHinge(),
        accuracy=Accuracy(residual=0.5, gap=0.5),
    )
    found = learn(x, rough, n_dense=0, merge_identical=True)
    alone = rough.learn(Problem(rows_of(x[:, [0, 1, 3]]), np.zeros(3), 0, (1,)))
    assert 0 in alone.boundary
    expected = {(0, 1, 3)[j] for j in alone.boundary.tolist()} | {2}
    assert found.boundary.tolist() == sorted(expected)


def test_the_problem_that_is_solved_with_merged_features():
    """OSCAR of their sums, each of which has one rank; d counts all of them."""
    x = problem(5, d=8)
    x[:, 6] = x[:, 3]
    prepared = prepared_pairs(rows_of(x), 3, 11, scaling="none", merge_identical=True)
    assert prepared.one.tolist() == [0, 1, 2, 3, 3, 5, 3, 7, 8, 9, 10]
    minimizer = Minimizer(prepared.pairs, 3, SquaredHinge(), 11)
    by_hand = np.delete(x, [4, 6], axis=1)
    whole = Minimizer(rows_of(x), 3, SquaredHinge())
    for lambda1, lambda2 in ((1e-3, 4e-3), (2e-2, 0.0)):
        penalty = minimizer.penalty(lambda1, lambda2, 8)
        merged = minimizer.minimize(penalty, accuracy=EXACT)
        reference = fista(by_hand, 3, SquaredHinge(), penalty, 4000)
        least = objective(by_hand, 3, SquaredHinge(), penalty, reference)
        assert merged.certificate.objective == pytest.approx(least, abs=1e-9)
        # In weights of single features: the norm of their sums.
        w = prepared.factor * merged.weights[prepared.one]
        assert w[3] == w[4] == w[6]

        def value(w, penalty=penalty):
            sums = np.bincount(prepared.one, w, 11)
            size = objective(by_hand * 0, 3, SquaredHinge(), penalty, np.delete(sums, [4, 6]))
            return SquaredHinge().mean(x @ w) + size - 0.5

        assert value(w) == pytest.approx(least, abs=1e-9)
        if lambda2 == 0.0:
            # The l1 norm of a sum is that of its parts: nothing has changed.
            single = whole.minimize(whole.penalty(lambda1, 0.0), accuracy=EXACT)
            assert single.certificate.objective == pytest.approx(least, abs=1e-9)


@pytest.mark.parametrize("learner", [BatchLearning(Oscar(0.0, 1.0), fraction=0.3), ONLINE])
def test_the_tuner_takes_them(learner, tmp_path):
    learning = PreparedLearning(learner.regularizer, learner, "rms", True)
    _, told = run_of(Data(3).rounds(learning=learning, rounds=2))
    for other, same in ((learning, True), (learner, False)):
        _, again = run_of(Data(3).rounds(learning=other, rounds=2))
        assert (again.weights == told.weights) == same
    groups, packed = told.groups[-1]
    assert groups.factor is not None and (groups.factor != 1.0).any()
    features = Vocabulary([f"f {j}" for j in range(groups.group.size)])
    save_groups(tmp_path / "groups.tsv", groups, packed, features)
    found, values = read_groups(tmp_path / "groups.tsv", features, groups.n_dense)
    assert np.array_equal(found.factor, groups.factor) and np.array_equal(values, packed)
    assert np.array_equal(found.group, groups.group)
    text = (tmp_path / "groups.tsv").read_text()
    assert text.startswith("group\tweight\tsize\tfactor\tfeature\n")

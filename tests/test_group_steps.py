"""Groups learnt by steps: Algorithm 2 of Liu et al. (2013), and on shards, by definition."""

import dataclasses
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from minimizer_reference import rows_of
from optim_reference import oscar_prox

from torchtune_smt.core.errors import DivergenceError, InputError
from torchtune_smt.regularizers import Oscar
from torchtune_smt.tuners.grouping.base import Problem
from torchtune_smt.tuners.grouping.groups import FeatureGroups
from torchtune_smt.tuners.grouping.steps import GroupLearning, MixedLearning

SEED = (1, 1)
POWERS = {"1/t": 1.0, "inv_sqrt": 0.5, "constant": 0.0}


def algorithm2(x, start, n_dense, learning, order, d=None):
    w = start.copy()
    oscar, power = learning.regularizer, POWERS[learning.schedule]
    d = d or w.size - n_dense
    for t, row in enumerate(order, 1):
        if x[row] @ w < 1:
            w += learning.lr / t**power * x[row]
        c = learning.lr / (t + 1) ** power
        w[n_dense:] = oscar_prox(w[n_dense:], c * oscar.lambda1, c * oscar.lambda2, d)
    return w


def instance(seed, n_pairs, n_dense, n_sparse):
    random = np.random.default_rng(seed)
    x = random.integers(-1, 2, (n_pairs, n_dense + n_sparse)) * 1.0
    x[:, :n_dense] = random.normal(size=(n_pairs, n_dense))
    start = np.where(random.random(n_dense + n_sparse) < 0.5, random.normal(size=x.shape[1]), 0)
    return x, start


DRAWN = {
    "seed": st.integers(0, 10**6),
    "n_dense": st.integers(0, 2),
    "n_sparse": st.integers(1, 7),
    "lambda1": st.sampled_from([0.0, 0.01, 0.1]),
    "lambda2": st.sampled_from([0.0, 0.003, 0.05]),
    "schedule": st.sampled_from(list(POWERS)),
}


@settings(max_examples=60)
@given(
    **DRAWN, n_pairs=st.integers(1, 6), extra=st.none() | st.integers(0, 5), counts=st.booleans()
)
def test_weights_and_groups(
    seed, n_pairs, n_dense, n_sparse, lambda1, lambda2, schedule, extra, counts
):
    x, start = instance(seed, n_pairs, n_dense, n_sparse)
    if not counts:
        x *= np.random.default_rng(seed).uniform(0.5, 1.5, x.shape)
    before = start.copy()
    oscar = Oscar(lambda1, lambda2, None if extra is None else n_sparse + extra)
    # No margin of counts is 1 with such steps, where the hinge jumps and rounding would decide.
    learning = GroupLearning(oscar, lr=0.4873, schedule=schedule, passes=4)
    found = learning.learnt(Problem(rows_of(x), start, n_dense, (seed,)), 2, "")
    order = np.random.default_rng((seed, 2)).integers(n_pairs, size=4 * n_pairs)
    expected = algorithm2(x, start, n_dense, learning, order, oscar.dimension)
    assert np.allclose(found.weights, expected, rtol=0, atol=1e-9)
    assert (found.steps, found.dimension) == (4 * n_pairs, oscar.dimension or n_sparse)
    assert np.array_equal(start, before)
    check_groups(FeatureGroups.of(found.blocks, n_dense).group, expected, n_dense, counts)


def check_groups(group, weights, n_dense, may_touch):
    """A group is the features of one weight, sign included; weights of 0 have none.

    With counts as values two groups may come to touch at the very last step, or one come to 0:
    whether they are one, or none, is then decided by rounding.
    """
    assert group[:n_dense].tolist() == list(range(n_dense))
    for i in range(n_dense, weights.size):
        if group[i] < 0:
            assert abs(weights[i]) < 1e-12
        else:
            assert abs(weights[i]) > 1e-12 or may_touch
        for j in range(n_dense, i):
            if group[i] >= 0 and group[j] >= 0:
                difference = abs(weights[i] - weights[j])
                assert difference < 1e-9 or group[i] != group[j]
                assert difference > 1e-9 or group[i] == group[j] or may_touch


def test_the_loss_is_that_of_the_last_pass(monkeypatch):
    monkeypatch.setattr("torchtune_smt.tuners.grouping.steps.CHUNK", 7)
    x, start = instance(4, 10, 1, 5)
    calls = []
    learning = GroupLearning(Oscar(1e-3, 1e-3), passes=3)
    show = lambda *work: calls.append(work)  # noqa: E731
    found = learning.learnt(Problem(rows_of(x), start, 1, (), show), 4, "steps")
    assert calls == [("steps", done, 30, "step") for done in (7, 14, 21, 28, 30)]
    draw = np.random.default_rng(4)
    order = np.concatenate([draw.integers(10, size=min(7, 30 - b)) for b in range(0, 30, 7)])
    losses = []
    for t in range(30):
        w = algorithm2(x, start, 1, learning, order[:t])
        losses.append(max(0, 1 - x[order[t]] @ w))
    assert found.loss == pytest.approx(np.mean(losses[20:]), abs=1e-9)


def by_definition(x, start, n_dense, learning, d, seed, shards):
    """Every shard has a weight vector of its own, of all features."""
    w, oscar, power = start.copy(), learning.regularizer, POWERS[learning.schedule]
    for done in range(learning.passes):
        ends, lengths = [], []
        for number, rows in enumerate(shards):
            own, n = w.copy(), len(rows)
            etas = learning.lr / np.arange(done * n + 1, (done + 1) * n + 1) ** power
            order = np.random.default_rng((*seed, done, number)).integers(n, size=n)
            for eta, row in zip(etas, order, strict=True):
                if x[rows[row]] @ own < 1:
                    own += eta * x[rows[row]]
            ends.append(own)
            lengths.append(etas.sum())
        w, step = np.mean(ends, axis=0), np.mean(lengths)
        w[n_dense:] = oscar_prox(w[n_dense:], step * oscar.lambda1, step * oscar.lambda2, d)
    return w


@settings(max_examples=60, deadline=None)
@given(**DRAWN, n_pairs=st.integers(1, 20), shards=st.integers(1, 5), passes=st.integers(1, 3))
def test_weights_are_those_of_the_definition(
    seed, n_pairs, n_dense, n_sparse, shards, passes, lambda1, lambda2, schedule
):
    x, start = instance(seed, n_pairs, n_dense, n_sparse)
    # No margin is 1, where the hinge jumps and rounding would decide.
    x *= np.random.default_rng(seed).uniform(0.5, 1.5, x.shape)
    d = n_sparse + 2
    learning = MixedLearning(Oscar(lambda1, lambda2, d), 0.7, schedule, passes, shards)
    found = learning.learnt(Problem(rows_of(x), start, n_dense, SEED), 2, "")
    order = np.random.default_rng((*SEED, 5)).permutation(n_pairs)
    rows = [np.sort(part) for part in np.array_split(order, min(shards, n_pairs))]
    expected = by_definition(x, start, n_dense, learning, d, (*SEED, 2), rows)
    assert np.allclose(found.weights, expected, rtol=1e-10, atol=1e-12)
    # Groups are weights of one value.
    inside = found.blocks >= 0
    assert np.array_equal(inside, (found.weights != 0) & (np.arange(x.shape[1]) >= n_dense))
    both = np.stack([found.weights, found.blocks])[:, inside]
    for one in both:
        assert np.unique(both, axis=1).shape[1] == np.unique(one).size


def test_it_does_not_matter_where_shards_are_computed():
    x, start = instance(3, 50, 2, 30)
    options = MixedLearning(Oscar(1e-3, 1e-4, 40), shards=4, passes=3)

    def elsewhere(tasks):
        return (pickle.loads(pickle.dumps(task)).take() for task in list(tasks))

    found = [
        dataclasses.replace(options, compute=compute).learn(Problem(rows_of(x), start, 2, SEED))
        for compute in (options.compute, elsewhere)
    ]
    assert np.array_equal(found[0].blocks, found[1].blocks)
    assert found[0].numbers == found[1].numbers
    assert found[0].text == "150 steps on 4 shards, twice,"


@pytest.mark.parametrize("kind", [GroupLearning, MixedLearning])
def test_bad_input(kind):
    x, start = instance(6, 4, 1, 5)

    def learn(learner, x, start=start):
        return learner.learn(Problem(rows_of(x), start, 1, SEED))

    with pytest.raises(InputError, match="no list has a pair of hypotheses to learn from"):
        learn(kind(Oscar()), x[:0])
    with pytest.raises(InputError, match="dimension=4 is smaller than the number of sparse .*, 5"):
        learn(kind(Oscar(0.0, 0.1, dimension=4)), np.ones((3, 6)))
    with pytest.raises(DivergenceError, match="the margin of pair"):
        learn(kind(Oscar()), 1e300 * x, np.full(6, 1e300))

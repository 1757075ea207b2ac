"""Groups learnt on shards of the pairs, against all steps on all coordinates."""

import dataclasses
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from optim_reference import oscar_prox
from test_learn_groups import POWERS, instance, pair_rows

from torchtune_smt.core.errors import DivergenceError, InputError
from torchtune_smt.core.rows import Rows
from torchtune_smt.minimizer import Minimizer, SmoothedHinge
from torchtune_smt.regularizers import Oscar
from torchtune_smt.tuners.grouping.steps import MixedLearning, cut, learn_mixed, one_step

SEED = (1, 1)


def show(*work):
    """Nothing."""


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
@given(
    seed=st.integers(0, 10**6),
    n_pairs=st.integers(1, 20),
    n_dense=st.integers(0, 2),
    n_sparse=st.integers(1, 7),
    shards=st.integers(1, 5),
    passes=st.integers(1, 3),
    lambda1=st.sampled_from([0.0, 0.01]),
    lambda2=st.sampled_from([0.0, 0.003, 0.05]),
    schedule=st.sampled_from(list(POWERS)),
)
def test_weights_are_those_of_the_definition(
    seed, n_pairs, n_dense, n_sparse, shards, passes, lambda1, lambda2, schedule
):
    x, start = instance(seed, n_pairs, n_dense, n_sparse)
    # No margin is 1, where the hinge jumps and rounding would decide.
    x *= np.random.default_rng(seed).uniform(0.5, 1.5, x.shape)
    d = n_sparse + 2
    learning = MixedLearning(Oscar(lambda1, lambda2, d), 0.7, schedule, passes, shards)
    parts = cut(pair_rows(x), shards, (*SEED, 5))
    found = learn_mixed(parts, start, n_dense, learning, (*SEED, 2))
    order = np.random.default_rng((*SEED, 5)).permutation(n_pairs)
    rows = [np.sort(part) for part in np.array_split(order, min(shards, n_pairs))]
    expected = by_definition(x, start, n_dense, learning, d, (*SEED, 2), rows)
    assert np.allclose(found.weights, expected, rtol=1e-10, atol=1e-12)
    # Groups are weights of one value.
    sparse = found.blocks[n_dense:] >= 0
    assert np.array_equal(sparse, found.weights[n_dense:] != 0)
    assert (found.blocks[:n_dense] == -1).all()
    for block in np.unique(found.blocks[found.blocks >= 0]):
        assert np.unique(found.weights[found.blocks == block]).size == 1
    assert (
        np.unique(found.weights[found.blocks >= 0]).size
        == np.unique(found.blocks[found.blocks >= 0]).size
    )


def test_it_does_not_matter_where_shards_are_computed():
    x, start = instance(3, 50, 2, 30)
    options = MixedLearning(Oscar(1e-3, 1e-4, 40), shards=4, passes=3)

    def elsewhere(tasks):
        return (pickle.loads(pickle.dumps(task)).take() for task in list(tasks))

    found = [
        dataclasses.replace(options, compute=compute).learn(pair_rows(x), start, 2, SEED, show)
        for compute in (options.compute, elsewhere)
    ]
    assert np.array_equal(found[0].blocks, found[1].blocks)
    assert found[0].numbers == found[1].numbers
    assert found[0].numbers["oscar/shards"] == 4
    assert found[0].text == "150 steps on 4 shards, twice,"


def noise(pairs):
    draw = np.random.default_rng(0)
    feature = np.array([draw.choice(5000, 5, replace=False) for _ in range(pairs)])
    value = draw.choice([-1.0, 1.0], feature.shape)
    begin = np.arange(0, feature.size + 1, 5)
    return Rows(begin, feature.astype(np.int32).ravel(), value.ravel()).sorted()


def test_in_noise_it_finds_nothing():
    """Where a step of OSCAR after each pair leaves those of the last ones."""
    pairs = noise(20_000)
    found = MixedLearning(Oscar(1e-10, 3e-8, 10**6)).learn(pairs, np.zeros(5000), 0, SEED, show)
    assert (found.blocks == -1).all()
    weak = MixedLearning(Oscar(1e-10, 3e-11, 10**6)).learn(pairs, np.zeros(5000), 0, SEED, show)
    assert (weak.blocks >= 0).any()


def test_it_goes_towards_the_minimum():
    draw = np.random.default_rng(2)
    w = np.repeat([1.0, -0.6, 0.0], [8, 8, 24])
    x = (draw.random((4_000, w.size)) < 0.2) * draw.choice([-1.0, 1.0], (4_000, w.size))
    x *= np.where(x @ w + 0.1 * draw.normal(size=len(x)) < 0, -1.0, 1.0)[:, None]
    pairs, oscar = pair_rows(x), Oscar(0.0, 1e-3, w.size)
    minimizer = Minimizer(pairs, 0, SmoothedHinge())
    least = minimizer.minimize(minimizer.penalty(0.0, 1e-3, w.size))
    above = []
    for passes in (1, 5, 25):
        learning = MixedLearning(oscar, 10.0, passes=passes)
        found = learning.learn(pairs, np.zeros(w.size), 0, SEED, show)
        above.append(found.numbers["diagnosis/objective"] - least.certificate.objective)
    assert above[0] > above[1] > above[2] > 0
    assert above[2] < 0.05 * least.certificate.objective
    # What means nothing has no weight, and what means something has one.
    assert np.array_equal(found.blocks >= 0, w != 0)
    assert found.numbers["diagnosis/overlap_features"] == 1.0


def test_bad_options_and_pairs():
    for name, value in [("shards", 0), ("passes", 0), ("lr", 0), ("lr", 1e999)]:
        with pytest.raises(ValueError, match=f"{name} must be"):
            MixedLearning(Oscar(), **{name: value})
    with pytest.raises(ValueError, match="schedule must be one of"):
        MixedLearning(Oscar(), schedule="t")
    with pytest.raises(InputError, match="has a pair of hypotheses"):
        MixedLearning(Oscar()).learn(pair_rows(np.zeros((0, 2))), np.zeros(2), 0, SEED, show)
    x, start = instance(0, 5, 1, 6)
    with pytest.raises(InputError, match=r"regularizer.dimension=2 is smaller"):
        MixedLearning(Oscar(dimension=2)).learn(pair_rows(x), start, 1, SEED, show)
    with pytest.raises(DivergenceError, match="the margin of pair"):
        MixedLearning(Oscar()).learn(pair_rows(x * 1e300), start, 1, SEED, show)


def test_the_smallest_task_takes_a_step_on_its_pair():
    weights, loss = one_step().take()
    assert weights.tolist() == [1.0]
    assert loss == 1.0

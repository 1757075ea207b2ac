"""Algorithm 2 of Liu et al. (2013), against its steps with a solver of quadratic programs."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize, nnls

from torchtune_smt.core.errors import DivergenceError, InputError
from torchtune_smt.core.rows import Rows
from torchtune_smt.regularizers import Oscar
from torchtune_smt.tuners.grouping.groups import FeatureGroups
from torchtune_smt.tuners.grouping.steps import GroupLearning, learn_groups

POWERS = {"1/t": 1.0, "inv_sqrt": 0.5, "constant": 0.0}


def pair_rows(x):
    """Pairs given as a matrix."""
    rows, columns = np.nonzero(x)
    begin = np.append(0, np.cumsum(np.bincount(rows, minlength=len(x)))).astype(np.int64)
    return Rows(begin, columns.astype(np.int32), x[rows, columns])


def prox_by_definition(a, c, lambda1, lambda2, d):
    """argmin ½‖v - a‖² + c Ω(v) as a quadratic program with a variable for each maximum.

    Variables u = |v| and m_ij >= u_i, u_j for each pair; zeros beyond a count in d.
    """
    n = a.size
    pairs = [(i, j) for i in range(n) for j in range(i)]

    def split(x):
        return x[:n], x[n:]

    def value(x):
        u, m = split(x)
        penalty = (lambda1 + lambda2 * (d - n)) * u.sum() + lambda2 * m.sum()
        return 0.5 * ((u - np.abs(a)) ** 2).sum() + c * penalty

    def slope(x):
        u, m = split(x)
        ones = np.full(n, c * (lambda1 + lambda2 * (d - n)))
        return np.concatenate([u - np.abs(a) + ones, np.full(m.size, c * lambda2)])

    rows = []
    for p, (i, j) in enumerate(pairs):
        for k in (i, j):
            row = np.zeros(n + len(pairs))
            row[n + p], row[k] = 1.0, -1.0
            rows.append(row)
    start = np.concatenate([np.abs(a), [max(abs(a[i]), abs(a[j])) for i, j in pairs]])
    constraint = {"type": "ineq", "fun": lambda x: np.array(rows) @ x, "jac": lambda x: rows}
    found = minimize(
        value,
        start,
        jac=slope,
        bounds=[(0, None)] * start.size,
        constraints=[constraint] if rows else [],
        options={"ftol": 1e-15, "maxiter": 1000},
    )
    return np.sign(a) * split(found.x)[0]


def prox(a, c, lambda1, lambda2, d):
    """The same with |a| in descending order, where v descends, too: non-negative least squares.

    u_i = y_i + y_{i+1} + ..., y >= 0; the solver's active set has exact zeros, so that pooled
    weights are exactly equal.
    """
    order = np.argsort(-np.abs(a), kind="stable")
    z = np.abs(a)[order] - c * (lambda1 + lambda2 * (d - 1 - np.arange(a.size)))
    steps, _ = nnls(np.triu(np.ones((a.size, a.size))), z)
    result = np.zeros(a.size)
    result[order] = np.cumsum(steps[::-1])[::-1]
    return np.sign(a) * result


def algorithm2(x, start, n_dense, learning, order, d=None, solve=prox):
    """Every step on all coordinates."""
    w = start.copy()
    oscar, power = learning.regularizer, POWERS[learning.schedule]
    d = d or w.size - n_dense
    for t, row in enumerate(order, 1):
        if x[row] @ w < 1:
            w += learning.lr / t**power * x[row]
        c = learning.lr / (t + 1) ** power
        w[n_dense:] = solve(w[n_dense:], c, oscar.lambda1, oscar.lambda2, d)
    return w


def instance(seed, n_pairs, n_dense, n_sparse):
    """Pairs with counts of sparse features and real values of dense ones, and first weights."""
    random = np.random.default_rng(seed)
    x = random.integers(-1, 2, (n_pairs, n_dense + n_sparse)) * 1.0
    x[:, :n_dense] = random.normal(size=(n_pairs, n_dense))
    start = np.where(random.random(n_dense + n_sparse) < 0.5, random.normal(size=x.shape[1]), 0)
    return x, start


@settings(max_examples=60)
@given(
    seed=st.integers(0, 10**6),
    n_pairs=st.integers(1, 6),
    n_dense=st.integers(0, 2),
    n_sparse=st.integers(1, 7),
    lambda1=st.sampled_from([0.0, 0.01, 0.1]),
    lambda2=st.sampled_from([0.0, 0.003, 0.05]),
    schedule=st.sampled_from(list(POWERS)),
    extra=st.none() | st.integers(0, 5),
    counts=st.booleans(),
)
def test_weights_and_groups(
    seed, n_pairs, n_dense, n_sparse, lambda1, lambda2, schedule, extra, counts
):
    x, start = instance(seed, n_pairs, n_dense, n_sparse)
    if not counts:
        x *= np.random.default_rng(seed).uniform(0.5, 1.5, x.shape)
    oscar = Oscar(lambda1, lambda2, None if extra is None else n_sparse + extra)
    # No margin of counts is 1 with such steps, where the hinge jumps and rounding would decide.
    learning = GroupLearning(oscar, lr=0.4873, schedule=schedule, passes=4)
    found = learn_groups(pair_rows(x), start, n_dense, learning, (seed, 2))
    order = np.random.default_rng((seed, 2)).integers(n_pairs, size=4 * n_pairs)
    expected = algorithm2(x, start, n_dense, learning, order, oscar.dimension)
    assert np.allclose(found.weights, expected, rtol=0, atol=1e-9)
    assert (found.steps, found.dimension) == (4 * n_pairs, oscar.dimension or n_sparse)
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


@pytest.mark.parametrize("seed", range(4))
def test_the_solvers_of_the_test_agree(seed):
    x, start = instance(seed, 3, 1, 4)
    learning = GroupLearning(Oscar(0.02, 0.06), passes=2)
    order = np.random.default_rng(seed).integers(3, size=6)
    one = algorithm2(x, start, 1, learning, order)
    other = algorithm2(x, start, 1, learning, order, solve=prox_by_definition)
    assert np.allclose(one, other, rtol=0, atol=1e-6)
    found = learn_groups(pair_rows(x), start, 1, learning, (seed,))
    assert np.allclose(found.weights, other, rtol=0, atol=1e-6)


def test_weights_are_pooled_at_all():
    """Two features that occur together, and a third one, end in one group."""
    x = np.array([[1.0, 1, 1, 0], [0, 0, 0, -1]])
    learning = GroupLearning(Oscar(0.001, 0.01), passes=3)
    found = learn_groups(pair_rows(x), np.zeros(4), 0, learning, (0,))
    groups = FeatureGroups.of(found.blocks, 0)
    assert groups.group.tolist()[:3] == [groups.group[0]] * 3
    assert groups.group[3] not in (-1, groups.group[0])


def test_without_lambda_each_distinct_weight_is_a_group():
    x, start = instance(1, 5, 1, 6)
    learning = GroupLearning(Oscar(0.0, 0.0))
    found = learn_groups(pair_rows(x), start, 1, learning, (1,))
    order = np.random.default_rng(1).integers(5, size=100)
    expected = algorithm2(x, start, 1, learning, order, solve=lambda a, *_: a)
    assert np.allclose(found.weights, expected, rtol=0, atol=1e-12)
    groups = FeatureGroups.of(found.blocks, 1)
    assert groups.n_sparse == np.unique(found.weights[1:]).size


def test_large_lambdas_leave_nothing():
    x, start = instance(2, 5, 2, 6)
    found = learn_groups(pair_rows(x), start, 2, GroupLearning(Oscar(1e3, 1e3)), (0,))
    assert (found.blocks == -1).all()
    assert (found.weights[2:] == 0).all()
    # Dense features are not regularised.
    assert (found.weights[:2] != 0).all()


def test_copies_of_pairs_are_pairs_of_their_own():
    x, start = instance(3, 4, 1, 5)
    twice = np.concatenate([x, x])
    learning = GroupLearning(Oscar(0.01, 0.01), passes=2)
    found = learn_groups(pair_rows(twice), start, 1, learning, (5,))
    order = np.random.default_rng(5).integers(8, size=16)
    assert found.steps == 16
    assert np.allclose(found.weights, algorithm2(twice, start, 1, learning, order), atol=1e-9)


def test_the_loss_is_that_of_the_last_pass(monkeypatch):
    monkeypatch.setattr("torchtune_smt.tuners.grouping.steps.CHUNK", 7)
    x, start = instance(4, 10, 1, 5)
    calls = []
    learning = GroupLearning(Oscar(1e-3, 1e-3), passes=3)
    found = learn_groups(
        pair_rows(x), start, 1, learning, (4,), lambda done, steps: calls.append((done, steps))
    )
    assert calls == [(7, 30), (14, 30), (21, 30), (28, 30), (30, 30)]
    draw = np.random.default_rng(4)
    order = np.concatenate([draw.integers(10, size=min(7, 30 - b)) for b in range(0, 30, 7)])
    losses = []
    for t in range(30):
        w = algorithm2(x, start, 1, learning, order[:t])
        losses.append(max(0, 1 - x[order[t]] @ w))
    assert found.loss == pytest.approx(np.mean(losses[20:]), abs=1e-9)


def test_first_weights_stay_as_they_were():
    x, start = instance(5, 4, 1, 5)
    before = start.copy()
    learn_groups(pair_rows(x), start, 1, GroupLearning(Oscar(0.01, 0.01)), (0,))
    assert np.array_equal(start, before)


def test_bad_input():
    x, start = instance(6, 4, 1, 5)
    with pytest.raises(InputError, match="no list has a pair of hypotheses to learn from"):
        learn_groups(pair_rows(x[:0]), start, 1, GroupLearning(Oscar()), (0,))
    small = GroupLearning(Oscar(0.0, 0.1, dimension=4))
    with pytest.raises(InputError, match="dimension=4 is smaller than the number of sparse .*, 5"):
        learn_groups(pair_rows(np.ones((3, 6))), start, 1, small, (0,))
    with pytest.raises(DivergenceError):
        learn_groups(pair_rows(x), np.full(6, np.inf), 1, GroupLearning(Oscar()), (0,))
    with pytest.raises(ValueError, match="lr must be finite and above 0"):
        GroupLearning(Oscar(), lr=0.0)
    with pytest.raises(ValueError, match="schedule must be one of"):
        GroupLearning(Oscar(), schedule="t")
    with pytest.raises(ValueError, match="passes must be at least 1, not 0"):
        GroupLearning(Oscar(), passes=0)

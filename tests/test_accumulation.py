"""Accumulated k-best lists against dictionaries."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchtune_smt.accumulation import FlatLists, PairRows
from torchtune_smt.kbest import KBest
from torchtune_smt.pairs import AllPairs, ProSampler
from torchtune_smt.scoring import SparseRows

D = 8


def kbest_of(index, hypotheses):
    """Return a list of hypotheses (words, {feature: value}, gain)."""
    k = len(hypotheses)
    rows = [sorted(features.items()) for _, features, _ in hypotheses]
    return KBest(
        index=index,
        token_begin=np.cumsum([0, *(len(words) for words, _, _ in hypotheses)]).astype(np.int64),
        tokens=np.array([w for words, _, _ in hypotheses for w in words], np.int32),
        row_begin=np.cumsum([0, *map(len, rows)]).astype(np.int64),
        feature=np.array([f for row in rows for f, _ in row], np.int64),
        value=np.array([v for row in rows for _, v in row], np.float64),
        score=np.zeros(k),
        gain=np.array([gain for _, _, gain in hypotheses], np.float64),
    )


values = st.sampled_from([-2.0, -0.5, 0.25, 1.0, 1.0, 2.0, 3.0, 1 / 3, 300.0, 1e9])
hypotheses = st.tuples(
    st.lists(st.integers(0, 3), max_size=3),
    st.dictionaries(st.integers(0, D - 1), values, max_size=5),
    st.sampled_from([0.0, 0.125, 1 / 3, 0.5, 1.0]),
)
lists = st.lists(hypotheses, min_size=1, max_size=6)
sets = st.dictionaries(st.integers(0, 9), lists, max_size=4)
weights = st.lists(st.integers(-4, 4), min_size=D, max_size=D).map(lambda w: np.array(w, float))


def kbests_of(chosen):
    return [kbest_of(index, chosen[index]) for index in sorted(chosen)]


@given(sets, weights)
def test_scores_and_best(chosen, w):
    flat = FlatLists.of_kbests(kbests_of(chosen), D)
    scores = [
        [sum(v * w[f] for f, v in sorted(features.items())) for _, features, _ in chosen[i]]
        for i in sorted(chosen)
    ]
    assert flat.scores(w).tolist() == [s for part in scores for s in part]
    firsts = flat.list_begin[:-1].tolist()
    expected = [b + part.index(max(part)) for b, part in zip(firsts, scores, strict=True)]
    assert flat.best(w).tolist() == expected
    assert flat.sentence.tolist() == sorted(chosen)
    assert not flat.has_statistics


@given(sets, st.lists(st.integers(-1, 2), min_size=D, max_size=D))
def test_projected(chosen, rename):
    flat = FlatLists.of_kbests(kbests_of(chosen), D)
    short = flat.projected(np.array(rename), 3)
    matrix = np.zeros((D, 3))
    for old, new in enumerate(rename):
        if new >= 0:
            matrix[old, new] = 1
    np.testing.assert_allclose(
        short.dense_matrix(3), flat.dense_matrix(D) @ matrix, rtol=1e-11, atol=1e-2 * 1e-9
    )
    assert (short.value != 0).all()
    for row in range(short.n_hypotheses):
        ids = short.feature[short.row_begin[row] : short.row_begin[row + 1]]
        assert (np.diff(ids) > 0).all()


def test_projection_leaves_out_what_cancels():
    flat = FlatLists.of_kbests([kbest_of(0, [([0], {0: 0.1, 1: 0.2, 2: -0.3}, 0.0)])], 3)
    assert flat.projected(np.zeros(3, np.int64), 1).value.size == 0


@given(sets)
def test_lists_come_out_as_they_went_in(chosen):
    kbests = kbests_of(chosen)
    flat = FlatLists.of_kbests(kbests, D)
    for s, kbest in enumerate(kbests):
        again = flat.kbest(s)
        for name in ("index", "row_begin", "feature", "value", "gain"):
            assert np.array_equal(getattr(again, name), getattr(kbest, name))
        assert again.feature.dtype == np.int64
        assert again.tokens.tolist() == list(range(len(kbest)))


@given(sets, st.integers(0, 3))
@pytest.mark.parametrize("sampler", [AllPairs(), ProSampler(candidates=20, pairs=3, threshold=0.1)])
def test_pair_rows(sampler, chosen, seed):
    # Words that tell hypotheses apart, as those of flat lists do.
    chosen = {i: [([h], f, g) for h, (_, f, g) in enumerate(c)] for i, c in chosen.items()}
    kbests = kbests_of(chosen)
    rows = FlatLists.of_kbests(kbests, D).pair_rows(sampler, (7, seed))
    pairs = [sampler.sample(kbest, (7, seed, kbest.index)) for kbest in kbests]
    expected = SparseRows.differences(kbests, pairs)
    assert len(rows) == len(expected)
    assert rows.row_begin.tolist() == expected.row_begin.tolist()
    assert rows.feature.tolist() == expected.feature[expected.column].tolist()
    assert rows.value.tolist() == expected.value.tolist()
    assert isinstance(rows, PairRows) and rows.feature.dtype == np.int32


def test_statistics_stay_with_their_hypotheses():
    kbests = kbests_of({0: [([1], {0: 1.0}, 0.5)] * 2, 3: [([1], {}, 0.0)]})
    statistics = [np.arange(20).reshape(2, 10), np.arange(20, 30).reshape(1, 10)]
    flat = FlatLists.of_kbests(kbests, D, statistics)
    assert flat.has_statistics and flat.statistics.dtype == np.int32
    assert flat.statistics.ravel().tolist() == list(range(30))


def test_lists_out_of_order_and_without_gains():
    kbests = kbests_of({0: [([1], {}, 0.0)], 1: [([1], {}, 0.0)]})
    with pytest.raises(ValueError, match="ascending order"):
        FlatLists.of_kbests(kbests[::-1], D)
    kbests[1].gain = None
    with pytest.raises(ValueError, match="let a metric set `gain` first"):
        FlatLists.of_kbests(kbests, D)


def test_weights_of_another_length():
    flat = FlatLists.of_kbests([], D)
    assert len(flat) == flat.n_hypotheses == 0
    with pytest.raises(ValueError, match="7 weights were given for 8 features"):
        flat.scores(np.zeros(7))

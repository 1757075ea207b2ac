"""Exact search for a few weights against dense grids and brute force."""

from itertools import combinations, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchtune_smt.core.errors import InputError
from torchtune_smt.kbest.order import sorted_by
from torchtune_smt.tuners.lines import Candidates, search

seeds = st.integers(0, 10**6)
SCORES = {
    "errors": lambda sums: -sums[..., 0] / sums[..., 1],
    "f1": lambda sums: 2 * sums[..., 0] / np.maximum(sums[..., 1] + sums[..., 2], 1),
}


def made(seed, d, *, lists=12, whole=False, score="errors"):
    """Return random lists; features that are whole numbers make many ties."""
    generator = np.random.default_rng(seed)
    begin = np.cumsum([0, *generator.integers(1, 7, lists)])
    features = generator.standard_normal((d, begin[-1]))
    if whole:
        features = generator.integers(-2, 3, (d, begin[-1])).astype(float)
    statistics = generator.integers(0, 5, (begin[-1], 3))
    statistics[:, 1] = 7
    return Candidates(begin, features, statistics, SCORES[score]), generator


def brute(candidates, weights):
    """The score of the best hypotheses, list by list; of ties the first."""
    # No matrix product: its sums of equal columns may differ.
    scores = (weights[:, None] * candidates.features).sum(axis=0)
    chosen = [a + scores[a:b].argmax() for a, b in pairwise(candidates.begin)]
    return candidates.score(candidates.statistics[chosen].sum(axis=0))


@given(seeds, st.integers(1, 4), st.sampled_from(sorted(SCORES)))
def test_a_curve_is_the_score_everywhere_on_the_line(seed, d, score):
    candidates, generator = made(seed, d, score=score)
    point, direction = generator.standard_normal((2, d))
    curve = candidates.along(point, direction)
    assert curve.bound.size == curve.score.size + 1
    assert (np.diff(curve.bound) >= 0).all()
    inner = np.clip(curve.bound, -1e3, 1e3)
    for left, right, found in zip(inner, inner[1:], curve.score, strict=False):
        if right - left > 1e-6:
            middle = (left + right) / 2
            assert found == pytest.approx(brute(candidates, point + middle * direction))


@given(seeds, st.booleans(), st.sampled_from(sorted(SCORES)))
def test_of_two_features_the_best_there_is(seed, whole, score):
    """Between each two neighbouring directions at which some order changes."""
    candidates, generator = made(seed, 2, whole=whole, score=score)
    turns = [0.0]
    for a, b in pairwise(candidates.begin):
        for one, other in combinations(candidates.features[:, a:b].T, 2):
            across = -np.arctan2(*(one - other))
            turns += [across, across + np.pi]
    turns = np.unique(np.mod(turns, 2 * np.pi))
    between = np.append(turns[1:], turns[0] + 2 * np.pi) / 2 + turns / 2
    best = max(brute(candidates, np.array([np.cos(t), np.sin(t)])) for t in between)
    start = generator.standard_normal(2)
    found = search(candidates, [start])
    assert brute(candidates, found) == pytest.approx(best)
    assert np.abs(found).sum() == pytest.approx(np.abs(start).sum())


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("d", [3, 4])
@pytest.mark.parametrize("seed", range(10))
def test_of_more_features_hardly_any_point_of_a_grid_is_better(seed, d, whole):
    """Lists of noise have many peaks: the highest may be missed, but hardly ever the high ones."""
    candidates, generator = made(seed, d, whole=whole, lists=30)
    grid = generator.standard_normal((1000, d))
    scores = [brute(candidates, weights) for weights in grid]
    found = brute(candidates, search(candidates, [grid[0]]))
    assert found >= max(np.quantile(scores, 0.99), scores[0])


def test_planted_weights_are_found_and_the_middle_of_their_plateau():
    """No list has an error under the planted weights: few directions are as good."""
    candidates, _ = made(3, 3, lists=300)
    planted = np.array([0.5, -0.2, 0.3])
    scores, begin = planted @ candidates.features, candidates.begin
    best = [a + scores[a:b].argmax() for a, b in pairwise(begin)]
    candidates.statistics[:, 0] = 1
    candidates.statistics[best, 0] = 0
    found = search(candidates, [np.array([1.0, 0.0, 0.0])])
    assert brute(candidates, found) == 0
    assert found / np.abs(found).sum() == pytest.approx(planted, abs=0.02)
    for direction in np.eye(3):
        low, high = candidates.along(found, direction).around(0.0, 0.0)
        # In the middle: neither end is near.
        assert 0.1 < -low / (high - low) < 0.9


def test_a_feature_without_differences_keeps_its_weight_and_none_may_be_infinite():
    candidates, _ = made(1, 3)
    candidates.features[1] = 4.0
    assert search(candidates, [np.array([1.0, 0.25, 0.0])])[1] == 0.25
    candidates.features[1, 3] = np.inf
    with pytest.raises(InputError, match="finite"):
        search(candidates, [np.ones(3)])


@given(seeds)
def test_what_lists_were_sorted_by_is_recovered(seed):
    candidates, generator = made(seed, 3, lists=20)
    weights, begin = generator.standard_normal(3), candidates.begin
    # Each list may have something of its own, as a normaliser.
    own = np.repeat(generator.standard_normal(20), np.diff(begin))
    score = (weights @ candidates.features + own).round(4)
    found, share = sorted_by(begin, candidates.features, score)
    assert found == pytest.approx(weights, abs=2e-3)
    assert share == pytest.approx(1.0, abs=1e-6)
    # What has nothing to do with the features is not explained by them.
    _, share = sorted_by(begin, candidates.features, generator.standard_normal(score.size))
    assert share < 0.7

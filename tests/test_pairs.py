"""Pair samplers against slow references."""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_lists import listed

from torchtune_smt.samplers import AllPairs, Multipartite, ProSampler

MASK = 2**64 - 1
GAMMA = 0x9E3779B97F4A7C15


def kbest_of(gains, strings=None, index=0):
    """A k-best list that has gains and tokens only; all strings differ unless given."""
    strings = [[h] for h in range(len(gains))] if strings is None else strings
    return listed(index, [{}] * len(gains), gains, strings)


def mix(x):
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def stream(seed):
    """Yield the 64-bit random numbers of a seed."""
    key = 0
    for part in seed:
        key = mix((key + GAMMA + part) & MASK)
    counter = 1
    while True:
        yield mix((key + GAMMA * counter) & MASK)
        counter += 1


def reference_sample(kbest, seed, candidates, threshold, pairs, distinct):
    k = len(kbest)
    bits = stream(seed)
    drawn = []
    if distinct:
        numbered = [(i, j) for i in range(k) for j in range(i)]
        for t in range(min(candidates, len(numbered))):
            place = t + int((next(bits) >> 11) * 2.0**-53 * (len(numbered) - t))
            numbered[t], numbered[place] = numbered[place], numbered[t]
            drawn.append(numbered[t])
    else:
        for _ in range(candidates if k else 0):
            x = next(bits)
            drawn.append((((x & 0xFFFFFFFF) * k) >> 32, ((x >> 32) * k) >> 32))
    kept = []
    for i, j in drawn:
        if kbest.gain[i] < kbest.gain[j]:
            i, j = j, i
        gap = kbest.gain[i] - kbest.gain[j]
        if gap > 0 and gap >= threshold and list(kbest.hypothesis(i)) != list(kbest.hypothesis(j)):
            kept.append((gap, i, j))
    kept.sort(key=lambda entry: -entry[0])
    return [(i, j) for _, i, j in kept[:pairs]]


@given(
    gains=st.lists(st.sampled_from([0.0, 0.1, 0.12, 0.2, 0.5, 0.9]), max_size=12),
    data=st.data(),
    seed=st.tuples(st.integers(0, 2**40), st.integers(0, 30), st.integers(0, 10**6)),
    candidates=st.integers(1, 60),
    threshold=st.sampled_from([0.0, 0.05, 0.1, 0.3]),
    pairs=st.integers(1, 20),
    distinct=st.booleans(),
)
def test_pro_equals_its_slow_reference(gains, data, seed, candidates, threshold, pairs, distinct):
    word = st.lists(st.integers(0, 1), max_size=2)
    strings = data.draw(st.lists(word, min_size=len(gains), max_size=len(gains)))
    kbest = kbest_of(gains, strings)
    sample = ProSampler(candidates, threshold, pairs, distinct).sample(kbest, seed)
    assert sample.dtype == np.int64 and sample.shape[1:] == (2,)
    expected = reference_sample(kbest, seed, candidates, threshold, pairs, distinct)
    assert [tuple(pair) for pair in sample] == expected


def test_draws_are_uniform():
    """Chi-square of the drawn pairs, over all that have a difference."""
    kbest = kbest_of(np.arange(10) / 10)
    for distinct in (False, True):
        counts = np.zeros((10, 10))
        sampler = ProSampler(candidates=20, threshold=0, pairs=20, distinct=distinct)
        for sentence in range(2000):
            for better, worse in sampler.sample(kbest, (1, 0, sentence)):
                counts[better, worse] += 1
        cells = counts[np.tril_indices(10, -1)]
        expected = cells.sum() / 45
        assert counts.sum() == cells.sum()
        assert ((cells - expected) ** 2 / expected).sum() < 85  # p = 3e-4 at 44 degrees


def reference_ranked(kbest, levels, threshold):
    """Pairs of hypotheses of different levels, where ``levels[p]`` is that of place p."""
    places = sorted(range(len(kbest)), key=lambda h: -kbest.gain[h])
    return [
        (i, j)
        for p, i in enumerate(places)
        for q, j in enumerate(places)
        if p < q and levels[p] != levels[q]
        if kbest.gain[i] != kbest.gain[j] and kbest.gain[i] - kbest.gain[j] >= threshold
        if list(kbest.hypothesis(i)) != list(kbest.hypothesis(j))
    ]


def multipartite_levels(n, percent=10):
    level = min(int(np.ceil(Fraction(n * percent, 100))), n // 2)
    middle = n - 2 * level
    return ["hi"] * level + ["mid"] * middle + ["low"] * level if n >= 3 else ["mid"] * n


lists = st.integers(0, 25).flatmap(
    lambda n: st.tuples(
        st.lists(st.sampled_from([-0.5, 0, 0.1, 0.12, 0.5]), min_size=n, max_size=n),
        st.lists(st.lists(st.integers(0, 1), max_size=3), min_size=n, max_size=n),
    )
)


@given(lists, st.sampled_from([0.0, 0.05, 0.3]), st.sampled_from([1, 10, 33, 50]))
def test_ranked_samplers_equal_their_slow_references(case, threshold, percent):
    kbest = kbest_of(*case)
    sample = AllPairs(threshold).sample(kbest, (0, 0, 0))
    assert sample.dtype == np.int64 and sample.shape[1:] == (2,)
    assert [tuple(p) for p in sample] == reference_ranked(kbest, range(len(kbest)), threshold)
    sample = Multipartite(percent, threshold).sample(kbest, (0, 0, 0))
    levels = multipartite_levels(len(kbest), percent)
    assert sample.dtype == np.int64 and sample.shape[1:] == (2,)
    assert [tuple(p) for p in sample] == reference_ranked(kbest, levels, threshold)


@pytest.mark.parametrize("sampler", [ProSampler(), AllPairs(), Multipartite()])
def test_bad_gains_are_named(sampler):
    with pytest.raises(ValueError, match="sentence 7: each of 3 hypotheses needs a gain"):
        sampler.sample(kbest_of([0.1, 0.2, np.nan], index=7), (0, 0, 0))
    with pytest.raises(ValueError, match="sentence 7: each of 1 hypotheses needs a gain"):
        sampler.sample(replace(kbest_of([0.1], index=7), gain=None), (0, 0, 0))


def test_seeds_that_kernels_cannot_take_are_refused():
    kbest = kbest_of([0.1, 0.9, 0.5])
    assert len(ProSampler().sample(kbest, (2**63 - 1, 0)))
    with pytest.raises(ValueError, match=f"seeds must be below 2\\^63, not {2**63}"):
        ProSampler().sample(kbest, (2**63, 0))

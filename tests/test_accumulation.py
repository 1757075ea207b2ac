"""Accumulated k-best lists against dictionaries."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_lists import listed

from torchtune_smt.core.errors import InputError
from torchtune_smt.core.rows import Rows
from torchtune_smt.kbest.lists import KBestLists
from torchtune_smt.kbest.segment import Segment
from torchtune_smt.kbest.store import ListStore
from torchtune_smt.samplers import AllPairs, ProSampler, pair_rows

D = 8


def assert_equal(rows, others):
    for name in ("begin", "feature", "value"):
        assert np.array_equal(getattr(rows, name), getattr(others, name))


def kbest_of(index, hypotheses):
    """Return a list of hypotheses (words, {feature: value}, gain)."""
    words, rows, gains = zip(*hypotheses, strict=True)
    return listed(index, rows, gains, words)


def lists_of(chosen):
    return KBestLists.of([kbest_of(index, hypotheses) for index, hypotheses in chosen])


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
def test_the_best_are_the_first_of_the_highest(chosen, w):
    flat = KBestLists.of(kbests_of(chosen))
    scores = flat.rows.dot(w).tolist()
    expected = [b + scores[b:e].index(max(scores[b:e])) for b, e in pairwise(flat.begin.tolist())]
    assert flat.best(w).tolist() == expected
    assert flat.index.tolist() == sorted(chosen) and flat.statistics is None


@given(sets, st.lists(st.integers(-1, 2), min_size=D, max_size=D))
def test_projected(chosen, rename):
    rows = KBestLists.of(kbests_of(chosen)).rows
    short = rows.projected(np.array(rename), 3)
    matrix = np.zeros((D, 3))
    for old, new in enumerate(rename):
        if new >= 0:
            matrix[old, new] = 1
    np.testing.assert_allclose(short.dense(3), rows.dense(D) @ matrix, rtol=1e-11, atol=1e-2 * 1e-9)
    assert (short.value != 0).all()
    short.check(3)


def test_projection_leaves_out_what_cancels():
    rows = kbest_of(0, [([0], {0: 0.1, 1: 0.2, 2: -0.3}, 0.0)]).rows
    assert rows.projected(np.zeros(3, np.int64), 1).value.size == 0


@given(sets, st.integers(0, 3))
@pytest.mark.parametrize("sampler", [AllPairs(), ProSampler(candidates=20, pairs=3, threshold=0.1)])
def test_pair_rows(sampler, chosen, seed):
    kbests = kbests_of(chosen)
    rows = pair_rows(KBestLists.of(kbests), sampler, (7, seed))
    pairs = [sampler.sample(kbest, (7, seed, kbest.index)) for kbest in kbests]
    parts = zip(kbests, pairs, strict=True)
    expected = Rows.joined([kbest.rows.differences(some) for kbest, some in parts])
    assert_equal(rows, expected)
    assert isinstance(rows, Rows) and rows.feature.dtype == np.int32


def test_lists_without_gains():
    kbests = kbests_of({0: [([1], {}, 0.0)], 1: [([1], {}, 0.0)]})
    without = [replace(kbest, gain=None) for kbest in kbests]
    with pytest.raises(ValueError, match="some lists have gain, and some have none"):
        KBestLists.of([kbests[0], without[1]])
    with pytest.raises(ValueError, match="let a metric set `gain` first"):
        ListStore().add(KBestLists.of(without))


def test_a_zero_has_no_sign():
    store = ListStore()
    for value in (0.0, -0.0, 1e-300, -1e-300):
        store.add(lists_of([(3, [([1], {0: value}, 0.5)])]))
    assert store.end_iteration() == 1


class Reference:
    """Accumulation with dictionaries."""

    def __init__(self, unique):
        self.unique = unique
        self.seen = {}
        self.iterations = []

    def key(self, words, features):
        if self.unique == "string":
            return tuple(words)
        # As duplicates are told by.
        return tuple(words), tuple(sorted((f, float(np.float32(v))) for f, v in features.items()))

    def add(self, chosen):
        new = []
        for index, hypotheses in chosen:
            for words, features, gain in hypotheses:
                key = (index, self.key(words, features))
                if key not in self.seen:
                    self.seen[key] = len(self.iterations)
                    new.append((index, features, gain))
        self.iterations.append(new)
        return len(new)

    def truncate(self, iterations):
        del self.iterations[iterations:]
        self.seen = {k: i for k, i in self.seen.items() if i < iterations}

    def check(self, lists, n_dense):
        everything = [h for new in self.iterations for h in new]
        everything.sort(key=lambda h: h[0])
        assert lists.n_hypotheses == len(everything)
        assert lists.n_iterations == len(self.iterations)
        flat = lists.lists()
        flat.check()
        owner = np.repeat(flat.index, np.diff(flat.begin)).tolist()
        assert owner == [index for index, _, _ in everything]
        assert flat.gain.tolist() == [gain for _, _, gain in everything]
        rows = [
            dict(zip(*(part.tolist() for part in flat.row(h)), strict=True))
            for h in range(flat.n_hypotheses)
        ]
        assert rows == [features for _, features, _ in everything]
        sampler = ProSampler(candidates=20, pairs=3, threshold=0.1)
        ours, theirs = (pair_rows(x, sampler, (1, 2)) for x in (lists, flat))
        assert_equal(ours, theirs)


batches = st.lists(st.tuples(st.integers(0, 5), lists), max_size=4)


@given(
    st.lists(batches, min_size=1, max_size=4),
    st.sampled_from(["derivation", "string"]),
    st.sampled_from([0, 3]),
    st.booleans(),
    st.integers(0, 4),
)
def test_accumulation(tmp_path_factory, iterations, unique, n_dense, files, kept):
    folder = tmp_path_factory.mktemp("lists") if files else None
    lists = ListStore(n_dense=n_dense, unique=unique, folder=folder)
    reference = Reference(unique)
    for chosen in iterations:
        added = lists.add(lists_of(chosen))
        assert lists.end_iteration() == added == reference.add(chosen)
        reference.check(lists, n_dense)
    if folder is not None:
        lists = ListStore.open(folder, unique=unique, n_dense=n_dense)
        reference.check(lists, n_dense)
    kept = min(kept, len(iterations))
    lists.add(lists_of([(0, [([9], {}, 0.0)])]))  # an iteration that never ends
    lists.truncate(kept)
    reference.truncate(kept)
    reference.check(lists, n_dense)
    for chosen in iterations[kept:]:
        lists.add(lists_of(chosen))
        assert lists.end_iteration() == reference.add(chosen)
    reference.check(lists, n_dense)


def test_statistics_are_kept():
    lists, rows = ListStore(n_dense=1), np.arange(30, dtype=np.int32).reshape(3, 10)
    one = kbest_of(4, [([1], {0: 1.0}, 0.5), ([2], {0: 1.0}, 0.5)])
    kbests = [
        replace(one, statistics=rows[:2]),
        replace(kbest_of(2, [([1], {}, 0.0)]), statistics=rows[2:]),
    ]
    for expected in (3, 0):
        assert lists.add(KBestLists.of(kbests)) == expected
        lists.end_iteration()
    assert lists.lists().statistics.tolist() == rows[[2, 0, 1]].tolist()
    lists.add(lists_of([(2, [([5], {}, 0.0)])]))
    with pytest.raises(ValueError, match="for all lists, or for none"):
        lists.end_iteration()


def test_small_numbers_take_little_room():
    lists = ListStore(n_dense=2)
    rows = {0: 3.0, 1: -0.1} | dict.fromkeys(range(2, 12), 1.0)
    lists.add(lists_of((s, [([h], rows, 0.1 * h) for h in range(100)]) for s in range(20)))
    lists.end_iteration()
    # hash, gain, length; two dense values; ids and counts of ten sparse features
    expected = 8 + 8 + 1 + (1 + 8) + 10 * (4 + 1)
    assert expected <= lists.nbytes / lists.n_hypotheses <= expected + 1


def test_a_new_run_forgets_the_lists_of_an_earlier_one(tmp_path):
    for _ in range(2):
        lists = ListStore(folder=tmp_path, n_dense=1)
        lists.add(lists_of([(0, [([1], {0: 1.0, 3: 1.0}, 0.5)])]))
        assert lists.end_iteration() == 1
    assert ListStore.open(tmp_path, n_dense=1).n_iterations == 1


def test_lists_of_another_run_or_iteration(tmp_path):
    def fill(folder, value):
        lists = ListStore(folder=folder, n_dense=1)
        for sentence in range(2):
            lists.add(KBestLists.of([kbest_of(sentence, [([1], {0: value, 3: 1.0}, 0.5)])]))
            lists.end_iteration()
        return lists.state_dict()

    state = fill(tmp_path / "one", 1.0)
    fill(tmp_path / "two", 2.0)
    ListStore.open(tmp_path / "one", n_dense=1).load_state_dict(state)
    with pytest.raises(ValueError, match="the lists are not those of this run"):
        ListStore.open(tmp_path / "two", n_dense=1).load_state_dict(state)
    one, two = (tmp_path / "one" / f"iteration-000{i}" for i in (1, 2))
    two.write_bytes(one.read_bytes())
    with pytest.raises(InputError, match="iteration-0002: is not of iteration 2; start the run"):
        ListStore.open(tmp_path / "one", n_dense=1)


WRONG = {"list_begin": 97, "sparse_begin": 97, "sentence": -9, "feature": -9}


@pytest.mark.parametrize("name", WRONG)
def test_impossible_files(tmp_path, name):
    """The checksum is right."""
    lists = ListStore(folder=tmp_path, n_dense=1)
    rows = [([1], {0: 1.0, 3: 0.1}, 0.1), ([2], {0: 0.5, 4: 0.3}, 0.3)]
    lists.add(KBestLists.of([kbest_of(s, rows) for s in range(2)]))
    lists.end_iteration()
    segment, _ = Segment.open(tmp_path / "iteration-0001", 1)
    getattr(segment, name)[1] += WRONG[name]
    segment.save(tmp_path / "iteration-0001", 1)
    with pytest.raises(InputError, match="is damaged.*; start the run anew"):
        ListStore.open(tmp_path, n_dense=1)


def test_what_is_refused():
    lists = ListStore()
    with pytest.raises(ValueError, match="0 iterations"):
        lists.truncate(1)
    with pytest.raises(ValueError, match="sentence 7"):
        lists.add(lists_of([(7, [([1], {0: float("inf")}, 0.5)])]))
    lists.add(lists_of([(0, [([1], {5: 1.0}, 0.5)])]))
    lists.end_iteration()
    with pytest.raises(InputError, match="beyond the 5"):
        lists.require(5)

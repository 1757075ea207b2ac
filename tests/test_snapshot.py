"""Ids of one vocabulary in another, and weights that are only read."""

import pickle

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from torchtune_smt.core.snapshot import FrozenWeights
from torchtune_smt.core.vocabulary import FeatureMap, Vocabulary
from torchtune_smt.core.weights import Weights

names = st.lists(st.text("abcde", min_size=1, max_size=2), max_size=30)


@given(
    st.lists(st.tuples(st.sampled_from(["source", "target", "both", "add", "look"]), names)),
    st.randoms(use_true_random=False),
)
def test_a_map_says_what_looking_up_the_names_says(steps, random):
    source, target = Vocabulary(["dense", "x"]), Vocabulary(["dense"])
    mapped = FeatureMap(source, target)
    for what, new in steps:
        if what in ("source", "both"):
            source.intern(new)
        if what in ("target", "both"):
            target.intern(new)
        if what == "add":
            expected = target.copy()
            expected.intern(source.names(range(len(source))))
            mapped.add()
            assert target.names(range(len(target))) == expected.names(range(len(expected)))
        ids = np.array([random.randrange(len(source)) for _ in range(5)], np.int32)
        found = mapped.lookup(ids)
        assert found.dtype == np.int64
        assert found.tolist() == target.lookup(source.names(ids)).tolist()
        same = target.lookup(source.names(range(len(source)))).tolist() == [*range(len(source))]
        assert same or not mapped.is_identity
        if what == "add":
            assert mapped.is_identity == same


class Growing(Vocabulary):
    """Gets names whenever it is asked, as if by another thread."""

    def __init__(self, names, later):
        super().__init__(names)
        self.later = list(later)

    def _grow(self):
        if self.later:
            super().intern_spans(*Vocabulary([self.later.pop()]).spans(np.arange(1)))

    def __len__(self):
        length = super().__len__()
        self._grow()
        return length

    def spans(self, ids):
        found = super().spans(ids)
        self._grow()
        return found

    def lookup_spans(self, buffer, begin, end):
        self._grow()
        return super().lookup_spans(buffer, begin, end)


@given(names, names, names, st.lists(st.sampled_from(["add", "look", "target"])))
def test_the_source_of_a_map_may_grow_meanwhile(first, target, later, steps):
    source, target = Growing(first, later), Vocabulary(target)
    mapped = FeatureMap(source, target)
    for what in [*steps, "add"]:
        known = np.arange(Vocabulary.__len__(source))
        if what == "target":
            target.intern(["a", "b", "ab"])
        elif what == "add":
            mapped.add()
            assert (mapped.lookup(known) >= 0).all()
        found = mapped.lookup(known)
        assert found.tolist() == target.lookup(source.names(known)).tolist()


def test_what_is_taken_of_a_vocabulary_stays_as_it_is():
    names = [f"f{i}" for i in range(2000)]
    grown, taken = Vocabulary(), []
    for name in names:
        taken.append(grown.to_arrays())
        grown.intern([name])
    for size in range(0, len(names), 100):
        found = Vocabulary.from_arrays(taken[size])
        assert found.names(range(len(found))) == names[:size]
    copy = grown.copy()
    copy.intern(["only here"])
    assert copy.names(range(2001)) == [*names, "only here"]
    assert len(grown) == 2000 and "only here" not in grown


def both(given_weights):
    """The same weights in both kinds."""
    weights = Weights(["LM"])
    weights.set(list(given_weights), list(given_weights.values()))
    return weights, FrozenWeights.of(given_weights), weights.frozen()


@given(st.dictionaries(st.text("abc", min_size=1, max_size=2), st.floats(-3, 3)), names)
def test_weights_are_read_by_the_readers_ids(given_weights, more):
    mine = Vocabulary(["a", "LM", *more])
    ids = np.arange(len(mine))[::-1].astype(np.int32)
    expected = [given_weights.get(name, 0.0) for name in mine.names(ids)]
    for snapshot in both(given_weights):
        assert snapshot.read(mine, ids).tolist() == expected
        assert snapshot.read(Vocabulary(["z"]), np.array([0])).tolist() == [0.0]
        mine.intern(["later"])
        assert snapshot.read(mine, np.array([len(mine) - 1])).tolist() == [0.0]
        behind = np.array([-1, 0, len(snapshot)])
        assert snapshot.read(None, behind)[[0, 2]].tolist() == [0.0, 0.0]
        there = np.arange(len(snapshot))
        read = snapshot.read(None, there).tolist()
        named = dict(zip(snapshot.features.names(there), read, strict=True))
        assert {n: v for n, v in named.items() if v} == {
            n: v for n, v in given_weights.items() if v
        }
        assert read == snapshot.read(snapshot.features, there).tolist()
        if isinstance(snapshot, FrozenWeights):
            copy = pickle.loads(pickle.dumps(snapshot))
            assert copy.read(mine, ids).tolist() == expected


def test_weights_are_read_as_they_are_now_and_frozen_ones_as_they_were():
    weights, *_ = both({"a": 1.0})
    frozen, mine = weights.frozen(), Vocabulary(["b", "a", "later"])
    assert weights.read(mine, np.arange(3)).tolist() == [0, 1, 0]
    # Reading changes nothing.
    assert weights.features.names(range(len(weights.features))) == ["LM", "a"]
    weights.set(["a", "later"], [2.0, 3.0])
    assert weights.read(mine, np.arange(3)).tolist() == [0, 2, 3]
    assert frozen.read(mine, np.arange(3)).tolist() == [0, 1, 0]
    unnamed = Weights.without_names(np.array([1.0, 2.0, 3.0]))
    unnamed.grow()
    assert unnamed.read(None, np.array([2, 0])).tolist() == [3, 1]


def test_weights_take_names_over_in_their_order():
    weights = Weights(["LM"])
    weights.set(["b"], [1.0])
    theirs = Vocabulary(["LM", "a", "b", "c"])
    ids = weights.take(theirs)
    assert weights.features.names(range(len(weights))) == ["LM", "b", "a", "c"]
    assert ids.lookup(np.arange(4)).tolist() == [0, 2, 1, 3]
    theirs.intern(["d"])
    assert weights.take(theirs) is ids
    assert len(weights) == 5

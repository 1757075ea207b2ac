"""Sparse rows against dense matrices, and k-best lists from strings and dicts."""

import math
from dataclasses import replace
from itertools import pairwise
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchtune_smt.core.offsets import are_offsets, gather, offsets, places_of, runs
from torchtune_smt.core.rows import Rows, numbered
from torchtune_smt.core.vocabulary import Vocabulary
from torchtune_smt.kbest.formats import nbest_lines
from torchtune_smt.kbest.lists import KBestLists

D = 7
values = st.sampled_from([-2.0, -0.5, 0.25, 1.0, 3.0, 1 / 3, 1e9])
row = st.dictionaries(st.integers(0, D - 1), values, max_size=D)
some_rows = st.lists(row, max_size=6)


def rows_of(dicts):
    names = Vocabulary([str(i) for i in range(D)])
    return Rows.of_dicts([{str(f): v for f, v in row.items()} for row in dicts], names)


def dicts_of(rows):
    return [dict(zip(*map(np.ndarray.tolist, rows.row(i)), strict=True)) for i in range(len(rows))]


@given(some_rows, st.data())
def test_rows_are_what_the_dicts_say(dicts, data):
    rows = rows_of(dicts)
    rows.check(D)
    assert dicts_of(rows) == [dict(sorted(row.items())) for row in dicts]
    weights = np.array(data.draw(st.lists(st.integers(-4, 4), min_size=D, max_size=D)), float)
    first = data.draw(st.integers(0, len(dicts)))
    last = data.draw(st.integers(first, len(dicts)))
    expected = [sum(v * weights[f] for f, v in sorted(row.items())) for row in dicts[first:last]]
    assert rows.dot(weights, first, last).tolist() == expected
    assert rows.between(first, last).dot(weights).tolist() == expected
    assert dicts_of(Rows.joined([rows.between(0, first), rows.between(first, len(rows))])) == (
        dicts_of(rows)
    )
    parts = (rows.between(a, b) for a, b in [(0, first), (first, last), (last, len(rows))])
    # With arrays of all sizes on the way.
    with patch.multiple("torchtune_smt.core.rows", _SMALL=24, _LARGE=64):
        gathered = Rows.gathered(parts)
    gathered.check(D)
    assert dicts_of(gathered) == dicts_of(rows)
    chosen = data.draw(st.lists(st.sampled_from(range(len(dicts))))) if dicts else []
    some = rows.chosen(np.array(chosen, np.int64))
    some.check(D)
    assert dicts_of(some) == [dicts_of(rows)[i] for i in chosen]


@given(some_rows.filter(bool), st.data())
def test_differences(dicts, data):
    rows = rows_of(dicts)
    number = st.integers(0, len(dicts) - 1)
    pairs = np.array(data.draw(st.lists(st.tuples(number, number))), np.int64).reshape(-1, 2)
    found = rows.differences(pairs)
    found.check(D)
    dense = rows.dense(D)
    assert np.array_equal(found.dense(D), dense[pairs[:, 0]] - dense[pairs[:, 1]])
    assert (found.value != 0).all()


@given(some_rows, st.permutations(range(D)), st.sets(st.integers(0, D - 1)))
def test_other_ids(dicts, new, dropped):
    rows = rows_of(dicts)
    ids = np.array([-1 if f in dropped else new[f] for f in range(D)])
    renamed = rows.renamed(ids)
    renamed.check(D)
    assert dicts_of(renamed) == [
        dict(sorted((ids[f], v) for f, v in row.items() if ids[f] >= 0)) for row in dicts
    ]
    feature, own = rows.numbered()
    own.check(feature.size)
    assert feature.tolist() == sorted({f for row in dicts for f in row})
    assert feature[own.feature].tolist() == rows.feature.tolist()


@pytest.mark.parametrize(("size", "largest"), [(0, 1), (9, 5), (60_000, 10**9), (500_000, 400_000)])
def test_numbers_as_numpy_has_them(size, largest):
    ids = np.random.default_rng(size).integers(-largest, largest, size)
    distinct, place = np.unique(ids, return_inverse=True)
    assert all(map(np.array_equal, numbered(ids), (distinct, place)))


@given(st.lists(st.lists(st.integers()), max_size=5), st.data())
def test_pieces(pieces, data):
    begin = offsets([len(piece) for piece in pieces])
    items = np.array([x for piece in pieces for x in piece], object)
    assert are_offsets(begin, items.size)
    chosen = data.draw(st.lists(st.sampled_from(range(len(pieces))))) if pieces else []
    out, places = places_of(begin, np.array(chosen, np.int64))
    assert [items[places[a:b]].tolist() for a, b in pairwise(out)] == [pieces[i] for i in chosen]
    with patch("torchtune_smt.core.offsets._PIECES", 2):
        begin, items = gather(begin, items, np.array(chosen, np.int64))
    assert begin.tolist() == out.tolist()
    assert [items[a:b].tolist() for a, b in pairwise(begin)] == [pieces[i] for i in chosen]


@given(st.lists(st.integers(-3, 3)))
def test_runs_of_equal_numbers(numbers):
    owner, begin = runs(np.array(numbers, np.int64))
    assert np.repeat(owner, np.diff(begin)).tolist() == numbers
    assert (np.diff(owner) != 0).all()


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("begin", np.array([1, 3]), "ascend from 0"),
        ("feature", np.array([1, 1, 0], np.int32), "must ascend within a row"),
        ("feature", np.array([-1, 1, 0], np.int32), "at least 0"),
        ("feature", np.array([0, 5, 0], np.int32), "below 5"),
        ("feature", np.array([0, 1, 0]), "int64, int32 and float64"),
        ("value", np.ones(2), "3 features have 2 values"),
        ("value", np.array([1, np.nan, 1]), "not finite"),
    ],
)
def test_bad_rows(name, value, message):
    good = Rows(np.array([0, 2, 3]), np.array([0, 1, 0], np.int32), np.ones(3))
    good.check(5)
    with pytest.raises(ValueError, match=message):
        replace(good, **{name: value}).check(5)


word = st.sampled_from("abc")
hypothesis = st.tuples(
    st.lists(word, max_size=3).map(" ".join),
    st.dictionaries(st.sampled_from(["f", "g", "h"]), st.sampled_from([0.5, -1.0, 2.0])),
    st.floats(0, 1),
)
hypotheses = st.lists(hypothesis, min_size=1, max_size=4)


def plain(lists):
    """The texts, features, gains and entries of each list, by its number."""
    return {
        kbest.index: [
            (kbest.text(h), kbest.features.named(*kbest.row(h)), kbest.gain[h], kbest.entry[h])
            for h in range(len(kbest))
        ]
        for kbest in lists
    }


@given(st.lists(hypotheses, max_size=4), st.data())
def test_lists_of_strings(chosen, data):
    columns = [[[h[i] for h in one] for one in chosen] for i in range(3)]
    index = data.draw(st.permutations(range(len(chosen))))
    lists = KBestLists.of_strings(*columns[:2], gains=columns[2], index=index)
    expected = {
        number: [(*hypothesis, h) for h, hypothesis in enumerate(one)]
        for number, one in zip(index, chosen, strict=True)
    }
    assert plain(lists) == expected and lists.n_hypotheses == sum(map(len, chosen))
    again = KBestLists.of(list(lists))
    again.check()
    assert again.best(np.arange(3.0)).tolist() == lists.best(np.arange(3.0)).tolist()
    order = np.array(data.draw(st.permutations(range(len(chosen)))), np.int64)
    some = lists.some(order)
    some.check()
    assert plain(some) == expected and some.index.tolist() == [index[n] for n in order]
    last = lists.chosen(lists.begin[1:][order] - 1)
    assert plain(last) == {index[n]: expected[index[n]][-1:] for n in order}
    parts = KBestLists.joined([lists.some(order[:1]), lists.some(order[1:])])
    assert parts.index.tolist() == some.index.tolist() and plain(parts) == expected


@given(st.lists(hypotheses, max_size=4))
def test_copies(chosen):
    columns = [[[h[i] for h in one] for one in chosen] for i in range(2)]
    lists = KBestLists.of_strings(*columns).without_copies()
    lists.check()
    for kbest, one in zip(lists, chosen, strict=True):
        first = {}
        for h, (text, row, _) in enumerate(one):
            first.setdefault((text, tuple(sorted(row.items()))), h)
        assert kbest.entry.tolist() == list(first.values())


@given(
    st.lists(
        st.tuples(
            st.dictionaries(st.sampled_from(["f", "a=b", "100%", "id:x"]), st.floats(-1e9, 1e9)),
            st.floats(-1e9, 1e9),
        ),
        min_size=1,
        max_size=5,
    ),
    st.lists(st.sampled_from(["id:x", "f", "100%", "unknown"]), unique=True),
)
def test_lines_are_those_that_are_written_one_value_at_a_time(hypotheses, dense):
    rows, scores = zip(*hypotheses, strict=True)
    (kbest,) = KBestLists.of_strings([["x y"] * len(rows)], [list(rows)], scores=[list(scores)])
    lines = []
    for h, score in enumerate(scores):
        ids, values = kbest.row(h)
        named = dict.fromkeys(dense, 0.0)
        named |= zip(kbest.features.names(ids), values.tolist(), strict=True)
        row = " ".join(f"{name}={value:.10g}" for name, value in named.items())
        lines.append(f"0 ||| x {h} ||| {row} ||| {score:.10g}\n")
    assert list(nbest_lines(kbest, [f"x {h}" for h in range(len(rows))], dense)) == lines


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"hypotheses": [["a"], []]}, "list 1 is empty"),
        ({"hypotheses": ["abc"]}, "list 0: hypotheses must be a sequence of strings"),
        ({"hypotheses": [["a"]], "features": []}, "list 0: hypotheses and features must"),
        ({"hypotheses": [["a"]], "scores": [[math.inf]]}, "a score is not finite"),
        ({"hypotheses": [["a"]], "features": [[{"f": math.nan}]]}, "row 0: f is .* no finite num"),
        ({"hypotheses": [["a"]], "features": [[{3: 1.0}]]}, "row 0: 3 is no name of a feature"),
        ({"hypotheses": [["a"], ["b"]], "index": [3, 3]}, "two lists are of one sentence"),
    ],
)
def test_bad_lists(arguments, message):
    with pytest.raises(ValueError, match=message):
        KBestLists.of_strings(**arguments)

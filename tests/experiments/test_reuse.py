"""Active and reused features against counts made with sets."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from reuse import Reuse, count_reuse, firing_features
from small_lists import listed

from torchtune_smt.kbest.lists import KBest

Row = dict[int, float]

rows = st.dictionaries(st.integers(0, 11), st.sampled_from([0.0, 1.0, -2.5, 3.0]), max_size=5)
lists = st.lists(st.lists(rows, max_size=4), max_size=4)


def kbest(index: int, hypotheses: list[Row]) -> KBest:
    return listed(index, hypotheses, tokens=[[0]] * len(hypotheses))


def fires(hypotheses: list[list[Row]]) -> set[int]:
    return {f for rows in hypotheses for row in rows for f, value in row.items() if value}


@given(
    lists,
    st.lists(
        st.tuples(st.sampled_from([0.0, 0.5, -1.0]), st.integers(-1, 3)), min_size=1, max_size=14
    ),
)
def test_counts(hypotheses, entries):
    weights = np.array([weight for weight, _ in entries])
    group = np.array([g for _, g in entries])
    fired = firing_features(kbest(i, rows) for i, rows in enumerate(hypotheses))
    active = [f for f, (weight, _) in enumerate(entries) if weight]
    again = [f for f in active if f in fires(hypotheses)]
    assert count_reuse(weights, fired) == Reuse(len(active), len(again))

    def names(features):
        return {int(group[f]) if group[f] >= 0 else f"alone {f}" for f in features}

    assert count_reuse(weights, fired, group) == Reuse(len(names(active)), len(names(again)))

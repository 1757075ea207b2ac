"""Sorting digit by digit, against numpy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchtune_smt.core.sorting_kernels import ascending, largest_first, number

KEYS = st.lists(
    st.one_of(st.integers(0, 5), st.integers(0, 2**63 - 1), st.sampled_from([2**11, 2**62, 2**55]))
)


@given(KEYS)
def test_whole_numbers(keys: list[int]) -> None:
    key = np.array(keys, np.int64)
    assert ascending(key).tolist() == np.argsort(key, kind="stable").tolist()
    distinct, inverse = number(key)
    expected, of = np.unique(key, return_inverse=True)
    assert distinct.tolist() == expected.tolist()
    assert inverse.tolist() == of.tolist()
    assert key.tolist() == keys


@pytest.mark.parametrize("most", [3, 200])
def test_largest_of_each_piece_first(most: int) -> None:
    rng = np.random.default_rng(most)
    begin = np.concatenate([[0], np.cumsum(rng.integers(0, most, 50))])
    value = rng.integers(0, 4, begin[-1]).astype(float)
    piece = np.repeat(np.arange(50), np.diff(begin))
    expected = np.lexsort((np.arange(value.size), -value, piece))
    assert largest_first(begin, value).tolist() == expected.tolist()

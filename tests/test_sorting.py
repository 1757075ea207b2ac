"""Sorting digit by digit, against numpy."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchtune_smt.core.sorting_kernels import largest_first, number
from torchtune_smt.regularizers.sort_kernels import sort_by_size

KEYS = st.lists(
    st.one_of(st.integers(0, 5), st.integers(0, 2**63 - 1), st.sampled_from([2**11, 2**62, 2**55]))
)


@given(KEYS)
def test_whole_numbers(keys):
    distinct, inverse = number(np.array(keys, np.int64))
    expected, of = np.unique(np.array(keys, np.int64), return_inverse=True)
    assert distinct.tolist() == expected.tolist()
    assert inverse.tolist() == of.tolist()


@pytest.mark.parametrize("most", [3, 200])
def test_largest_of_each_piece_first(most):
    rng = np.random.default_rng(most)
    begin = np.concatenate([[0], np.cumsum(rng.integers(0, most, 50))])
    value = rng.integers(0, 4, begin[-1]).astype(float)
    piece = np.repeat(np.arange(50), np.diff(begin))
    expected = np.lexsort((np.arange(value.size), -value, piece))
    assert largest_first(begin, value).tolist() == expected.tolist()


# --- the proximal operator's, by size ---

numbers = st.one_of(st.sampled_from([0.0, -0.0, 1.0, -1.0, 5e-324, 1.7e308]), st.floats())


def check(value):
    """Assert what is said of the order, where NaN are larger than all others."""
    order, size = np.empty(value.size, np.int64), np.empty(value.size)
    sort_by_size(value, order, size)
    expected = np.where(np.isnan(value), np.inf, np.abs(value))
    last = np.lexsort((np.arange(value.size), ~np.isnan(value), -expected))
    if np.isnan(value).sum() < 2:
        assert np.array_equal(order, last)
    assert np.array_equal(size, np.abs(value)[order], equal_nan=True)
    assert np.array_equal(expected[order], expected[last])


@given(st.lists(numbers, max_size=60).map(lambda values: np.array(values, np.float64)))
def test_places_are_in_descending_order(value):
    check(value)


@pytest.mark.parametrize("n", [10, 50_000])
def test_normal_numbers_and_many_ties(n):
    draw = np.random.default_rng(0)
    check(draw.normal(size=n))
    check(draw.integers(-50, 51, n) / 10.0)


@pytest.mark.parametrize("width", [3, 30, 60])
def test_numbers_that_differ_in_their_last_digits_alone(width):
    """With one that is far from all others, so that the first digits tell nothing."""
    bits = np.random.default_rng(0).integers(1 << width, size=3000)
    size = (np.float64(1.0).view(np.int64) - (1 << 60) + bits).view(np.float64)
    size[5] = 1e300
    check(size)

"""The radix sort of the proximal operator against numpy's."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchtune_smt.regularizers.sort_kernels import ascending

sizes = st.one_of(st.sampled_from([0.0, 1.0, 5e-324, 1.7e308]), st.floats(0, 1.7e308))


def found(size):
    order = np.empty(size.size, np.int64)
    ascending(size, order)
    return order


@given(st.lists(sizes, max_size=60).map(lambda values: np.array(values, np.float64)))
def test_places_are_in_ascending_order(size):
    assert np.array_equal(found(size), np.argsort(size, kind="stable"))


@pytest.mark.parametrize("width", [3, 30, 60])
def test_numbers_that_differ_in_their_last_digits_alone(width):
    """With one that is far from all others, so that the first digits tell nothing."""
    bits = np.random.default_rng(0).integers(1 << width, size=3000)
    size = (np.float64(1.0).view(np.int64) - (1 << 60) + bits).view(np.float64)
    size[5] = 1e300
    assert np.array_equal(found(size), np.argsort(size, kind="stable"))

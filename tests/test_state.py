"""Trees of numbers, strings and tensors: what is packed is unpacked, and nothing else."""

import json
import math
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from torchtune_smt.core.archive import real, whole
from torchtune_smt.core.state import packed, unpacked, vector

TENSORS = st.sampled_from(
    [
        torch.arange(3),
        torch.ones(2, 2, dtype=torch.float64),
        torch.zeros(0, dtype=torch.int32),
        torch.tensor([True, False]),
        torch.tensor(2.5),
        torch.tensor([0.0] * 9 + [-0.0] * 9 + [2.5] * 9, dtype=torch.float64),
        torch.tensor([3] * 20, dtype=torch.int32),
        torch.zeros(20, dtype=torch.bool),
    ]
)
PLAIN = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
TREES = st.recursive(
    PLAIN | TENSORS,
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers(-5, 5), inner),
)


def assert_equal(found, expected):
    assert type(found) is type(expected)
    if torch.is_tensor(expected):
        assert found.dtype == expected.dtype and torch.equal(found, expected)
    elif isinstance(expected, dict):
        assert list(found) == list(expected)
        for key, value in expected.items():
            assert_equal(found[key], value)
    elif isinstance(expected, list):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert_equal(one, other)
    else:
        assert found == expected or (math.isnan(found) and math.isnan(expected))


@given(TREES, st.sampled_from([0, 20, 100]))
def test_what_is_packed_is_unpacked(tree, longest):
    text, arrays = packed(tree, longest)
    assert_equal(unpacked(json.loads(json.dumps(text)), arrays), tree)


@given(st.lists(st.sampled_from([0.0, -0.0, 1.5, math.nan]), max_size=9), st.integers(1, 40))
def test_runs_are_the_same_bits(numbers, times):
    whole = torch.tensor(numbers, dtype=torch.float64).repeat_interleave(times)
    text, arrays = packed(whole, 360)
    found = unpacked(text, arrays)
    assert found.numpy().tobytes() == whole.numpy().tobytes()
    most = min(whole.numel() * 8, len(numbers) * 16)
    assert sum(array.nbytes for array in arrays.values()) <= most
    longer = packed(whole, whole.numel() - 1)
    assert longer[0] == {"tensor": ""} and unpacked(*longer).numel() == whole.numel()


def test_sequences_and_numbers_of_numpy():
    found = unpacked(*packed((np.float64(2.5), np.int64(3), ())))
    assert_equal(found, [2.5, 3, []])


def test_objects_are_not_packed():
    with pytest.raises(TypeError, match="a set cannot be saved, as a/0"):
        packed({"a": [{1}]})
    with pytest.raises(TypeError, match="a float cannot be a key"):
        packed({1.5: 1})


def test_what_is_damaged():
    ones = torch.ones(3).double()
    of_three = partial(vector, dtype=torch.float64, longest=3)
    for check, good, bad in (
        (partial(whole, least=0, most=10), 3, [-1, 11, 2.0, True, None, "3"]),
        (real, 3.0, [math.nan, math.inf, True, None, "3"]),
        (of_three, ones, [None, ones.float(), ones[:, None], ones.repeat(2), ones * math.inf]),
    ):
        assert check(good) is good
        for value in bad:
            with pytest.raises(ValueError, match="damaged"):
                check(value)
